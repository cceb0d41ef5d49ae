"""``/v1/stream``: text and control in, audio and events out, on one WebSocket. See ``docs/protocol.md``.

A single task writes, so the order on the wire is the session's order of events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from starlette.websockets import WebSocket

from tts_worker.errors import HTTP_STATUS, Draining, TTSWorkerError
from tts_worker.protocol.dialogue import Dialogue
from tts_worker.protocol.json_codec import dumps, find_lexicon, find_voice, parse_client_message, parse_start_query
from tts_worker.protocol.messages import ChunkMessage, RejectedMessage, WorkerMessage
from tts_worker.server.checksums import CHECKSUMS, wants_checksums
from tts_worker.server.limits import ApiLimits
from tts_worker.server.message_socket import MessageSocket
from tts_worker.server.responses import error_response
from tts_worker.server.security import SUBPROTOCOL
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import PcmFrame, SessionOptions, State


async def stream(websocket: WebSocket, hub: SessionHub, limits: ApiLimits) -> None:
    """Serve one connection from handshake to close. A rejection is the HTTP response to the handshake (503, 404)."""
    try:
        params = dict(websocket.query_params)
        checksums = wants_checksums(params)
        params.pop(CHECKSUMS, None)
        options = parse_start_query(params).options()
        session = await hub.admit(options)
    except TTSWorkerError as error:
        await websocket.send_denial_response(error_response(error.info, HTTP_STATUS[error.code]))
        return
    await StreamConnection(websocket, hub, session, options, limits, checksums=checksums).run()


class StreamConnection:
    """The worker's protocol on a WebSocket.

    Args:
        websocket: The connection, not accepted yet.
        hub: Opens sessions that replace ``session``.
        session: An admitted session.
        options: Its options.
        limits: Limits on messages.
        adapt_options: Adapts the options of a later ``start``.
        checksums: Send a ``chunk`` message with the SHA-256 of each audio message before it.
    """

    def __init__(
        self,
        websocket: WebSocket,
        hub: SessionHub,
        session: LocalSession,
        options: SessionOptions,
        limits: ApiLimits,
        adapt_options: Callable[[SessionOptions], SessionOptions] = lambda options: options,
        *,
        checksums: bool = False,
    ) -> None:
        self._hub = hub
        self._socket = MessageSocket(websocket, limits, f"stream {session.id}")
        self._dialogue = Dialogue(
            hub, session, options, max_message_chars=limits.max_message_chars, adapt_options=adapt_options
        )
        self._checksums = checksums
        self._described_audio: bytes | None = None  # its ``chunk`` message is sent, it is next
        self._unsent: str | bytes | None = None  # must wait until the client has read
        self._subprotocol = SUBPROTOCOL if SUBPROTOCOL in websocket.scope.get("subprotocols", ()) else None

    async def run(self) -> None:
        await self._socket.run(
            self._read,
            self._write,
            on_end=self._end,
            encode_error=lambda error: dumps(RejectedMessage.of(error)),
            subprotocol=self._subprotocol,
        )

    def _end(self, reason: str) -> None:
        self._dialogue.session.close(reason)
        # An error, its traceback and this object form a cycle: free unsent messages without the garbage collector.
        self._dialogue.replies.clear()

    async def _read(self) -> None:
        while not self._dialogue.closing:
            raw = await self._socket.receive()
            if isinstance(raw, str) and '"lexicon"' in raw:  # it may take milliseconds to read or to build
                with contextlib.suppress(TTSWorkerError):  # the dialogue reports the error
                    await self._hub.lexicons.prepare_from(partial(find_lexicon, raw))
            if (voice := find_voice(raw)) is not None:
                await self._hub.library.look_up(voice)
            self._receive(raw)

    def _receive(self, raw: str | bytes) -> None:
        self._dialogue.receive(raw, parse_client_message)

    def _poll(self) -> WorkerMessage | PcmFrame | bytes | None:
        """Return what to send next; audio is sent as a binary message."""
        return self._dialogue.poll()

    def _next_message(self) -> str | bytes | None:
        """Return the next WebSocket message, None if there is none now."""
        if self._described_audio is not None:
            audio, self._described_audio = self._described_audio, None
            return audio
        item = self._poll()
        if isinstance(item, PcmFrame):
            if not self._checksums:
                return item.pcm
            self._described_audio = item.pcm
            return dumps(ChunkMessage.of(item))
        return item if item is None or isinstance(item, bytes) else dumps(item)

    def _send_due(self) -> bool:
        """Send what is due; False if the client has to read first."""
        while (message := self._next_message()) is not None:
            if not self._socket.send_now(message):
                self._unsent = message
                return False
        return True

    async def _write(self) -> None:
        dialogue = self._dialogue
        while True:
            session = dialogue.session
            if self._unsent is not None or not self._send_due():
                unsent, self._unsent = self._unsent, None
                if unsent is not None:
                    await self._socket.send(unsent)
            elif session.state is not State.CLOSED:
                await session.wait(self._send_due)
            elif session is dialogue.session:
                if session.close_error is not None:
                    raise session.close_error
                if self._hub.draining and not dialogue.closing:
                    raise Draining("the worker is shutting down; use another one")
                return  # closed by the client, or the connection has ended
