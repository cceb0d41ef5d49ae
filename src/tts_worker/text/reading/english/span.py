"""Ranges and lists of numbers: "5-10", "1,2 or 3", "1-2-3"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.words import pairs, short_number, spell
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite


def read_range(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5-10" as "five to ten", but not a telephone number, a month of a year, or "747-400"."""
    first, last = match["first"], match["last"]
    is_month = len(first) == 4 and len(last) == 2 and last <= "12"
    is_phone = len(first) == 3 and len(last) == 4 and match.end("last") == match.end()
    is_airplane = first[0] == first[2:] == "7" and len(last) == 3
    if not (is_month or is_phone or is_airplane) and (
        match["part"] == "–" or int(first) < 200 or len(last) == 2 < len(first) or int(first) < int(last)
    ):
        yield *part_span(match), "to"


def read_spaced(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 - 10" as a range and "8 - 3" as a difference."""
    is_range = float(match["first"].replace(",", "")) < float(match["last"].replace(",", ""))
    yield *part_span(match), " to " if is_range else " minus "


def read_serial(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "747-400" in pairs, "01-02" and "1-2-3" with pauses."""
    groups = re.split("[-–]", match.group())
    is_airplane = len(groups) == 2 and groups[0][:1] == groups[0][2:3] == "7"
    read = pairs if is_airplane else spell if any(group[0] == "0" for group in groups) else short_number
    yield *match.span(), (" " if is_airplane else ", ").join(map(read, groups))


def read_list(match: re.Match[str]) -> Iterator[Rewrite]:
    for mark in re.finditer(",", match.group("part")):
        place = match.start("part") + mark.start()
        yield place, place + 1, ", "
