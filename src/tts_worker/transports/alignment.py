"""When each character is heard, from when each word is: for clients that read times by character.

Pure. It knows the text as it was written, takes the word times as they come, and gives every character of the text
exactly once, in order; spaces and what a filter removed lie between the words around them. Times are whole
milliseconds. It knows no message and no vendor beyond the names of the three lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from tts_worker.types import SAMPLE_RATE_HZ, Word


class Alignment(TypedDict):
    """Three lists of equal length."""

    chars: list[str]
    charStartTimesMs: list[int]
    charDurationsMs: list[int]


class CharacterClock:
    """Of one utterance. ``text`` is what was written of it so far, in canonical form.

    ``per_message``: times count from the end of the message before (the vendor's reference, and pipecat); else from the
    beginning of the sound (what LiveKit reads, which asks for it with ``sync_alignment``).
    """

    def __init__(self, *, per_message: bool) -> None:
        self.text = ""
        self._per_message = per_message
        self._chars: list[str] = []
        self._starts_ms: list[int] = []
        self._ends_ms: list[int] = []
        self._told_chars = 0
        self._now_ms = 0  # end of the last character told
        self._message_from_ms = 0

    @property
    def waiting(self) -> bool:
        """Whether there are characters that were not taken yet."""
        return bool(self._chars)

    def add(self, words: Iterable[Word]) -> None:
        for word in words:
            if word.end_char > self._told_chars:
                self._tell(max(word.start_char, self._told_chars), _ms(word.start_sample))
                self._tell(word.end_char, _ms(word.end_sample))

    def finish(self) -> None:
        """The rest of the text has no sound. A text of which no time is known is not told at all."""
        if self._told_chars:
            self._tell(len(self.text), self._now_ms)

    def take(self) -> Alignment | None:
        """What was added since the last call; None if nothing was."""
        if not self._chars:
            return None
        base_ms = self._message_from_ms if self._per_message else 0
        taken: Alignment = {
            "chars": self._chars,
            "charStartTimesMs": [start - base_ms for start in self._starts_ms],
            "charDurationsMs": [end - start for start, end in zip(self._starts_ms, self._ends_ms, strict=True)],
        }
        self._chars, self._starts_ms, self._ends_ms = [], [], []
        self._message_from_ms = self._now_ms
        return taken

    def _tell(self, until_char: int, until_ms: int) -> None:
        """Characters up to ``until_char``, spread evenly over the time up to ``until_ms``."""
        until_ms = max(until_ms, self._now_ms)
        chars = self.text[self._told_chars : until_char]
        if not chars:
            self._now_ms = until_ms
            return
        edges_ms = [self._now_ms + (until_ms - self._now_ms) * n // len(chars) for n in range(len(chars) + 1)]
        self._chars += chars
        self._starts_ms += edges_ms[:-1]
        self._ends_ms += edges_ms[1:]
        self._told_chars += len(chars)
        self._now_ms = until_ms


def _ms(samples: int) -> int:
    return samples * 1000 // SAMPLE_RATE_HZ
