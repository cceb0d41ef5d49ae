"""The value that is heard is the value that is written, whatever stands around it and however the text streams in.

``python -m tools.reading_values --examples 10000`` tries more of the same sentences.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.reading_values import ALL_KINDS, failure_of, main, make_example


@pytest.mark.parametrize("kind", ALL_KINDS)
@settings(max_examples=20)
@given(rng=st.randoms(use_true_random=False))
def test_value_is_heard_as_written(kind: str, rng: Random) -> None:
    failure = failure_of(make_example(rng, kind))
    assert failure is None, str(failure)


def test_misheard_value_is_reported_by_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.reading_values.speak", lambda deltas: "ten thousand and one percent")
    assert main(["--examples", "3", "--kinds", "list,percent"]) == 1
    report = capsys.readouterr().out
    assert "percent               0 of     1 heard as written" in report
    assert "heard:   10001 percent" in report
    assert main(["--examples", "0"]) == 0
