"""Rules for amounts: scores, dates in digits, times, money, units, ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text import english_tables as tables
from tts_worker.text.english_numbers import ordinal_words, year_words
from tts_worker.text.english_rules import (
    Rule,
    alternatives,
    cased,
    looks_up,
    reads,
    reads_apart,
    spoken_number,
)
from tts_worker.text.span_rewriting import Rewrite


def _count(digits: str, unit: str) -> str:
    return f"{spoken_number(digits)} {unit}" + ("" if int(digits) == 1 else "s")


_FRACTIONS = {
    **{"½": "a half", "⅓": "one third", "⅔": "two thirds", "¼": "a quarter", "¾": "three quarters"},
    **{"⅛": "one eighth", "⅜": "three eighths", "⅝": "five eighths", "⅞": "seven eighths"},
}


def _fraction(match: re.Match[str]) -> Iterator[Rewrite]:
    whole = match["whole"] or ""
    joins = "" if not whole else "and " if whole.endswith(" ") else " and "
    yield match.start("part"), match.end("part"), joins + _FRACTIONS[match["part"]]


def _euros(match: re.Match[str]) -> Iterator[Rewrite]:
    """Write "1.234,56" as "1,234.56"."""
    for mark in re.finditer("[.,]", match.group()):
        place = match.start() + mark.start()
        yield place, place + 1, "," if mark.group() == "." else "."


def _hours(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "9am-5pm" as "9 AM to 5 PM"."""
    for group in ("first", "last"):
        if match[group]:
            yield match.start(group), match.end(group), f" {match[group].strip()[0].upper()}M"
    yield match.start("dash"), match.end("dash"), " to "


def _duration(match: re.Match[str]) -> Iterator[Rewrite]:
    for group, unit in (("d", "day"), ("h", "hour"), ("m", "minute"), ("s", "second")):
        written = match.groupdict().get(group)
        if written:
            first = match.start(group) + len(written) - len(written.lstrip())
            joins = "" if first == match.start() or match.string[first - 1] == " " else " "
            yield first, match.end(group), joins + _count(written.strip(" dhms"), unit)


_SPOONS = {"tsp": "teaspoon", "tbsp": "tablespoon"}


def _spoon(match: re.Match[str]) -> Iterator[Rewrite]:
    singular = re.fullmatch(r"1|[½⅓⅔¼¾⅛⅜⅝⅞]|\d/\d|(?:of )?an?", match["amount"].lower())
    yield match.start("name"), match.end(), _SPOONS[match["name"].lower()] + ("" if singular else "s")


_RATES = {
    **{"yr": "year", "mo": "month", "wk": "week", "hr": "hour", "h": "hour", "min": "minute", "sec": "second"},
    **{"s": "second", "d": "day", "pp": "person", "L": "liter", "dL": "deciliter", "mL": "milliliter", "lb": "pound"},
    **{"kg": "kilogram", "oz": "ounce", "km": "kilometer", "mi": "mile", "kWh": "kilowatt hour", "GB": "gigabyte"},
    **{"m²": "square meter", "m2": "square meter", "sq ft": "square foot", "sqft": "square foot", "gal": "gallon"},
}


def _rate(match: re.Match[str]) -> Iterator[Rewrite]:
    unit = match["unit"]
    yield match.start("slash"), match.end(), " per " + _RATES.get(unit, unit)


def _date(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2026-11-23", "11/23/2026" and "on 10/10", month first as in America unless there is no such month."""
    month, day = int(match["m"]), int(match["d"])
    year = match.groupdict().get("y") or ""
    if month > 12:
        month, day = day, month
    if 1 <= month <= 12 and 1 <= day <= 31:
        century = "" if len(year) != 2 else "20" if year < "50" else "19"
        spoken = f"{tables.MONTH_NAMES[month - 1]} {ordinal_words(day)}" + (
            f", {year_words(century + year)}" if year else ""
        )
        yield match.start("part"), match.end("part"), spoken


_UNIT_NAMES = alternatives(set(tables.UNITS) - {"V", "W"}).replace(r"\ ", r"\.? ").replace("µ", "[µμ]")


def _unit(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 km" as "5 kilometers", "20-min" as "20 minute", but not "a 5g network"."""
    amount, join = match["amount"], match["join"]
    unit = match["unit"].replace(".", "").replace("μ", "µ")
    if unit == "g" and amount in ("2", "3", "4", "5") and not join and not _OF.match(match.string, match.end()):
        return
    is_one = amount == "1" or "/" in amount or join == "-" or _COMPOUND.match(match.string, match.end())
    yield match.start("part"), match.end("part"), f" {tables.UNITS[unit][0 if is_one else 1]}"


_COMPOUND = re.compile(
    " (?:bag|bar|battery|bottle|box|break|bulb|cable|call|can|charger|dash|delay|drive|fence|file|jar|jug|lens|meeting"
    "|pack|pole|race|ride|rope|run|screen|sprint|tank|timer|walk|GPU|HDD|MacBook|M\\d|SSD|iPad|iPhone)\\b"
)
_OF = re.compile(r" (?:of|per|each|a day|protein|carbs|fat|sugar|fiber|salt|sodium)\b|/")
_CURRENCY_CODES = alternatives(code for code in tables.CURRENCIES if code.isalpha())
_CURRENCY = rf"(?P<currency>(?:US|CA?|AU?|NZ|HK)?\$|[€£¥]|{_CURRENCY_CODES} ?)"
_AMOUNT = r"\d{1,12}(?:,\d{3}){0,4}(?:\.\d{1,4})?"
_MAGNITUDE = (
    r"(?:(?:k|K|m|M|mm|MM|mn|b|B|bn|t|T|tn)(?![\w-])| (?:mn|bn|tn|hundred|thousand|million|billion|trillion)(?![\w-]))"
)
_BEFORE_VOLTS = r"-?|(?<=\d\d) (?=[VW](?:[,;]|\.?$| (?:and|at|battery|bulb|charger|or|socket|per|power|supply)))"


def _magnitude(written: str) -> str:
    written = written.strip()
    return f" {tables.MAGNITUDES.get(written.lower(), written)}" if written else ""


def _money(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "$5m" as "$5 million", "$5-10" as "5 to 10 dollars", "US$20" and "USD 20" as "20 US dollars"."""
    currency = match["currency"].strip()
    first, last, big = match["first"], match["last"], match["big"] or ""
    is_symbol = len(currency) == 1
    if last and (not is_symbol or "." not in first + last):
        amount = f"{first} to {last}{_magnitude(big)}"
        yield match.start(), match.end(), f"{amount} {tables.CURRENCIES[currency][1]}"
        return
    if not is_symbol:
        one, many = tables.CURRENCIES[currency]
        yield match.start(), match.end(), f"{first}{_magnitude(big)} {many if big or first != '1' else one}"
        return
    if last:
        yield match.start("dash"), match.end("dash"), " to " if match["again"] else f" to {currency}"
    if big and big[0] != " ":
        yield match.start("big"), match.end("big"), _magnitude(big)


def _currency_code(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 EUR" as "5 euros", "$20 USD" as "$20"."""
    one, many = tables.CURRENCIES[match["code"]]
    spoken = "" if match["symbol"] else f" {one if match['amount'] == '1' else many}"
    yield match.start("part"), match.end("part"), spoken


def _range(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5-10" as "5 to 10", but not a telephone number, a month of a year, or "747-400"."""
    first, last = match["first"], match["last"]
    is_month = len(first) == 4 and len(last) == 2 and last <= "12"
    is_phone = len(first) == 3 and len(last) == 4 and match.end("last") == match.end()
    is_airplane = first[0] == first[2:] == "7" and len(last) == 3
    if not (is_month or is_phone or is_airplane) and (
        int(first) < 200 or len(last) == 2 < len(first) or int(first) < int(last)
    ):
        yield match.start("part"), match.end("part"), " to "


_LASTING = rf"(?:{cased('in taking takes take took wait waits waited waiting every within')}(?: for)?)"
_DURATION_H = (
    r"(?<![\w.,/:])(?:(?P<d>\d{1,3} ?d) )?(?P<h>\d{1,3} ?h)(?:(?P<m> ?\d{1,2} ?m(?!\w)|(?<=h)\d\d(?!\w)))?"
    r"(?P<s> ?\d{1,2} ?s)?(?!\w)"
)
_CODE_OF_CURRENCY_NAMES = " ".join(code for code in tables.CURRENCIES if code.isalpha()).lower()
_UNIT_WORDS = " ".join({found for unit in tables.UNITS for found in re.findall("[a-zµ]+|°", unit.lower())})

AMOUNT_RULES: tuple[Rule, ...] = (
    (r"(?<![\d/.,-])24[/-]7(?![\d/-])", reads("twenty-four seven"), "/ -"),
    (r"(?<![\d/.,$])\d{1,3}(?:\.\d)?(?P<part> ?/ ?)100(?![\d/%]|[.,]\d)", reads(" out of "), "/"),
    (
        r"\b(?:[Ss]cored?|[Rr]at(?:ed|ings?|e)|[Gg]ot|[Gg]ave|[Gg]ive|[Ss]tars?)\b[^\d\n.!?]{0,25}"
        r"\d{1,2}(?:\.\d)?(?P<part> ?/ ?)(?:5|10|20)(?![\d/])",
        reads(" out of "),
        "/",
    ),
    (r"(?<![\d/.,$])\d\.\d(?P<part>/)(?:5|10)(?![\d/]|[.,]\d)", reads(" out of "), "/"),
    (r"(?<![\d/.,$])\d(?P<part>/)(?:5|10)(?= stars?\b)", reads(" out of "), "/"),
    (r"(?<![\d/.,-])50[/-]50(?![\d/-])", reads("fifty-fifty"), "/-"),
    (r"(?<![\d/.,])9/11(?![\d/]|[.,]\d)", reads("nine eleven"), "/"),
    (r"(?<![\d/.,-])20[/-]20(?= vision)", reads("twenty twenty"), "/-"),
    (r"(?<![\w/.-])(?P<part>(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4}|\d\d))(?![\w/])", _date, "/"),
    (r"(?<![\w/.-])(?P<part>(?P<y>[12]\d{3})-(?P<m>\d\d)-(?P<d>\d\d))(?![\w/]|-\d)", _date, "-"),
    (
        r"\b(?:(?:[Oo]n|[Uu]ntil|[Tt]ill|[Dd]ue|[Dd]ated|[Ss]tarting|[Ee]nding|[Tt]hrough|[A-Z][a-z]{2,5}day,?)|"
        r"(?:[Bb]y|[Ff]rom|[Ss]ince|[Bb]efore|[Aa]fter)(?! (?:[1-7]/[2348]|\d{1,2}/16)(?!\d))) "
        r"(?P<part>(?P<m>\d{1,2})/(?P<d>\d{1,2}))(?![\d/%]|\.\d| ?(?:of|cup|inch|tea|table)|[ -]?stars?\b)",
        _date,
        "/",
    ),
    (
        r"(?<![\w/.,$])(?<!exp )(?<!exp\. )(?<!expires )(?P<part>(?P<m>0\d|\d{1,2}(?=/0))/(?P<d>\d\d))(?![\w/%])",
        _date,
        "/",
    ),
    (r"(?<![\w/])\d{1,2}/\d{1,2}(?P<part> ?[-–] ?)(?=\d{1,2}/\d{1,2}(?![\w/]))", reads(" to "), "- –"),
    (r"(?<![\d/.,$])(?P<n>\d{1,2})(?P<part>/)(?P=n)(?![\d/]|[.,]\d)", reads(" out of "), "/"),
    (
        r"\b(?:[Aa]n?|[Ss]olid) \d(?:\.\d)?(?P<part> ?/ ?)10(?![\d/]|[.,]\d| (?:chance|of|inch|mile|second))",
        reads(" out of "),
        "/",
    ),
    (r"\b(?:BP|[Pp]ressure)\b[^\d\n.!?]{0,20}\d{2,3}(?P<part> ?/ ?)(?=\d{2,3}(?!\d))", reads(" over "), "/"),
    (r"\b(?:ratio|odds)(?: (?:of|is|was|are|at|about))?:? \d{1,3}(?P<part>:)(?=\d{1,3}(?![\d:]))", reads(" to "), ":"),
    (r"(?<![\d:.,])\d{1,3}(?P<part>:)(?=\d{1,3} (?:ratio|odds|mix|split|scale)\b)", reads(" to "), ":"),
    (
        r"\b(?:[Pp]ages?|[Ss]tep|[Pp]art|[Ss]lide|[Cc]hapter|[Ll]esson|[Qq]uestion) \d{1,3}"
        r"(?P<part> ?/ ?)\d{1,4}(?![\d/])",
        reads(" of "),
        "/",
    ),
    (r"(?<![\d/.,])\d{1,2}(?P<part> )(?=(?:1/[2348]|2/3|3/[48]|[57]/8)(?![\d/]))", reads(" and "), "/"),
    (r"(?P<whole>\d ?)?(?P<part>[½⅓⅔¼¾⅛⅜⅝⅞])", _fraction, "½⅓⅔¼¾⅛⅜⅝⅞"),
    (
        r"(?<![\w:.,/-])\d{1,2}(?::\d\d)?(?P<first> ?[AaPp]\.?[Mm]\.?)?(?P<dash> ?[-–—] ?)"
        r"\d{1,2}(?::\d\d)?(?P<last> ?[AaPp]\.?[Mm]\b)(?!\.\w)",
        _hours,
        "-–—",
    ),
    (
        r"(?<![\w:.,/-])\d{1,2}(?::\d\d)?(?P<first>[ap])(?P<dash> ?[-–] ?)\d{1,2}(?::\d\d)?(?P<last>[ap])(?!\w)",
        _hours,
        "-–",
    ),
    (r"(?<![\w:.,/-])\d{1,2}:\d\d(?P<part> ?[-–—] ?)(?=\d{1,2}:\d\d(?![\d:]))", reads(" to "), ":"),
    (_DURATION_H, _duration, "h"),
    (r"(?<![\w.,/])\d{1,3}\.\d(?P<part> ?h)(?!\w|/)", reads(" hours"), "h"),
    (r"(?<![\w.,/])(?P<m>\d{1,3} ?m)(?P<s> ?\d{1,2} ?s)(?!\w)", _duration, "m"),
    (
        r"(?P<amount>\d[\d.,]*(?:(?: \d)?/\d)?|(?:\d{1,2} ?)?[½⅓⅔¼¾⅛⅜⅝⅞]|\b[Aa]|\bof an?)"
        r" ?(?P<name>[Tt]sp|[Tt]bsp)s?\b(?:\.(?= [a-z]))?",
        _spoon,
        "tsp tbsp tsps tbsps",
    ),
    (
        r"(?:\d ?[€£%¢]?|\d ?(?!(?:day|night|week|month|year|hour|minute|am|pm)\b)[A-Za-z]{1,9})"
        rf"(?P<slash> ?/ ?)(?P<unit>{alternatives(_RATES)}|year|month|week|day|hour|minute|second|night"
        r"|user|seat|person|piece|page|request|item)\b",
        _rate,
        "/",
    ),
    (r"(?:(?<=/user)|(?<=/seat)|(?<=/person))(?P<slash>/)(?P<unit>yr|mo|year|month|week|day)\b", _rate, "/"),
    (r"(?<![\w.,])1(?P<part>x)(?= (?:daily|weekly|monthly|a|per)\b)", reads(" time"), "x"),
    (
        r"(?<=\d)x(?=/(?:day|wk|week|mo|month|yr|year)\b| (?:per|a) (?:day|week|month|year)\b"
        r"| (?:daily|weekly|monthly|as|the|more|less|[a-z]{3,8}er)\b)",
        reads(" times"),
        "x",
    ),
    (
        r"(?:(?<![\w.,/])(?!0x)|(?<=\dx))\d{1,5}(?:\.\d)?(?P<part>x| x |×)(?!86)(?=[1-9]\d{0,4}(?:x\d|(?![\w/]| ?=)))",
        reads(" by "),
        "x ×",
    ),
    (
        rf"(?<![\w$€£¥.]){_CURRENCY}(?P<first>{_AMOUNT})"
        rf"(?:(?P<dash> ?[-–—] ?)(?P<again>(?P=currency))?(?P<last>{_AMOUNT}))?(?P<big>{_MAGNITUDE})?(?!\w|[.,]\d)",
        _money,
        f"$ € £ ¥ {_CODE_OF_CURRENCY_NAMES}",
    ),
    (
        rf"(?<![\w.,$€£¥])(?P<symbol>[$€£¥]?)(?P<amount>{_AMOUNT})(?: [mbt]n|{_MAGNITUDE})?"
        rf"(?P<part> ?(?P<code>{_CURRENCY_CODES}))\b",
        _currency_code,
        _CODE_OF_CURRENCY_NAMES,
    ),
    (
        rf"(?<![\w.,$€£¥])\d{{1,4}}(?:\.\d{{1,2}})?(?P<part>m|M|mn)(?= {alternatives(tables.COUNTED)}\b)",
        reads(" million"),
        "m mn",
    ),
    (
        rf"(?<![\w.,$€£¥])\d{{1,4}}(?:\.\d{{1,2}})?(?P<part>B)(?= {alternatives(tables.COUNTED)}\b)",
        reads(" billion"),
        "b",
    ),
    (
        r"(?<![\w.,$€£¥-])(?:\d{2,4}|\d{1,3}\.\d{1,2})(?P<part>M)\b(?![/-]| (?:dash|race|sprint))",
        reads(" million"),
        "m",
    ),
    (r"(?<![\w.,$€£¥])\d{1,4}(?:\.\d{1,2})?(?P<part> ?bn)\b", reads(" billion"), "bn"),
    (
        rf"\b{_LASTING}"
        r"(?: about| only| just| another| under)? [1-9]\d?(?P<part> ?m)\b"
        r"(?!['’/²³]|,? (?:turn|take|keep|bear|merge|exit|make|go|continue|you|of|x|high|tall|deep|long|wide|away)\b)",
        reads(" minutes"),
        "m",
    ),
    (
        r"(?<![\w.,$€£¥/-])\d{1,3}(?P<part> ?m)(?= (?:ago|left|later|remaining|timer|timeout|delay|break)\b)",
        reads(" minutes"),
        "m",
    ),
    (
        rf"\b(?:{_LASTING}|[Ff]or|[Aa]fter|[Ll]ast(?:s|ed)?|of|than)"
        r"(?: about| only| just| another| under)? \d{1,3}(?:\.\d{1,3})?(?P<part> ?s)\b"
        r"(?!['’/²]| (?:style|music|fashion|movies|pop|rock)\b)",
        reads(" seconds"),
        "s",
    ),
    (
        r"(?<![\w.,$€£¥/-])\d{1,3}(?:\.\d{1,3})?"
        r"(?P<part> s(?![\w'’/])|s(?= (?:ago|left|later|remaining|timer|timeout|delay)\b))",
        reads(" seconds"),
        "s",
    ),
    (
        rf"(?:(?<![\w.,$€£¥])(?<![A-Za-z]-)|(?<=\dx))(?P<amount>\d{{1,2}}/\d{{1,2}}|\.\d{{1,4}}|{_AMOUNT})"
        rf"(?P<part>(?P<join>[  -]?)(?P<unit>{_UNIT_NAMES})(?:\.(?=,| [a-z]))?)(?![\w'’°²³]|-\w|\.\w)",
        _unit,
        _UNIT_WORDS,
    ),
    (
        rf"(?<![\w.,$€£¥-])(?P<amount>{_AMOUNT})(?P<part>(?P<join>{_BEFORE_VOLTS})(?P<unit>[VW]))(?![\w'’-]|/\D)",
        _unit,
        "v w",
    ),
    (r"(?:ft\.?|feet|foot|\d['′’]) ?\d{1,2}(?:\.\d)?(?P<part> ?in)\b", reads(" inches"), "in"),
    (
        r"(?<![\w.,'′’])(?<!['′’] )\d{1,3}(?:\.\d)?(?P<part> ?-?(?:in\b\.?|[\"″”]))"
        r"(?= (?:wide|long|tall|deep|thick|TV|screen|monitor|display|pipe|pizza|drill|bolt|nail|wheel))",
        reads(" inch"),
        'in " ″ ”',
    ),
    (
        r"(?<![\w.)\]%-])[-–](?=[$€£]\d|\d{1,3}(?:\.\d)? ?(?:°|degrees))|(?<![\w)])−(?=[$€£]?\d)",
        reads("minus "),
        "- – −",
    ),
    (r"(?<=\d) ?[-–] ?(?=\d{1,6}(?:\.\d{1,4})? ?=)|(?<=\d) − (?=\d)", reads(" minus "), "= −"),
    (r"(?<![\w.,])\d{1,3}(?P<part>['′’] ?x ?)(?=\d{1,3}['′’])", reads(" by "), "x"),
    (
        r"(?<![\w.,])\d{1,3}(?P<part>['′’])(?= (?:wide|long|tall|deep|rug|ceiling|ladder|pole)\b)",
        reads(" foot"),
        "' ′ ’",
    ),
    (r"(?<=\d:\d\d)(?P<part>(?P<name>[ap]))(?!\w)", looks_up({"a": " AM", "p": " PM"}), "a p"),
    (r"(?<=\d) ?/ ?(?=\d{1,6}(?:\.\d{1,4})? ?=)", reads(" divided by "), "="),
    (r"√ ?(?=\d)", reads("the square root of "), "√"),
    (r"\b(?:GMT|UTC)(?P<part>[-−–])(?=\d)", reads(" minus "), "gmt utc"),
    (
        r"(?:\b[Nn]oon|\b[Mm]idnight|\d ?[ap]\.?m\.?)(?P<part> ?[-–] ?)(?=\d|noon|midnight)",
        reads(" to "),
        "- –",
    ),
    (
        rf"\b{cased('bake baked oven heat preheat temperature temp cook roast')}\b[^\n.!?]{{0,40}}?"
        r"\b\d{2,3}(?P<part> ?(?P<name>[CF]))\b",
        looks_up({"C": " degrees Celsius", "F": " degrees Fahrenheit"}),
        "c f",
    ),
    (r"≥ ?(?=\d)", reads_apart("at least "), "≥"),
    (r"≤ ?(?=\d)", reads_apart("at most "), "≤"),
    (r"(?<![\d.,])\d{1,3}(?P<part>,)(?=\d\d ?€)", reads("."), "€"),
    (r"(?<![\d.,])1(?P<part> ?€)(?!\d)", reads(" euro"), "€"),
    (r"(?<=\d)(?P<part> ?€)(?!\d)", reads(" euros"), "€"),
    (r"(?<![\w.])\d(?P<part>['′’] ?)(?=\d{1,2}[\"″”])", reads(" foot "), "'′’"),
    (r"(?<=€)\d{1,3}(?:\.\d{3})*,\d\d(?!\d|[.,]\d)", _euros, "€"),
    (r"(?<!\w)[~≈](?=\d)", reads("about "), "~≈"),
    (r"(?<![\w<=>-])> ?(?=\d)", reads("more than "), ">"),
    (
        r"(?<![\w.,/:+-])[$€£]?(?!0\d)(?P<first>\d{1,4})(?:\.\d{1,2})?[kKM%]?(?P<part>[-–])"
        r"[$€£]?(?!0\d)(?P<last>\d{1,4})(?:\.\d{1,2})?(?![\d/:-]|[A-Z]|[.,]\d)",
        _range,
        "-–",
    ),
)
