"""A deterministic test engine that turns text into tones, one note per word.

It satisfies the full ``Engine`` contract, has a configurable cost and can inject faults. Tests, benchmarks and
front-end development use it where speech is not needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.engine.scheduler import Budgets, Candidate, Policy, Scheduler
from tts_worker.errors import DeviceLost, InvalidRequest, OutOfMemory, SynthesisFailed, UnknownVoice, UnspeakableText
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Boundary,
    Cancel,
    Command,
    Credit,
    Done,
    EndText,
    EngineInfo,
    Event,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
    WordTiming,
    unpaced_share,
)

VOICES: dict[str, float] = {"tone": 1.0, "tone-low": 0.5, "tone-high": 2.0}
"""Voice name to pitch factor."""

_PAUSE_MS: dict[Boundary, int] = {Boundary.CLAUSE: 60, Boundary.SENTENCE: 120, Boundary.PARAGRAPH: 200}
_RAMP_SAMPLES = SAMPLE_RATE_HZ // 200  # 5 ms, so that notes begin and end without a click
_AMPLITUDE = 8_000


class Fault(Enum):
    """A fault to inject, per utterance and chunk."""

    FAIL = "fail"  # this utterance ends with Failed
    OUT_OF_MEMORY = "out_of_memory"  # this utterance fails for lack of memory
    RAISE = "raise"  # step() raises: an engine fault
    HANG = "hang"  # step() does not return: an engine fault
    DEVICE_LOST = "device_lost"  # step() raises DeviceLost


@dataclass(frozen=True, slots=True)
class ToneSettings:
    """Settings of the tone engine.

    Attributes:
        ms_per_char: Length of a note per letter of its word, at normal speed.
        chunk_samples: Samples rendered per step.
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
    spend: Callable[[float], None] = field(default_factory=lambda: _wait_out)
    fault: Callable[[UtteranceKey, int], Fault | None] = field(default_factory=lambda: _no_fault)
    hang: threading.Event = field(default_factory=threading.Event)
    policy: Policy | None = None


def _wait_out(seconds: float) -> None:
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


class _Utterance:
    def __init__(self, command: Open) -> None:
        self.params: SynthesisParams = command.params
        self.output = OutputBuffer(command.key, command.credit_samples, paced=command.paced, buffered=command.buffered)
        self.notes: deque[_Note] = deque()
        self.pending_pause: _Note | None = None
        self.text_ended = False
        self.is_held = False
        self.has_text = False
        self.waiting_since_us: int | None = None
        self.chunks = 0

    @property
    def finished(self) -> bool:
        return self.text_ended and not self.notes and self.output.waiting_samples == 0

    @property
    def has_work(self) -> bool:
        if self.is_held:
            return False
        return self.finished or self.output.can_emit or (self.output.credit_samples > 0 and bool(self.notes))


class ToneEngine:
    """Renders sine tones; a word's letters determine the pitch and their number the length."""

    def __init__(self, settings: ToneSettings | None = None) -> None:
        self._settings = settings or ToneSettings()
        self._utterances: dict[UtteranceKey, _Utterance] = {}
        self._rejections: list[Failed] = []
        self._schedule = self._settings.policy or Scheduler().schedule
        self.info = EngineInfo(
            name="tone",
            voices=tuple(VOICES),
            languages=("mul",),
            alignment=Alignment.MEASURED,
            max_utterances=self._settings.max_utterances,
            reads_numbers=True,
            speed_range=(0.25, 4.0),
        )

    @property
    def live(self) -> int:
        """Number of utterances that hold resources."""
        return len(self._utterances)

    def warm_up(self) -> None:
        """Render one note, so that numpy has loaded everything it needs."""
        _render(_Note(480, 440.0, (0, 0)), 480, seed=0)

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            self._open(command)
            return
        utterance = self._utterances.get(command.key)
        if utterance is None:
            return
        match command:
            case Text():
                self._add_text(utterance, command.segment)
            case EndText():
                utterance.text_ended = True
                utterance.pending_pause = None
            case Credit():
                utterance.output.grant(command.samples)
            case Hold():
                utterance.is_held = True
            case Release():
                utterance.is_held = False
            case Cancel():
                del self._utterances[command.key]

    def _open(self, command: Open) -> None:
        if command.params.voice not in VOICES:
            error = UnknownVoice(f'the tone engine has no voice "{command.params.voice}"; it has {", ".join(VOICES)}')
            self._rejections.append(Failed(command.key, error.info))
        elif not self.info.speed_range[0] <= command.params.speed <= self.info.speed_range[1]:
            self._rejections.append(Failed(command.key, InvalidRequest("speed must be 0.25 to 4").info))
        elif len(self._utterances) >= self.info.max_utterances:
            self._rejections.append(Failed(command.key, OutOfMemory("all utterance slots are taken").info))
        elif not command.paced and self._unpaced_utterances >= unpaced_share(self.info.max_utterances):
            self._rejections.append(
                Failed(command.key, OutOfMemory("all utterance slots for downloads are taken").info)
            )
        else:
            self._utterances[command.key] = _Utterance(command)

    @property
    def _unpaced_utterances(self) -> int:
        return sum(not utterance.output.paced for utterance in self._utterances.values())

    def _add_text(self, utterance: _Utterance, segment: Segment) -> None:
        utterance.has_text = True
        text_range = (segment.start, segment.end)
        speed = utterance.params.speed
        spoken = segment.text
        for word in spoken_words(segment):
            letters = [c for c in spoken[word.spoken_start : word.spoken_end] if c.isalnum()]
            if not letters:
                continue
            if utterance.pending_pause is not None:
                utterance.notes.append(utterance.pending_pause)
                utterance.pending_pause = None
            hz = (220.0 + 20.0 * (sum(map(ord, letters)) % 32)) * VOICES[utterance.params.voice]
            samples = round(len(letters) * self._settings.ms_per_char * SAMPLE_RATE_HZ / 1000 / speed)
            utterance.notes.append(_Note(samples, hz, text_range, (word.start_char, word.end_char)))
        pause_ms = _PAUSE_MS.get(segment.boundary, 0)
        if pause_ms and (utterance.notes or utterance.output.rendered_samples):
            # Added only if more text follows: an utterance does not end in silence.
            utterance.pending_pause = _Note(round(pause_ms * SAMPLE_RATE_HZ / 1000 / speed), 0.0, text_range)

    @property
    def has_work(self) -> bool:
        return bool(self._rejections) or any(u.has_work for u in self._utterances.values())

    def step(self, now_s: float) -> Sequence[Event]:
        if self._rejections:
            rejections = self._rejections
            self._rejections = []
            return rejections
        now_us = int(now_s * 1e6)
        candidates: list[Candidate] = []
        for key, utterance in list(self._utterances.items()):
            if not utterance.has_work:
                utterance.waiting_since_us = None
            elif utterance.finished:
                return [self._finish(key, utterance)]
            elif utterance.output.can_emit:
                return self._emit(key, utterance)
            else:
                if utterance.waiting_since_us is None:
                    utterance.waiting_since_us = now_us
                output = utterance.output
                lead_samples = output.lead_at_samples(now_us)
                has_started = output.emitted_samples > 0
                candidates.append(Candidate(key, lead_samples, utterance.waiting_since_us, has_started, output.paced))
        batch = self._schedule(candidates, Budgets(), now_us).audio
        if batch is None:
            return []
        key = batch.members[0]
        return self._serve(key, self._utterances[key])

    def _finish(self, key: UtteranceKey, utterance: _Utterance) -> Event:
        del self._utterances[key]
        if utterance.has_text and not utterance.output.rendered_samples:
            return Failed(key, UnspeakableText("the text contains no letters or digits").info)
        return Done(key)

    def _serve(self, key: UtteranceKey, utterance: _Utterance) -> list[Event]:
        fault = self._settings.fault(key, utterance.chunks)
        if fault is Fault.HANG:
            self._settings.hang.wait()
        if fault is Fault.DEVICE_LOST:
            raise DeviceLost("injected loss of the device")
        if fault in (Fault.RAISE, Fault.HANG):
            raise RuntimeError("injected engine fault")
        if fault is not None:
            del self._utterances[key]
            error = OutOfMemory("injected fault") if fault is Fault.OUT_OF_MEMORY else SynthesisFailed("injected fault")
            return [Failed(key, error.info)]
        output = utterance.output
        if self._settings.whole_segments:
            text_range = utterance.notes[0].text_range
            max_samples = sum(n.samples - n.rendered_samples for n in utterance.notes if n.text_range == text_range)
        else:
            max_samples = min(self._settings.chunk_samples, output.credit_samples)
        rendered = 0
        while rendered < max_samples and utterance.notes:
            note = utterance.notes[0]
            start = output.rendered_samples
            words = []
            if note.word is not None and note.rendered_samples == 0:
                words.append(WordTiming(*note.word, start, start + note.samples))
            samples = min(max_samples - rendered, note.samples - note.rendered_samples)
            output.render(_render(note, samples, utterance.params.seed), words, text_range=note.text_range)
            note.rendered_samples += samples
            rendered += samples
            if note.rendered_samples == note.samples:
                utterance.notes.popleft()
        self._settings.spend(self._settings.cost_per_audio_s * rendered / SAMPLE_RATE_HZ)
        utterance.chunks += 1
        events = self._emit(key, utterance)
        if output.emitted_samples:  # until its first chunk the order of arrival counts
            utterance.waiting_since_us = None
        return events

    def _emit(self, key: UtteranceKey, utterance: _Utterance) -> list[Event]:
        """Emit the rendered audio that has credit."""
        output = utterance.output
        events: list[Event] = []
        while (audio := output.emit(self._settings.chunk_samples)) is not None:
            events.append(audio)
        if utterance.finished:
            events.append(self._finish(key, utterance))
        return events

    def close(self) -> None:
        self._utterances.clear()
        self._rejections.clear()


def _render(note: _Note, samples: int, seed: int) -> bytes:
    """Render the next ``samples`` of a note as s16le; the result does not depend on how the note is divided."""
    if note.hz == 0.0:
        return bytes(2 * samples)
    index = np.arange(note.rendered_samples, note.rendered_samples + samples)
    ramp = np.minimum(np.minimum(index, note.samples - 1 - index) / _RAMP_SAMPLES, 1.0)
    phase = 2 * np.pi * note.hz * index / SAMPLE_RATE_HZ + (seed % 628) / 100
    return (np.sin(phase) * ramp * _AMPLITUDE).astype("<i2").tobytes()
