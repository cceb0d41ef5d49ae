"""Measures: amounts with a unit, rates, temperatures, feet and inches."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def read_unit(match: re.Match[str]) -> Iterator[Rewrite]:
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


def read_power_unit(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span("part"), plural(TABLES["UNITS"][match["unit"].replace(".", "").replace("μ", "µ")])


def read_inches(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read 27" as inches, unless the mark closes a quotation."""
    before = match.string[: match.start()]
    if len(_OPENING_QUOTE.findall(before)) > len(_CLOSING_QUOTE.findall(before)):
        return
    amount = match["amount"]
    is_plural = amount[-1].isdecimal() and "/" not in amount and amount != "1" and not match["side"]
    side = {"W": " wide", "H": " high", "D": " deep", "L": " long"}.get((match["side"] or "").strip(), "")
    is_noun = re.match(r" (?!of\b|and\b|or\b|x\b|in\b|on\b|from\b|by\b|to\b)[a-z\d]", match.string[match.end() :])
    yield match.start("mark"), match.end(), f"{'inches' if is_plural and not is_noun else 'inch'}{side}"


def read_height(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read 5'10" as "five foot ten"."""
    yield *match.span("feet"), number(match["feet"])
    yield *match.span("foot"), " foot "
    yield *match.span("inches"), number(match["inches"])
    yield *match.span("inch"), ""
