"""An utterance of a CPU voice: its text becomes phrases, and each phrase audio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Generic

import numpy as np

from tts_worker.audio.pcm import silence, to_pcm
from tts_worker.engine.cpu.phrases.admission import PendingRun, RunEstimates
from tts_worker.engine.cpu.phrases.expression import expressed
from tts_worker.engine.cpu.phrases.network import POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES, P, PhraseNetwork, PhraseSynthesis
from tts_worker.engine.cpu.phrases.text import Phrase
from tts_worker.engine.phases import change_phase
from tts_worker.engine.scheduler import Need
from tts_worker.engine.shell import EngineSequence
from tts_worker.text.spoken_words import SpokenWord, spoken_words
from tts_worker.types import (
    NEUTRAL,
    SAMPLE_RATE_HZ,
    Boundary,
    Expression,
    Open,
    Segment,
    Skipped,
    SynthesisParams,
    WordTiming,
)

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
class FinishedRun(Generic[P]):
    """Result of a run of the network for a phrase, and how long it took."""

    phrase: Phrase
    prediction: P
    network_ms: float


def _run_network(network: PhraseNetwork[P], phrase: Phrase, params: SynthesisParams) -> FinishedRun[P]:
    start_s = perf_counter()
    prediction = network.predict(phrase, params)
    return FinishedRun(phrase, prediction, 1000 * (perf_counter() - start_s))


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


TRANSITIONS: dict[PhrasePhase, frozenset[PhrasePhase]] = {
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
        self._expression = NEUTRAL
        self.unrendered_samples = 0
        self._started_phrases = 0  # of this segment
        self._pause_samples = 0  # silence before the next audio, if any follows
        self._phonemize_ms = 0.0  # spent on the next phrase so far
        self._network_ms = 0.0  # spent on the next block
        self._timed_until_char = 0  # words before this have been reported
        self._unread_words: deque[SpokenWord] = deque()  # of the segment, not in a phrase so far

    def add_text(self, segment: Segment) -> None:
        self._segments.append(segment)

    def express(self, expression: Expression) -> None:
        """Speak so from the next word on whose rendering has not begun; its phrase is predicted again."""
        self._expression = expression
        if self._segment is None:
            return
        if self.synthesis is not None:
            phrase = self.synthesis.phrase
            begun = self.synthesis.first_unbegun_word
            if begun < len(phrase.words):
                self.synthesis.phrase = expressed(phrase, self._segment, expression, self._network.perform, begun)
                self.suspend()
        elif self._next_phrase is not None:
            self._next_phrase = expressed(self._next_phrase, self._segment, expression, self._network.perform)

    def _enter(self, phase: PhrasePhase) -> None:
        self.phase = change_phase(self.phase, phase, TRANSITIONS)

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
            # By its characters: the first clause of an utterance is far shorter than others.
            ids = estimates.ids(segment.end - segment.start)
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

    def start_prediction(self) -> Callable[[], FinishedRun[P]]:
        """Return the run of the network that it needs, which another thread may do.

        It ends with ``end_prediction`` or ``drop_prediction``.
        """
        phrase = self._next_phrase if self.synthesis is None else self.synthesis.phrase
        assert phrase is not None
        self._enter(PhrasePhase.PREDICTING)
        return partial(_run_network, self._network, phrase, self.params)

    def _find_phrase(self) -> None:
        """Phonemize one bounded batch of text to find the next phrase."""
        if self._phrases is None:
            self._segment = self._segments.popleft()
            self._phrases = self._network.phrases(self._segment, self.params)
            self._started_phrases = 0
            self._unread_words.extend(spoken_words(self._segment))
        try:
            self._next_phrase = next(self._phrases)
        except StopIteration:
            self._phrases = None
            self._skip_words_before(None)
            if self._segment is not None:
                self._add_pause(self._segment.boundary)
        else:
            if self._next_phrase is not None:
                self._skip_words_before(self._next_phrase)
                if self._segment is not None and (self._segment.expressions or self._expression != NEUTRAL):
                    self._next_phrase = expressed(
                        self._next_phrase, self._segment, self._expression, self._network.perform
                    )
                self._enter(PhrasePhase.READY)

    def _skip_words_before(self, phrase: Phrase | None) -> None:
        """Note the words that have no phonemes, up to the last word of ``phrase``; without it the rest of the segment.

        A sign that is no word is not noted: most are silent.
        """
        words = () if phrase is None else phrase.words
        spoken = {word.start_char for word in words}
        last = words[-1].start_char if words else -1
        while self._unread_words and (phrase is None or self._unread_words[0].start_char <= last):
            word = self._unread_words.popleft()
            if word.start_char not in spoken and any(map(str.isalnum, word.text)):
                self.output.skip(Skipped(word.start_char, word.end_char, "pronunciation"))

    def end_prediction(self, run: FinishedRun[P]) -> None:
        """Begin the next phrase with its prediction, or go on with the one whose prediction was freed.

        One whose expression has changed since is predicted again.
        """
        start_s = perf_counter()
        if run.phrase is not (self._next_phrase if self.synthesis is None else self.synthesis.phrase):
            self.drop_prediction()
            return
        if self.synthesis is not None:
            self.unrendered_samples -= self.synthesis.total_samples
            self.synthesis.resume(run.prediction)
            self.unrendered_samples += self.synthesis.total_samples
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
            rendered = synthesis.total_samples - self.unrendered_samples - len(block.samples)
            origin = self.output.rendered_samples + self._pause_samples - rendered
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
