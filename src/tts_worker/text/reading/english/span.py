"""Ranges and lists of numbers: "5-10", "1,2 or 3", "1-2-3"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.words import pairs, short_number, spell
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite


def _range(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5-10" as "five to ten", but not a telephone number, a month of a year, or "747-400"."""
    first, last = match["first"], match["last"]
    is_month = len(first) == 4 and len(last) == 2 and last <= "12"
    is_phone = len(first) == 3 and len(last) == 4 and match.end("last") == match.end()
    is_airplane = first[0] == first[2:] == "7" and len(last) == 3
    if not (is_month or is_phone or is_airplane) and (
        match["part"] == "–" or int(first) < 200 or len(last) == 2 < len(first) or int(first) < int(last)
    ):
        yield *part_span(match), "to"


def _spaced_range(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 - 10" as a range and "8 - 3" as a difference."""
    is_range = float(match["first"].replace(",", "")) < float(match["last"].replace(",", ""))
    yield *part_span(match), " to " if is_range else " minus "


def _serial(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "747-400" in pairs, "01-02" and "1-2-3" with pauses."""
    groups = re.split("[-–]", match.group())
    is_airplane = len(groups) == 2 and groups[0][:1] == groups[0][2:3] == "7"
    read = pairs if is_airplane else spell if any(group[0] == "0" for group in groups) else short_number
    yield *match.span(), (" " if is_airplane else ", ").join(map(read, groups))


def _list(match: re.Match[str]) -> Iterator[Rewrite]:
    for mark in re.finditer(",", match.group("part")):
        place = match.start("part") + mark.start()
        yield place, place + 1, ", "


RULES = GRAMMAR.rules(
    r"""
@list  3+  (?<![\w.,$€£¥₹₩₽])«(?!\d{1,3}(?:,\d{3}){2,6}(?!\d|,\d))(?![1-9]\d?(?:,\d\d){1,5},\d{3}(?!\d|,\d))\d{1,4}
    (?:,\d{1,4}){2,12}»(?![\w.,]\d)
@list  <LISTED>  \b<LISTED> «\d{1,4}
    (?:,\d{1,4}){1,12}»(?![\d%°]|[.,]\d)
@list  2+  (?<![\w.,$€£¥₹₩₽])«(?!\d{1,3},\d{3}(?!\d))\d{1,4},\d{1,4}»(?= (?:and|or|&) \d)
@list  8+  (?<![\w.,$€£¥₹₩₽])«\d{4},\d{4}»(?![\w%°]|[.,]\d)
@range  - –  (?<![\w.,/:+-])[$€£]?(?!0\d)(?P<first>\d{1,4})(?:\.\d{1,2})?[kKM%°]?[CF]?«[-–]»
    [$€£]?(?!0\d)(?P<last>\d{1,4})(?:\.\d{1,2})?(?![\d/:–-]|[A-Z]{2}|[.,]\d| ?=)
to  - –  (?<![\w.,/:+-])\d{1,3}(?:,\d{3}){1,3}« ?[-–] ?»(?=\d{1,3}(?:,\d{3}){1,3}(?![\d,]))
to  - –  (?<![\w.,/:+-])\d{1,6}\.\d{1,4}«[-–]»(?=\d{1,6}(?:\.\d{1,4})?(?![\w.-]))
to  - –  (?<![\w.,/:+-])\d{1,6}«[-–]»(?=\d{1,6}\.\d{1,4}(?![\w.-]))
to  - –  (?<![\w.,/:+-])\d{1,4}(?:st|nd|rd|th)«[-–]»(?=\d{1,4}(?:st|nd|rd|th)\b)
to  - –  (?<![\w.,/:+-])\d{1,6}«[-–]»(?=\d{1,6} ?<UNITS>\b)
to  …  (?<=\d)«…»(?=\d)
@spaced  - – −  (?<![\w.,/:$€£-])(?P<first>\d{1,6}(?:,\d{3}){0,3}(?:\.\d{1,4})?)(?P<part> [-–] )(?P<last>\d{1,6}
    (?:,\d{3}){0,3}(?:\.\d{1,4})?)
    (?![\w/:]|[.,]\d| [-–+*/=×÷] )(?<![+*/=×÷] \d )
@serial  - –  (?<![\w.,/+-])(?:7\d7-\d{3}|\d{1,6}(?:[-–]\d{1,6}){2,6}|0\d{0,5}-\d{1,6}|\d{1,6}-0\d{0,5}|\d{3}-\d{4})
    (?![\w/-]|[.,]\d)
to  –  (?<=[a-z])«–»(?=[A-Z])
to  –  (?:(?<=\b[A-Z])|(?<=\b[A-Z]\d))–(?=[A-Z]?\d{0,2}\b)
to  -  (?<=\b[QH]\d)-(?=[QH]\d\b)|(?<=\bK)-(?=\d{1,2}\b)|(?<=\bA)-(?=Z\b)
""",
    {"range": _range, "spaced": _spaced_range, "list": _list, "serial": _serial},
)
