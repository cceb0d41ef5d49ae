"""Measures: amounts with a unit, rates, temperatures, feet and inches."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.tables import TABLES, plural
from tts_worker.text.reading.english.words import number
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite

_OPENING_QUOTE = re.compile(r"(?:^|[\s(—])[\"“]")
_CLOSING_QUOTE = re.compile(r"[^\s(\d][\"”](?=[\s.,;:!?)—]|$)|\d[.,!?][\"”]")
_ARTICLE = re.compile(r"\b[Aa]n? \Z")
_NOUN = re.compile(
    r"\.? (?!(?:of|in|on|at|and|or|per|from|to|for|away|ago|a|the|than|when|while|if|with|before)\b)[a-z]+(?<!s)\b"
)


def _unit(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 km" as "five kilometers", "20-min" as "twenty minute"."""
    unit = match["unit"].replace(".", "").replace("μ", "µ")
    name = TABLES["UNITS"].get(unit) or TABLES["VOLTS"][unit]
    amount = match["amount"]
    is_fraction = re.search(r"\d[\d.,]*\Z", amount) is None or "/" in amount
    is_mixed = is_fraction and re.search(r"\d ?\Z", match.string[: match.start()]) is not None
    is_one = amount == "1" or (is_fraction and not is_mixed) or match["join"] == "-" or match["compound"] is not None
    if not is_one and _ARTICLE.search(match.string, 0, match.start()):
        is_one = _NOUN.match(match.string, match.end()) is not None  # "a 50 m pool"
    if not is_fraction:
        yield *match.span("amount"), number(amount)
    yield *part_span(match), name if is_one else plural(name)


def _power_unit(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span("part"), plural(TABLES["UNITS"][match["unit"].replace(".", "").replace("μ", "µ")])


def _inches(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read 27" as inches, unless the mark closes a quotation."""
    before = match.string[: match.start()]
    if len(_OPENING_QUOTE.findall(before)) > len(_CLOSING_QUOTE.findall(before)):
        return
    amount = match["amount"]
    is_plural = amount[-1].isdecimal() and "/" not in amount and amount != "1" and not match["side"]
    side = {"W": " wide", "H": " high", "D": " deep", "L": " long"}.get((match["side"] or "").strip(), "")
    is_noun = re.match(r" (?!of\b|and\b|or\b|x\b|in\b|on\b|from\b|by\b|to\b)[a-z\d]", match.string[match.end() :])
    yield match.start("mark"), match.end(), f"{'inches' if is_plural and not is_noun else 'inch'}{side}"


def _height(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read 5'10" as "five foot ten"."""
    yield *match.span("feet"), number(match["feet"])
    yield *match.span("foot"), " foot "
    yield *match.span("inches"), number(match["inches"])
    yield *match.span("inch"), ""


RATES = GRAMMAR.rules(
    r"""
per  /  \d ?<UNITS>« ?/ ?»(?=\d+(?:\.\d+)? ?(?:km|mL|ml|m|kg|g|L|h|hr|min|s|mi|lb)\b)
,  /  \d ?(?:V|W|kW|A)« ?/ ?»(?=\d)
per <RATES>  /  (?:[\d⁰¹²³⁴⁵⁶⁷⁸⁹] ?[€£%¢$]?|[\d⁰¹²³⁴⁵⁶⁷⁸⁹] ?(?!(?:day|night|week|month|year|hour|minute|am
    |pm)\b)[A-Za-zµ°]{1,9}[²³]?)
    « ?/ ?(?P<name><RATES>)(?:\.(?= [a-z]))?»(?![\w²³^])
per  /  (?:[$€£]\d[\d.,]{0,12}|(?<![\w/.])\d{1,5})«/»(?=(?!\w+/)[a-z]{3,12}\b)(?<!\b1/)
per <RATES>  /  (?:(?<=/kg)|(?<=/user)|(?<=/seat)|(?<=/person))«/(?P<name>yr|mo|year|month|week|day|hr|min)»\b
time  x  (?<![\w.,])1«x»(?= (?:daily|weekly|monthly|a|per)\b|/)
times  x  (?<=\d)x(?=/(?:day|wk|week|mo|month|yr|year)\b| (?:per|a) (?:day|week|month|year)\b
    |[ ](?:daily|weekly|monthly|as|the|more|less|[a-z]{3,8}er)\b)
"""
)
RULES = GRAMMAR.rules(
    r"""
million  m mn  (?<![\w.,$€£¥₹₩₽])\d{1,4}(?:\.\d{1,2})?«m|M|mn»(?= <COUNTED>\b)
million  m  (?<![\w.,$€£¥₹₩₽-])(?!3M)\d{1,4}(?:\.\d{1,2})?«M»(?= [a-z]{2,}s\b)
billion  b  (?<![\w.,$€£¥₹₩₽])\d{1,4}(?:\.\d{1,2})?«B»(?= <COUNTED>\b)
thousand  k  (?<![\w.,$€£¥₹₩₽])\d{1,4}(?:\.\d{1,2})?«k|K»(?= <COUNTED>\b|/[a-z])
million  m  (?<![\w.,$€£¥-])(?:\d{2,4}|\d{1,3}\.\d{1,2})«M»\b(?![/-]| (?:dash|race|sprint))
billion  bn  (?<![\w.,$€£¥₹₩₽])\d{1,4}(?:\.\d{1,2})?« ?bn»\b
percent  % pct  (?<=\d)« ?(?:%|pct\b\.?)»
@unit  <UNITS> μ  (?:(?<![\w.,$€£¥₹₩₽])(?<![A-Za-z]-)(?<!\d/)|(?<=\dx))
    (?![2-5]g (?:network|phone|tower|speed|data|service|coverage|connection|signal|modem|router|internet|plan)s?\b)
    (?P<amount><AMOUNT>)(?:\+| (?:hundred|thousand|million|billion|trillion))?«(?P<join>[ -]?)(?P<unit><UNITS>)
    (?:\.(?=,| [a-z]))?»
    (?![\w°²³^]|['’]\w|-\w|\.\w)<COMPOUND>
@unit  <UNITS> μ  (?P<amount>\d{1,5}/\d{1,3}|<FRACTION_SIGNS>)«(?P<join>[ -]?)(?P<unit><UNITS>)(?:\.(?=,| [a-z]))?»
    (?![\w°²³^]|['’]\w|-\w|\.\w)<COMPOUND>
@unit  v w  (?<![\w.,$€£¥₹₩₽])(?<![A-Za-z]-)(?P<amount><AMOUNT>)«(?P<join>-?|[ ](?=V)|(?<=\d\d) (?=W))(?P<unit>[VW])»
    (?![\w-]|['’]\w|/[^\d]|\.\w|(?<=W)\.? [A-Z\d])<COMPOUND>
@height  ' ′ ’  (?<![\w.])(?P<feet>\d)(?P<foot>['′’] ?)(?P<inches>\d|1[01])(?P<inch>[\"″”]?)(?![\d'′’])
inches  in  (?<![\w.,$])\d{1,3}(?:\.\d{1,2})?« in\.»(?= [a-z])
inches  in  (?:ft\.?|feet|foot|\d['′’]) ?\d{1,2}(?:\.\d)?« ?in»\b
inch  in " ″ ”  (?<![\w.,'′’])(?<!['′’] )\d{1,3}(?:\.\d)?« ?-?(?:in\b\.?|[\"″”])»
    (?= (?:wide|long|tall|deep|thick|TV|screen|monitor|display|pipe|pizza|drill|bolt|nail|wheel))
@inches  " ″ ”  (?<![\w.,'′’])(?P<amount>\d{1,3}(?:\.\d{1,2})?|\d/\d{1,2}|<FRACTION_SIGNS>)(?P<mark>[\"″”])
    (?P<side> [WHDL]\b)?
    (?=[ ]?(?:[a-z]|x|×|\d|[.,;:!?)]|$))
by  x  (?<=[\"″”WHDL]) x (?=\d)
by  x  (?<![\w.,])\d{1,3}«['′’] ?x ?»(?=\d{1,3}['′’])
foot  ' ′ ’  (?:(?<![\w.,])|(?<=\dx)|(?<=['′’]x))\d{1,3}«['′’]»(?= (?:wide|long|tall|deep|rug|ceiling|ladder|pole)\b)
feet  ' ′  (?<![\w.,])\d{1,3}«['′]»(?=[,.;) ]|$)(?<![\s(]'\d')(?<![\s(]'\d\d')
degrees Celsius  c  (?:(?<!\w)[-−]\d{1,3}|\b\d{1,2}\.\d)« ?C»\b(?![\w-])
degrees Fahrenheit  f  (?:(?<!\w)[-−]\d{1,3}|\b\d{2,3}\.\d)« ?F»\b(?![\w-])
amps  a  (?<=V/)\d{1,2}« ?A»(?=[.,;)]|$)
amp  a  (?<![\w.,])\d{1,4}(?:\.\d)?« ?A»(?= (?:circuit|breaker|fuse|charger|outlet|service|current|adapter)\b)
<UNITS>  <UNITS>  \bper «(?:min|sec|hr|wk|mo|yr)»\b\.?(?!\w)
count  ct  (?<=\d)-ct\b\.?
@power unit  <UNITS> μ  (?:10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4}|10\^[-−]?\d{1,3}|\de[-+]?\d{1,3})« ?(?P<unit><UNITS>)»(?![\w°²³^]
    |['’]\w)
degrees Celsius  c  \b<bake baked oven heat preheat temperature temp cook roast>\b[^\n.!?]{0,40}?\b\d{2,3}« ?C»\b
degrees Fahrenheit  f  \b<bake baked oven heat preheat temperature temp cook roast>\b[^\n.!?]{0,40}?\b\d{2,3}« ?F»\b
by  x ×  (?:(?<![\w.,/])(?!0x)|(?<=\dx))\d{1,5}(?:\.\d)?«x| x |×»(?!86|10[\^⁰¹²³⁴⁵⁶⁷⁸⁹])(?=[1-9]\d{0,4}(?:\.\d)?
    (?:x\d|(?![\w/]| ?=)| ?<UNITS>\b))
""",
    {"unit": _unit, "height": _height, "inches": _inches, "power unit": _power_unit},
)
