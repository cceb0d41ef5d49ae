"""The abbreviations, currencies and patterns of the tables are read as they say."""

from __future__ import annotations

import pytest

from tts_worker.features.languages import chinese, language_readers
from tts_worker.features.languages.scanner import compiled
from tts_worker.features.languages.tables import load

WITH_CASES = ("es", "fr", "de", "it", "pt", "ru")


@pytest.mark.parametrize("language", WITH_CASES)
def test_abbreviation_is_read_as_its_table_says(language: str) -> None:
    read = language_readers.rewrites_in(language)
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
