"""Adapts a WebRTC connection to the ``Session`` interface: aiortc as the peer, read through the client's connection.

Messages of the data channel overtake the audio, which waits in the jitter buffer. ``TrackSocket`` restores playback
order: the terminal event of an utterance follows its last audio. Audio is assigned to utterances by counting samples
against the playback reports. The codec is lossy, and silence belongs to no utterance.
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

from tests.features.webrtc.webrtc_client import AiortcClient, post_offer
from tts_worker.client import ClientSettings, OpenedSession, SessionOptions
from tts_worker.client.connection import WorkerConnection
from tts_worker.errors import as_exception
from tts_worker.protocol.json_codec import parse_worker_message
from tts_worker.protocol.messages import ReadyMessage, parse_error

_TERMINAL_TYPES = frozenset({"done", "stopped", "truncated", "error"})
_FRAME_SAMPLES = 480  # at 24 kHz
_SILENCE_THRESHOLD = 200
_QUIET_FRAMES = 12
"""After this much silence, more than the jitter buffer of aiortc holds, missing audio was dropped by STOP or lost."""


@dataclass
class _Utterance:
    """A started utterance.

    Attributes:
        pending_messages: Messages to deliver when the utterance is next in playback order.
        terminal_message: Its terminal event.
        expected_samples: Audio before the terminal event, at 24 kHz; None until that event has arrived.
    """

    context: str
    pending_messages: list[str] = field(default_factory=list)
    terminal_message: str | None = None
    is_stopped: bool = False
    expected_samples: int | None = None
    received_samples: int = 0


class TrackSocket:
    """A WebRTC peer with the interface of a WebSocket: ``recv`` returns messages and PCM in playback order."""

    def __init__(self) -> None:
        self.client = AiortcClient()
        self.client.on_message = self._on_message
        self.client.on_frame = self._on_frame
        self.client.channel.on("close", self._lose)
        self.client.connection.on("connectionstatechange", self._on_state)
        self._inbox: deque[str | bytes] = deque()
        self._utterances: deque[_Utterance] = deque()
        self._quiet_frames = 0
        self._is_lost = False
        self._arrived = asyncio.Event()

    # -- WebSocket interface ------------------------------------------------------------------------------------------

    async def recv(self) -> str | bytes:
        while not self._inbox:
            if self._is_lost:
                raise ConnectionClosedError(None, None)
            self._arrived.clear()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def send(self, raw: str) -> None:
        if self._is_lost:
            raise ConnectionClosedError(None, None)
        self.client.channel.send(raw)

    async def close(self) -> None:
        self._lose()
        await self.client.close()

    def _lose(self) -> None:
        self._is_lost = True
        self._arrived.set()

    def _on_state(self) -> None:
        if self.client.connection.connectionState in ("closed", "failed"):
            self._lose()

    def _deliver(self, *items: str | bytes) -> None:
        self._inbox.extend(items)
        self._arrived.set()

    # -- playback order -----------------------------------------------------------------------------------------------

    def _on_message(self, raw: str) -> None:
        message = json.loads(raw)
        kind = message["type"]
        context = message.get("context")
        utterance = next((utterance for utterance in self._utterances if utterance.context == context), None)
        if kind == "started":
            utterance = _Utterance(context)
            self._utterances.append(utterance)
        if utterance is None or (kind in _TERMINAL_TYPES and not message.get("applied", True)):
            self._deliver(raw)
        elif kind in _TERMINAL_TYPES:
            utterance.terminal_message = raw
            utterance.expected_samples = message["samples_sent"]
            utterance.is_stopped = kind == "stopped"
            self._quiet_frames = 0
            if utterance.is_stopped:  # delivered at once: its remaining audio is discarded
                self._deliver(*utterance.pending_messages, raw)
                utterance.pending_messages.clear()
        else:
            utterance.pending_messages.append(raw)
        self._advance()

    def _on_frame(self, frame: np.ndarray[Any, Any]) -> None:
        """Take one frame of 20 ms at 48 kHz."""
        if np.abs(frame).max() <= _SILENCE_THRESHOLD:
            self._quiet_frames += 1
        else:
            self._quiet_frames = 0
            self._advance()
            if self._utterances:
                utterance = self._utterances[0]
                utterance.received_samples += _FRAME_SAMPLES
                if not utterance.is_stopped:
                    self._deliver(frame[::2].astype("<i2").tobytes())
        self._advance()

    def _advance(self) -> None:
        while self._utterances:
            utterance = self._utterances[0]
            self._deliver(*utterance.pending_messages)
            utterance.pending_messages.clear()
            if utterance.expected_samples is None:
                return
            # STOP drops up to two frames that were already counted as sent.
            sufficient_samples = utterance.expected_samples - _FRAME_SAMPLES * (1.5 if utterance.is_stopped else 0.5)
            if utterance.received_samples >= sufficient_samples:
                # The fade-out may extend into another frame.
                is_over = self._quiet_frames > 0 or len(self._utterances) > 1
            else:
                is_over = self._quiet_frames >= _QUIET_FRAMES
            if not is_over:
                return
            self._utterances.popleft()
            if not utterance.is_stopped and utterance.terminal_message is not None:
                self._deliver(utterance.terminal_message)


class WebRtcClient:
    """Opens one WebRTC peer per session."""

    def __init__(self, address: str, settings: ClientSettings) -> None:
        self._address = address
        self._settings = settings
        self._connections: list[WorkerConnection] = []

    async def open(self, options: SessionOptions) -> OpenedSession:
        """Open a session; raises the worker's error if it rejects the offer or the options."""
        socket = TrackSocket()
        try:
            await self._join(socket)
            with anyio.fail_after(60):
                ready = parse_worker_message(await socket.recv())
            assert isinstance(ready, ReadyMessage)
            connection = WorkerConnection(
                cast(ClientConnection, socket), ready, self._settings, WorkerConnection.close, lambda _: None
            )
        except BaseException:
            await socket.close()
            raise
        self._connections.append(connection)
        return OpenedSession(
            await connection.open_session(options, self._settings.audio_timeout_s), connection_reused=False
        )

    async def _join(self, socket: TrackSocket) -> None:
        answer = await post_offer(self._address, await socket.client.offer())
        if answer.status_code != httpx.codes.OK:
            info = parse_error(answer.json()["error"])
            after = answer.headers.get("Retry-After")
            raise as_exception(replace(info, retry_after_s=None if after is None else float(after)))
        await socket.client.accept(answer.json()["sdp"])

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for connection in self._connections:
            await connection.wait_closed()
