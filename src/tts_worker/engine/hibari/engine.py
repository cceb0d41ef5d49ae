"""The CPU voice: hibari-tts behind the ``Engine`` protocol, serving many utterances on two threads.

A step starts the network for one phrase and does one unit of work of a few milliseconds: phonemizing a batch of text,
or rendering one second of audio. The network, three quarters of all work, runs on a thread of its own if the engine
can wake its caller (``on_work``) and has several utterances, otherwise inside the step; the audio is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np

from tts_worker.audio.pcm import silence, to_pcm
from tts_worker.engine.hibari.model import HibariModel, Spectra
from tts_worker.engine.hibari.speech import POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES, PhraseSynthesis
from tts_worker.engine.hibari.text import MAX_PHONEMES, Phrase
from tts_worker.engine.scheduler import Budgets, Candidate, Need, Plan
from tts_worker.engine.shell import EngineSequence, EngineShell
from tts_worker.engine.worker_thread import StreamFuture, WorkerThread
from tts_worker.errors import EngineFault, OutOfMemory, SynthesisFailed, TTSWorkerError, UnknownVoice
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Boundary,
    EngineInfo,
    Open,
    Segment,
    Span,
    SynthesisParams,
    UtteranceKey,
    WordTiming,
)

VOICE = "heart"
LANGUAGE = "en"
SPEED_RANGE = (0.5, 2.0)

_PAUSE_MS: dict[Boundary, int] = {
    Boundary.CLAUSE: 120,
    Boundary.FLUSH: 120,
    Boundary.SENTENCE: 280,
    Boundary.PARAGRAPH: 450,
}
"""Silence between the speech of two segments at normal speed.

A forced cut (WORD, FORCED) adds none beyond what phrases retain.
"""

_RETAINED_SILENCE_SAMPLES = PRE_ROLL_SAMPLES + POST_ROLL_SAMPLES
_MAX_SPECTRA_FRAMES = 8_000
_MAX_UNPACED_SPECTRA_FRAMES = 4_000
"""Limits of the spectra in memory (12 KB per frame), for paced and for unpaced utterances.

At the limit, open phrases are rendered to their end before another one is opened, so a new call waits for the whole
phrases of others. A phrase has up to 1 000 frames, a clause mostly less than 300. Separate limits keep downloads from
blocking the phrases of calls.
"""


_MAX_RUN_S = 2.0
"""A run of the network takes a tenth of a second. The engine waits for a longer one, so that it counts as hanging."""


@dataclass(frozen=True, slots=True)
class HibariSettings:
    """Settings of the CPU voice.

    Attributes:
        max_utterances: Utterances served at a time.
        threads: Threads of the network; one is fastest for a model this small.
    """

    max_utterances: int = 64
    threads: int = 1


class _Prediction(NamedTuple):
    """Result of a run of the network, and how long it took."""

    spectra: Spectra
    network_ms: float


def _predict(model: HibariModel, phrase: Phrase, speed: float) -> _Prediction:
    start_s = perf_counter()
    spectra = model.predict(phrase.ids, speed)
    return _Prediction(spectra, 1000 * (perf_counter() - start_s))


class _PhraseSequence(EngineSequence):
    """An utterance as phrases.

    Segments are phonemized to phrases one by one; each phrase is synthesized in blocks into the output buffer.

    Attributes:
        synthesis: The phrase in progress, from its first spectra to its last block.
        is_predicting: Whether the network runs for it.
    """

    UNSPEAKABLE = f'the text contains nothing that the voice "{VOICE}" (English, en) can speak'

    def __init__(self, command: Open, model: HibariModel) -> None:
        super().__init__(command)
        self.synthesis: PhraseSynthesis | None = None
        self.is_predicting = False
        self._model = model
        self._segments: deque[Segment] = deque()
        self._segment: Segment | None = None
        self._phrases: Iterator[Phrase | None] | None = None  # the remaining phrases of the segment
        self._next_phrase: Phrase | None = None
        self._started_phrases = 0  # of this segment
        self._pause_samples = 0  # silence before the next audio, if any follows
        self._phonemize_ms = 0.0  # spent on the next phrase so far
        self._network_ms = 0.0  # spent on the next block
        self._timed_until_char = 0  # words before this have been reported

    def add_text(self, segment: Segment) -> None:
        self._segments.append(segment)

    @property
    def needs(self) -> Need:
        if self.is_predicting:
            return Need.NONE
        if self.synthesis is not None:
            return Need.PREDICT if self.synthesis.suspended else Need.RENDER
        if self._can_phonemize:
            return Need.RENDER
        return Need.PREDICT if self._can_start_phrase else Need.NONE

    def drop_pause(self) -> None:
        self._pause_samples = 0

    @property
    def has_pending_speech(self) -> bool:
        has_phrase = self._next_phrase is not None or self.synthesis is not None
        return has_phrase or bool(self._segments) or self._phrases is not None

    @property
    def spectra_frames(self) -> int:
        """Length of the spectra in memory."""
        return 0 if self.synthesis is None else self.synthesis.spectra_frames

    def suspend(self) -> None:
        """Free the spectra; they can be predicted again."""
        if self.synthesis is not None:
            self.synthesis.suspend()

    @property
    def _can_phonemize(self) -> bool:
        has_phrase = self._next_phrase is not None or self.synthesis is not None
        return not has_phrase and (self._phrases is not None or bool(self._segments))

    @property
    def _can_start_phrase(self) -> bool:
        """Whether a phrase is ready and the credit exceeds the audio that already waits for it."""
        return self._next_phrase is not None and self.output.credit_samples > self.output.waiting_samples

    def advance(self) -> None:
        """Do one unit of work: phonemize a batch of text, or render the next block of audio."""
        start_s = perf_counter()
        if self.synthesis is not None:
            self._render_block(self.synthesis, start_s)
        else:
            self._find_phrase()
            self._phonemize_ms += 1000 * (perf_counter() - start_s)

    def start_prediction(self) -> Callable[[], _Prediction]:
        """Return the run of the network that it needs, which another thread may do.

        The sequence stays unchanged until ``end_prediction``, so a result may as well be dropped.
        """
        phrase = self._next_phrase if self.synthesis is None else self.synthesis.phrase
        assert phrase is not None
        self.is_predicting = True
        return partial(_predict, self._model, phrase, self.params.speed)

    def _find_phrase(self) -> None:
        """Phonemize one bounded batch of text to find the next phrase."""
        if self._phrases is None:
            self._segment = self._segments.popleft()
            # Slow speech is longer: fewer phonemes take the network the same time.
            max_phonemes = round(MAX_PHONEMES * min(1.0, self.params.speed))
            self._phrases = self._model.phonemizer.phonemize(self._segment, max_phonemes)
            self._started_phrases = 0
        try:
            self._next_phrase = next(self._phrases)
        except StopIteration:
            self._phrases = None
            if self._segment is not None:
                self._add_pause(self._segment.boundary)

    def end_prediction(self, prediction: _Prediction) -> None:
        """Begin the next phrase with its spectra, or go on with the one whose spectra were freed."""
        start_s = perf_counter()
        if self.synthesis is not None:
            self.synthesis.resume(prediction.spectra)
        elif self._next_phrase is not None and self._segment is not None:
            self._start_phrase(self._next_phrase, self._segment, prediction.spectra)
        self._network_ms += prediction.network_ms + 1000 * (perf_counter() - start_s)

    def _start_phrase(self, phrase: Phrase, segment: Segment, spectra: Spectra) -> None:
        # Every phrase has a separate noise generator, so its audio does not depend on earlier text or timing.
        seeds = (self.params.seed, segment.index, self._started_phrases)
        noise = np.random.default_rng([seed % (1 << 64) for seed in seeds])
        self.synthesis = PhraseSynthesis(phrase, spectra, self.params.speed, noise)
        self._started_phrases += 1
        self._next_phrase = None

    def _render_block(self, synthesis: PhraseSynthesis, start_s: float) -> None:
        """Render the next block of the phrase, after the pending pause if it is the first."""
        if self._segment is None:
            return
        if synthesis.total_samples:
            block = synthesis.next_block()
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
            self._add_pause(synthesis.boundary)
            self.synthesis = None

    def _add_pause(self, boundary: Boundary) -> None:
        """Insert the silence of ``boundary`` before the next audio, unless nothing has been rendered."""
        if self.output.rendered_samples:
            pause = _PAUSE_MS.get(boundary, 0) * SAMPLE_RATE_HZ / 1000 / self.params.speed
            self._pause_samples = max(self._pause_samples, round(pause) - _RETAINED_SILENCE_SAMPLES)


class HibariEngine(EngineShell[_PhraseSequence]):
    """Synthesizes English speech on the CPU.

    Loading takes a third of a second and ``warm_up`` about one (it loads the dictionaries). An utterance fails for an
    unknown voice, an unsupported language or speed, or text that gives no audio. Words without audio ("你好" in an
    English voice, a dash) have no timestamp; the others have measured ones. ``SynthesisParams.instruct`` has no effect:
    the voice has one style.

    Raises:
        EngineFault: The voice is not installed, or its model does not match this release.
    """

    WORKS_IN_SUBMIT = True

    def __init__(self, settings: HibariSettings | None = None, model: HibariModel | None = None) -> None:
        settings = settings or HibariSettings()
        self._model = model or HibariModel(threads=settings.threads)
        self._network_thread: WorkerThread | None = None
        self._wake: Callable[[], None] | None = None
        self._in_flight: tuple[_PhraseSequence, StreamFuture[_Prediction]] | None = None
        self._started_s = 0.0  # start of the run in flight
        super().__init__(
            EngineInfo(
                name="hibari",
                voices=(VOICE,),
                languages=(LANGUAGE,),
                alignment=Alignment.MEASURED,
                max_utterances=settings.max_utterances,
                reads_numbers=True,
                speed_range=SPEED_RANGE,
                extra=(("model", "hibari-tts 0.2.1"),),
            )
        )

    def open_sequence(self, command: Open) -> _PhraseSequence:
        if command.params.voice != VOICE:
            raise UnknownVoice(f'the CPU voice has no voice "{command.params.voice}"; it has "{VOICE}"')
        return _PhraseSequence(command, self._model)

    def hold_sequence(self, sequence: _PhraseSequence) -> None:
        sequence.suspend()  # a pause may last long

    def candidates(self, now_us: int) -> list[Candidate]:
        """Return the utterances that can use a step; only those with spectra at the limit of their class."""
        candidates = super().candidates(now_us)
        for paced, limit in ((True, _MAX_SPECTRA_FRAMES), (False, _MAX_UNPACED_SPECTRA_FRAMES)):
            frames = {c.key: self.sequences[c.key].spectra_frames for c in candidates if c.paced is paced}
            if sum(frames.values()) >= limit:
                candidates = [c for c in candidates if c.paced is not paced or frames[c.key]]
        return candidates

    def on_work(self, wake: Callable[[], None]) -> None:
        """Run the network of several utterances on a thread from now on, and call ``wake`` there after every run."""
        self._wake = wake
        if self._network_thread is None:
            self._network_thread = WorkerThread("tts-network")

    def wait_for_work(self) -> bool:
        if self._in_flight is None:
            return False
        self._in_flight[1].finished_event.wait()
        return True

    @property
    def is_busy(self) -> bool:
        """Whether an utterance can go on with the spectra of a finished run, or a run takes too long."""
        if self._in_flight is None:
            return False
        sequence, future = self._in_flight
        return self.is_active(sequence) if future.is_done else self._takes_too_long

    @property
    def _takes_too_long(self) -> bool:
        return perf_counter() - self._started_s >= _MAX_RUN_S

    @property
    def wait_limit_s(self) -> float | None:
        """When the run in flight takes too long, the engine waits for it in a step, which the watchdog sees."""
        if self._in_flight is None or self._in_flight[1].is_done:
            return None
        return max(0.0, self._started_s + _MAX_RUN_S - perf_counter())

    def can_start(self, need: Need) -> bool:
        return need is not Need.PREDICT or self._in_flight is None or self._in_flight[1].is_done

    def budgets(self, candidates: Sequence[Candidate]) -> Budgets:
        is_threaded = self._network_thread is not None
        return Budgets(token_batch=1 if self._in_flight is None else 0, concurrent=is_threaded)

    def collect(self) -> bool:
        """Take over the spectra of a finished run, unless its utterance was cancelled or is held."""
        if self._in_flight is not None and (self._in_flight[1].is_done or self._takes_too_long):
            sequence, future = self._in_flight
            future.finished_event.wait()
            self._in_flight = None
            sequence.is_predicting = False
            if self.is_active(sequence):
                self._isolate(sequence, lambda: sequence.end_prediction(future.result()))
                self.mark_ready(sequence)
        return True

    def submit(self, plan: Plan) -> None:
        """Start the network and do one unit of work. An error of either fails only its utterance."""
        if plan.tokens is not None:
            self._start_prediction(self.sequences[plan.tokens.members[0]])
        if plan.audio is None:
            return
        sequence = self.sequences[plan.audio.members[0]]
        self._isolate(sequence, sequence.advance)
        # The network of a call starts at once. After a download has been phonemized, a call may have arrived.
        goes_on = sequence.output.paced and self._in_flight is None
        if goes_on and self.is_active(sequence) and sequence.needs is Need.PREDICT:
            self._start_prediction(sequence)

    def _start_prediction(self, sequence: _PhraseSequence) -> None:
        work = sequence.start_prediction()
        self._started_s = perf_counter()
        # A single utterance has nothing to overlap with, and its first audio is earlier without a change of threads.
        if self._network_thread is None or len(self.sequences) == 1:
            self._in_flight = sequence, StreamFuture(work).run()
            return
        self._in_flight = sequence, self._network_thread.submit(work)
        if self._wake is not None:
            self._network_thread.call(self._wake)

    def _isolate(self, sequence: _PhraseSequence, work: Callable[[], None]) -> None:
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
        self._in_flight = None
        if self._network_thread is not None:
            self._network_thread.close()

    def warm_up(self) -> None:
        """Synthesize once through every path: both speed limits, short and long text, an unknown word, given phonemes.

        Raises:
            EngineFault: Synthesis fails or its output is silent.
        """
        long_text = "The network allocates for its longest phrase now, " * 3 + "and Zquorblat is in no dictionary."
        phonemes = Segment(0, (Span("Hello", 0, 5, "həlˈO"),), 0, 5, Boundary.END)
        for speed, segment in (
            (1.0, phonemes),
            (SPEED_RANGE[0], _segment("Yes.")),
            (SPEED_RANGE[1], _segment("Yes.")),
            (1.0, _segment(long_text)),
        ):
            pcm = self.speak(UtteranceKey("warm-up", -1), SynthesisParams(VOICE, speed), [segment])
            if not np.any(np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > 1000):
                raise EngineFault("the voice is silent; reinstall hibari-tts and onnxruntime")


def _segment(text: str) -> Segment:
    return Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)
