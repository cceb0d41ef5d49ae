"""What the rules of all classes share: tables, and patterns with a name."""

from __future__ import annotations

from tts_worker.text.reading import roman
from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.rules import Grammar

_DEFINITIONS = r"""
AMOUNT = (?:\d{1,3}(?:,\d{3}){1,6}(?!\d)(?:\.\d{1,12})?
    |[1-9]\d?(?:,\d\d){1,5},\d{3}(?!\d)|\d{1,3}(?:\.\d{3}){1,6},\d{1,4}
    |\d{1,12}[.,]\d{1,12}|\d{1,12}(?:,-)?|\.\d{1,12})
HOSTS = (?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,5}
TOP_LEVEL = (?:com|org|net|io|ai|dev|app|edu|gov|info|biz|tv|xyz|cloud|tech|shop|store|online|site|ly|gg|fm|sh|co|uk|us
    |de|fr|eu|nl|ca|au|ch|jp|nz|ie|za|se|pl|me|it|es|in|br|COM|ORG|NET|IO|AI|DEV|APP)
FILE = (?:py|js|jsx|ts|tsx|md|txt|pdf|json|csv|html|css|xml|yaml|yml|toml|zip|png|jpg|jpeg|gif|mp[34]|wav|doc|docx|xls
    |xlsx|ppt|pptx|exe|cpp|sql|log|ini|gz|tar|tgz|env|rs|go|java|rb|sh|bat|conf|lock|svg|webp|mov|mkv|flac|ogg
    |onnx|pt)
CODE_WORD = (?:<code pin otp passcode passkey password zip>|CODE|PIN|OTP|ZIP)
ORDER_WORD = (?:<order claim confirmation tracking account invoice ticket reference case booking reservation customer>
    |<acct membership policy serial routing card parcel transaction>)\.?
NUMBERED = (?:number|no\.?|ID|id|code|reference|PNR|RMA|SKU|PO)
IS = (?: is| was|:| -| =)?\s*
MAGNITUDE = (?:[ ]?(?:k|K|m|M|mm|MM|mn|b|B|bn|t|T|tn)(?![\w-])(?<!\d m)
    |[ ](?:mn|bn|tn|hundred|thousand|million|billion|trillion)(?![\w-]))
COMPOUND = (?P<compound>(?= (?:bag|bar|battery|bottle|box|break|bulb|cable|call|can|charger|dash|delay|drive|fence|file
    |filet|fillet|jack|jar|jug|lens|meeting|pack|pole|race|ride|rope|run|screen|sprint|steak|tank|pool|circuit
    |outlet|timer|walk|GPU|HDD|MacBook
    |M\d|SSD|iPad|iPhone)\b))?
LASTING = (?:<in taking takes take took wait waits waited waiting every within>(?: for)?)
ROMAN = «@ROMAN»(?<=[IVXLC])
DAY = (?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun|MON|TUES?|WED|THU(?:RS?)?|FRI|SAT|SUN)\b
AFTER_DAY = \.?(?:[,;:!?)]|$| ?[-–/] ?[A-Z]| (?:\d|after|and|at|before|between|for|from|if|in|morning|afternoon|evening
    |night|or|the|through|to|until|we|when|with|you)(?!\w))
MONTH = (?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|JAN|FEB|MAR|APR|MAY|JUNE?|JULY?|AUG|SEPT?|OCT|NOV|DEC)\b
MONTHS_WRITTEN = (?:(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?
    |Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?|JAN(?:UARY)?|FEB(?:RUARY)?|MAR(?:CH)?|APR(?:IL)?|MAY|JUNE?|JULY?
    |AUG(?:UST)?|SEPT?(?:EMBER)?|OCT(?:OBER)?|NOV(?:EMBER)?|DEC(?:EMBER)?|jan(?:uary)?|feb(?:ruary)?|march|apr(?:il)?
    |may(?=,? (?:19|20)\d\d)|mar(?=,? (?:19|20)\d\d)|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov
    (?:ember)?|dec(?:ember)?)\b\.?)
ELEMENT = (?:Na|Cl|Ca|Mg|Fe|Cu|Zn|Al|Si|Ag|Li|Mn|Ti|Pb|Br|Ba|[HCNOSPKFI])
STREET = (?:<STREETS>|Avenue|Boulevard|Circle|Court|Drive|Highway|Parkway|Place|Road|Square|Street|Terrace)
DATED = (?:<on until till due dated starting ending through scheduled available between rsvp arrives arriving expires>
    |<ships ship starts start leaves renews booked departs departing born appointment posted>
    |<effective begins ends closes opens shipped delivered delivery birthday deadline>
    |<week weeks> of|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}\b\.?,?|[A-Z][a-z]{2,5}day,?)
SHORT_WORDS_ANY = (?i:<SHORT_WORDS>)
BEFORE_WORD_ANY = (?i:<BEFORE_WORD>)
LISTED = (?:<options rooms items numbers steps questions pages chapters days levels parts lines seats gates flights>
    |<answers choices sections tables tracks grades weeks points verses aisles lots units exits years>)
ZONE = (?:[ECMP][SD]?T|UTC|GMT|BST|CET|CEST|IST|JST|AEST)\b
"""

GRAMMAR = Grammar(TABLES, _DEFINITIONS.replace("@ROMAN", roman.PATTERN))
