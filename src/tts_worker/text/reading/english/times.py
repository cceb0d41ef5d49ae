"""Times: of day, durations, dates and years; the month first as in America, unless there is no such month."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tts_worker.text.reading.english.tables import TABLES, plural
from tts_worker.text.reading.english.words import cardinal, number, ordinal, plural_number, year
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite

# -- times of day and durations ---------------------------------------------------------------------------------------


def time(written: str) -> str:
    """Return a time of day before AM or PM: "nine oh five", "seven"."""
    hour, minute, *_ = [*re.split("[:.]", written), "00"]
    if minute == "00":
        return cardinal(hour)
    return f"{cardinal(hour)} {'oh ' * (minute[0] == '0')}{cardinal(minute)}"


def clock(written: str) -> str:
    """Return a time of day: "nine oh five", "seven o'clock", "seventeen hundred"."""
    hour, _, minute = written.partition(":")
    if minute != "00":
        return time(written)
    if not int(hour):
        return "midnight"
    return f"{cardinal(hour)} hundred" if int(hour) > 12 else f"{cardinal(hour)} o'clock"


def half(written: str) -> str:
    """Return "A.M." or "PM" for "am", "p.m." or "p": "AM" without periods may be heard as the verb."""
    return "PM" if written.strip()[0] in "Pp" else "A.M."


def _counted(unit: str) -> Callable[[str], str]:
    def words(written: str) -> str:
        digits = written.strip(f"{unit[0]} ").lstrip("0") or "0"
        return f"{number(digits)} {unit if digits == '1' else plural(unit)}"

    return words


days, hours, minutes, seconds = map(_counted, ("day", "hour", "minute", "second"))


def zone(written: str) -> str:
    return written.replace(".", "").upper()


# -- dates, months and years ------------------------------------------------------------------------------------------

_MONTH_NAMES = list(TABLES["MONTHS"].values())


def month(written: str) -> str:
    return TABLES["MONTHS"][written.split()[-1].lower()[:3]]


def month_by_number(digits: str) -> str:
    return _MONTH_NAMES[int(digits) - 1]


def day(written: str) -> str:
    """Return a day of a month, "5" or "-5th", as an ordinal; "" if no month has it."""
    number = int(written.strip("sthnrd -"))
    return ordinal(number) if 1 <= number <= 31 else ""


def _full_year(written: str) -> str:
    """Return a year of two or four digits."""
    century = "" if len(written) != 2 else "20" if written < "50" else "19"
    return year(century + written)


def date(written: str) -> str:
    """Return "2026-11-23", "11/23/26" or "11/23" with the name of the month; "" if there is none or no such day."""
    parts = re.split("[/-]", written)
    first, second, *years = parts[1:] + parts[:1] if len(parts[0]) == 4 else parts
    if int(first) > 12:
        first, second = second, first
    if not (1 <= int(first) <= 12 and day(second)):
        return ""
    return ", ".join([f"{month_by_number(first)} {day(second)}", *map(_full_year, years)])


def read_calendar(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Tue-Fri" and "Jan.-Mar." as "Tuesday to Friday" and "January to March"."""
    for name in re.compile(r"[A-Za-z]\w+\.?| ?[-–/] ?").finditer(match.string, *part_span(match)):
        written = name.group().rstrip(".").lower()
        if written in ("and", "or", "to", "through"):
            continue
        mark = "," if "/" in written else "to"
        yield *name.span(), TABLES["DAYS"].get(written) or TABLES["MONTHS"].get(written[:3], mark)


def decade(written: str) -> str:
    digits = written.lstrip("'’")[:-1].rstrip("'’")
    return plural_number(year(digits) if len(digits) == 4 else year(f"19{digits}").removeprefix("nineteen "))


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


def short_year(written: str) -> str:
    return cardinal(written[1:]) if written[1] != "0" else f"oh {cardinal(written[2])}"
