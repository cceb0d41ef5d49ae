"""The messages of a data channel, handled one in each turn of the event loop, even if many arrive in one packet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from tts_worker.protocol.json_codec import find_voice

_MAX_PENDING_MESSAGES = 1_024
"""Bound on received messages that are not handled yet."""


class MessageQueue:
    """Handles messages in order.

    Args:
        handle: Handles a message.
        look_up: Finds a voice that another worker may have stored; awaited before a message that names it is handled.
        on_full: Called if a client sends faster than its messages are handled.
    """

    def __init__(
        self,
        handle: Callable[[str | bytes], None],
        look_up: Callable[[str], Awaitable[object]],
        on_full: Callable[[], None],
    ) -> None:
        self._handle = handle
        self._look_up = look_up
        self._on_full = on_full
        self._pending: deque[str | bytes] = deque()  # the first one stays until the next one may be handled
        self._looking_up: asyncio.Task[None] | None = None
        self._is_closed = False

    def put(self, raw: str | bytes) -> None:
        """Add a message, and handle it if it is the only one."""
        if self._is_closed:
            return
        self._pending.append(raw)
        if len(self._pending) == 1:
            self._handle_first()
        elif len(self._pending) > _MAX_PENDING_MESSAGES:
            self._on_full()

    def close(self) -> None:
        """Drop all messages, also later ones."""
        self._is_closed = True
        self._pending.clear()

    def _handle_first(self) -> None:
        raw = self._pending[0]
        voice = find_voice(raw)
        if voice is None:
            self._handle(raw)
            asyncio.get_running_loop().call_soon(self._handle_next)
        else:
            self._looking_up = asyncio.create_task(self._handle_with_voice(raw, voice))

    async def _handle_with_voice(self, raw: str | bytes, voice: str) -> None:
        await self._look_up(voice)
        if not self._is_closed:
            self._handle(raw)
        self._handle_next()

    def _handle_next(self) -> None:
        if self._is_closed:
            return
        self._pending.popleft()
        if self._pending:
            self._handle_first()
