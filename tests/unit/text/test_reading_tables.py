"""The tables and rules of reading: files to which lines are added."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cases import each_case

from tts_worker.text.reading import chinese, tables, worldwide
from tts_worker.text.reading.rules import Grammar
from tts_worker.text.reading.tables import compiled, load

FILES = sorted(Path(tables.__file__).parent.glob("*.tsv"))
WITH_CASES = ("es", "fr", "de", "it", "pt", "ru")


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
    assert sum(map(len, load(path.stem).values())) == len(found)


@each_case("path", FILES)
def test_lines_have_two_columns_without_stray_spaces(path: Path) -> None:
    for line in path.read_text("utf-8").splitlines():
        assert line.count("\t") <= 1, line
        assert line.rstrip("\t ") == line or line.startswith("(?<=[A-Za-z])&"), line


@pytest.mark.parametrize("language", WITH_CASES)
def test_abbreviation_is_read_as_its_table_says(language: str) -> None:
    read = worldwide.rewrites_in(language)
    assert read is not None
    followers = {"BEFORE_NUMBER": " 5", "BEFORE_NAME": " Anna" if language != "ru" else " Анна"}
    for table in ("ABBREVIATIONS", "BEFORE_NUMBER", "BEFORE_NAME", "ENDINGS"):
        for written, spoken in load(language).get(table, {}).items():
            name = written[0].upper() + written[1:] if table == "BEFORE_NAME" else written.lstrip("-")
            text = ("x" if written[0] == "-" else ": ") + name + followers.get(table, " x")
            words = [words.strip().casefold() for _, _, words in read(text, 0)]
            assert spoken.casefold() in " ".join(words) or table == "ENDINGS", (written, words)


def test_name_in_a_pattern_stands_for_its_own_names() -> None:
    assert compiled("<A>x", {"A": "<B>+", "B": "[ab]"}).fullmatch("abbax")
    with pytest.raises(KeyError):
        compiled("<A>", {})


def test_every_sign_of_a_currency_has_a_price_in_chinese() -> None:
    for sign, name in load("zh")["CURRENCIES"].items():
        text = f"共{sign}3整"
        (rewrite,) = chinese.rewrites(text, 0)
        assert rewrite[2] == f"三{name}", sign


def test_rule_that_names_no_function_is_an_error() -> None:
    with pytest.raises(KeyError, match="read_nothing"):
        Grammar({}, "A = a", {}).rules("@nothing  *  x")
