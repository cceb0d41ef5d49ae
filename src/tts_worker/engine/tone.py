"""A deterministic test engine that turns text into tones, one note per word.

It satisfies the full ``Engine`` contract, has a configurable cost and can inject faults. Tests, benchmarks and
front-end development use it where speech is not needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from tts_worker.engine.scheduler import Need, Plan, Policy
from tts_worker.engine.shell import EngineSequence, EngineShell
from tts_worker.errors import DeviceLost, OutOfMemory, SynthesisFailed, UnknownVoice
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Boundary,
    Done,
    EngineInfo,
    Open,
    Segment,
    UtteranceKey,
    WordTiming,
)

VOICES: dict[str, float] = {"tone": 1.0, "tone-low": 0.5, "tone-high": 2.0}
"""Voice name to pitch factor."""

_PAUSE_MS: dict[Boundary, int] = {Boundary.CLAUSE: 60, Boundary.SENTENCE: 120, Boundary.PARAGRAPH: 200}
_RAMP_SAMPLES = SAMPLE_RATE_HZ // 200  # 5 ms, so that notes begin and end without a click
_AMPLITUDE = 8_000

_AHEAD_CHUNKS = 3
"""Chunks rendered per step for a listener who is well ahead: a step costs more than a chunk of tones."""

_AHEAD_SAMPLES = SAMPLE_RATE_HZ // 2
"""Audio of a listener who is well ahead."""


class Fault(Enum):
    """A fault to inject, per utterance and chunk."""

    FAIL = "fail"  # this utterance ends with Failed
    OUT_OF_MEMORY = "out_of_memory"  # this utterance fails for lack of memory
    TRUNCATE = "truncate"  # this utterance ends here, before its text
    RAISE = "raise"  # step() raises: an engine fault
    HANG = "hang"  # step() does not return: an engine fault
    DEVICE_LOST = "device_lost"  # step() raises DeviceLost


@dataclass(frozen=True, slots=True)
class ToneSettings:
    """Settings of the tone engine.

    Attributes:
        ms_per_char: Length of a note per letter of its word, at normal speed.
        chunk_samples: Samples of a chunk; a step renders one, without a cost up to three for a listener who is well
            ahead.
        whole_segments: Render a segment per step instead, like an engine that synthesizes clause by clause.
        cost_per_audio_s: Engine time per second of audio (at 0.02, 50 streams saturate the engine).
        max_utterances: Utterances served at a time.
        spend: Waits for the cost in seconds; tests replace it by a virtual clock.
        fault: Returns the fault to inject for an utterance and its chunk index.
        hang: Setting it ends an injected hang.
        policy: Plans the steps; None uses a ``Scheduler``.
    """

    ms_per_char: int = 60
    chunk_samples: int = SAMPLE_RATE_HZ // 10
    whole_segments: bool = False
    cost_per_audio_s: float = 0.0
    max_utterances: int = 256
    spend: Callable[[float], None] = field(default_factory=lambda: wait_out)
    fault: Callable[[UtteranceKey, int], Fault | None] = field(default_factory=lambda: _no_fault)
    hang: threading.Event = field(default_factory=threading.Event)
    policy: Policy | None = None


def wait_out(seconds: float) -> None:
    if seconds > 0:
        threading.Event().wait(seconds)


def _no_fault(key: UtteranceKey, chunk: int) -> Fault | None:
    return None


@dataclass(slots=True)
class _Note:
    samples: int
    hz: float  # 0 is silence
    text_range: tuple[int, int]
    word: tuple[int, int] | None = None  # source characters of the word that starts with the note
    rendered_samples: int = 0


class _NoteSequence(EngineSequence):
    """An utterance as notes.

    Attributes:
        notes: Notes that are not fully rendered.
        chunks: Chunks rendered so far.
        truncated: Why the rest of the text is dropped; None if it is not.
    """

    def __init__(self, command: Open, ms_per_char: int) -> None:
        super().__init__(command)
        self.notes: deque[_Note] = deque()
        self.chunks = 0
        self.truncated: str | None = None
        self._ms_per_char = ms_per_char
        self._pending_pause: _Note | None = None

    def add_text(self, segment: Segment) -> None:
        if self.truncated is not None:
            return
        text_range = (segment.start, segment.end)
        speed = self.params.speed
        spoken = segment.text
        for word in spoken_words(segment):
            letters = [c for c in spoken[word.spoken_start : word.spoken_end] if c.isalnum()]
            if not letters:
                continue
            if self._pending_pause is not None:
                self.notes.append(self._pending_pause)
                self._pending_pause = None
            hz = (220.0 + 20.0 * (sum(map(ord, letters)) % 32)) * VOICES[self.params.voice]
            samples = round(len(letters) * self._ms_per_char * SAMPLE_RATE_HZ / 1000 / speed)
            self.notes.append(_Note(samples, hz, text_range, (word.start_char, word.end_char)))
        pause_ms = _PAUSE_MS.get(segment.boundary, 0)
        if pause_ms and (self.notes or self.output.rendered_samples):
            # Added only if more text follows: an utterance does not end in silence.
            self._pending_pause = _Note(round(pause_ms * SAMPLE_RATE_HZ / 1000 / speed), 0.0, text_range)

    @property
    def needs(self) -> Need:
        return Need.RENDER if self.notes and self.has_capacity else Need.NONE

    def drop_pause(self) -> None:
        self._pending_pause = None

    @property
    def has_pending_speech(self) -> bool:
        return bool(self.notes)

    def truncate(self, reason: str) -> None:
        """Drop the rest of the text."""
        self.truncated = reason
        self.notes.clear()

    def end(self) -> Done:
        return replace(super().end(), truncated=self.truncated)

    def render(self, max_samples: int) -> int:
        """Render the next ``max_samples``, fewer at the end of the text. Returns how many."""
        output = self.output
        rendered = 0
        while rendered < max_samples and self.notes:
            note = self.notes[0]
            start = output.rendered_samples
            words = []
            if note.word is not None and note.rendered_samples == 0:
                words.append(WordTiming(*note.word, start, start + note.samples))
            samples = min(max_samples - rendered, note.samples - note.rendered_samples)
            output.render(_render(note, samples, self.params.seed), words, text_range=note.text_range)
            note.rendered_samples += samples
            rendered += samples
            if note.rendered_samples == note.samples:
                self.notes.popleft()
        self.chunks += 1
        return rendered


class ToneEngine(EngineShell[_NoteSequence]):
    """Renders sine tones; a word's letters determine the pitch and their number the length."""

    SKIPS_IDLE_SEQUENCES = True

    def __init__(self, settings: ToneSettings | None = None) -> None:
        self._settings = settings or ToneSettings()
        info = EngineInfo(
            name="tone",
            voices=tuple(VOICES),
            languages=("mul",),
            alignment=Alignment.MEASURED,
            max_utterances=self._settings.max_utterances,
            speed_range=(0.25, 4.0),
            test_signal=True,
        )
        chunk_samples = self._settings.chunk_samples
        super().__init__(info, policy=self._settings.policy, max_chunk_samples=chunk_samples, min_chunk_samples=0)

    def warm_up(self) -> None:
        """Render one note, so that numpy has loaded everything it needs."""
        _render(_Note(480, 440.0, (0, 0)), 480, seed=0)

    def open_sequence(self, command: Open) -> _NoteSequence:
        if command.params.voice not in VOICES:
            raise UnknownVoice(f'the tone engine has no voice "{command.params.voice}"; it has {", ".join(VOICES)}')
        return _NoteSequence(command, self._settings.ms_per_char)

    def submit(self, plan: Plan) -> None:
        if plan.audio is None:
            return
        sequence = self.sequences[plan.audio.members[0]]
        is_cheap = self._settings.cost_per_audio_s == 0
        chunks = _AHEAD_CHUNKS if is_cheap and sequence.output.in_transit_samples >= _AHEAD_SAMPLES else 1
        while chunks and sequence.needs is Need.RENDER:
            chunks -= 1
            if not self._render_chunk(sequence):
                return

    def _render_chunk(self, sequence: _NoteSequence) -> bool:
        """Render the next chunk; False if a fault was injected that ended the utterance."""
        fault = self._settings.fault(sequence.key, sequence.chunks)
        if fault is Fault.HANG:
            self._settings.hang.wait()
        if fault is Fault.DEVICE_LOST:
            raise DeviceLost("injected loss of the device")
        if fault in (Fault.RAISE, Fault.HANG):
            raise RuntimeError("injected engine fault")
        if fault is Fault.TRUNCATE:
            sequence.truncate("injected fault")
            return False
        if fault is not None:
            error = OutOfMemory("injected fault") if fault is Fault.OUT_OF_MEMORY else SynthesisFailed("injected fault")
            self.fail(sequence, error.info)
            return False
        if self._settings.whole_segments:
            text_range = sequence.notes[0].text_range
            max_samples = sum(n.samples - n.rendered_samples for n in sequence.notes if n.text_range == text_range)
        else:
            output = sequence.output
            max_samples = min(self._settings.chunk_samples, output.credit_samples - output.waiting_samples)
        rendered = sequence.render(max_samples)
        self._settings.spend(self._settings.cost_per_audio_s * rendered / SAMPLE_RATE_HZ)
        return True


def _render(note: _Note, samples: int, seed: int) -> bytes:
    """Render the next ``samples`` of a note as s16le; the result does not depend on how the note is divided."""
    if note.hz == 0.0:
        return bytes(2 * samples)
    start = note.rendered_samples
    end = start + samples
    # In place and without the ramp where it is 1: a large numpy operation releases the interpreter lock, and taking it
    # back from a busy event loop costs more than the operation.
    wave = np.arange(start, end, dtype=np.float32)
    wave *= 2 * np.pi * note.hz / SAMPLE_RATE_HZ
    wave += (seed % 628) / 100
    np.sin(wave, out=wave)
    wave *= _AMPLITUDE
    release = max(_RAMP_SAMPLES, note.samples - _RAMP_SAMPLES)
    for first, last in ((start, min(end, _RAMP_SAMPLES)), (max(start, release), end)):
        if first < last:
            index = np.arange(first, last)
            edge = np.minimum(index, note.samples - 1 - index) / _RAMP_SAMPLES
            wave[first - start : last - start] *= np.minimum(edge, 1.0).astype(np.float32)
    return wave.astype("<i2").tobytes()
