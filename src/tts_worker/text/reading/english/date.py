"""Dates, days, months and years; the month first as in America, unless there is no such month."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.english.words import cardinal, ordinal, pairs, plural, year
from tts_worker.text.reading.rules import part_span, reads_part
from tts_worker.text.span_rewriting import Rewrite

_MONTH_NAMES = list(TABLES["MONTHS"].values())


def _month(written: str) -> str:
    return TABLES["MONTHS"][written.strip(". ").lower()[:3]]


def _day(written: str) -> str | None:
    """Return a day of a month, "5" or "5th", as an ordinal; None if no month has it."""
    day = int(written.rstrip("sthnrd"))
    return ordinal(day) if 1 <= day <= 31 else None


def _whole_year(written: str) -> str:
    """Return a year of two or four digits."""
    century = "" if len(written) != 2 else "20" if written < "50" else "19"
    return year(century + written)


def read_date(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2026-11-23", "11/23/2026" and "on 10/10"."""
    groups = match.groupdict()
    if spoken := _day_of_month(int(match["m"]), int(match["d"])):
        yield *part_span(match), f"{spoken}, {_whole_year(groups['y'])}" if groups.get("y") else spoken
    if groups.get("last") and (spoken := _day_of_month(int(groups["m2"]), int(groups["d2"]))):
        yield *match.span("last"), spoken


def read_day_first(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "15-01-2020" and "25.12.2026" in the order in which they are written."""
    if day := _day(match["d"]):
        month = _MONTH_NAMES[int(match["m"]) - 1]
        yield *match.span("part"), f"the {day} of {month}, {_whole_year(match['y'])}"


def read_month_of_year(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), f"{_MONTH_NAMES[int(match['m']) - 1]} {year(match['y'])}"


def _day_of_month(month: int, day: int) -> str | None:
    if month > 12:
        month, day = day, month
    return f"{_MONTH_NAMES[month - 1]} {ordinal(day)}" if 1 <= month <= 12 and 1 <= day <= 31 else None


def read_month_day(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Jan. 5, 2027", "Jan-15-2020", "Jan 5-7" by "January fifth" and so on."""
    if (day := _day(match["d"])) is None:
        return
    yield *match.span("month"), _month(match["month"])
    yield match.end("month"), match.end("d"), f" {day}"
    if match["last"] and (last := _day(match["last"])):
        yield *match.span("dash"), " to "
        yield *match.span("last"), last
    if match["y"]:
        yield match.start("y"), match.end("y"), year(match["y"])
        if match["gap"].strip() != ",":
            yield *match.span("gap"), ", "


def read_day_month(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 Feb 2027" as "the fifth of February, twenty twenty-seven"."""
    if (day := _day(match["d"])) is None:
        return
    article = "" if match["the"] else "the "
    yield *match.span("d"), f"{article}{day} of"
    yield match.end("d"), match.end("month"), f" {_month(match['month'])}"
    if match["y"]:
        yield match.end("month"), match.end("y"), f", {year(match['y'])}"


def read_month_year(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span("month"), _month(match["month"])
    yield *match.span("y"), year(match["y"])


def read_calendar(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Tue-Fri" and "Jan.-Mar." as "Tuesday to Friday" and "January to March"."""
    for name in re.compile(r"[A-Za-z]\w+\.?| ?[-–/] ?").finditer(match.string, *part_span(match)):
        written = name.group().rstrip(".").lower()
        if written in ("and", "or", "to", "through"):
            continue
        mark = "," if "/" in written else "to"
        yield *name.span(), TABLES["DAYS"].get(written) or TABLES["MONTHS"].get(written[:3], mark)


def read_part_of_year(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2Q22" as "the second quarter of twenty-two"."""
    article = "" if match["the"] else "the "
    part = "quarter" if match["part_of"] == "Q" else "half"
    yield *match.span("part"), f"{article}{ordinal(match['n'])} {part} of {year(match['y'])}"


def _decade(written: str) -> str:
    digits = written.lstrip("'’")[:-1].rstrip("'’")
    return plural(year(digits) if len(digits) == 4 else year(f"19{digits}").removeprefix("nineteen "))


def read_between(match: re.Match[str]) -> Iterator[Rewrite]:
    for part in ("first", "last"):
        yield *match.span(part), year(match[part])


def read_years(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1939-1945" and "2019-21" as years, but not a month "2026-11"."""
    first, last = match["first"], match["last"]
    is_month = match["dash"] == "-" and len(last) == 2 and "00" < last <= "12"
    if is_month or (len(last) == 4 and int(last) <= int(first)):
        return
    yield *match.span("first"), year(first)
    yield *match.span("dash"), "to" if "/" not in match["dash"] else " "
    if len(last) == 4:
        yield *match.span("last"), year(last)


read_month = reads_part(_month)
read_decade = reads_part(_decade)
read_year = reads_part(year)
read_pairs = reads_part(pairs)
read_short_year = reads_part(
    lambda written: cardinal(written[1:]) if written[1] != "0" else f"oh {cardinal(written[2])}"
)
