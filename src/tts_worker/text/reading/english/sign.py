"""What is left of signs: each has a name or is silent, so that no engine has to guess."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.english.words import number
from tts_worker.text.span_rewriting import Rewrite

_PAUSE = ", "
_PAUSES = frozenset("|•·◦‣⁃▪●○¦")


def read_sign(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read one sign, or a letter of compatibility as what it stands for."""
    sign = match["sign"]
    if unicodedata.category(sign)[0] == "M":  # an accent of its own
        return
    if sign in _PAUSES:
        yield *match.span(), _PAUSE
        return
    name = TABLES["SIGNS"].get(sign, "")
    plain = unicodedata.normalize("NFKC", sign)
    if sign == "#" and re.match(r"\s\w", match.string[match.start() - 1 : match.start()] + match.string[match.end() :]):
        name = "hashtag"
    elif sign in "<>^~" and not re.match(" . ", match.string[max(0, match.start() - 1) : match.end() + 1]):
        name = ""  # a bracket or a mark, no operator
    elif not name and plain != sign and plain.isalnum() and sign != "™":
        name = number(plain) if plain.isdecimal() else plain
    yield *match.span(), name


def read_slash(match: re.Match[str]) -> Iterator[Rewrite]:
    around = match.string[match.start() - 1], match.string[match.end()]
    yield *match.span(), " " if all(char.isupper() or char.isdigit() for char in around) else " slash "
