"""One WebSocket connection to a worker (``docs/protocol.md``), the ``Link`` of one ``RemoteSession`` at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from tts_worker.client.http_api import error_of_response
from tts_worker.client.link import RemoteConfig, check_format
from tts_worker.client.remote import RemoteSession
from tts_worker.client.settings import ClientSettings
from tts_worker.client.stream import MessageStream
from tts_worker.client.unreachable import unreachable
from tts_worker.errors import (
    ConnectionLost,
    ErrorCode,
    ErrorInfo,
    InvalidRequest,
    RemoteError,
    TTSWorkerError,
    as_exception,
)
from tts_worker.protocol.json_codec import ProtocolError, dumps, parse_worker_message
from tts_worker.protocol.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    ConfigureMessage,
    ReadyMessage,
    RejectedMessage,
    StartMessage,
    WorkerMessage,
)
from tts_worker.types import Encoding, SessionOptions

STREAM_PATH = "/v1/stream"

_LONG_UNREAD_S = 5.0
"""A worker may have dropped a client that read nothing for this time."""


async def dial(
    url: str,
    settings: ClientSettings,
    on_idle: Callable[[WorkerConnection], None],
    on_lost: Callable[[WorkerConnection], None],
) -> WorkerConnection:
    """Connect and wait for the worker's ``ready`` message.

    Args:
        url: Full WebSocket URL.
        settings: API key and heartbeat.
        on_idle: Called when a session has released the connection.
        on_lost: Called once when the connection is closed or lost.

    Raises:
        TTSWorkerError: The worker's own refusal of the handshake.
        ConnectionLost: The worker cannot be reached or is no tts-worker.
    """
    headers = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
    secure = url.startswith("wss:") and settings.tls_certificate is not None
    options: dict[str, Any] = {"ssl": settings.tls_context()} if secure else {}
    try:
        socket = await connect(
            url,
            **options,
            additional_headers=headers,
            compression=None,  # PCM does not compress
            max_size=None,
            open_timeout=None,  # the caller applies one deadline to the whole open
            ping_interval=settings.heartbeat_s,
            ping_timeout=settings.heartbeat_s,
            close_timeout=0.2,  # unread audio may delay the closing handshake
        )
    except InvalidStatus as error:
        raise _refusal(error.response, url) from None
    except (OSError, InvalidHandshake, EOFError) as error:
        raise unreachable(error) from None
    try:
        ready = parse_worker_message(await socket.recv())
        if not isinstance(ready, ReadyMessage):
            raise ProtocolError("the first message is not ready")
        _check_ready(ready)
        return WorkerConnection(socket, ready, settings, on_idle, on_lost)
    except (ConnectionClosed, ProtocolError) as error:
        await socket.close()
        raise ConnectionLost(f"the server at this URL is no tts-worker ({type(error).__name__})") from None
    except BaseException:
        socket.transport.abort()
        raise


def _refusal(answer: Response, url: str) -> TTSWorkerError:
    """Return the worker's own error of a refused handshake, or that the path of the URL is wrong."""
    error: TTSWorkerError
    try:
        error = error_of_response(bytes(answer.body or b""), answer.status_code, answer.headers.get("Retry-After"))
    except ConnectionLost as unknown:
        error = unknown
    path = urlsplit(url).path
    is_own = type(error) not in (InvalidRequest, ConnectionLost)  # of this worker, about voice, key or capacity
    if is_own or answer.status_code not in (403, 404) or path == STREAM_PATH:
        return error
    return InvalidRequest(
        f'no tts-worker answers at the path "{path}" of this URL (HTTP status {answer.status_code}): leave out the '
        f"path, or end it with {STREAM_PATH} behind a proxy"
    )


def _check_ready(ready: ReadyMessage) -> None:
    """Check protocol version and audio format. Raises RemoteError."""
    if ready.protocol != PROTOCOL_VERSION:
        message = f"the worker speaks protocol {ready.protocol}, not {PROTOCOL_VERSION}"
        raise RemoteError(ErrorInfo(ErrorCode.CONFIG, message))
    if ready.format not in {encoding.value for encoding in Encoding} or ready.channels != 1:
        raise RemoteError(ErrorInfo(ErrorCode.CONFIG, "the worker's audio format is not known to this client"))


class WorkerConnection(MessageStream):
    """A WebSocket connection that serves one session after the other; the ``Link`` of the current one.

    Attributes:
        sessions: Number of sessions opened so far.
    """

    def __init__(
        self,
        socket: ClientConnection,
        ready: ReadyMessage,
        settings: ClientSettings,
        on_idle: Callable[[WorkerConnection], None],
        on_lost: Callable[[WorkerConnection], None],
    ) -> None:
        super().__init__()
        self.sessions = 0
        self._socket = socket
        self._ready = ready
        self._settings = settings
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._options = SessionOptions()
        self._ready_reply: asyncio.Future[ReadyMessage] | None = None
        self._start()

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def open_session(self, options: SessionOptions, audio_timeout_s: float) -> RemoteSession:
        """Open a session with these options. Raises the worker's own error, or ConnectionLost."""
        if self.is_lost:
            raise ConnectionLost("the connection to the worker was lost")
        if options != self._options:
            self._ready_reply = asyncio.get_running_loop().create_future()
            self.send(StartMessage.of(options))
            try:
                self._ready = await self._ready_reply
            finally:
                self._ready_reply = None
            self._options = options
        check_format(options, self._ready)
        self.sessions += 1
        voice = self._ready.voice
        session = RemoteSession(
            self,
            RemoteConfig(
                session=f"{self._ready.session}/{self.sessions}",
                context_prefix=f"{self.sessions}.",
                params=options.voicing(voice),
                audio_timeout_s=audio_timeout_s,
                read_ahead_s=self._settings.read_ahead_s,
                sample_rate_hz=self._ready.sample_rate,
                encoding=Encoding(self._ready.format),
                model=self._ready.model,
            ),
        )
        self._receiver = session
        return session

    def send(self, message: ClientMessage) -> None:
        """See ``link.Link``. A ``start`` sets the voice, as JSON has no ``configure``."""
        if isinstance(message, ConfigureMessage):
            self._options = message.apply(self._options)
            message = StartMessage.of(self._options)
        super().send(message)

    def release(self, *, healthy: bool) -> None:
        """See ``link.Link``."""
        self._receiver = None
        if not healthy:
            self.close()
        elif not self.is_lost:
            self._on_idle(self)

    # -- transport ----------------------------------------------------------------------------------------------------

    async def _transmit(self, message: ClientMessage) -> bool:
        try:
            data = dumps(message)
        except TypeError:
            raise InvalidRequest("an option has a value that JSON cannot express") from None
        try:
            await self._socket.send(data)
        except ConnectionClosed:
            return False
        return True

    async def _next(self) -> WorkerMessage | bytes | None:
        try:
            raw = await self._socket.recv()
            return raw if isinstance(raw, bytes) else parse_worker_message(raw)
        except ConnectionClosed as closed:
            raise ConnectionLost(self._why_lost(closed)) from None
        except ProtocolError as wrong:
            raise ConnectionLost(f"the worker sent a message that violates the protocol: {wrong}") from None

    def _why_lost(self, closed: ConnectionClosed) -> str:
        if closed.rcvd is not None and closed.rcvd.reason:
            return f"the worker closed the connection: {closed.rcvd.reason}"
        lost = "the connection to the worker was lost"
        if self.unread_s < _LONG_UNREAD_S:
            return lost
        return (
            f"{lost}: this program took no audio for {self.unread_s:.0f} s, and a worker drops a client that reads "
            "nothing for its server.send_timeout_s (10 s by default); take audio as it arrives, or pause the session"
        )

    def _dispatch(self, message: WorkerMessage | bytes) -> None:
        reply = self._ready_reply
        if isinstance(message, ReadyMessage) or (isinstance(message, RejectedMessage) and reply is not None):
            if reply is not None and not reply.done():
                _resolve(reply, message)
        else:
            super()._dispatch(message)

    async def _close_transport(self) -> None:
        await self._socket.close()

    def _abort_transport(self) -> None:
        self._socket.transport.abort()

    def _on_disconnect(self, error: ErrorInfo) -> None:
        if self._ready_reply is not None and not self._ready_reply.done():
            self._ready_reply.set_exception(ConnectionLost(error.message))
        self._on_lost(self)


def _resolve(reply: asyncio.Future[ReadyMessage], message: ReadyMessage | RejectedMessage) -> None:
    """Answer a pending ``open_session``."""
    if isinstance(message, RejectedMessage):
        reply.set_exception(as_exception(message.error))
        return
    try:
        _check_ready(message)
    except TTSWorkerError as error:
        reply.set_exception(error)
    else:
        reply.set_result(message)
