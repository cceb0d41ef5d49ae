"""Tests of many cases: all of them run, and those that fail are named together."""

from __future__ import annotations

import pytest

from tests.cases import each_case


def test_every_case_runs_and_all_that_fail_are_named() -> None:
    seen: list[str] = []

    @each_case(("text", "length"), [("a", 1), ("bb", 3), ("ccc", 3), ("", None)])
    def check(length: int, text: str) -> None:
        seen.append(text)
        if length is None:
            with pytest.raises(TypeError):
                len(text)
        assert len(text) == length

    with pytest.raises(pytest.fail.Exception) as failed:
        check()
    assert seen == ["a", "bb", "ccc", ""]
    assert str(failed.value).startswith("2 of 4 cases failed\n\ntext='bb', length=3\nAssertionError: ")
    assert "text='', length=None\nFailed: " in str(failed.value)


def test_one_argument_takes_the_values_themselves() -> None:
    seen: list[object] = []
    each_case("value", [(1, 2), "ab"])(lambda value: seen.append(value))()
    assert seen == [(1, 2), "ab"]


def test_fixtures_and_no_cases_are_refused() -> None:
    with pytest.raises(AssertionError, match="it has fixtures"):
        each_case("value", [1])(lambda value, tmp_path: None)
    with pytest.raises(AssertionError, match="no cases"):
        each_case("value", [])(lambda value: None)
