"""Fractions and mixed numbers: "2/3", "2 1/2", "1½", and spoons of them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import TABLES, plural
from tts_worker.text.reading.english.words import cardinal, ordinal
from tts_worker.text.reading.rules import part_span, reads_part
from tts_worker.text.span_rewriting import Rewrite

_NAMED = {2: "half", 4: "quarter"}
_NAMED_UP_TO = 20
_NAMED_TENS = (30, 32, 40, 50, 60, 64, 100, 1000, 10000)


def fraction(above: int, below: int) -> str:
    """Return "one half", "two thirds", "five over seventy-three"."""
    if not (2 <= below <= _NAMED_UP_TO or below in _NAMED_TENS) or above == 0 or above > 100 > below:
        return f"{cardinal(str(above))} over {cardinal(str(below))}"
    name = _NAMED.get(below) or ordinal(below)
    several = "halves" if below == 2 else f"{name}s"
    return f"{cardinal(str(above))} {name if above == 1 else several}"


def _vulgar(sign: str) -> str:
    above, below = unicodedata.normalize("NFKC", sign).split("\u2044")
    return fraction(int(above), int(below))


def read_fraction(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2/3", but not the division "10/2 = 5"."""
    above, below = int(match["above"]), int(match["below"])
    if above < below or match.string[match.end() :].lstrip()[:1] != "=":
        yield *part_span(match), fraction(above, below)


def read_mixed(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2 1/2" and "2½" as "two and one half"."""
    sign = match.groupdict().get("sign")
    words = _vulgar(sign) if sign else fraction(int(match["above"]), int(match["below"]))
    if words.startswith("one "):
        words = ("an " if words[4:10] == "eighth" else "a ") + words[4:]
    yield *match.span("whole"), cardinal(match["whole"])
    yield *match.span("part"), f" and {words}"


def read_spoon(match: re.Match[str]) -> Iterator[Rewrite]:
    name = TABLES["SPOONS"][match["name"].lower()]
    is_one = re.fullmatch(r"1|[½⅓⅔¼¾⅛⅜⅝⅞]|\d/\d|(?:of )?an?", match["amount"].lower())
    yield *part_span(match), name if is_one else plural(name)


read_sign = reads_part(_vulgar)
