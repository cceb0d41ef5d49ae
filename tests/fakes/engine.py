"""An engine that a test steps manually; it checks the engine protocol and logs every command."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tts_worker.types import (
    Audio,
    Cancel,
    ChunkMeta,
    Command,
    Credit,
    Done,
    EndText,
    Event,
    Hold,
    Open,
    Release,
    Segment,
    Text,
    UtteranceKey,
    WordTiming,
)

SAMPLES_PER_CHAR = 100


def pcm_of(key: UtteranceKey, start: int, end: int) -> bytes:
    """The PCM of an utterance between two positions; samples of different utterances and positions differ."""
    base = key.generation * 7_919
    return struct.pack(f"<{end - start}h", *(((base + i * 31) % 60_000) - 30_000 for i in range(start, end)))


@dataclass
class UtteranceState:
    """An utterance in the engine; counts are samples."""

    credit: int
    granted: int
    generated: int = 0
    emitted: int = 0
    words: list[WordTiming] = field(default_factory=list)
    is_text_ended: bool = False
    is_held: bool = False
    is_done: bool = False
    is_cancelled: bool = False


class ManualEngine:
    """Takes commands with ``take`` and emits one chunk per call of ``emit``."""

    def __init__(self) -> None:
        self.utterances: dict[UtteranceKey, UtteranceState] = {}
        self.log: list[Command] = []

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            self.log.append(command)
            if isinstance(command, Open):
                assert command.key not in self.utterances, "opened twice"
                self.utterances[command.key] = UtteranceState(command.credit_samples, command.credit_samples)
            else:
                state = self.utterances[command.key]
                assert not state.is_cancelled, f"{command} after Cancel"
                self._update(state, command)

    def _update(self, state: UtteranceState, command: Command) -> None:
        match command:
            case Text():
                assert not state.is_text_ended, "text after EndText"
                self._generate(state, command.segment)
            case EndText():
                assert not state.is_text_ended, "text ended twice"
                state.is_text_ended = True
            case Credit():
                assert command.samples > 0
                assert not state.is_done, "credit after Done"
                state.credit += command.samples
                state.granted += command.samples
            case Hold():
                assert not state.is_held
                state.is_held = True
            case Release():
                assert state.is_held
                state.is_held = False
            case Cancel():
                state.is_cancelled = True

    def _generate(self, state: UtteranceState, segment: Segment) -> None:
        samples = len(segment.text) * SAMPLES_PER_CHAR
        span = segment.spans[0]
        state.words.append(WordTiming(span.start, span.end, state.generated, state.generated + samples))
        state.generated += samples

    def live(self) -> list[UtteranceKey]:
        return [k for k, s in self.utterances.items() if not s.is_done and not s.is_cancelled]

    def emit(self, key: UtteranceKey, samples: int) -> Event | None:
        """Return a chunk of at most ``samples``, Done after the last one, or None if nothing may be emitted."""
        state = self.utterances[key]
        if state.is_held:
            return None
        if state.is_text_ended and state.emitted == state.generated:
            state.is_done = True
            return Done(key)
        samples = min(samples, state.credit, state.generated - state.emitted)
        if samples == 0:
            return None
        start = state.emitted
        end = state.emitted + samples
        state.emitted = end
        state.credit -= samples
        assert state.emitted <= state.granted
        words = tuple(w for w in state.words if start <= w.start_sample < end)
        return Audio(key, pcm_of(key, start, end), ChunkMeta(0, 0, 0, start, 0.0), words)
