"""Calls that begin at once and calls that speak already, on one network: the engine of a CPU voice in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, permutations
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.audio.pcm import Floats
from tts_worker.engine.cpu.phrases import engine, sequence
from tts_worker.engine.cpu.phrases.admission import PendingRun, meets_deadlines
from tts_worker.engine.cpu.phrases.engine import PhraseEngine
from tts_worker.engine.cpu.phrases.network import AudioBlock, PhraseNetwork, PhraseSynthesis
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.engine.worker_thread import StreamFuture
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Audio,
    Boundary,
    Credit,
    Done,
    EndText,
    EngineInfo,
    Open,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
)

WINDOW_SAMPLES = 3 * SAMPLE_RATE_HZ // 2
ID_SAMPLES = SAMPLE_RATE_HZ * 6 // 100
"""Audio of a phoneme."""

PHRASES = (30, 60, 85, 90, 85)
"""Phonemes of the phrases of a call: the first clause is short, so that it is heard early."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0


class ModeledSynthesis(PhraseSynthesis[None]):
    def __init__(self, phrase: Phrase, clock: Clock, second_s: float) -> None:
        self.phrase = phrase
        self._second_s = second_s
        self.total_samples = len(phrase.ids) * ID_SAMPLES
        self._clock = clock
        self._rendered_samples = 0

    @property
    def finished(self) -> bool:
        return self._rendered_samples == self.total_samples

    @property
    def spectra_frames(self) -> int:
        return self.total_samples // FRAME_SAMPLES

    def next_block(self) -> AudioBlock:
        block = min(self.total_samples - self._rendered_samples, SAMPLE_RATE_HZ)
        self._rendered_samples += block
        self._clock.now_s += self._second_s * block / SAMPLE_RATE_HZ
        samples: Floats = np.zeros(block, np.float32)
        return AudioBlock(samples, ())


class ModeledNetwork(PhraseNetwork[None]):
    """A segment of N characters is a phrase of N phonemes, which takes ``id_s`` each.

    Rendering takes ``second_s`` for a second of audio.
    """

    def __init__(self, clock: Clock, id_s: float, second_s: float) -> None:
        self._clock = clock
        self._id_s = id_s
        self._second_s = second_s
        self.runs: list[int] = []  # phonemes of each run

    def phrases(self, segment: Segment, params: SynthesisParams) -> Iterator[Phrase | None]:
        yield Phrase((1,) * len(segment.spans[0].text), (), segment.boundary)

    def predict(self, phrase: Phrase, params: SynthesisParams) -> None:
        self._clock.now_s += len(phrase.ids) * self._id_s
        self.runs.append(len(phrase.ids))

    def synthesis(
        self, phrase: Phrase, prediction: None, params: SynthesisParams, noise: np.random.Generator
    ) -> ModeledSynthesis:
        return ModeledSynthesis(phrase, self._clock, self._second_s)


class VirtualThread:
    """Does its work in order; a result is there when the clock has reached its end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._results: deque[tuple[float, StreamFuture[Any]]] = deque()
        self._free_at_s = 0.0

    def submit(self, work: Callable[[], Any]) -> StreamFuture[Any]:
        now_s = self._clock.now_s
        self._clock.now_s = max(now_s, self._free_at_s)
        result = work()
        self._free_at_s = self._clock.now_s
        self._clock.now_s = now_s
        future = StreamFuture(lambda: result)
        self._results.append((self._free_at_s, future))
        return future

    def call(self, callback: Callable[[], object]) -> None:
        """The engine is asked in any case whether it has work."""

    def close(self) -> None:
        self._results.clear()

    def catch_up(self) -> None:
        """Deliver the results of the work that has ended."""
        while self._results and self._results[0][0] <= self._clock.now_s:
            self._results.popleft()[1].run()


class Crowd:
    """Calls that listen in real time to an engine whose network takes ``id_s`` for a phoneme."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, id_s: float, second_s: float = 0.003) -> None:
        self.clock = Clock()
        self.thread = VirtualThread(self.clock)
        for module in (engine, sequence):
            monkeypatch.setattr(module, "perf_counter", lambda: self.clock.now_s)
        monkeypatch.setattr(engine, "WorkerThread", lambda name, prepare: self.thread)
        info = EngineInfo("modeled", voices=("v",), languages=("en",), alignment=Alignment.NONE, max_utterances=64)
        self.network = ModeledNetwork(self.clock, id_s, second_s)
        self.engine: PhraseEngine[None] = PhraseEngine(info, self.network)
        self.engine.on_work(lambda: None)
        self.first_audio_s: dict[UtteranceKey, float] = {}
        self.underruns_s: list[float] = []
        self.most_frames = 0  # of spectra in memory
        self._playing_from_s: dict[UtteranceKey, float] = {}
        self._received_samples: dict[UtteranceKey, int] = {}
        self._taken_samples: dict[UtteranceKey, int] = {}

    def begin(self, key: UtteranceKey, texts: Sequence[int]) -> None:
        self.engine.handle(Open(key, SynthesisParams("v"), WINDOW_SAMPLES))
        self._received_samples[key] = self._taken_samples[key] = 0
        start = 0
        for index, ids in enumerate(texts):
            boundary = Boundary.SENTENCE if index + 1 < len(texts) else Boundary.END
            segment = Segment(index, (Span("a" * ids, start, start + ids),), start, start + ids, boundary)
            start += ids
            self.engine.handle(Text(key, segment))
        self.engine.handle(EndText(key))

    def run(
        self,
        until_s: float,
        begin_s: Mapping[UtteranceKey, float] = MappingProxyType({}),
        texts: Sequence[int] = PHRASES,
    ) -> None:
        """Let calls with these phrases begin at these times, and listen until ``until_s``."""
        waiting = deque(sorted(begin_s.items(), key=lambda item: item[1]))
        while self.clock.now_s < until_s:
            self.thread.catch_up()
            while waiting and waiting[0][1] <= self.clock.now_s:
                self.begin(waiting.popleft()[0], texts)
            self._play()
            self.step()

    def step(self) -> None:
        self.clock.now_s += 0.001 if self.engine.has_work else 0.005
        if not self.engine.has_work:
            return
        for event in self.engine.step(self.clock.now_s):
            if isinstance(event, Audio):
                self._receive(event)
            else:
                assert isinstance(event, Done)
        frames = sum(sequence.spectra_frames for sequence in self.engine.sequences.values())
        self.most_frames = max(self.most_frames, frames)

    def _receive(self, audio: Audio) -> None:
        now_s = self.clock.now_s
        self.first_audio_s.setdefault(audio.key, now_s)
        from_s = self._playing_from_s.setdefault(audio.key, now_s)
        late_s = now_s - from_s - self._received_samples[audio.key] / SAMPLE_RATE_HZ
        if late_s > 0.0:
            self.underruns_s.append(late_s)
            self._playing_from_s[audio.key] += late_s
        self._received_samples[audio.key] += audio.samples

    def _play(self) -> None:
        for key, from_s in self._playing_from_s.items():
            played = min(self._received_samples[key], int((self.clock.now_s - from_s) * SAMPLE_RATE_HZ))
            if played - self._taken_samples[key] >= SAMPLE_RATE_HZ // 10:
                self.engine.handle(Credit(key, played - self._taken_samples[key]))
                self._taken_samples[key] = played


def key(number: int) -> UtteranceKey:
    return UtteranceKey(f"call-{number}", 1)


@pytest.mark.parametrize("start_over_s", [0.0, 1.0, 2.0])
def test_calls_that_begin_at_once_have_no_underrun(monkeypatch: pytest.MonkeyPatch, start_over_s: float) -> None:
    calls = 32
    crowd = Crowd(monkeypatch, id_s=0.75 * ID_SAMPLES / SAMPLE_RATE_HZ / calls)  # the network is busy for 75 %
    crowd.run(10.0, {key(number): start_over_s * number / calls for number in range(calls)})
    assert len(crowd.first_audio_s) == calls
    assert not crowd.underruns_s


@pytest.mark.parametrize("start_over_s", [0.0, 1.0])
def test_next_phrases_are_expected_to_be_longer_than_first_ones(
    monkeypatch: pytest.MonkeyPatch, start_over_s: float
) -> None:
    calls = 64
    crowd = Crowd(monkeypatch, id_s=0.75 * ID_SAMPLES / SAMPLE_RATE_HZ / calls)
    texts = (15, 60, 100, 90, 95)  # the first clause is a fifth of a mean phrase
    crowd.run(14.0, {key(number): start_over_s * number / calls for number in range(calls)}, texts)
    assert len(crowd.first_audio_s) == calls
    assert not crowd.underruns_s


@pytest.mark.parametrize("start_over_s", [0.0, 1.0])
def test_overdue_calls_begin_one_after_the_other(monkeypatch: pytest.MonkeyPatch, start_over_s: float) -> None:
    calls = 64
    crowd = Crowd(monkeypatch, id_s=0.85 * ID_SAMPLES / SAMPLE_RATE_HZ / calls)
    texts = (15, 60, 100, 90, 95, 60)
    crowd.run(16.0, {key(number): start_over_s * number / calls for number in range(calls)}, texts)
    assert PhraseEngine.MAX_DEFERRAL_US / 1e6 < max(crowd.first_audio_s.values()) < 10.0
    assert len(crowd.first_audio_s) == calls
    assert not crowd.underruns_s


@pytest.mark.parametrize("second_s", [0.003, 0.010])
def test_phrases_are_rendered_one_after_the_other(monkeypatch: pytest.MonkeyPatch, second_s: float) -> None:
    calls = 64
    crowd = Crowd(monkeypatch, id_s=0.75 * ID_SAMPLES / SAMPLE_RATE_HZ / calls, second_s=second_s)
    texts = (15, 60, 100, 90, 95)
    crowd.run(14.0, {key(number): 2.0 * number / calls for number in range(calls)}, texts)
    assert not crowd.underruns_s
    assert crowd.most_frames < PhraseEngine.MAX_SPECTRA_FRAMES / 2


def contend(monkeypatch: pytest.MonkeyPatch) -> Crowd:
    """A call speaks 0.6 s and needs the network again; it runs for another one meanwhile, and a third one begins."""
    crowd = Crowd(monkeypatch, id_s=0.003)
    crowd.begin(key(0), (10, 90))
    crowd.begin(key(1), (40, 50))
    crowd.run(0.05)
    assert list(crowd.first_audio_s) == [key(0)]
    crowd.begin(key(2), (70, 70))
    return crowd


def test_new_call_waits_for_one_that_would_underrun(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = contend(monkeypatch)
    crowd.run(3.0)
    assert crowd.network.runs[:4] == [10, 40, 90, 70]
    assert not crowd.underruns_s


def test_deferred_call_leaves_the_engine_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = contend(monkeypatch)
    for _ in range(20):
        crowd.step()  # the network finishes nothing
    assert not crowd.engine.has_work
    assert not crowd.engine.sequences[key(2)].is_admitted


def test_call_is_not_deferred_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhraseEngine, "MAX_DEFERRAL_US", 0)
    crowd = contend(monkeypatch)
    crowd.run(3.0)
    assert crowd.network.runs[:4] == [10, 40, 70, 90]


runs = st.lists(st.builds(PendingRun, st.integers(0, 100), st.integers(0, 40)), max_size=5)


@settings(deadline=None, max_examples=60)
@given(runs, st.integers(0, 30), st.integers(0, 20))
def test_deadlines_are_met_if_any_order_meets_them(pending: list[PendingRun], busy: int, margin: int) -> None:
    def meets(order: Sequence[PendingRun]) -> bool:
        ends = accumulate((run.work_samples for run in order), initial=busy)
        next(ends)
        return all(end + margin <= run.deadline_samples for end, run in zip(ends, order, strict=True))

    assert meets_deadlines(pending, busy, margin) == any(meets(order) for order in permutations(pending))
