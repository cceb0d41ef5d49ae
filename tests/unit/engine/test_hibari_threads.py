"""The network of the CPU voice on its own thread: results that arrive after the utterance has changed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.contract.engine_contract import EngineCase, EngineDriver, segments
from tts_worker.engine.cpu.hibari.engine import HibariEngine
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel, Spectra
from tts_worker.engine.cpu.phrases.sequence import PhrasePhase
from tts_worker.engine.scheduler import Need
from tts_worker.engine.worker_thread import ENGINE_NICENESS, NETWORK_NICENESS
from tts_worker.errors import ErrorCode
from tts_worker.types import (
    Boundary,
    Cancel,
    Credit,
    Done,
    Failed,
    Hold,
    Open,
    Release,
    SynthesisParams,
    UtteranceKey,
)

KEY = UtteranceKey("s", 1)
OTHER = UtteranceKey("other", 1)
TEXT = segments(("Yes, it is.", Boundary.END))
LIMIT_S = 60.0


class GatedModel:
    """A model whose runs wait for ``gate``; the first one with an ``error`` raises it."""

    def __init__(self, model: HibariModel) -> None:
        self._model = model
        self.voices = model.voices
        self.gate = threading.Event()
        self.threads: list[str] = []
        self.error: Exception | None = None
        self.runs_ended = threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict(self, ids: tuple[int, ...], speed: float, voice: str) -> Spectra:
        self.threads.append(threading.current_thread().name)
        assert self.gate.wait(LIMIT_S)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        spectra = self._model.predict(ids, speed, voice)
        self.runs_ended.release()
        return spectra


class Subject:
    """An engine with a gated model, and what it takes to drive it."""

    def __init__(self, model: HibariModel) -> None:
        before = set(threading.enumerate())
        self.model = GatedModel(model)
        self._woken = threading.Event()
        self.engine = HibariEngine(cast(HibariModel, self.model), max_utterances=4)
        self.engine.on_work(self._woken.set)
        (self.thread,) = set(threading.enumerate()) - before
        self.driver = EngineDriver(EngineCase(lambda: self.engine, SynthesisParams(VOICE), (), ()))
        self.driver.open(UtteranceKey("idle", 1))  # alone, an utterance needs no thread

    def speak(self, key: UtteranceKey) -> None:
        self.driver.open(key)
        self.driver.send_text(key, TEXT)
        self.driver.drain()

    @property
    def predicting(self) -> list[UtteranceKey]:
        """The utterances for which the network has a run."""
        return [key for key, sequence in self.engine.sequences.items() if sequence.phase is PhrasePhase.PREDICTING]

    def open_gate(self) -> None:
        """Let the network run until the engine has nothing more to do."""
        self.model.gate.set()
        while self.engine.wait_for_work() and self.engine.has_work:
            assert self._woken.wait(LIMIT_S)
            self.driver.drain()


@pytest.fixture
def subject(hibari_model: HibariModel) -> Iterator[Subject]:
    subject = Subject(hibari_model)
    yield subject
    subject.model.gate.set()
    subject.engine.close()


@pytest.fixture(scope="module")
def pcm(hibari_model: HibariModel) -> bytes:
    """The audio of ``TEXT`` without a thread."""
    driver = EngineDriver(EngineCase(lambda: HibariEngine(hibari_model), SynthesisParams(VOICE), (), ()))
    output = driver.open(KEY)
    driver.send_text(KEY, TEXT)
    driver.drain()
    return output.pcm


def test_engine_is_free_while_the_network_runs(subject: Subject, pcm: bytes) -> None:
    subject.speak(KEY)
    assert not subject.engine.has_work, "it waits for the network without stepping"
    subject.speak(OTHER)
    assert not subject.engine.has_work, "the network is taken"
    subject.open_gate()
    assert set(subject.model.threads) == {"tts-network"}
    assert [subject.driver.outputs[key].pcm for key in (KEY, OTHER)] == [pcm, pcm]


THIRD = UtteranceKey("third", 1)


def fill_network(subject: Subject) -> None:
    """Let three utterances speak, of which the network takes two."""
    for key in (KEY, OTHER, THIRD):
        subject.speak(key)
    assert subject.predicting == [KEY, OTHER]
    assert subject.engine.sequences[THIRD].needs is Need.PREDICT


def test_what_waits_for_a_full_network_is_no_candidate(subject: Subject, pcm: bytes) -> None:
    """With many calls it would be most of what a step looks at."""
    fill_network(subject)
    assert subject.engine.candidates(0) == []
    subject.open_gate()
    assert [subject.driver.outputs[key].pcm for key in (KEY, OTHER, THIRD)] == [pcm] * 3


def test_time_counts_while_the_network_is_full(subject: Subject) -> None:
    fill_network(subject)
    waiting = subject.engine.sequences[THIRD]
    waiting.waiting_since_us = None
    subject.engine.candidates(7)
    subject.engine.candidates(9)
    assert waiting.waiting_since_us == 7


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_network_goes_after_the_other_threads(subject: Subject) -> None:
    assert 0 < ENGINE_NICENESS < NETWORK_NICENESS
    assert 1.25**ENGINE_NICENESS > 2, "each step is a quarter of a share: the event loop goes before both"
    assert NETWORK_NICENESS - ENGINE_NICENESS == 1, "both work for the same calls"
    subject.speak(KEY)
    subject.speak(OTHER)
    subject.open_gate()
    assert subject.thread.native_id is not None
    process_niceness = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, subject.thread.native_id) == min(19, process_niceness + NETWORK_NICENESS)


def test_second_run_begins_without_the_engine_thread(subject: Subject, pcm: bytes) -> None:
    third = UtteranceKey("third", 1)
    for key in (KEY, OTHER, third):
        subject.speak(key)
    assert subject.predicting == [KEY, OTHER], "the third call may still be overtaken by a more urgent one"
    subject.model.gate.set()
    assert subject.model.runs_ended.acquire(timeout=LIMIT_S)
    assert subject.model.runs_ended.acquire(timeout=LIMIT_S), "the engine thread has done nothing meanwhile"
    subject.open_gate()
    assert [subject.driver.outputs[key].pcm for key in (KEY, OTHER, third)] == [pcm] * 3


def test_second_run_of_a_cancelled_call_is_collected(subject: Subject, pcm: bytes) -> None:
    subject.speak(KEY)
    subject.speak(OTHER)
    subject.driver.send(Cancel(KEY))
    subject.open_gate()
    assert subject.driver.outputs[OTHER].pcm == pcm


def test_second_run_is_not_for_a_download(subject: Subject) -> None:
    subject.speak(KEY)
    subject.driver.send(Open(OTHER, SynthesisParams(VOICE), 10**6, paced=False))
    subject.driver.send_text(OTHER, TEXT)
    subject.driver.drain()
    assert subject.predicting == [KEY]


def test_second_run_is_for_a_call_with_little_audio(subject: Subject) -> None:
    output = subject.driver.open(OTHER)
    subject.driver.send_text(OTHER, TEXT, end=False)
    subject.driver.drain()
    subject.open_gate()
    subject.model.gate.clear()
    limit = HibariEngine.URGENT_LEAD_SAMPLES
    assert output.samples > limit
    subject.speak(KEY)
    subject.driver.send_text(OTHER, segments(("So be it.", Boundary.END)))
    subject.driver.send(Credit(OTHER, output.samples - limit))
    subject.driver.drain()
    assert subject.predicting == [KEY], "it has half a second ahead: a more urgent call may come"
    subject.driver.send(Credit(OTHER, 1))
    subject.driver.drain()
    assert set(subject.predicting) == {KEY, OTHER}


def test_cancelled_utterance_drops_its_spectra(subject: Subject, pcm: bytes) -> None:
    subject.speak(KEY)
    subject.driver.send(Cancel(KEY))
    assert KEY not in subject.engine.sequences
    subject.speak(KEY)  # the same key again: the run in flight is not its own
    subject.open_gate()
    assert len(subject.model.threads) == 2
    assert subject.driver.outputs[KEY].pcm == pcm
    assert subject.driver.outputs[KEY].ends == [Done(KEY)]


@pytest.mark.parametrize("released_during_run", [True, False])
def test_hold_during_a_run_does_not_change_audio(subject: Subject, pcm: bytes, released_during_run: bool) -> None:
    subject.speak(KEY)
    subject.driver.send(Hold(KEY))
    if released_during_run:
        subject.driver.send(Release(KEY))
    subject.open_gate()
    if not released_during_run:
        assert subject.engine.sequences[KEY].spectra_frames == 0
        subject.driver.send(Release(KEY))
        subject.driver.drain()
        subject.open_gate()
    assert subject.driver.outputs[KEY].pcm == pcm


def test_error_on_the_thread_fails_its_utterance(subject: Subject, pcm: bytes) -> None:
    subject.speak(KEY)
    subject.speak(OTHER)
    subject.model.error = RuntimeError("said: secret words")
    subject.open_gate()
    (end,) = subject.driver.outputs[KEY].ends
    assert isinstance(end, Failed)
    assert end.error.code is ErrorCode.SYNTHESIS_FAILED
    assert "secret" not in end.error.message
    assert subject.driver.outputs[OTHER].pcm == pcm


def test_error_of_a_cancelled_utterance_is_dropped(subject: Subject) -> None:
    subject.speak(KEY)
    subject.driver.send(Cancel(KEY))
    subject.model.error = RuntimeError("too late")
    subject.open_gate()
    assert not subject.driver.outputs[KEY].ends


def test_close_ends_the_network_thread(subject: Subject) -> None:
    subject.speak(KEY)
    subject.model.gate.set()
    subject.engine.close()
    assert not subject.thread.is_alive()


def test_engine_waits_for_a_run_that_takes_too_long(
    subject: Subject, pcm: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert subject.engine.wait_limit_s is None
    subject.speak(KEY)
    limit_s = subject.engine.wait_limit_s
    assert limit_s is not None
    assert 0.0 < limit_s <= HibariEngine.MAX_RUN_S
    monkeypatch.setattr(HibariEngine, "MAX_RUN_S", 0.0)
    assert subject.engine.wait_limit_s == 0.0
    assert subject.engine.has_work
    waiting = threading.Thread(target=subject.driver.drain)  # the watchdog of the engine thread sees this call
    waiting.start()
    assert waiting.is_alive()
    subject.model.gate.set()
    waiting.join()
    assert subject.driver.outputs[KEY].pcm == pcm
