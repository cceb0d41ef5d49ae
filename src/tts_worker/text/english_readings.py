"""What is spoken for the matches of those rules of spoken English that need more than words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tts_worker.text import english_tables as tables
from tts_worker.text.english_numbers import number_words, ordinal_words, year_words
from tts_worker.text.markup import letter_name
from tts_worker.text.span_rewriting import Rewrite

Speak = Callable[[re.Match[str]], Iterator[Rewrite]]
"""Yields what is spoken for ranges of a match."""


def part_span(match: re.Match[str]) -> tuple[int, int]:
    """Return the range of the group "part", or of all that a rule matches without such a group."""
    return match.span("part" if "part" in match.re.groupindex else 0)


def _reads_part(read: Callable[[str], str]) -> Speak:
    """Return a rule that reads the part of a match as ``read`` says, unless that is nothing."""

    def speak(match: re.Match[str]) -> Iterator[Rewrite]:
        start, end = part_span(match)
        if spoken := read(match.string[start:end]):
            yield start, end, spoken

    return speak


def _reads_words(read: Callable[[str], str]) -> Speak:
    """Return a rule that reads each word of the part; all but the last end with a pause."""

    def speak(match: re.Match[str]) -> Iterator[Rewrite]:
        words = list(re.compile(r"\S+").finditer(match.string, *part_span(match)))
        for word in words:
            yield *word.span(), read(word.group()) + ("" if word is words[-1] else ",")

    return speak


# -- sign by sign -----------------------------------------------------------------------------------------------------


def spell(text: str) -> str:
    """Return ``text`` letter by letter and digit by digit; other characters make a pause."""
    groups = re.findall(r"[^\W_]+", text)
    return ", ".join(" ".join(map(_spelled, group)).rstrip(",") for group in groups)


def _spelled(char: str) -> str:
    return number_words(char) if char.isdecimal() and char.isascii() else letter_name(char)


def _digit_groups(digits: str) -> str:
    """Return a code in groups that are easy to remember: 6 digits as 3 and 3, 7 as 3 and 4, 8 as 4 and 4."""
    size = {8: 4, 10: 5, 12: 4}.get(len(digits), len(digits) if len(digits) < 6 else 3)
    return ", ".join(map(spell, re.findall(f".{{{size}}}(?:.$)?|.+", digits)))


def _code(written: str) -> str:
    code = written.lstrip("#")
    if sum(map(str.isdigit, code)) < 3 and len(code) < 5:
        return ""
    return _digit_groups(code) if code.isdigit() else spell(code)


def _phone(match: re.Match[str]) -> Iterator[Rewrite]:
    if 7 <= sum(map(str.isdigit, match["part"])) <= 15:
        yield from _phone_words(match)


def _phone_word(word: str) -> str:
    if word.startswith("+1") and len(word) == 12:
        return f"plus one, {_phone_word(word[2:])}"
    if word.isdigit() and len(word) == 10:
        return ", ".join((spell(word[:3]), spell(word[3:6]), spell(word[6:])))
    return ("plus " if word[0] == "+" else "") + (_digit_groups(word) if word.isdigit() else spell(word))


_phone_words = _reads_words(_phone_word)


def _letter_phone(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1-800-FLOWERS" by its word."""
    prefix = [number_words(group) if group in ("1", "800") else spell(group) for group in match["prefix"].split("-")]
    yield *match.span(), ", ".join([*prefix, match["words"].replace("-", " ").title()])


def _bank_account(match: re.Match[str]) -> Iterator[Rewrite]:
    if " " in match.group():
        yield from _reads_words(spell)(match)
    else:
        yield *match.span(), ", ".join(map(spell, re.findall(".{1,4}", match.group())))


_MARK_NAMES = {"/": "slash", ".": "dot", "-": "dash", "_": "underscore", "@": "at", "+": "plus", ":": "colon"}


def _address(match: re.Match[str]) -> Iterator[Rewrite]:
    groups = match.groupdict("")
    written = groups.get("email") or groups["host"] + groups["path"].rstrip("/")
    yield (
        *match.span(),
        " ".join(_MARK_NAMES.get(part, part) for part in re.findall(r"[/.\-_@+:]|[^/.\-_@+:]+", written)),
    )


def _point_number(written: str) -> str:
    return " point ".join(map(_number, written.split(".")))


def _number(digits: str) -> str:
    """Return up to four digits as a number, more of them one by one."""
    return number_words(digits) if len(digits) <= 4 else spell(digits)


def _dotted(written: str) -> str:
    """Read a version without "v", an IP address, or "1.000.000"."""
    parts = written.split(".")
    if [len(part) for part in parts[1:]] == [3, 3]:
        return ",".join(parts)
    return " dot ".join(map(spell, parts)) if len(parts) == 4 else _point_number(written)


_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def _formula(written: str) -> str:
    """Read "H2SO4" as "H two S O four"; a long word of capitals with one number is no formula."""
    parts = re.findall(r"([A-Z][a-z]?)(\d*)", written.translate(_SUBSCRIPTS))
    if len(parts) > 3 and sum(count != "" for _, count in parts) < 2 and written.isupper():
        return ""
    words = (word for element, count in parts for word in (*map(letter_name, element), count and _number(count)))
    return " ".join(filter(None, words)).rstrip(",")


# -- dates and times --------------------------------------------------------------------------------------------------


def _date(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2026-11-23", "11/23/2026" and "on 10/10", month first as in America unless there is no such month."""
    month, day = int(match["m"]), int(match["d"])
    year = match.groupdict().get("y") or ""
    if month > 12:
        month, day = day, month
    if 1 <= month <= 12 and 1 <= day <= 31:
        century = "" if len(year) != 2 else "20" if year < "50" else "19"
        spoken = f"{list(tables.MONTHS.values())[month - 1]} {ordinal_words(day)}"
        yield *part_span(match), spoken + (f", {year_words(century + year)}" if year else "")


def _calendar(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Tue-Fri" and "Jan. 5" as "Tuesday to Friday" and "January 5"."""
    for name in re.compile(r"[A-Z]\w+\.?| ?[-–] ?").finditer(match.string, *part_span(match)):
        written = name.group().rstrip(".").lower()
        yield *name.span(), tables.DAYS.get(written) or tables.MONTHS.get(written[:3], "to")


def _hours(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "9am-5pm" as "9 AM to 5 PM"."""
    for group in ("first", "last"):
        if match[group]:
            yield *match.span(group), f"{match[group].strip()[0].upper()}M"
    yield *match.span("dash"), "to"


def _duration(match: re.Match[str]) -> Iterator[Rewrite]:
    for group, unit in (("d", "day"), ("h", "hour"), ("m", "minute"), ("s", "second")):
        if written := match.groupdict().get(group):
            digits = written.rstrip(" dhms")
            yield *match.span(group), f"{_number(digits)} {unit if int(digits) == 1 else tables.plural(unit)}"


# -- amounts ----------------------------------------------------------------------------------------------------------


def _unit(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 km" as "5 kilometers", "20-min" as "20 minute"."""
    unit = match["unit"].replace(".", "").replace("μ", "µ")
    name = tables.UNITS.get(unit) or tables.VOLTS[unit]
    amount = match["amount"]
    is_one = amount == "1" or "/" in amount or match["join"] == "-" or match["compound"] is not None
    yield *part_span(match), name if is_one else tables.plural(name)


def _spoon(match: re.Match[str]) -> Iterator[Rewrite]:
    name = tables.SPOONS[match["name"].lower()]
    is_one = re.fullmatch(r"1|[½⅓⅔¼¾⅛⅜⅝⅞]|\d/\d|(?:of )?an?", match["amount"].lower())
    yield *part_span(match), name if is_one else tables.plural(name)


def _money(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "$5m" as "$5 million", "$5-10" as "5 to 10 dollars", "US$20" and "USD 20" as "20 US dollars"."""
    currency = match["currency"].strip()
    name = tables.CURRENCIES.get(currency) or tables.CURRENCY_CODES[currency]
    first, last, big = match["first"], match["last"], (match["big"] or "").strip()
    magnitude = tables.MAGNITUDES.get(big.lower(), big)
    if len(currency) == 1 and not (last and "." not in first + last):  # the engine reads "$5"
        if last:
            yield *match.span("dash"), "to " if match["again"] else f"to {currency}"
        if big and big == match["big"]:
            yield *match.span("big"), magnitude
        return
    is_one = first == "1" and not (last or big)
    words = (first, last and f"to {last}", magnitude, name if is_one else tables.plural(name))
    yield *match.span(), " ".join(filter(None, words))


def _currency_code(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 EUR" as "5 euros", "$20 USD" as "$20"."""
    name = tables.CURRENCY_CODES[match["code"]]
    yield *part_span(match), "" if match["symbol"] else name if match["amount"] == "1" else tables.plural(name)


def _european(match: re.Match[str]) -> Iterator[Rewrite]:
    """Write "1.234,56" as "1,234.56"."""
    for mark in re.compile("[.,]").finditer(match.string, *match.span()):
        yield *mark.span(), "," if mark.group() == "." else "."


def _range(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5-10" as "5 to 10", but not a telephone number, a month of a year, or "747-400"."""
    first, last = match["first"], match["last"]
    is_month = len(first) == 4 and len(last) == 2 and last <= "12"
    is_phone = len(first) == 3 and len(last) == 4 and match.end("last") == match.end()
    is_airplane = first[0] == first[2:] == "7" and len(last) == 3
    if not (is_month or is_phone or is_airplane) and (
        int(first) < 200 or len(last) == 2 < len(first) or int(first) < int(last)
    ):
        yield *part_span(match), "to"


_ROMAN_DIGITS = {"X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}


def _roman(written: str) -> int:
    return sum(_ROMAN_DIGITS[digit] for digit in re.findall("IX|IV|[XVI]", written))


READINGS: dict[str, Speak] = {
    **{"date": _date, "calendar": _calendar, "hours": _hours, "duration": _duration, "unit": _unit, "spoon": _spoon},
    **{"money": _money, "currency code": _currency_code, "european": _european, "range": _range},
    **{"address": _address, "phone": _phone, "letter phone": _letter_phone, "bank account": _bank_account},
    "words": _reads_words(spell),
    "code": _reads_part(_code),
    "version": _reads_part(lambda written: f"version {_point_number(written[1:])}"),
    "dotted": _reads_part(_dotted),
    "formula": _reads_part(_formula),
    "roman number": _reads_part(lambda written: number_words(str(_roman(written)))),
    "ruler": _reads_part(lambda written: f"the {ordinal_words(_roman(written))}"),
}
