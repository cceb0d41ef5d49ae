"""``python -m tools.bench engine``: the conditions of its measurements."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")

from tests.unit.cosyvoice.bundles import tiny
from tools import forced_speech
from tools.bench.engine import Bench, forced_tokens
from tts_worker.engine.cosyvoice.loader import LoadOptions
from tts_worker.engine.engine_thread import SWITCH_INTERVAL_S
from tts_worker.errors import SynthesisFailed
from tts_worker.types import Failed, UtteranceKey


@pytest.fixture(autouse=True)
def default_interval() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before_s)


def test_threads_switch_as_often_as_in_the_server() -> None:
    bench = Bench(LoadOptions(tiny("cosyvoice3"), device="cpu", threads=1), 45)
    bench.engine.close()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)


def test_utterance_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(LoadOptions(tiny("cosyvoice3"), device="cpu", threads=1), 45)
    error = SynthesisFailed("a kernel failed").info
    monkeypatch.setattr(bench.engine, "step", lambda now_s: [Failed(UtteranceKey("bench", 1), error)])
    with pytest.raises(SynthesisFailed, match="a kernel failed"):
        bench.speak(forced_tokens(10, 1))
    bench.engine.close()


def test_older_versions_are_measured_with_the_interval_of_today() -> None:
    assert forced_speech.SWITCH_INTERVAL_S == SWITCH_INTERVAL_S
