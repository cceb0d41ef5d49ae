"""Electronic: addresses of mail and of web pages, names of files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.words import spell, year
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite

_MARK_NAMES = {
    **{"/": "slash", ".": "dot", "-": "dash", "_": "underscore", "@": "at", "+": "plus", ":": "colon", "#": "hash"},
    **{
        "?": "question mark",
        "=": "equals",
        "&": "and",
        "%": "percent",
        "~": "tilde",
        "\\": "backslash",
        "jpg": "jpeg",
        "JPG": "jpeg",
    },
}
_SAID_DOMAINS = frozenset(
    ["com", "org", "net", "gov", "biz", "app", "dev", "co", "me", "tv", "in", "to", "edu", "info"]
)
_SPELLED = frozenset(["io", "ai", "uk", "us", "de", "eu", "ie", "it", "es", "ca", "au"])
_NO_VOWEL = re.compile("[b-df-hj-np-tv-xz]{2,5}")
_PARTS = re.compile(r"\d+|[^\W\d_]+|\W|_")


def _words(written: str) -> str:
    parts = _PARTS.findall(written)
    return " ".join(map(_word, parts))


def _word(part: str) -> str:
    """Return how a part is read: letters without a vowel, and domains of two letters, by their names."""
    if part.isdecimal():
        return year(part) if re.fullmatch(r"(?:19|20)\d\d", part) else spell(part)
    if part in _MARK_NAMES:
        return _MARK_NAMES[part]
    return part.upper() if part in _SPELLED or _NO_VOWEL.fullmatch(part) else part


def _address(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "joe@acme.io" as "joe at acme dot io"; the scheme and the query of a URL are not read."""
    groups = match.groupdict("")
    host, dot, domain = (groups.get("email") or groups["host"]).rpartition(".")
    known = domain.lower() in _SAID_DOMAINS or len(domain) > 3
    yield *match.span(), _words(host + dot + (domain if known else domain.upper()) + groups["path"].rstrip("/"))


def _file(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), _words(match.group())


RULES = GRAMMAR.rules(
    r"""
@address  @  (?<![\w.+-])(?P<email>[\w.+-]{1,64}@<HOSTS>[A-Za-z]{2,12})(?![\w@-])(?P<path>(?:/[\w.~%-]*\w)*)
@address  <TOP_LEVEL>  (?:https?://|(?<![\w.@/:-]))(?:www\.)?(?P<host><HOSTS><TOP_LEVEL>)(?![\w@-]|\.\w)
    (?P<path>(?::\d{2,5})?(?:/[\w.~%-]*\w)*/?)(?:\?[\w=&%.+-]*[\w=])?(?:\#[\w-]+)?
@address  http https  https?://(?P<host>[\w.-]{1,100}\w)(?P<path>(?::\d{2,5})?(?:/[\w.~%-]*\w){0,20}/?)
    (?:\?[\w=&%.+-]*[\w=])?
@file  /  \b(?:file|ftp|ssh|git|ws|wss|s3|gs):/{2,3}[\w.~/-]{1,100}\w
@file  ~ / \ .  (?<![\w/.])(?:[A-Za-z]:[\\/]|~/|\.{1,2}/|/(?=[a-z]{2,12}/))[\w.~\\/-]{0,100}\w
@file  <FILE>  (?<![\w./@-])[\w-]{1,40}(?:\.[\w-]{1,20}){0,3}\.(?i:<FILE>)\b(?!\.\w|[@/])
@dot  .  (?<![\w.!?…"”)])\.(?=[A-Za-z]{2,12}\b)
""",
    {"address": _address, "file": _file, "dot": reads_part(lambda _: "dot")},
)
