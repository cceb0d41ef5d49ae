"""Times: of day, durations, dates and years; the month first as in America, unless there is no such month."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import TABLES, plural
from tts_worker.text.reading.english.words import cardinal, number, ordinal, plural_number, year
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite

# -- times of day and durations ---------------------------------------------------------------------------------------


def _minutes(digits: str) -> str:
    return f"oh {cardinal(digits)}" if digits[0] == "0" else cardinal(digits)


def _clock(hour: str, minute: str, *, has_half: bool) -> str:
    """Return a time of day: "nine oh five", "seven o'clock", "seventeen hundred"; with AM or PM no "o'clock"."""
    if minute != "00":
        return f"{cardinal(hour)} {_minutes(minute)}"
    if has_half:
        return cardinal(hour)
    if not int(hour):
        return "midnight"
    return f"{cardinal(hour)} hundred" if int(hour) > 12 else f"{cardinal(hour)} o'clock"


def _half(match: re.Match[str], group: str) -> str:
    """Return " A.M." or " PM" for "am", "p.m." or "p": "AM" without periods may be heard as the verb."""
    if match[group].strip()[0] in "Pp":
        return " PM"
    return " A.M" if match.string[match.end(group) : match.end(group) + 1] == "." else " A.M."


def read_time(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "9:05 p.m." as "nine oh five PM". A period that ends a sentence stays."""
    hour, minute, half = match["h"], match["m"], match["half"]
    if int(hour) <= 24 and int(minute or 0) <= 59:
        end = match.end("m") if minute else match.end("h")
        yield match.start("h"), end, _clock(hour, minute, has_half=half is not None) if minute else cardinal(hour)
        if half:
            yield *match.span("half"), _half(match, "half")


def read_times(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "9am-5pm" and "10:00-11:30" as "nine AM to five PM" and so on."""
    for part in ("first", "last"):
        hour, _, minute = match[part].partition(":")
        half = match[f"{part}_half"]
        has_half = bool(half or match["last_half"])
        yield *match.span(part), _clock(hour, minute, has_half=has_half) if minute else cardinal(hour)
        if half:
            yield *match.span(f"{part}_half"), _half(match, f"{part}_half")
    yield *match.span("dash"), "to"


def read_duration(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2h 15m" as "two hours fifteen minutes"; also "1:02:03"."""
    for group, unit in (("d", "day"), ("h", "hour"), ("m", "minute"), ("s", "second")):
        if written := match.groupdict().get(group):
            digits = re.match(r"[\d.]+", written.strip())[0]  # type: ignore[index]
            whole = digits.lstrip("0") or "0"
            yield *match.span(group), f"{number(whole)} {unit if whole == '1' else plural(unit)}"
    if match.groupdict().get("second"):  # "1:02:03"
        yield *match.span("first"), " "
        yield *match.span("second"), " and "
        if match["half"]:
            yield *match.span("half"), _half(match, "half")


def read_seconds(match: re.Match[str]) -> Iterator[Rewrite]:
    yield match.start("h"), match.end("m"), _clock(match["h"], match["m"], has_half=False)
    yield *match.span("part"), f" and {cardinal(match['s'])} {'second' if match['s'] == '01' else 'seconds'}"


def zone(written: str) -> str:
    return written.replace(".", "").upper()


# -- dates, months and years ------------------------------------------------------------------------------------------

_MONTH_NAMES = list(TABLES["MONTHS"].values())


def month(written: str) -> str:
    return TABLES["MONTHS"][written.strip(". ").lower()[:3]]


def month_by_number(digits: str) -> str:
    return _MONTH_NAMES[int(digits) - 1]


def day(written: str) -> str:
    """Return a day of a month, "5" or "5th", as an ordinal; "" if no month has it."""
    number = int(written.rstrip("sthnrd"))
    return ordinal(number) if 1 <= number <= 31 else ""


def _full_year(written: str) -> str:
    """Return a year of two or four digits."""
    century = "" if len(written) != 2 else "20" if written < "50" else "19"
    return year(century + written)


def read_date(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2026-11-23", "11/23/2026" and "on 10/10"."""
    groups = match.groupdict()
    if spoken := _month_and_day(match["m"], match["d"]):
        yield *part_span(match), f"{spoken}, {_full_year(groups['y'])}" if groups.get("y") else spoken
    if groups.get("last") and (spoken := _month_and_day(groups["m2"], groups["d2"])):
        yield *match.span("last"), spoken


def _month_and_day(first: str, second: str) -> str:
    if int(first) > 12:
        first, second = second, first
    return f"{month_by_number(first)} {day(second)}" if 1 <= int(first) <= 12 and day(second) else ""


def read_month_day(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Jan. 5, 2027", "Jan-15-2020", "Jan 5-7" by "January fifth" and so on."""
    if not (first := day(match["d"])):
        return
    yield *match.span("month"), month(match["month"])
    yield match.end("month"), match.end("d"), f" {first}"
    if match["last"] and (last := day(match["last"])):
        yield *match.span("dash"), " to "
        yield *match.span("last"), last
    if match["y"]:
        yield match.start("y"), match.end("y"), year(match["y"])
        if match["gap"].strip() != ",":
            yield *match.span("gap"), ", "


def read_day_month(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 Feb 2027" as "the fifth of February, twenty twenty-seven"."""
    if not (ordinal_day := day(match["d"])):
        return
    article = "" if match["the"] else "the "
    yield *match.span("d"), f"{article}{ordinal_day} of"
    yield match.end("d"), match.end("month"), f" {month(match['month'])}"
    if match["y"]:
        yield match.end("month"), match.end("y"), f", {year(match['y'])}"


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
