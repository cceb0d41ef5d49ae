"""Answers that wait until the client reads: bounded in number and in size."""

from __future__ import annotations

from collections import deque
from typing import Any

from tts_worker.errors import SendTimeout
from tts_worker.transports import wire

_MAX_ANSWERS = 256
_MAX_CHARS = 2_000_000
"""Reports of stopped utterances repeat their text, so a few large ones must fit."""


class Answers:
    """A queue of JSON messages for a client. A client that lets too many wait is cut off."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[dict[str, Any], int]] = deque()
        self._chars = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: dict[str, Any]) -> None:
        """Add a message. Raises SendTimeout if too many wait, or too large ones."""
        chars = len(wire.dumps(message))
        if len(self._waiting) >= _MAX_ANSWERS or (self._waiting and self._chars + chars > _MAX_CHARS):
            raise SendTimeout("too many answers were not read")
        self._waiting.append((message, chars))
        self._chars += chars

    def take(self) -> dict[str, Any]:
        """The oldest message. Raises IndexError if there is none."""
        message, chars = self._waiting.popleft()
        self._chars -= chars
        return message

    def clear(self) -> None:
        self._waiting.clear()
        self._chars = 0
