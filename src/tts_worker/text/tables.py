"""Word lists that are data: ``data/NAME.tsv``, read at first use.

A line has fields between tabs; one that begins with ``"# "`` is a comment. A new word needs a new word in a file and no
code.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def rows(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the fields of the lines of a table."""
    lines = (files(__package__) / "data" / f"{name}.tsv").read_text("utf-8").splitlines()
    return tuple(tuple(line.split("\t")) for line in lines if line and not line.startswith("# "))


@cache
def words(name: str) -> dict[str, frozenset[str]]:
    """Return the words of each key of a table with the fields ``key`` and ``words``; a key may have several lines."""
    found: dict[str, frozenset[str]] = {}
    for key, line in rows(name):
        found[key] = found.get(key, frozenset()) | frozenset(line.split())
    return found
