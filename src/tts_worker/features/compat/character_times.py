"""Character timestamps derived from word timestamps, for clients that read times per character."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from tts_worker.types import Word


class CharacterTimes(TypedDict):
    """Three lists of equal length, as ElevenLabs names them."""

    chars: list[str]
    charStartTimesMs: list[int]
    charDurationsMs: list[int]


class CharacterClock:
    """Assigns times to the characters of one utterance.

    Every character of the text is emitted exactly once, in order. Spaces and filtered characters fall between the words
    around them. Times are whole milliseconds.

    Args:
        sample_rate_hz: Rate of the word timestamps.
        per_message: Count times from the end of the previous message (as the vendor documents it, and pipecat reads
            it), otherwise from the start of the audio (as LiveKit reads it; it asks with ``sync_alignment``).

    Attributes:
        text: The text written so far, in canonical form. The caller appends to it.
        sample_rate_hz: Rate of the word timestamps.
    """

    def __init__(self, sample_rate_hz: int, *, per_message: bool) -> None:
        self.text = ""
        self.sample_rate_hz = sample_rate_hz
        self._per_message = per_message
        self._chars: list[str] = []
        self._starts_ms: list[int] = []
        self._ends_ms: list[int] = []
        self._timed_chars = 0
        self._now_ms = 0  # end of the last timed character
        self._message_start_ms = 0

    @property
    def has_times(self) -> bool:
        """Whether ``take`` would return times."""
        return bool(self._chars)

    def add(self, words: Iterable[Word]) -> None:
        """Add word timestamps."""
        for word in words:
            if word.end_char > self._timed_chars:
                self._advance(max(word.start_char, self._timed_chars), self._ms(word.start_sample))
                self._advance(word.end_char, self._ms(word.end_sample))

    def finish(self) -> None:
        """Give the rest of the text zero duration. A text without any word timestamps stays untimed."""
        if self._timed_chars:
            self._advance(len(self.text), self._now_ms)

    def take(self) -> CharacterTimes | None:
        """Return the times added since the last call, or None if there are none."""
        if not self._chars:
            return None
        base_ms = self._message_start_ms if self._per_message else 0
        times: CharacterTimes = {
            "chars": self._chars,
            "charStartTimesMs": [start - base_ms for start in self._starts_ms],
            "charDurationsMs": [end - start for start, end in zip(self._starts_ms, self._ends_ms, strict=True)],
        }
        self._chars = []
        self._starts_ms = []
        self._ends_ms = []
        self._message_start_ms = self._now_ms
        return times

    def _advance(self, until_char: int, until_ms: int) -> None:
        """Spread the characters up to ``until_char`` evenly over the time up to ``until_ms``."""
        until_ms = max(until_ms, self._now_ms)
        chars = self.text[self._timed_chars : until_char]
        if not chars:
            self._now_ms = until_ms
            return
        edges_ms = [self._now_ms + (until_ms - self._now_ms) * n // len(chars) for n in range(len(chars) + 1)]
        self._chars += chars
        self._starts_ms += edges_ms[:-1]
        self._ends_ms += edges_ms[1:]
        self._timed_chars += len(chars)
        self._now_ms = until_ms

    def _ms(self, samples: int) -> int:
        return samples * 1000 // self.sample_rate_hz
