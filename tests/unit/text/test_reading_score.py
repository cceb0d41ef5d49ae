"""The measure of reading: spoken text and accepted wordings are compared by their phonemes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools.reading_score import Case, main, read_cases, score

ROOT = Path(__file__).parents[3]
THREE = (
    "# a comment\n"
    "en_money3\tIt costs $5.\tIt costs five euros.\tit costs, five dollars!\n"
    "money-04\tTwo lines:\\nsix apples\ttwo lines six apples\n"
    "word1\tGood evening.\tGood morning.\n"
)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "three.tsv"
    path.write_text(THREE, encoding="utf-8")
    return path


def test_cases_have_a_class_and_wordings(three: Path) -> None:
    cases = read_cases(three)
    assert [case.kind for case in cases] == ["money", "money", "word"]
    assert cases[0] == Case("en_money3", "It costs $5.", ("It costs five euros.", "it costs, five dollars!"))
    assert cases[1].text == "Two lines:\nsix apples"


def test_any_accepted_wording_is_right(three: Path) -> None:
    results = score(read_cases(three))
    assert [result.is_right for result in results] == [True, True, False]
    assert results[2].spoken == "Good evening."


def test_wording_keeps_the_words_that_it_has() -> None:
    [result] = score([Case("abbreviation1", "Say no!", ("Say no.",))])
    assert result.is_right


def test_british_words_of_a_number_count_on_request() -> None:
    case = Case("decimal1", "-120.05", ("negative one hundred and twenty point o five",))
    assert [score([case], allow_british=allowed)[0].is_right for allowed in (False, True)] == [False, True]


@pytest.mark.parametrize(
    ("text", "wording"),
    [("8:00", "eight oclock"), ("9 am to 5", "nine AM to five"), ("2 kl", "two kilo liters"), ("August", "august")],
)
def test_spelling_of_a_wording_does_not_count(text: str, wording: str) -> None:
    assert score([Case("time1", text, (wording,))])[0].is_right


def test_table_counts_right_cases_by_class(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(three), "--failures", "1"]) == 0
    table = capsys.readouterr().out
    assert "money           2 of   2  100.0 %" in table
    assert "all             2 of   3   66.7 %" in table
    assert "spoken:   Good evening." in table


def test_json_has_the_failures(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(three), "--json"]) == 0
    [figures] = json.loads(capsys.readouterr().out)
    assert figures["classes"] == {"money": {"right": 2, "cases": 2}, "word": {"right": 0, "cases": 1}}
    assert [failure["id"] for failure in figures["failures"]] == ["word1"]


def test_line_without_wording_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text("word1\tGood evening.\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="line 1"):
        main([str(path)])


def test_text_that_cannot_be_read_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, segment: object) -> None:
        raise KeyError("a rule")

    monkeypatch.setattr("tools.reading_score.Verbalizer.apply", fail)
    [result] = score([Case("word1", "Good evening.", ("Good evening.",))])
    assert not result.is_right
    assert result.spoken == "KeyError('a rule')"


@pytest.mark.parametrize(("name", "described"), [("agent", "sentences of agents"), ("blind", "more, written")])
def test_documented_score_is_reached(name: str, described: str) -> None:
    cases = read_cases(ROOT / "tests" / "data" / "reading" / f"{name}_sentences.tsv")
    documented = re.search(rf"\| (\d+) {described}.* \| (\d+);", (ROOT / "docs" / "benchmarks.md").read_text("utf-8"))
    assert documented is not None
    assert (len(cases), sum(result.is_right for result in score(cases))) == (int(documented[1]), int(documented[2]))
