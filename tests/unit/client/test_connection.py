"""``WorkerConnection``: why a connection was lost."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from tests.fakes.clock import in_virtual_time
from tts_worker.client.connection import WorkerConnection
from tts_worker.client.settings import ClientSettings
from tts_worker.protocol.json_codec import dumps
from tts_worker.protocol.messages import ReadyMessage, StartedMessage
from tts_worker.types import Ended, SessionOptions

READY = ReadyMessage(protocol=1, session="s", sample_rate=24_000, voice="tone")


class Socket:
    """A socket with two seconds of audio, which then is closed."""

    def __init__(self, received: Close | None) -> None:
        self._messages: list[Any] = [dumps(StartedMessage(voice="tone", context="1.1")), *[b"\0" * 48_000] * 2]
        self._received = received

    async def recv(self) -> Any:
        if not self._messages:
            raise ConnectionClosedError(self._received, None)
        return self._messages.pop(0)

    async def send(self, data: Any) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("idle_s", "received", "message"),
    [
        (12.0, None, r"lost: this program took no audio for 12 s.*server\.send_timeout_s"),
        (1.0, None, r"lost$"),
        (12.0, Close(1012, "the worker is shutting down"), r"closed the connection: the worker is shutting down$"),
    ],
)
@in_virtual_time
async def test_lost_connection_says_that_nothing_was_read(idle_s: float, received: Close | None, message: str) -> None:
    socket: Any = Socket(received)
    connection = WorkerConnection(socket, READY, ClientSettings(read_ahead_s=0.5), lambda _: None, lambda _: None)
    session = await connection.open_session(SessionOptions(), audio_timeout_s=100.0)
    session.speak("Hello.")
    session.end_text()
    await asyncio.sleep(idle_s)
    (ended,) = [item async for item in session if isinstance(item, Ended)]
    assert ended.error is not None
    assert re.search(message, ended.error.message)
    await connection.wait_closed()
