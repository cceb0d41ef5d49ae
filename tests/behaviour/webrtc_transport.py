"""WebRTC as a session: aiortc on the other end of a worker's peer, seen through the client's own connection.

What the data channel says overtakes the sound, which waits in the listener's jitter buffer. This puts both in the order
of who listens: the end of an utterance comes after the last of its sound. Which sound is whose is counted: a receipt
says how much there was. The codec between leaves no sample as it was, and silence is not of any utterance.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio
import httpx
import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosedError

from tests.integration.listener import Listener, offered
from tts_worker.client import ClientSettings, Opened, SessionOptions, reading
from tts_worker.client.connection import Connection
from tts_worker.errors import as_exception

_ENDS = frozenset({"done", "stopped", "truncated", "error"})
_FRAME_SAMPLES = 480  # at 24 kHz
_LOUD = 200
_QUIET_FRAMES = 12
"""So long there is silence, and what a receipt still counts was held back by a STOP, or lost: more than the jitter
buffer of aiortc holds."""


@dataclass
class _Turn:
    """An utterance that has started. ``told``: what is to be passed on when its turn comes; ``end``: its last message,
    ``owed_samples``: how much sound there is before that."""

    context: str
    told: list[str] = field(default_factory=list)
    end: str | None = None
    stopped: bool = False
    owed_samples: int | None = None
    heard_samples: int = 0


class TrackSocket:
    """A listener as a socket of the protocol: ``recv`` gives messages and sound, as a WebSocket would."""

    def __init__(self) -> None:
        self.listener = Listener()
        self.listener.on_message = self._on_message
        self.listener.on_frame = self._on_frame
        self.listener.channel.on("close", self._lose)
        self.listener.connection.on("connectionstatechange", self._on_state)
        self._inbox: deque[str | bytes] = deque()
        self._turns: deque[_Turn] = deque()
        self._quiet_frames = 0
        self._lost = False
        self._arrived = asyncio.Event()

    # -- a socket -----------------------------------------------------------------------------------------------------

    async def recv(self) -> str | bytes:
        while not self._inbox:
            if self._lost:
                raise ConnectionClosedError(None, None)
            self._arrived.clear()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def send(self, raw: str) -> None:
        if self._lost:
            raise ConnectionClosedError(None, None)
        self.listener.channel.send(raw)

    async def close(self) -> None:
        self._lose()
        await self.listener.close()

    def _lose(self) -> None:
        self._lost = True
        self._arrived.set()

    def _on_state(self) -> None:
        if self.listener.connection.connectionState in ("closed", "failed"):
            self._lose()

    def _pass_on(self, *items: str | bytes) -> None:
        self._inbox.extend(items)
        self._arrived.set()

    # -- the order of who listens -------------------------------------------------------------------------------------

    def _on_message(self, raw: str) -> None:
        message = json.loads(raw)
        kind = message["type"]
        context = message.get("context")
        turn = next((turn for turn in self._turns if turn.context == context), None)
        if kind == "started":
            turn = _Turn(context)
            self._turns.append(turn)
        if turn is None or (kind in _ENDS and not message.get("applied", True)):
            self._pass_on(raw)
        elif kind in _ENDS:
            turn.end = raw
            turn.owed_samples = message["samples_sent"]
            turn.stopped = kind == "stopped"
            self._quiet_frames = 0
            if turn.stopped:  # said at once, whatever is still to be heard
                self._pass_on(*turn.told, raw)
                turn.told.clear()
        else:
            turn.told.append(raw)
        self._advance()

    def _on_frame(self, frame: np.ndarray[Any, Any]) -> None:
        """20 ms at 48 kHz."""
        if np.abs(frame).max() <= _LOUD:
            self._quiet_frames += 1
        else:
            self._quiet_frames = 0
            self._advance()
            if self._turns:
                turn = self._turns[0]
                turn.heard_samples += _FRAME_SAMPLES
                if not turn.stopped:
                    self._pass_on(frame[::2].astype("<i2").tobytes())
        self._advance()

    def _advance(self) -> None:
        while self._turns:
            turn = self._turns[0]
            self._pass_on(*turn.told)
            turn.told.clear()
            if turn.owed_samples is None:
                return
            # A STOP takes back up to two frames that were counted already.
            enough = turn.owed_samples - _FRAME_SAMPLES * (1.5 if turn.stopped else 0.5)
            if turn.heard_samples >= enough:
                over = self._quiet_frames > 0 or len(self._turns) > 1  # it fades, perhaps into another frame
            else:
                over = self._quiet_frames >= _QUIET_FRAMES
            if not over:
                return
            self._turns.popleft()
            if not turn.stopped and turn.end is not None:
                self._pass_on(turn.end)


class WebRtcClient:
    """Opens a peer for each session."""

    def __init__(self, address: str, settings: ClientSettings) -> None:
        self._address = address
        self._settings = settings
        self._connections: list[Connection] = []

    async def open(self, options: SessionOptions) -> Opened:
        """Raises what the worker answers to the offer or to the options."""
        socket = TrackSocket()
        try:
            await self._join(socket)
            with anyio.fail_after(60):
                ready = json.loads(await socket.recv())
            connection = Connection(
                cast(ClientConnection, socket), ready, self._settings, Connection.close, lambda _: None
            )
        except BaseException:
            await socket.close()
            raise
        self._connections.append(connection)
        return Opened(await connection.begin(options, self._settings.audio_timeout_s), connection_reused=False)

    async def _join(self, socket: TrackSocket) -> None:
        answer = await offered(self._address, await socket.listener.offer())
        if answer.status_code != httpx.codes.OK:
            info = reading.error_of(answer.json()["error"])
            after = answer.headers.get("Retry-After")
            raise as_exception(replace(info, retry_after_s=None if after is None else float(after)))
        await socket.listener.accept(answer.json()["sdp"])

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for connection in self._connections:
            await connection.wait_closed()
