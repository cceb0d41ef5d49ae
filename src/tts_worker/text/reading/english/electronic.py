"""Electronic: addresses of mail and of web pages, names of files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.words import spell
from tts_worker.text.span_rewriting import Rewrite

_MARK_NAMES = {
    **{"/": "slash", ".": "dot", "-": "dash", "_": "underscore", "@": "at", "+": "plus", ":": "colon", "#": "hash"},
    **{"?": "question mark", "=": "equals", "&": "and", "%": "percent", "~": "tilde"},
}
_PARTS = re.compile(r"\d+|[^\W\d_]+|\W|_")


def _words(written: str) -> str:
    parts = _PARTS.findall(written)
    return " ".join(spell(part) if part.isdecimal() else _MARK_NAMES.get(part, part) for part in parts)


def _address(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "joe@acme.io" as "joe at acme dot io"; the scheme and the query of a URL are not read."""
    groups = match.groupdict("")
    yield *match.span(), _words(groups.get("email") or groups["host"] + groups["path"].rstrip("/"))


def _file(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), _words(match.group())


RULES = GRAMMAR.rules(
    r"""
@address  @  (?<![\w.+-])(?P<email>[\w.+-]{1,64}@<HOSTS>[A-Za-z]{2,12})(?![\w@-])
@address  <TOP_LEVEL>  (?:https?://|(?<![\w.@/:-]))(?:www\.)?(?P<host><HOSTS><TOP_LEVEL>)(?![\w@-]|\.\w)
    (?P<path>(?::\d{2,5})?(?:/[\w.~%-]*\w)*/?)(?:\?[\w=&%.+-]*[\w=])?(?:\#[\w-]+)?
@address  http https  https?://(?P<host>[\w.-]{1,100}\w)(?P<path>(?::\d{2,5})?(?:/[\w.~%-]*\w){0,20}/?)(?:\?[\w=&%.+-]*[\w=])?
@file  <FILE>  (?<![\w./@-])[\w-]{1,40}\.<FILE>\b(?!\.\w|[@/])
""",
    {"address": _address, "file": _file},
)
