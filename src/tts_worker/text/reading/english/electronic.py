"""Electronic: addresses of mail and of web pages, names of files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.english.words import spell, year
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite

_SPELLED = re.compile(
    "(?:us|it|es|a[iou]l|aws|api|ibm|irs|upc"
    "|(?!(?:ad|am|an|as|at|be|by|co|do|go|ha|he|hi|if|in|is|me|mr|ms|my|no|of|oh|ok|on|or|ox|pi|py|so|to|tv|up|we)$)[a-z]{2}"
    "|[b-df-hj-np-tv-xz]{2,5}|[a-z]{1,2}(?:[bdgp][cf]|[cghkpqv][bdgjv]|[mnt]q))"
)
"""Small letters that are no word: initials, no vowel, or an end as no word has it."""
_PARTS = re.compile(r"\d+|[^\W\d_]+|\W|_")


def _words(written: str) -> str:
    parts = _PARTS.findall(written)
    return " ".join(map(word, parts))


def word(part: str) -> str:
    """Return how a part is read: what is no word by the names of its letters."""
    if part.isdecimal():
        return year(part) if re.fullmatch(r"(?:19|20)\d\d", part) else spell(part)
    if part in TABLES["PARTS"]:
        return TABLES["PARTS"][part]
    if not _SPELLED.fullmatch(part):
        return part
    letters = part.upper()
    return TABLES["WORDS"].get(letters, letters)


def read_address(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "joe@acme.io" as "joe at acme dot io"; the scheme and the query of a URL are not read."""
    groups = match.groupdict("")
    host, dot, domain = (groups.get("email") or groups["host"]).rpartition(".")
    known = domain.lower() in TABLES["SAID_DOMAINS"] or len(domain) > 3
    yield *match.span(), _words(host + dot + (domain if known else domain.upper()) + groups["path"].rstrip("/"))


read_file = reads_part(_words)
