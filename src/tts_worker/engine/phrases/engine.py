"""Serving of many utterances by a network that turns a phrase into audio, on two threads.

A step starts the network for one phrase and does one unit of work of a few milliseconds: phonemizing a batch of text,
or rendering one block of audio. The network, most of all work, runs on a thread of its own if the engine can wake its
caller (``on_work``), otherwise inside the step; the audio is the same.

A voice brings a ``PhraseNetwork``: see ``engine/hibari`` and ``engine/kokoro``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from tts_worker.audio.pcm import Floats, silence, to_pcm
from tts_worker.engine.phases import change_phase
from tts_worker.engine.phrases.admission import PendingRun, RunEstimates, meets_deadlines
from tts_worker.engine.phrases.text import Phrase
from tts_worker.engine.scheduler import Budgets, Candidate, Need, Plan
from tts_worker.engine.shell import EngineSequence, EngineShell
from tts_worker.engine.worker_thread import NETWORK_NICENESS, StreamFuture, WorkerThread, lower_priority
from tts_worker.errors import EngineFault, OutOfMemory, SynthesisFailed, TTSWorkerError, UnknownVoice
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Boundary,
    EngineInfo,
    Open,
    Segment,
    Span,
    SynthesisParams,
    UtteranceKey,
    WordTiming,
)

P = TypeVar("P")
"""What the network predicts for a phrase."""

PRE_ROLL_SAMPLES = SAMPLE_RATE_HZ // 50
POST_ROLL_SAMPLES = SAMPLE_RATE_HZ // 25
"""Near-silence that a phrase retains around its speech: 20 ms before it and 40 ms after it."""

FADE_SAMPLES = SAMPLE_RATE_HZ // 200

EARLY_SAMPLES = SAMPLE_RATE_HZ
"""How far beyond its credit an utterance may have audio before its next phrase begins.

The phrases of many calls may be due together, so the network does them early while it is free.
"""

MAX_PENDING_RUNS = 2
"""Runs of the network of a running call that a new one must leave time for."""

_PAUSE_MS: dict[Boundary, int] = {
    Boundary.CLAUSE: 120,
    Boundary.FLUSH: 120,
    Boundary.SENTENCE: 280,
    Boundary.PARAGRAPH: 450,
}
"""Silence between the speech of two segments at normal speed.

A forced cut (WORD, FORCED) adds none beyond what phrases retain.
"""


@dataclass(frozen=True, slots=True)
class AudioBlock:
    """Part of a phrase.

    Attributes:
        samples: ``[N] float32``.
        words: Words that begin in this or later blocks, each reported once, in samples from the start of the phrase.
    """

    samples: Floats
    words: tuple[WordTiming, ...]


class PhraseSynthesis(ABC, Generic[P]):
    """Audio of one phrase, block by block. It depends only on the phrase, its parameters and the noise generator.

    A network whose predictions are large overrides the members that free them.

    Attributes:
        phrase: The phrase.
        total_samples: Length of the audio; 0 if it is silent.
    """

    phrase: Phrase
    total_samples: int

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether all audio is rendered."""

    @abstractmethod
    def next_block(self) -> AudioBlock:
        """Render the next block.

        Raises:
            SynthesisFailed: The network's output contains NaN or infinity.
        """

    @property
    def spectra_frames(self) -> int:
        """Length of the predicted spectra in memory."""
        return 0

    @property
    def suspended(self) -> bool:
        """Whether the prediction was freed."""
        return False

    def suspend(self) -> None:
        """Free the prediction; ``resume`` brings it back before the next block."""
        return

    def resume(self, prediction: P) -> None:
        """Continue after ``suspend`` with the same prediction, made again."""
        return


class PhraseNetwork(ABC, Generic[P]):
    """A network that turns a phrase into audio, with the text processing that it needs."""

    @abstractmethod
    def phrases(self, segment: Segment, params: SynthesisParams) -> Iterator[Phrase | None]:
        """Yield the phrases of a segment; each item, None included, takes a bounded amount of work."""

    @abstractmethod
    def predict(self, phrase: Phrase, params: SynthesisParams) -> P:
        """Run the network. It is called on another thread."""

    @abstractmethod
    def synthesis(
        self, phrase: Phrase, prediction: P, params: SynthesisParams, noise: np.random.Generator
    ) -> PhraseSynthesis[P]:
        """Return the audio of a phrase."""


@dataclass(frozen=True, slots=True)
class _Run(Generic[P]):
    """Result of a run of the network, and how long it took."""

    prediction: P
    network_ms: float


def _run(network: PhraseNetwork[P], phrase: Phrase, params: SynthesisParams) -> _Run[P]:
    start_s = perf_counter()
    prediction = network.predict(phrase, params)
    return _Run(prediction, 1000 * (perf_counter() - start_s))


class PhrasePhase(Enum):
    """Where an utterance is with its next phrase.

    READING -> READY -> PREDICTING -> RENDERING -> READING. A pause frees the prediction, which is then made again:
    RENDERING -> SUSPENDED -> PREDICTING. A result that comes during a pause is dropped: PREDICTING -> READY, SUSPENDED.
    """

    READING = "looking for it in the text"  # as far as there is text
    READY = "waiting for the network"
    PREDICTING = "in the network"
    RENDERING = "rendered block by block"
    SUSPENDED = "waiting for the network again"


_TRANSITIONS: dict[PhrasePhase, frozenset[PhrasePhase]] = {
    PhrasePhase.READING: frozenset({PhrasePhase.READY}),
    PhrasePhase.READY: frozenset({PhrasePhase.PREDICTING}),
    PhrasePhase.PREDICTING: frozenset({PhrasePhase.RENDERING, PhrasePhase.READY, PhrasePhase.SUSPENDED}),
    PhrasePhase.RENDERING: frozenset({PhrasePhase.READING, PhrasePhase.SUSPENDED}),
    PhrasePhase.SUSPENDED: frozenset({PhrasePhase.PREDICTING}),
}


_READING, _READY, _PREDICTING, _RENDERING, _ = PhrasePhase
"""For what every step asks of all utterances: before Python 3.12 a member of an Enum is slow to look up."""


class PhraseSequence(EngineSequence, Generic[P]):
    """An utterance as phrases.

    Segments are phonemized to phrases one by one; each phrase is synthesized in blocks into the output buffer.

    Attributes:
        phase: Where it is with its next phrase.
        synthesis: The phrase in progress, from its first prediction to its last block.
        unrendered_samples: Rest of the phrase in progress.
    """

    def __init__(self, command: Open, network: PhraseNetwork[P], languages: str) -> None:
        super().__init__(command)
        self.phase = PhrasePhase.READING
        self.synthesis: PhraseSynthesis[P] | None = None
        self._network = network
        self.unspeakable = f'the text contains nothing that the voice "{command.params.voice}" ({languages}) can speak'
        self._segments: deque[Segment] = deque()
        self._segment: Segment | None = None
        self._phrases: Iterator[Phrase | None] | None = None  # the remaining phrases of the segment
        self._next_phrase: Phrase | None = None
        self.unrendered_samples = 0
        self._started_phrases = 0  # of this segment
        self._pause_samples = 0  # silence before the next audio, if any follows
        self._phonemize_ms = 0.0  # spent on the next phrase so far
        self._network_ms = 0.0  # spent on the next block
        self._timed_until_char = 0  # words before this have been reported

    def add_text(self, segment: Segment) -> None:
        self._segments.append(segment)

    def _enter(self, phase: PhrasePhase) -> None:
        self.phase = change_phase(self.phase, phase, _TRANSITIONS)

    @property
    def needs(self) -> Need:
        phase = self.phase
        if phase is _RENDERING:
            return Need.RENDER
        if phase is _PREDICTING:
            return Need.NONE
        if phase is _READY:
            return Need.PREDICT if self._can_start_phrase else Need.NONE
        if phase is _READING:
            return Need.RENDER if self._has_unread_text else Need.NONE
        return Need.PREDICT  # suspended

    def drop_pause(self) -> None:
        self._pause_samples = 0

    @property
    def has_pending_speech(self) -> bool:
        return self.phase is not _READING or self._has_unread_text

    @property
    def spectra_frames(self) -> int:
        """Length of the predicted spectra in memory."""
        return 0 if self.synthesis is None else self.synthesis.spectra_frames

    def suspend(self) -> None:
        """Free the prediction, which can be made again."""
        if self.phase is PhrasePhase.RENDERING and self.synthesis is not None:
            self.synthesis.suspend()
            if self.synthesis.suspended:
                self._enter(PhrasePhase.SUSPENDED)

    @property
    def _has_unread_text(self) -> bool:
        return self._phrases is not None or bool(self._segments)

    @property
    def _can_start_phrase(self) -> bool:
        """Whether the audio that already waits does not exceed the credit by much."""
        return self.output.credit_samples > self.output.waiting_samples - EARLY_SAMPLES

    @property
    def is_admitted(self) -> bool:
        """Whether the network has begun with its first phrase."""
        is_before_network = self.phase is PhrasePhase.READING or self.phase is PhrasePhase.READY
        return not is_before_network or self.output.rendered_samples > 0

    @property
    def next_ids(self) -> int:
        """Phoneme ids of the run of the network that it needs or has; 0 if none is known."""
        phrase = self._next_phrase if self.synthesis is None else self.synthesis.phrase
        return 0 if phrase is None else len(phrase.ids)

    @property
    def begun_chars(self) -> int:
        """Characters of the segment that the phrase in progress begins; 0 if it continues one."""
        if self._segment is None or self._started_phrases > 1:
            return 0
        return self._segment.end - self._segment.start

    def pending_runs(self, lead_samples: int, estimates: RunEstimates) -> list[PendingRun]:
        """Return the next runs of the network that it will need, as far as they are known, besides one that it has.

        Args:
            lead_samples: Audio rendered and not yet played.
            estimates: Times of runs.
        """
        if self.phase is PhrasePhase.SUSPENDED:
            return [PendingRun(lead_samples, estimates.work_samples(self.next_ids))]
        runs = []
        lead_samples += self.unrendered_samples
        if self.synthesis is None and self._next_phrase is not None:
            if self.phase is PhrasePhase.READY:
                runs.append(PendingRun(lead_samples, estimates.work_samples(self.next_ids)))
            lead_samples += estimates.audio_samples(self.next_ids)
        for segment in islice(self._segments, MAX_PENDING_RUNS - len(runs)):
            ids = estimates.ids(
                segment.end - segment.start
            )  # the first clause of an utterance is far shorter than others
            runs.append(PendingRun(lead_samples, estimates.work_samples(ids)))
            lead_samples += estimates.audio_samples(ids)
        return runs

    def advance(self) -> None:
        """Do one unit of work: phonemize a batch of text, or render the next block of audio."""
        start_s = perf_counter()
        if self.phase is PhrasePhase.RENDERING and self.synthesis is not None:
            self._render_block(self.synthesis, start_s)
        else:
            self._find_phrase()
            self._phonemize_ms += 1000 * (perf_counter() - start_s)

    def start_prediction(self) -> Callable[[], _Run[P]]:
        """Return the run of the network that it needs, which another thread may do.

        It ends with ``end_prediction`` or ``drop_prediction``.
        """
        phrase = self._next_phrase if self.synthesis is None else self.synthesis.phrase
        assert phrase is not None
        self._enter(PhrasePhase.PREDICTING)
        return partial(_run, self._network, phrase, self.params)

    def _find_phrase(self) -> None:
        """Phonemize one bounded batch of text to find the next phrase."""
        if self._phrases is None:
            self._segment = self._segments.popleft()
            self._phrases = self._network.phrases(self._segment, self.params)
            self._started_phrases = 0
        try:
            self._next_phrase = next(self._phrases)
        except StopIteration:
            self._phrases = None
            if self._segment is not None:
                self._add_pause(self._segment.boundary)
        else:
            if self._next_phrase is not None:
                self._enter(PhrasePhase.READY)

    def end_prediction(self, run: _Run[P]) -> None:
        """Begin the next phrase with its prediction, or go on with the one whose prediction was freed."""
        start_s = perf_counter()
        if self.synthesis is not None:
            self.synthesis.resume(run.prediction)
        elif self._next_phrase is not None and self._segment is not None:
            self._start_phrase(self._next_phrase, self._segment, run.prediction)
        self._network_ms += run.network_ms + 1000 * (perf_counter() - start_s)
        self._enter(PhrasePhase.RENDERING)

    def drop_prediction(self) -> None:
        """Go back to before the run of the network, whose result came during a pause."""
        self._enter(PhrasePhase.READY if self.synthesis is None else PhrasePhase.SUSPENDED)

    def _start_phrase(self, phrase: Phrase, segment: Segment, prediction: P) -> None:
        # Every phrase has a separate noise generator, so its audio does not depend on earlier text or timing.
        seeds = (self.params.seed, segment.index, self._started_phrases)
        noise = np.random.default_rng([seed % (1 << 64) for seed in seeds])
        self.synthesis = self._network.synthesis(phrase, prediction, self.params, noise)
        self.unrendered_samples = self.synthesis.total_samples
        self._started_phrases += 1
        self._next_phrase = None

    def _render_block(self, synthesis: PhraseSynthesis[P], start_s: float) -> None:
        """Render the next block of the phrase, after the pending pause if it is the first."""
        if self._segment is None:
            return
        if synthesis.total_samples:
            block = synthesis.next_block()
            self.unrendered_samples -= len(block.samples)
            origin = self.output.rendered_samples + self._pause_samples
            words = [
                WordTiming(word.start_char, word.end_char, origin + word.start_sample, origin + word.end_sample)
                for word in block.words
                if word.start_char >= self._timed_until_char  # a word divided between phrases is reported once
            ]
            if words:
                self._timed_until_char = words[-1].end_char
            vocoder_ms = 1000 * (perf_counter() - start_s)
            self.output.render(
                silence(self._pause_samples) + to_pcm(block.samples),
                words,
                text_range=(self._segment.start, self._segment.end),
                wall_ms=self._phonemize_ms + self._network_ms + vocoder_ms,
                stages_ms=(("text", self._phonemize_ms), ("network", self._network_ms), ("vocoder", vocoder_ms)),
            )
            self._pause_samples = 0
            self._phonemize_ms = self._network_ms = 0.0
        if synthesis.finished:
            self._add_pause(synthesis.phrase.boundary)
            self.synthesis = None
            self.unrendered_samples = 0
            self._enter(PhrasePhase.READING)

    def _add_pause(self, boundary: Boundary) -> None:
        """Insert the silence of ``boundary`` before the next audio, unless nothing has been rendered."""
        if self.output.rendered_samples:
            pause = _PAUSE_MS.get(boundary, 0) * SAMPLE_RATE_HZ / 1000 / self.params.speed
            self._pause_samples = max(self._pause_samples, round(pause) - PRE_ROLL_SAMPLES - POST_ROLL_SAMPLES)


class _Waiting(NamedTuple):
    """An utterance that could use a step."""

    candidate: Candidate
    sequence: PhraseSequence[Any]


def _within_limit(waiting: list[_Waiting], limit_frames: int) -> list[_Waiting]:
    """Return all of ``waiting``, or at the limit of predicted spectra those that have some."""
    if sum(each.sequence.spectra_frames for each in waiting) < limit_frames:
        return waiting
    return [each for each in waiting if each.sequence.spectra_frames]


class PhraseEngine(EngineShell[PhraseSequence[P]], Generic[P]):
    """Speaks with a ``PhraseNetwork``.

    An utterance fails for an unknown voice, an unsupported language or speed, or text that gives no audio. Words
    without audio (words of another script, a dash) have no timestamp; the others have measured ones.

    Attributes:
        MAX_SPECTRA_FRAMES: Limit of the predicted spectra in memory of paced utterances. At the limit, open phrases are
            rendered to their end before another one is opened, so a new call waits for the whole phrases of others.
        MAX_UNPACED_SPECTRA_FRAMES: The same of unpaced utterances. Separate limits keep downloads from blocking the
            phrases of calls.
        MAX_RUN_S: The engine waits for a longer run of the network, so that it counts as hanging.
        SHARES_THREAD: Whether a single utterance runs the network on the engine thread: it has nothing to overlap
            with, and its first audio is earlier without a change of threads. Only for a network of milliseconds.
        MAX_RUNS: Runs that the network's thread has at a time. The second one begins when the first one ends, without
            waiting for the engine thread, which renders or waits for the interpreter lock.
        URGENT_LEAD_SAMPLES: A call with less audio ahead is urgent. A second run is chosen only beside one that waits,
            or while new calls are deferred; otherwise the choice can wait: a new call may arrive.
        DEADLINE_MARGIN_SAMPLES: A call begins only if the running ones are left with so much audio ahead. Their
            estimated runs may take longer, and rendering and sending take time.
        MAX_DEFERRAL_US: A call that has waited for so long is overdue and begins in any case.
        OVERDUE_INTERVAL_US: Time between two overdue calls: together they would interrupt the running ones.
    """

    SKIPS_IDLE_SEQUENCES = True
    MAX_SPECTRA_FRAMES: ClassVar[int] = 8_000
    MAX_UNPACED_SPECTRA_FRAMES: ClassVar[int] = 4_000
    MAX_RUN_S: ClassVar[float] = 2.0
    SHARES_THREAD: ClassVar[bool] = True
    MAX_RUNS: ClassVar[int] = 2
    URGENT_LEAD_SAMPLES: ClassVar[int] = SAMPLE_RATE_HZ // 2
    DEADLINE_MARGIN_SAMPLES: ClassVar[int] = SAMPLE_RATE_HZ // 2
    MAX_DEFERRAL_US: ClassVar[int] = 5_000_000
    OVERDUE_INTERVAL_US: ClassVar[int] = 500_000

    def __init__(self, info: EngineInfo, network: PhraseNetwork[P]) -> None:
        self._network = network
        self._network_thread: WorkerThread | None = None
        self._wake: Callable[[], None] | None = None
        self._in_flight: deque[tuple[PhraseSequence[P], StreamFuture[_Run[P]]]] = deque()
        self._started_s = 0.0  # of the first run in flight
        self._estimates = RunEstimates()
        self._deferred: frozenset[UtteranceKey] = frozenset()  # new calls that must wait for running ones
        self._refused: PhraseSequence[P] | None = None  # the first of them, if nothing has changed since it was refused
        self._overdue: PhraseSequence[P] | None = None  # the last one that began in spite of them
        self._overdue_began_us = -self.OVERDUE_INTERVAL_US
        super().__init__(info)

    def open_sequence(self, command: Open) -> PhraseSequence[P]:
        if command.params.voice not in self.info.voices:
            names = ", ".join(f'"{voice}"' for voice in self.info.voices)
            raise UnknownVoice(f'the engine {self.info.name} has no voice "{command.params.voice}"; it has {names}')
        return PhraseSequence(command, self._network, ", ".join(self.info.languages))

    def close_sequence(self, sequence: PhraseSequence[P]) -> None:
        self._refused = None
        if self._overdue is sequence:
            self._overdue = None

    def hold_sequence(self, sequence: PhraseSequence[P]) -> None:
        self._refused = None
        sequence.suspend()  # a pause may last long

    def candidates(self, now_us: int) -> list[Candidate]:
        """Return the utterances that can use a step.

        At the limit of spectra of their class only those with spectra, of phrases of calls one at a time, no new call
        that must wait for running ones, and none for a network that has all the runs that it may have.
        """
        calls: list[_Waiting] = []
        downloads: list[_Waiting] = []
        takes_runs = len(self._in_flight) < self.MAX_RUNS
        for sequence in self.ready_sequences():
            if not takes_runs and sequence.needs is Need.PREDICT:  # with many calls, most of them in most steps
                sequence.begin_to_wait(now_us)
            elif (candidate := sequence.candidate(now_us)) is not None:
                (calls if candidate.paced else downloads).append(_Waiting(candidate, sequence))
        calls = self._without_other_phrases(_within_limit(calls, self.MAX_SPECTRA_FRAMES))
        downloads = _within_limit(downloads, self.MAX_UNPACED_SPECTRA_FRAMES)
        if takes_runs:
            self._deferred = self._find_deferred(calls, now_us)
        waiting = [candidate for candidate, _ in (*calls, *downloads)]
        if not self._deferred:
            return waiting
        return [candidate for candidate in waiting if candidate.key not in self._deferred]

    def _without_other_phrases(self, calls: list[_Waiting]) -> list[_Waiting]:
        """Let phrases be rendered one after the other, as long as no call has an urgent one.

        In turn, they would all be in memory until the last one has ended, at the limit of spectra the network would
        have to wait for them, and no processor's cache would hold them. The shortest rest goes first.
        """
        rendering = [call for call in calls if call.sequence.phase is _RENDERING]
        if len(rendering) < 2 or min(call.candidate.lead_samples for call in rendering) < self.URGENT_LEAD_SAMPLES:
            return calls
        first = min(rendering, key=lambda call: call.sequence.unrendered_samples)
        return [call for call in calls if call.sequence.phase is not _RENDERING or call is first]

    def _find_deferred(self, calls: Sequence[_Waiting], now_us: int) -> frozenset[UtteranceKey]:
        """Return the new calls that must not have the network before running calls that wait for it."""
        waiting = [call for call in calls if call.candidate.needs is Need.PREDICT]
        new = [call for call in waiting if not call.sequence.is_admitted]
        if not new or len(new) == len(waiting):
            return frozenset()
        first = min(new, key=lambda call: call.candidate.waiting_since_us)
        # Time makes it no easier for the running calls: a refusal holds until a run or a call ends.
        if self._refused is not first.sequence:
            if self._may_begin(first.sequence, now_us):
                return frozenset()
            self._refused = first.sequence
        is_overdue = now_us - first.candidate.waiting_since_us >= self.MAX_DEFERRAL_US
        if is_overdue and now_us - self._overdue_began_us >= self.OVERDUE_INTERVAL_US:
            self._overdue_began_us = now_us
            self._overdue = first.sequence
        return frozenset(call.candidate.key for call in new if call.sequence is not self._overdue)

    def _may_begin(self, call: PhraseSequence[P], now_us: int) -> bool:
        """Whether the running calls get their next phrases in time if the network begins with ``call``."""
        estimates = self._estimates
        busy_samples = estimates.work_samples(call.next_ids)
        for sequence, future in self._in_flight:
            if not future.is_done:
                busy_samples += estimates.work_samples(sequence.next_ids)
        pending = [
            run
            for sequence in self._active.values()
            if sequence.output.paced and sequence.is_admitted
            for run in sequence.pending_runs(sequence.output.lead_at_samples(now_us), estimates)
        ]
        # Its first phrase is the first of its runs here, and is counted above; the others are due behind it.
        pending += call.pending_runs(busy_samples, estimates)[1:]
        return meets_deadlines(pending, busy_samples, self.DEADLINE_MARGIN_SAMPLES)

    def on_work(self, wake: Callable[[], None]) -> None:
        """Run the network of several utterances on a thread from now on, and call ``wake`` there after every run.

        The thread goes after the others: rendering and sending take less time and are due earlier.
        """
        self._wake = wake
        if self._network_thread is None:
            self._network_thread = WorkerThread("tts-network", prepare=partial(lower_priority, NETWORK_NICENESS))

    def wait_for_work(self) -> bool:
        if not self._in_flight:
            return False
        self._in_flight[0][1].finished_event.wait()
        return True

    @property
    def is_busy(self) -> bool:
        """Whether an utterance can go on with the spectra of a finished run, or a run takes too long."""
        if not self._in_flight:
            return False
        sequence, future = self._in_flight[0]
        if not future.is_done:
            return self._takes_too_long
        return len(self._in_flight) > 1 or self.is_active(sequence)

    @property
    def _takes_too_long(self) -> bool:
        return perf_counter() - self._started_s >= self.MAX_RUN_S

    @property
    def wait_limit_s(self) -> float | None:
        """When the run in flight takes too long, the engine waits for it in a step, which the watchdog sees."""
        if not self._in_flight or self._in_flight[0][1].is_done:
            return None
        return max(0.0, self._started_s + self.MAX_RUN_S - perf_counter())

    def can_start(self, sequence: PhraseSequence[P], needs: Need) -> bool:
        if needs is not Need.PREDICT or not self._in_flight:
            return True
        runs = sum(not future.is_done for _, future in self._in_flight)
        if runs and sequence.key in self._deferred:
            return False
        return runs == 0 or (runs < self.MAX_RUNS and self._may_queue(sequence))

    def _may_queue(self, sequence: PhraseSequence[P]) -> bool:
        """Whether its run may be chosen before the one in flight has ended."""
        output = sequence.output
        if self._network_thread is None or not output.paced:
            return False
        return bool(self._deferred) or output.lead_samples < self.URGENT_LEAD_SAMPLES

    def budgets(self, candidates: Sequence[Candidate]) -> Budgets:
        may_predict = not self._in_flight
        if not may_predict and len(self._in_flight) < self.MAX_RUNS:
            waiting = (self.sequences[c.key] for c in candidates if c.needs is Need.PREDICT)
            may_predict = any(map(self._may_queue, waiting))
        return Budgets(max_token_batch=1 if may_predict else 0, concurrent=self._network_thread is not None)

    def collect(self) -> bool:
        """Take over the spectra of finished runs, unless their utterances were cancelled or are held."""
        while self._in_flight and (self._in_flight[0][1].is_done or self._takes_too_long):
            sequence, future = self._in_flight[0]
            future.finished_event.wait()
            self._in_flight.popleft()
            self._refused = None
            self._started_s = perf_counter()  # the next run, if any, has begun by now
            if self.is_active(sequence):
                self._isolate(sequence, partial(self._end_prediction, sequence, future))
                self.mark_ready(sequence)
            else:
                sequence.drop_prediction()
        return True

    def _end_prediction(self, sequence: PhraseSequence[P], future: StreamFuture[_Run[P]]) -> None:
        run = future.result()
        sequence.end_prediction(run)
        if sequence.synthesis is not None:
            samples = sequence.synthesis.total_samples
            self._estimates.record(sequence.next_ids, sequence.begun_chars, run.network_ms, samples)

    def submit(self, plan: Plan) -> None:
        """Start the network and do one unit of work. An error of either fails only its utterance."""
        if plan.tokens is not None:
            self._start_prediction(self.sequences[plan.tokens.members[0]])
        if plan.audio is None:
            return
        sequence = self.sequences[plan.audio.members[0]]
        self._isolate(sequence, sequence.advance)
        # The network of a call starts at once. After a download has been phonemized, a call may have arrived.
        goes_on = sequence.output.paced and not self._in_flight
        if goes_on and self.is_active(sequence) and sequence.needs is Need.PREDICT:
            self._start_prediction(sequence)

    def _start_prediction(self, sequence: PhraseSequence[P]) -> None:
        work = sequence.start_prediction()
        is_first = not self._in_flight
        if is_first:
            self._started_s = perf_counter()
        if self._network_thread is None or (self.SHARES_THREAD and is_first and len(self.sequences) == 1):
            self._in_flight.append((sequence, StreamFuture(work).run()))
            return
        self._in_flight.append((sequence, self._network_thread.submit(work)))
        if self._wake is not None:
            self._network_thread.call(self._wake)

    def _isolate(self, sequence: PhraseSequence[P], work: Callable[[], None]) -> None:
        """Do ``work`` for ``sequence``; an error fails only this utterance."""
        try:
            work()
        except TTSWorkerError as error:
            self.fail(sequence, error.info)
        except MemoryError:
            self.fail(sequence, OutOfMemory("not enough memory for this utterance").info)
        except Exception as error:
            kind = type(error).__name__
            self.fail(sequence, SynthesisFailed(f"the voice could not synthesize part of the text ({kind})").info)

    def close(self) -> None:
        super().close()
        self._in_flight.clear()
        if self._network_thread is not None:
            self._network_thread.close()

    def warm_up_with(self, voice: str, texts: Sequence[tuple[float, Segment]]) -> None:
        """Synthesize texts at given speeds, each on its own.

        Raises:
            EngineFault: Synthesis fails or its output is silent.
        """
        for speed, segment in texts:
            pcm = self.speak(UtteranceKey("warm-up", -1), SynthesisParams(voice, speed), [segment])
            if not np.any(np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > 1000):
                raise EngineFault(f"the voice {voice} is silent; reinstall it and onnxruntime")


def whole_text(text: str, phonemes: str | None = None) -> Segment:
    """Return a whole text as one segment, spoken as ``phonemes`` if given."""
    return Segment(0, (Span(text, 0, len(text), phonemes),), 0, len(text), Boundary.END)
