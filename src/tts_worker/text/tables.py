"""Word lists and patterns that are data: ``data/NAME.tsv``, read at first use, and ``data/patterns.txt``.

A line has fields between tabs; one that begins with ``"# "`` is a comment. A new word needs a new word in a file and no
code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from tts_worker.text.characters import UNSPACED_CLASS

_NAME = re.compile("(?<!P)<([A-Z_]+)>")


def filled(pattern: str, named: Mapping[str, str]) -> str:
    """Return a pattern in which ``<UNIT>`` stands for what ``named`` has, and that for itself."""
    while _NAME.search(pattern):
        pattern = _NAME.sub(lambda name: named[name[1]], pattern)
    return pattern


def named_patterns(text: str) -> dict[str, str]:
    """Return the pattern of every name of a text; what begins with a space goes on with the line before."""
    pairs = (line.split(" = ", 1) for line in paragraphs(text))
    return {name: re.sub("\n +", "", pattern) for name, pattern in pairs}


def paragraphs(text: str) -> list[str]:
    """Return the lines of a text, each with the indented ones after it, without comments."""
    return [line for line in re.split(r"\n+(?=\S)", text.strip()) if line[:2] != "# "]


def _text(file: str) -> str:
    return (files(__package__) / "data" / file).read_text("utf-8")


NAMED = {"UNSPACED": UNSPACED_CLASS, **named_patterns(_text("patterns.txt"))}
"""Patterns of ``data/patterns.txt`` by name."""
PATTERNS = {name: re.compile(filled(pattern, NAMED)) for name, pattern in NAMED.items()}


@cache
def rows(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the fields of the lines of a table."""
    lines = _text(f"{name}.tsv").splitlines()
    return tuple(tuple(line.split("\t")) for line in lines if line and not line.startswith("# "))


@cache
def words(name: str) -> dict[str, frozenset[str]]:
    """Return the words of each key of a table with the fields ``key`` and ``words``; a key may have several lines."""
    found: dict[str, frozenset[str]] = {}
    for key, line in rows(name):
        found[key] = found.get(key, frozenset()) | frozenset(line.split())
    return found
