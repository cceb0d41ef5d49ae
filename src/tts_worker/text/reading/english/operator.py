"""Operators, comparisons, powers and chemical formulas."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.markup import letter_name
from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.english.words import ordinal, short_number
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite

_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")


def _formula(written: str) -> str:
    """Read "H2SO4" as "H two S O four"; a long word of capitals with one number is no formula."""
    parts = re.findall(r"([A-Z][a-z]?)(\d*)", written.translate(_SUBSCRIPTS))
    if len(parts) > 3 and sum(count != "" for _, count in parts) < 2 and written.isupper():
        return ""
    words = (word for element, count in parts for word in (*map(letter_name, element), count and short_number(count)))
    return " ".join(filter(None, words)).rstrip(",")


def _power(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "x²" as "x squared", "10⁶" and "10^6" as "ten to the sixth", "x^n" as "x to the N"."""
    power = match["power"].strip("^*{}() ").translate(_SUPERSCRIPTS)
    digits = power.lstrip("-+−")
    if power in ("2", "3"):
        words = "squared" if power == "2" else "cubed"
    elif digits.isdecimal():
        sign = "minus " if power[0] in "-−" else ""
        words = f"to the {sign}{ordinal(digits) if not sign else short_number(digits)}"
    else:
        words = f"to the {power.upper() if len(power) == 1 else power}"
    yield *match.span("power"), f" {words}"


def _exponent(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1e6" and "3.2E-8" as "one times ten to the sixth" and so on."""
    power = match["power"].strip("()").translate(_SUPERSCRIPTS).lstrip("+")
    digits = power.lstrip("-−").lstrip("0") or "0"
    words = f"minus {short_number(digits)}" if power[0] in "-−" else ordinal(digits)
    yield *match.span("part"), f" times ten to the {words}"


def _greek(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), TABLES["GREEK"][match.group()]


POWERS = GRAMMAR.rules(
    r"""
@exponent  e  (?<![\w.,])\d{1,12}(?:\.\d{1,12})?«[eE](?P<power>[-+]?\d{1,3})»(?!\w|\.\d)
@exponent  x × · * ⋅  (?<=\d)«[ ]?[x×·*⋅][ ]?10(?:\^|\*\*)?(?P<power>(?<=[\^*])\(?[-+−]?\d{1,4}\)?
    |[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4})»(?!\w)
@power  ⁰ ¹ ² ³ ⁴ ⁵ ⁶ ⁷ ⁸ ⁹ ⁺ ⁻ ⁿ  (?<=[\d)\]])(?P<power>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]{1,6})
@power  ^ *  (?<=[\d)\]])(?P<power> ?(?:\^|\*\*) ?(?:\{[-+]?[A-Za-z0-9]{1,8}\}|\([-+]?[A-Za-z0-9]{1,8}\)
    |[-+−]?\d{1,6}|[a-zA-Z]\b))
""",
    {"power": _power, "exponent": _exponent},
)
RULES = GRAMMAR.rules(
    r"""
@power  ⁰ ¹ ² ³ ⁴ ⁵ ⁶ ⁷ ⁸ ⁹ ⁺ ⁻ ⁿ  (?<=[^\W\d_])(?P<power>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]{1,6})
@power  ^ *  (?<=[^\W\d_])(?P<power> ?(?:\^|\*\*) ?(?:\{[-+]?[A-Za-z0-9]{1,8}\}|\([-+]?[A-Za-z0-9]{1,8}\)
    |[-+−]?\d{1,6}|[a-zA-Z]\b))
times  *  (?<=[\w)\]]) ?[*] ?(?=[\w(])
times  × x ·  (?<=\d) ?[×·⋅] ?(?=[\w(])|(?<=[a-z)]) ?[×⋅] ?(?=[\w(])|(?<=\d)(?<!0) x (?=\d{1,6}(?:\.\d{1,4})? ?=)|
    (?<=\d) x (?=10[\^⁰¹²³⁴⁵⁶⁷⁸⁹⁻])
plus or minus  ± +  ±|\+ ?/ ?[-−–]
minus  - – −  (?<=[\w)\]²³⁴]) [-–−] (?=[\dA-Za-z(√]\b)(?<=(?<!\w)\w [-–−] )|(?<=[\d)²³⁴]) [-–−] (?=[\d(√]|[A-Za-z]\b)
minus  = −  (?<=\d) ?[-–] ?(?=\d{1,6}(?:\.\d{1,4})? ?=)|(?<=[\w)]) ?− ?(?=[\w(])
minus  - – −  (?<==)-(?=[\w(])|(?<![\w.,)\]%°²³'’\"”–-])[-–−](?=[$€£¥₹]? ?\.?\d|[a-z](?![\w'’-])|[$€£¥₹])
    |(?<=[\"“'‘(])[-–−](?=[$€£¥₹]? ?\.?\d)|(?<=[%°²³])[-–−](?=\d)|(?<!\w)−(?=\w)
plus  +  \+
is not equal to  ! < ≠ /  (?:!=|≠|=/=|<>)
is greater than or equal to  = ≥  (?<=[\w)\]%°]) ?(?:>=|≥) (?=[\w(\-−.√$])|(?<=[\w)\]%°])(?:>=|≥) ?(?=[\w(\-−.√$])
is less than or equal to  = ≤  (?<=[\w)\]%°]) ?(?:<=|≤) (?=[\w(\-−.√$])|(?<=[\w)\]%°])(?:<=|≤) ?(?=[\w(\-−.√$])
at least  = ≥  (?:>=|≥) ?(?=[\d$€£.-])
at most  = ≤  (?:<=|≤) ?(?=[\d$€£.-])
to  > → ⇒ ➔ ➜ ⟶  (?:-{1,2}>|=>|→|⇒|➔|➜|⟶)(?= ?\S)
,  >  (?<=[a-z\d\"”)])« [>›»] »(?=[A-Z\"“])
greater than  >  \b[Ii]s [^\n.!?]{1,24}?(?:\.\d{1,6})?« > »(?=[\w(\-−.√$])
less than  <  \b[Ii]s [^\n.!?]{1,24}?(?:\.\d{1,6})?« < »(?=[\w(\-−.√$])
is greater than  >  (?<=[\w)\]%°]) > (?=[\w(\-−.√$])|(?<=[\w)\]%°])>(?=[\d(\-−.√$])
is less than  <  (?<=[\w)\]%°]) < (?=[\w(\-−.√$])|(?<=[\w)\]%°])<(?=[\d(\-−.√$])
more than  >  > ?(?=[\d$€£.-])
less than  <  < ?(?=[\d$€£.-])
is approximately  ≈ ~  (?<=[\w)])(?: ≈ |≈)(?=[\w(.-])
about  ~ ≈ ∼  (?<![\w)])[~≈∼] ?(?=[\d$€£.½¼¾-])
divided by  =  (?<=\d) ?/ ?(?=\d{1,6}(?:\.\d{1,4})? ?=)
divided by  / ÷  (?<=\d) [/÷] (?=[\d(]|[a-z]\b)|(?<=\)) / (?=[\w(])|(?<=[\w)]) ?÷ ?(?=[\w(])
equals  =  ={1,3}
the square root of  √  √ ?(?=[\w(])
@greek  π ω µ ∆  [πΩµ∆]
@greek  <GREEK>  (?<![\u0370-\u03ff\u1f00-\u1fff])<GREEK>(?![\u0370-\u03ff\u1f00-\u1fff])
@formula  1+ ₀ ₁ ₂ ₃ ₄ ₅ ₆ ₇ ₈ ₉  \b(?<!-)(?=[A-Z][A-Za-z]{0,11}[\d₀-₉])(?!COP|([A-Z])2\1\b)
    (?:<ELEMENT>(?:[12]?\d|[₀-₉]{1,2})?){2,8}(?![\w-])
@formula  2 3 ₂ ₃  \b[ONHFI](?:2|₂)\b|\bO(?:3|₃)\b
""",
    {"formula": reads_part(_formula), "greek": _greek, "power": _power},
)
