"""The tables and rules of reading: files to which lines are added."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cases import each_case

import tts_worker
from tts_worker.text.reading import english
from tts_worker.text.reading.rules import Grammar
from tts_worker.text.reading.tables import load

FILES = [
    Path(english.__file__).with_name("tables.tsv"),
    *sorted((Path(tts_worker.__file__).parent / "features" / "languages" / "tables").glob("*.tsv")),
]


def entries(path: Path) -> list[tuple[str, str]]:
    """Return heading and written form of every line."""
    found, heading = [], ""
    for line in path.read_text("utf-8").splitlines():
        if re.fullmatch(r"\[[A-Z_]+\]", line):
            heading = line
        elif line and not line.startswith("# "):
            found.append((heading, line.partition("\t")[0]))
    return found


@each_case("path", FILES)
def test_no_line_is_lost(path: Path) -> None:
    """A second line for the same written form in a table would silently replace the first."""
    found = entries(path)
    assert sorted(found) == sorted(set(found))
    assert sum(map(len, load(path).values())) == len(found)


@each_case("path", FILES)
def test_lines_have_two_columns_without_stray_spaces(path: Path) -> None:
    for line in path.read_text("utf-8").splitlines():
        assert line.count("\t") <= 1, line
        assert line.rstrip("\t ") == line or line.startswith("(?<=[A-Za-z])&"), line


def test_rule_that_names_no_function_is_an_error() -> None:
    with pytest.raises(KeyError, match="read_nothing"):
        Grammar({}, "A = a", {}).rules("@nothing  *  x")
