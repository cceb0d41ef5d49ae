"""Serving of many utterances by a network that turns a phrase into audio, on two threads.

A step starts the network for one phrase and does one unit of work of a few milliseconds: phonemizing a batch of text,
or rendering one block of audio. The network, most of all work, runs on a separate thread if the engine can wake its
caller (``on_work``), otherwise inside the step; the audio is the same.

The voices bring a ``PhraseNetwork``: see ``engine/cpu/hibari``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np

from tts_worker.engine.cpu.phrases.admission import RunEstimates, meets_deadlines
from tts_worker.engine.cpu.phrases.network import P, PhraseNetwork
from tts_worker.engine.cpu.phrases.sequence import FinishedRun, PhrasePhase, PhraseSequence
from tts_worker.engine.scheduler import Budgets, Candidate, Need, Plan
from tts_worker.engine.shell import EngineShell
from tts_worker.engine.worker_thread import NETWORK_NICENESS, StreamFuture, WorkerThread, lower_priority
from tts_worker.errors import EngineFault, OutOfMemory, SynthesisFailed, TTSWorkerError, UnknownVoice
from tts_worker.types import SAMPLE_RATE_HZ, EngineInfo, Open, Segment, SynthesisParams, UtteranceKey
from tts_worker.voices.named_mixes import is_mix

_RENDERING = PhrasePhase.RENDERING  # before Python 3.12 a member of an Enum is slow to look up


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
    MAX_RUNS: ClassVar[int] = 2
    URGENT_LEAD_SAMPLES: ClassVar[int] = SAMPLE_RATE_HZ // 2
    DEADLINE_MARGIN_SAMPLES: ClassVar[int] = SAMPLE_RATE_HZ // 2
    MAX_DEFERRAL_US: ClassVar[int] = 5_000_000
    OVERDUE_INTERVAL_US: ClassVar[int] = 500_000

    def __init__(self, info: EngineInfo, network: PhraseNetwork[P]) -> None:
        self._network = network
        self._network_thread: WorkerThread | None = None
        self._wake: Callable[[], None] | None = None
        self._in_flight: deque[tuple[PhraseSequence[P], StreamFuture[FinishedRun[P]]]] = deque()
        self._started_s = 0.0  # of the first run in flight
        self._estimates = RunEstimates()
        self._deferred: frozenset[UtteranceKey] = frozenset()  # new calls that must wait for running ones
        self._refused: PhraseSequence[P] | None = None  # the first of them, if nothing has changed since it was refused
        self._overdue: PhraseSequence[P] | None = None  # the last one that began in spite of them
        self._overdue_began_us = -self.OVERDUE_INTERVAL_US
        super().__init__(info)

    def open_sequence(self, command: Open) -> PhraseSequence[P]:
        voice = command.params.voice
        if voice not in self.info.voices and not is_mix(voice, self.info.mixable):
            names = ", ".join(f'"{voice}"' for voice in self.info.voices)
            raise UnknownVoice(f'the engine {self.info.name} has no voice "{voice}"; it has {names}')
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

    def _end_prediction(self, sequence: PhraseSequence[P], future: StreamFuture[FinishedRun[P]]) -> None:
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
        # A single utterance has nothing to overlap with: its first audio is earlier without a change of threads.
        if self._network_thread is None or (is_first and len(self.sequences) == 1):
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
