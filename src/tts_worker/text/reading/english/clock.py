"""Times of day, hours and durations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import plural
from tts_worker.text.reading.english.words import cardinal, number
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite


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


def read_zone(match: re.Match[str]) -> Iterator[Rewrite]:
    sign = "plus" if match["sign"] == "+" else "minus"
    yield match.start("sign"), match.end("sign"), f" {sign}"


read_zone_name = reads_part(lambda written: written.replace(".", "").upper())
