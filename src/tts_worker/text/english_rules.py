"""The rules of spoken English: what is spoken, and for which pattern.

``_RULES`` has a rule in each line that begins at its margin; a pattern may go on in indented lines. Two spaces separate
three parts:

- What is spoken for the part of the match in guillemets, or for all of it: words, with groups of the match as in
  ``re.Match.expand``; what a table of ``english_tables`` has for it, ``<STREETS>``; a function of
  ``english_readings``, ``@date``.
- What every match has one of: words in small letters, signs, the words of ``<STREETS>``, or as many digits as "3+"
  says. Most segments have little of it, so that few patterns are searched for.
- The pattern. In it ``<STREETS>`` is one of the names of a table or the pattern of a definition, and ``<call dial>`` is
  one of these words, which may begin with a capital.

A definition is a line ``NAME = pattern``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tts_worker.text import english_tables as tables
from tts_worker.text.english_readings import READINGS, Speak, part_span
from tts_worker.text.span_rewriting import Rewrite

_RULES = r"""
HOSTS = (?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.){1,5}
TOP_LEVEL = (?:com|org|net|io|ai|dev|app|edu|gov|info|biz|tv|xyz|cloud|tech|shop|store|online|site|ly|gg|fm|sh|co|uk|us
    |de|fr|eu|nl|ca|au|ch|jp|nz|ie|za|se|pl|COM|ORG|NET|IO|AI|DEV|APP)
FILE = (?:py|js|jsx|ts|tsx|md|txt|pdf|json|csv|html|css|xml|yaml|yml|toml|zip|png|jpg|jpeg|gif|mp[34]|wav|doc|docx|xls
    |xlsx|ppt|pptx|exe|cpp|sql|log|ini)
CODE_WORD = (?:<code pin otp passcode passkey password zip>|CODE|PIN|OTP|ZIP)
ORDER_WORD = (?:<order claim confirmation tracking account invoice ticket reference case booking reservation customer>
    |<acct membership policy serial routing card parcel transaction>)\.?
NUMBERED = (?:number|no\.?|ID|id|code|reference|PNR|RMA|SKU|PO)
IS = (?: is| was|:| -| =)?\s*
AMOUNT = \d{1,12}(?:,\d{3}){0,4}(?:\.\d{1,4})?
MAGNITUDE = (?:(?:k|K|m|M|mm|MM|mn|b|B|bn|t|T|tn)(?![\w-])
    |[ ](?:mn|bn|tn|hundred|thousand|million|billion|trillion)(?![\w-]))
COMPOUND = (?P<compound>(?= (?:bag|bar|battery|bottle|box|break|bulb|cable|call|can|charger|dash|delay|drive|fence|file
    |jar|jug|lens|meeting|pack|pole|race|ride|rope|run|screen|sprint|tank|timer|walk|GPU|HDD|MacBook|M\d|SSD|iPad
    |iPhone)\b))?
LASTING = (?:<in taking takes take took wait waits waited waiting every within>(?: for)?)
ROMAN = «X{0,3}(?:IX|IV|V?I{0,3})»(?<=[IVX])
DAY = (?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun|MON|TUES?|WED|THU(?:RS?)?|FRI|SAT|SUN)\b
AFTER_DAY = \.?(?:[,;:!?)]|$| ?[-–/] ?[A-Z]| (?:\d|after|and|at|before|between|for|from|if|in|morning|afternoon|evening
    |night|or|the|through|to|until|we|when|with|you)(?!\w))
MONTH = (?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|JAN|FEB|MAR|APR|MAY|JUNE?|JULY?|AUG|SEPT?|OCT|NOV|DEC)\b
ELEMENT = (?:Na|Cl|Ca|Mg|Fe|Cu|Zn|Al|Si|Ag|Li|Mn|Ti|Pb|Br|Ba|[HCNOSPKFI])
STREET = (?:<STREETS>|Avenue|Boulevard|Circle|Court|Drive|Highway|Parkway|Place|Road|Square|Street|Terrace)
MAY_APPLY = [\d½⅓⅔¼¾⅛⅜⅝⅞@₀-₉]|\w\.[A-Za-z]{2}|\b<DAY>|\b[Aa] [Tt]b?sp|\. [A-Z]\b| v\. |, [A-Z]{2}\b
    |[a-z] [IVX]{1,6}\b|[a-z] [#*]|<MONTH>\.? ?[-–]|M/W/F|Tu?/Th
    |\b(?:<WORDS>|(?:Apt|Bldg) [A-Z]\b|Ave|Blvd|Hwy|Pkwy|Rd|St\b|<in since until early late mid> [JFASOND][a-z]{2,3}\b)

# addresses, codes, numbers of telephones and accounts, versions
@address  @  (?<![\w.+-])(?P<email>[\w.+-]{1,64}@<HOSTS>[A-Za-z]{2,12})(?![\w@-])
@address  <TOP_LEVEL>  (?:https?://|(?<![\w.@/:-]))(?:www\.)?(?P<host><HOSTS><TOP_LEVEL>)(?![\w@-]|\.\w)
    (?P<path>(?::\d{2,5})?(?:/[\w.~%-]*\w)*/?)(?:\?[\w=&%.+-]*[\w=])?(?:\#[\w-]+)?
@bank account  8+  \b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b
@bank account  8+  (?<![\w-])[a-z]{2}\d{2}(?: ?[a-z]{4})?(?: ?\d{4}){2,7}(?: ?\d{1,3})?\b
@words  16+  (?<![\w.,/-])\d{4}(?:[ -]\d{4}){3}(?![\w%]|[.-]\d)
@words  9+  (?<![\w.,/-])\d{3}-\d{2}-\d{4}(?![\w%]|[.-]\d)
@phone  +  «\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,5}»(?![\w%])
@phone  10+  (?<![\w.,$-])«(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}»(?![\w%])
@letter phone  3+  (?<![\w.,$/-])(?P<prefix>(?:1-)?8(?:00|88|77|66|55|44|33))-
    (?P<words>(?=[A-Z\d-]*[A-Z]{3})[A-Z\d]{2,9}(?:-[A-Z\d]{2,9})?)(?![\w-])
@phone  7+  \b<call dial phone text tel fax number hotline>\b[^\d\n.!?]{0,20}
    (?<![\w-])«\d{3}[ .-]?\d{4}|\d{3,5}[ .-]\d{5,8}|\d{8,15}»(?![\w%]|[.-]\d)
@phone  9+  (?<![\w.,€£$/-])«0\d{2,4}[ -]\d{3,4}[ -]?\d{3,4}|0\d(?:[ .]\d\d){4}»(?![\w%]|[.-]\d)
@code  3+  \b<call dial>(?:ed|ing|s)? «[2-9]11|112|999|988»\b(?![.,:-]\d| (?:people|[a-z]+s)\b)
@code  3+  \b«911»(?= (?:call|operator|dispatch|emergency))
@code  5+  \b<dial text>(?:ed|ing|s)?(?: [\w\"“”]+ to)? «\d{5,6}»\b
    (?=[.;:!?]|,(?!\d)|$| (?:or|and|to|for|if|now|from)\b)
@code  <CODE_WORD>  \b<CODE_WORD>\b(?: number| code| \w+ed)?(?:,|<IS>)\s?[\"'“‘]?
    «\d{5}-\d{4}|\d{3}[ -]\d{3}|\d{4}[ -]\d{4}|\d\d-\d\d-\d\d|[A-Z]{0,2}-?\d{3,8}»\b(?![.,-]\d|%)
@code  use enter type  \b<use enter type>(?: in)? «\d{4,8}|\d{3}[ -]\d{3}»
    (?= (?:as your|to (?:sign|log|verify|confirm|continue|complete|finish|unlock|access|reset|activate))\b)
@code  <CODE_WORD> <ORDER_WORD> plate locator pnr  \b(?:<CODE_WORD>|<ORDER_WORD>|<plate locator>|PNR)
    (?: (?:number|code|reference))?<IS>«(?=[A-Z]*\d)(?=\d*[A-Z])(?![A-Z]{3,}\d+\b)[A-Z\d]{5,10}»\b(?![.-]\w)
@code  ending ends  \b(?:<card account number phone>|SSN|Visa|Mastercard|Amex)\b[^\d\n.!?]{0,20}
    \b(?:ending|ends) (?:in |with )?«\d{3,4}»\b(?![.,]\d|%)
@words  6+  \b(?:ID|<number code>)(?: is|:)? «\d{3,4}(?: \d{3,4}){1,4}»\b(?![.,]\d|%)
@code  <CODE_WORD>  \b<CODE_WORD>(?::| is:?) [\"'“‘]?«(?=[a-zA-Z]*\d)(?=\d*[a-zA-Z])[a-zA-Z\d]{4,16}»\b(?![.@-]\w)
@words  4+  \b(?=\d*[A-Z])(?=(?:[A-Z]*\d){4})[A-Z\d]{10,24}\b
@code  isbn  \bISBN(?:-1[03])?:? «\d[\d-]{8,16}[\dX]»\b
@code  5+  (?<=[a-z.,] )<ALL_STATES> «\d{5}(?:-\d{4})?»\b
@code  <CODE_WORD>  (?<![\w.,$])«\d{4,8}»\b(?= is (?:your|the|my) [^.!?\n]{0,30}<CODE_WORD>\b)
@code  <ORDER_WORD> id pnr rma sku po
    \b(?:<ORDER_WORD>(?: <NUMBERED><IS>|s?<IS>(?=#|[A-Z]|\d{5}))|(?:ID|PNR|RMA|SKU|PO)<IS>)
    «#?[A-Z]{0,4}-?\d[\dA-Z]*(?:-[\dA-Z]+){0,5}»\b(?![.,]\d|%)
@version  v  (?<![\w.,$-])(?:v|V(?=\d{1,4}\.\d))\d{1,4}(?:\.\d{1,4}){0,4}(?![\w%]|[.,]\d)
@dotted  3+  (?<![\w.,$-])\d{1,3}(?:\.\d{1,3}){2,3}(?![\w%]|[.,]\d)
dot  <FILE>  (?<![\w./@-])[\w-]{1,40}«\.»<FILE>\b(?!\.\w|[@/])

# scores, dates in digits
twenty-four seven  / -  (?<![\d/.,-])24[/-]7(?![\d/-])
out of  /  (?<![\d/.,$])\d{1,3}(?:\.\d)?« ?/ ?»100(?![\d/%]|[.,]\d)
out of  /  \b<score scored rate rated rating ratings got gave give star stars>\b[^\d\n.!?]{0,25}
    \d{1,2}(?:\.\d)?« ?/ ?»(?:5|10|20)(?![\d/])
out of  /  (?<![\d/.,$])\d\.\d«/»(?:5|10)(?![\d/]|[.,]\d)
out of  /  (?<![\d/.,$])\d«/»(?:5|10)(?= stars?\b)
fifty-fifty  / -  (?<![\d/.,-])50[/-]50(?![\d/-])
nine eleven  /  (?<![\d/.,])9/11(?![\d/]|[.,]\d)
twenty twenty  / -  (?<![\d/.,-])20[/-]20(?= vision)
@date  /  (?<![\w/.-])«(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4}|\d\d)»(?![\w/])
@date  -  (?<![\w/.-])«(?P<y>[12]\d{3})-(?P<m>\d\d)-(?P<d>\d\d)»(?![\w/]|-\d)
@date  /  \b(?:(?:<on until till due dated starting ending through>|[A-Z][a-z]{2,5}day,?)
    |<by from since before after>(?! (?:[1-7]/[2348]|\d{1,2}/16)(?!\d)))[ ]
    «(?P<m>\d{1,2})/(?P<d>\d{1,2})»(?![\d/%]|\.\d| ?(?:of|cup|inch|tea|table)|[ -]?stars?\b)
@date  /  (?<![\w/.,$])(?<!exp )(?<!exp\. )(?<!expires )«(?P<m>0\d|\d{1,2}(?=/0))/(?P<d>\d\d)»(?![\w/%])
to  - –  (?<![\w/])\d{1,2}/\d{1,2}« ?[-–] ?»(?=\d{1,2}/\d{1,2}(?![\w/]))
out of  /  (?<![\d/.,$])(?P<n>\d{1,2})«/»(?P=n)(?![\d/]|[.,]\d)
out of  /  \b(?:[Aa]n?|[Ss]olid) \d(?:\.\d)?« ?/ ?»10(?![\d/]|[.,]\d| (?:chance|of|inch|mile|second))
over  /  \b(?:BP|[Pp]ressure)\b[^\d\n.!?]{0,20}\d{2,3}« ?/ ?»(?=\d{2,3}(?!\d))
to  :  \b(?:ratio|odds)(?: (?:of|is|was|are|at|about))?:? \d{1,3}«:»(?=\d{1,3}(?![\d:]))
to  :  (?<![\d:.,])\d{1,3}«:»(?=\d{1,3} (?:ratio|odds|mix|split|scale)\b)
of  /  \b<page pages step part slide chapter lesson question> \d{1,3}« ?/ ?»\d{1,4}(?![\d/])

# fractions, hours, rates
and  /  (?<![\d/.,])\d{1,2}« »(?=(?:1/[2348]|2/3|3/[48]|[57]/8)(?![\d/]))
and <FRACTIONS>  <FRACTIONS>  \d ?«<FRACTIONS>»
<FRACTIONS>  <FRACTIONS>  <FRACTIONS>
@hours  - – —  (?<![\w:.,/-])\d{1,2}(?::\d\d)?(?P<first> ?[AaPp]\.?[Mm]\.?)?(?P<dash> ?[-–—] ?)
    \d{1,2}(?::\d\d)?(?P<last> ?[AaPp]\.?[Mm]\b)(?!\.\w)
@hours  - –  (?<![\w:.,/-])\d{1,2}(?::\d\d)?(?P<first>[ap])(?P<dash> ?[-–] ?)\d{1,2}(?::\d\d)?(?P<last>[ap])(?!\w)
to  :  (?<![\w:.,/-])\d{1,2}:\d\d« ?[-–—] ?»(?=\d{1,2}:\d\d(?![\d:]))
@duration  h  (?<![\w.,/:])(?:(?P<d>\d{1,3} ?d) )?(?P<h>\d{1,3} ?h)
    (?: ?(?P<m>\d{1,2} ?m(?!\w)|(?<=h)\d\d(?!\w)))?(?: ?(?P<s>\d{1,2} ?s))?(?!\w)
hours  h  (?<![\w.,/])\d{1,3}\.\d« ?h»(?!\w|/)
@duration  m  (?<![\w.,/])(?P<m>\d{1,3} ?m) ?(?P<s>\d{1,2} ?s)(?!\w)
@spoon  tsp tbsp tsps tbsps  (?P<amount>\d[\d.,]*(?:(?: \d)?/\d)?|(?:\d{1,2} ?)?<FRACTIONS>|\b[Aa]|\bof an?)[ ]?
    «(?P<name>[Tt]sp|[Tt]bsp)s?\b(?:\.(?= [a-z]))?»
per <RATES>  /  (?:\d ?[€£%¢]?|\d ?(?!(?:day|night|week|month|year|hour|minute|am|pm)\b)[A-Za-z]{1,9})
    « ?/ ?(?P<name><RATES>)»\b
per <RATES>  /  (?:(?<=/user)|(?<=/seat)|(?<=/person))«/(?P<name>yr|mo|year|month|week|day)»\b
time  x  (?<![\w.,])1«x»(?= (?:daily|weekly|monthly|a|per)\b)
times  x  (?<=\d)x(?=/(?:day|wk|week|mo|month|yr|year)\b| (?:per|a) (?:day|week|month|year)\b
    |[ ](?:daily|weekly|monthly|as|the|more|less|[a-z]{3,8}er)\b)
by  x ×  (?:(?<![\w.,/])(?!0x)|(?<=\dx))\d{1,5}(?:\.\d)?«x| x |×»(?!86)(?=[1-9]\d{0,4}(?:x\d|(?![\w/]| ?=)))

# money, millions, units
@money  $ € £ ¥ <CURRENCY_CODES>  (?<![\w$€£¥.])(?P<currency><CURRENCIES>|<CURRENCY_CODES> ?)(?P<first><AMOUNT>)
    (?:(?P<dash> ?[-–—] ?)(?P<again>(?P=currency))?(?P<last><AMOUNT>))?(?P<big><MAGNITUDE>)?(?!\w|[.,]\d)
@currency code  <CURRENCY_CODES>  (?<![\w.,$€£¥])(?P<symbol>[$€£¥]?)(?P<amount><AMOUNT>)(?: [mbt]n|<MAGNITUDE>)?
    « ?(?P<code><CURRENCY_CODES>)»\b
million  m mn  (?<![\w.,$€£¥])\d{1,4}(?:\.\d{1,2})?«m|M|mn»(?= <COUNTED>\b)
billion  b  (?<![\w.,$€£¥])\d{1,4}(?:\.\d{1,2})?«B»(?= <COUNTED>\b)
million  m  (?<![\w.,$€£¥-])(?:\d{2,4}|\d{1,3}\.\d{1,2})«M»\b(?![/-]| (?:dash|race|sprint))
billion  bn  (?<![\w.,$€£¥])\d{1,4}(?:\.\d{1,2})?« ?bn»\b
minutes  m  \b<LASTING>(?: about| only| just| another| under)? [1-9]\d?« ?m»\b
    (?!['’/²³]|,? (?:turn|take|keep|bear|merge|exit|make|go|continue|you|of|x|high|tall|deep|long|wide|away)\b)
minutes  m  (?<![\w.,$€£¥/-])\d{1,3}« ?m»(?= (?:ago|left|later|remaining|timer|timeout|delay|break)\b)
seconds  s  \b(?:<LASTING>|<for after last lasts lasted>|of|than)(?: about| only| just| another| under)?[ ]
    \d{1,3}(?:\.\d{1,3})?« ?s»\b(?!['’/²]| (?:style|music|fashion|movies|pop|rock)\b)
seconds  s  (?<![\w.,$€£¥/-])\d{1,3}(?:\.\d{1,3})?
    « s(?![\w'’/])|s(?= (?:ago|left|later|remaining|timer|timeout|delay)\b)»
@unit  <UNITS> μ  (?:(?<![\w.,$€£¥])(?<![A-Za-z]-)|(?<=\dx))
    (?![2-5]g\b(?!\.?(?: (?:of|per|each|a day|protein|carbs|fat|sugar|fiber|salt|sodium)\b|/)))
    (?P<amount>\d{1,2}/\d{1,2}|\.\d{1,4}|<AMOUNT>)«(?P<join>[ -]?)(?P<unit><UNITS>)(?:\.(?=,| [a-z]))?»
    (?![\w'’°²³]|-\w|\.\w)<COMPOUND>
@unit  v w  (?<![\w.,$€£¥-])(?P<amount><AMOUNT>)«(?P<join>-?|(?<=\d\d) (?=[VW]
    (?:[,;]|\.?$| (?:and|at|battery|bulb|charger|or|socket|per|power|supply))))(?P<unit>[VW])»(?![\w'’-]|/\D)<COMPOUND>
inches  in  (?:ft\.?|feet|foot|\d['′’]) ?\d{1,2}(?:\.\d)?« ?in»\b
inch  in " ″ ”  (?<![\w.,'′’])(?<!['′’] )\d{1,3}(?:\.\d)?« ?-?(?:in\b\.?|[\"″”])»
    (?= (?:wide|long|tall|deep|thick|TV|screen|monitor|display|pipe|pizza|drill|bolt|nail|wheel))

# signs
minus  - – −  (?<![\w.)\]%-])[-–](?=[$€£]\d|\d{1,3}(?:\.\d)? ?(?:°|degrees))|(?<![\w)])−(?=[$€£]?\d)
minus  = −  (?<=\d) ?[-–] ?(?=\d{1,6}(?:\.\d{1,4})? ?=)|(?<=\d) − (?=\d)
by  x  (?<![\w.,])\d{1,3}«['′’] ?x ?»(?=\d{1,3}['′’])
foot  ' ′ ’  (?<![\w.,])\d{1,3}«['′’]»(?= (?:wide|long|tall|deep|rug|ceiling|ladder|pole)\b)
AM  a  \d:\d\d«a»(?!\w)
PM  p  \d:\d\d«p»(?!\w)
divided by  =  (?<=\d) ?/ ?(?=\d{1,6}(?:\.\d{1,4})? ?=)
the square root of  √  √ ?(?=\d)
minus  gmt utc  \b(?:GMT|UTC)«[-−–]»(?=\d)
to  - –  (?:\b[Nn]oon|\b[Mm]idnight|\d ?[ap]\.?m\.?)« ?[-–] ?»(?=\d|noon|midnight)
degrees Celsius  c  \b<bake baked oven heat preheat temperature temp cook roast>\b[^\n.!?]{0,40}?\b\d{2,3}« ?C»\b
degrees Fahrenheit  f  \b<bake baked oven heat preheat temperature temp cook roast>\b[^\n.!?]{0,40}?\b\d{2,3}« ?F»\b
at least  ≥  ≥ ?(?=\d)
at most  ≤  ≤ ?(?=\d)
.  €  (?<![\d.,])\d{1,3}«,»(?=\d\d ?€)
euro  €  (?<![\d.,])1« ?€»(?!\d)
euros  €  (?<=\d)« ?€»(?!\d)
foot  ' ′ ’  (?<![\w.])\d«['′’] ?»(?=\d{1,2}[\"″”])
@european  €  (?<=€)\d{1,3}(?:\.\d{3})*,\d\d(?!\d|[.,]\d)
about  ~ ≈  (?<!\w)[~≈](?=\d)
more than  >  (?<![\w<=>-])> ?(?=\d)
@range  - –  (?<![\w.,/:+-])[$€£]?(?!0\d)(?P<first>\d{1,4})(?:\.\d{1,2})?[kKM%]?«[-–]»
    [$€£]?(?!0\d)(?P<last>\d{1,4})(?:\.\d{1,2})?(?![\d/:-]|[A-Z]|[.,]\d)

# days, months, streets, states, formulas, Roman numerals
pound  #  \b<press hit then dial enter>(?: the)? «#»(?![\w*])
star  *  \b<press hit then dial enter>(?: the)? «\*»(?![\w*])
\g<name> \g<size>  b m  (?<=[a-z])«-?(?P<name>\d{1,2}\.\d{1,2})-(?P<size>\d{1,4}(?:\.\d)?[BM])»\b
<PLACES>  <PLACES>  \b<apt ste rm ext bldg fl>\.(?= ?(?:#?\d|[A-Z]\b))
<PLACES>  <PLACES>  \b(?:<apt ext>|Ste|Bldg|Rm|Fl)(?= #?\d)|\b(?:Apt|Bldg)(?= [A-HJ-Z]\b)
@calendar  <DAYS>  \b<DAY>\.?(?:(?:, (?:and |or )?|,? (?:and|or|to|through|&) | ?[-–/] ?)<DAY>(?:\.(?=\W*\w))?)+
Monday, Wednesday, Friday  /  (?<![\w/])M/W/F(?![\w/])
Tuesday, Thursday  /  (?<![\w/])Tu?/Th(?![\w/])
Monday to Friday  - –  \bM[-–]F\b(?=[,:]? \d)
@calendar  <DAYS>  \b(?:Tues?|Thu(?:rs?)?|Fri|Wed|TUES?|THU(?:RS?)?|FRI|WED)\b(?:\.(?=\W*\w))?
@calendar  <DAYS>  \b(?:on|next|last|this|every|until|till|by|from|since|before|after)[ ]
    (?!(?:SAT|SUN|MON|Sat|Sun)\b(?!<AFTER_DAY>))<DAY>(?:\.(?=\W*\w))?
@calendar  <DAYS>  \b<DAY>\.?(?=[,:]? (?:at \d|\d{1,2}(?!\d)|<MONTH>|morning|afternoon|evening|night))
@calendar  <MONTHS> june july sept  \b<MONTH>\.?(?= \d)|(?<=\d )<MONTH>
@calendar  - –  \b<MONTH>\.? ?[-–] ?<MONTH>(?:\.(?=\W*\w))?
@calendar  <MONTHS> sept  \b<in since until early late mid>[ ]
    «(?:Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec)\b(?:\.(?=,| [a-z\d]))?»(?! [A-Z])
to  - –  \b<MONTH>\.? \d{1,2}« ?[-–] ?»(?=\d{1,2}\b(?!-))
@formula  1+ ₀ ₁ ₂ ₃ ₄ ₅ ₆ ₇ ₈ ₉  \b(?<!-)(?=[A-Z][A-Za-z]{0,11}[\d₀-₉])(?!COP|([A-Z])2\1\b)
    (?:<ELEMENT>(?:[12]?\d|[₀-₉]{1,2})?){2,8}(?![\w-])
<DIRECTIONS>  <DIRECTIONS>  (?<![\w.,-])\d{1,6} «<DIRECTIONS>\.?»
    (?= (?:\d{1,3}(?:st|nd|rd|th)|[A-Z][a-z]+)(?: [A-Z][a-z]+)? <STREET>\b)
<STREETS>  <STREETS>
    (?<![\w.,-])\d{1,6}(?: (?:[NS][EW]|[NSEW])\.?)?(?: (?:\d{1,3}(?:st|nd|rd|th)|[A-Z][a-z]+\.?)){1,4}?[ ]
    «<STREETS>\b(?:\.(?=,| [a-z\d#]))?»(?!(?<=Dr)\.? [A-Z])
<STREETS>  <STREETS>  (?:[A-Z][a-z]+|\d(?:st|nd|rd|th)) «(?:Ave|Blvd|Hwy|Pkwy|Rd)\b(?:\.(?=,| [a-z\d#]))?»
<STREETS>  st  (?:\b(?:on|at|to|near|of|off|down|along|and|from|onto) (?:[NSEW]\.? )?[A-Z][a-z]+|\d(?:st|nd|rd|th))[ ]
    «St\b(?:\.(?=,| [a-z\d#]))?»(?! [A-Z])
<DIRECTIONS>  <DIRECTIONS>  \b<STREET>\.? «[NS][EW]|[NSEW]»\b(?!['’.]\w)
<STATES>  <STATES>  \b[A-Z][a-z]+, «<STATES>»(?=[,;.!?]? |[,;.!?]?$)
<ALL_STATES>  5+  (?<=[a-z.,] )«<ALL_STATES>»(?= \d{5}\b)
<BEFORE_NUMBER>  <BEFORE_NUMBER>  (?<![\w.])«<BEFORE_NUMBER> ?»(?=#?\d)
<WORDS>  <WORDS>  (?<![\w.@/-])<WORDS>(?!\w|\.\w|/)
versus  v  \b[A-Z]\w+ «v\.»(?= [A-Z])
@roman number  <NUMBERED_IN_ROMAN>  \b<NUMBERED_IN_ROMAN> <ROMAN>\b(?!['’.]\w)
@ruler  <RULERS> king queen pope tsar emperor
    \b(?:<RULERS>|(?:King|Queen|Pope|Tsar|Emperor) [A-Z][a-z]+) (?=[IVX]{2})<ROMAN>\b
"""

Rule = tuple[re.Pattern[str], Speak, frozenset[str | int]]
_FEATURE = re.compile(r"[a-z]+|[^a-z\s]")
_DIGIT = re.compile(r"\d")
_TABLES: dict[str, Iterable[str]] = {name: table for name, table in vars(tables).items() if name.isupper()}


def features(text: str) -> set[str | int]:
    """Return the words and signs of ``text``, and every number of digits up to what it has."""
    return {*_FEATURE.findall(text.lower()), *range(1, len(_DIGIT.findall(text)) + 1)}


def _alternatives(words: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


def _one_of(words: str) -> str:
    return "(?:" + "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words.split()) + ")"


def _parse(text: str) -> tuple[tuple[Rule, ...], dict[str, str]]:
    rules: list[Rule] = []
    patterns = {name: _alternatives(table) for name, table in _TABLES.items()}
    patterns["UNITS"] = patterns["UNITS"].replace(r"\ ", r"\.? ").replace("µ", "[µμ]")
    words = {name: {_FEATURE.findall(word.lower())[0] for word in table} for name, table in _TABLES.items()}

    def expand(pattern: str) -> str:
        pattern = re.sub("\n +", "", pattern).replace("«", "(?P<part>").replace("»", ")")
        return re.sub("(?<!P)<([A-Za-z_ ]+)>", lambda name: patterns.get(name[1]) or _one_of(name[1]), pattern)

    def requirements(column: str) -> Iterator[str | int]:
        for need in column.split():
            if need[1:] and need[-1] in ">+":
                yield from words[need[1:-1]] if need[0] == "<" else [int(need[:-1])]
            else:
                yield need

    for line in re.split(r"\n+(?=\S)", text.strip()):
        if definition := re.match("([A-Z_]+) = ", line):
            patterns[definition[1]] = expand(line[definition.end() :])
            words[definition[1]] = set(re.findall("[a-z]+", line[definition.end() :].lower()))
        elif line[:2] != "# ":
            spoken, needs, pattern = re.split("  +|\n +", line, maxsplit=2)
            speak = READINGS[spoken[1:]] if spoken[0] == "@" else _reads(spoken)
            rules.append((re.compile(expand(pattern)), speak, frozenset(requirements(needs))))
    return tuple(rules), patterns


def _reads(spoken: str) -> Speak:
    """Return a function that reads the part of a match as ``spoken`` with its groups and tables filled in."""

    def speak(match: re.Match[str]) -> Iterator[Rewrite]:
        start, end = part_span(match)
        written = match["name"] if "name" in match.re.groupindex else match.string[start:end]
        words = re.sub("<([A-Z_]+)>", lambda name: _look_up(vars(tables)[name[1]], written), match.expand(spoken))
        yield start, end, words

    return speak


def _look_up(table: Mapping[str, str], written: str) -> str:
    """Return what a name stands for; a period after it or a capital may be missing from the table."""
    name = written.strip()
    word = name.rstrip(".")
    return table.get(name) or table.get(word) or table[word.lower()].capitalize()


RULES, _PATTERNS = _parse(_RULES)
"""A pattern, what is spoken, and what a text must have; of two that overlap, the first applies."""
MAY_APPLY = re.compile(_PATTERNS["MAY_APPLY"])
"""Occurs in every text that a rule may apply to, and seldom in others."""
