"""A bounded queue of messages for a client."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from tts_worker.errors import SendTimeout
from tts_worker.protocol.json_codec import dumps

_MAX_MESSAGES = 256
_MAX_CHARS = 2_000_000
"""Playback reports repeat the text of their utterance; a few large ones must fit."""


_M = TypeVar("_M")


class ReplyQueue(Generic[_M]):
    """Messages to send, bounded in number and in size (as JSON)."""

    def __init__(self) -> None:
        self._messages: deque[tuple[_M, int]] = deque()
        self._chars = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: _M) -> None:
        """Append a message.

        Raises:
            SendTimeout: The client leaves too many messages unread, or too large ones.
        """
        chars = len(dumps(message))
        if len(self._messages) >= _MAX_MESSAGES or (self._messages and self._chars + chars > _MAX_CHARS):
            raise SendTimeout("too many replies were not read")
        self._messages.append((message, chars))
        self._chars += chars

    def take(self) -> _M:
        """Remove and return the oldest message.

        Raises:
            IndexError: The queue is empty.
        """
        message, chars = self._messages.popleft()
        self._chars -= chars
        return message

    def clear(self) -> None:
        """Drop all messages."""
        self._messages.clear()
        self._chars = 0
