"""An engine that a test plays by hand: it obeys the protocol and remembers everything."""

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
    """What utterance ``key`` sounds like between two samples: every sample of every utterance is distinguishable."""
    base = key.generation * 7_919
    return struct.pack(f"<{end - start}h", *(((base + i * 31) % 60_000) - 30_000 for i in range(start, end)))


@dataclass
class Played:
    credit: int
    granted: int
    made: int = 0
    emitted: int = 0
    words: list[WordTiming] = field(default_factory=list)
    ended: bool = False
    held: bool = False
    done: bool = False
    cancelled: bool = False


class HandEngine:
    """``take(commands)`` then ``emit(key, n)`` / ``finish(key)``: the test decides when."""

    def __init__(self) -> None:
        self.utterances: dict[UtteranceKey, Played] = {}
        self.log: list[Command] = []

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            self.log.append(command)
            if isinstance(command, Open):
                assert command.key not in self.utterances, "opened twice"
                self.utterances[command.key] = Played(command.credit_samples, command.credit_samples)
                continue
            played = self.utterances[command.key]
            assert not played.cancelled, f"{command} after Cancel"
            if isinstance(command, Text):
                assert not played.ended, "text after EndText"
                self._say(played, command.segment)
            elif isinstance(command, EndText):
                assert not played.ended, "ended twice"
                played.ended = True
            elif isinstance(command, Credit):
                assert command.samples > 0
                assert not played.done, "credit after Done"
                played.credit += command.samples
                played.granted += command.samples
            elif isinstance(command, Hold):
                assert not played.held
                played.held = True
            elif isinstance(command, Release):
                assert played.held
                played.held = False
            elif isinstance(command, Cancel):
                played.cancelled = True

    def _say(self, played: Played, segment: Segment) -> None:
        samples = len(segment.text) * SAMPLES_PER_CHAR
        span = segment.spans[0]
        played.words.append(WordTiming(span.start, span.end, played.made, played.made + samples))
        played.made += samples

    def live(self) -> list[UtteranceKey]:
        return [k for k, p in self.utterances.items() if not p.done and not p.cancelled]

    def emit(self, key: UtteranceKey, samples: int) -> Event | None:
        """The next chunk of at most ``samples``, or Done when everything was said, or None if it may not emit."""
        played = self.utterances[key]
        if played.held:
            return None
        if played.ended and played.emitted == played.made:
            played.done = True
            return Done(key)
        samples = min(samples, played.credit, played.made - played.emitted)
        if samples == 0:
            return None
        start = played.emitted
        end = played.emitted + samples
        played.emitted = end
        played.credit -= samples
        assert played.emitted <= played.granted
        words = tuple(w for w in played.words if start <= w.start_sample < end)
        return Audio(key, pcm_of(key, start, end), ChunkMeta(0, 0, 0, start, 0.0), words)
