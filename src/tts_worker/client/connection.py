"""One WebSocket connection to a worker (``docs/protocol.md``), the ``Link`` of one ``RemoteSession`` at a time.

Session commands only append to an outbox; a writer task sends it while a reader task dispatches incoming messages.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from tts_worker.client import json_messages
from tts_worker.client.base import ClientSettings
from tts_worker.client.json_messages import Message, ProtocolError
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost, ErrorCode, ErrorInfo, RemoteError, TTSWorkerError, as_exception
from tts_worker.types import ControlName, SessionOptions, SynthesisParams

PROTOCOL_VERSION = 1

_MESSAGE_CHARS = 4_000
"""Maximum characters of a text message; queued deltas are joined up to this size."""


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
    try:
        socket = await connect(
            url,
            additional_headers=headers,
            compression=None,  # PCM does not compress
            max_size=None,
            open_timeout=None,  # the caller applies one deadline to the whole open
            ping_interval=settings.heartbeat_s,
            ping_timeout=settings.heartbeat_s,
            close_timeout=0.2,  # unread audio may delay the closing handshake
        )
    except InvalidStatus as error:
        raise _handshake_error(error.response) from None
    except (OSError, InvalidHandshake, EOFError) as error:
        raise ConnectionLost(f"the worker cannot be reached ({type(error).__name__}): is it running?") from None
    try:
        ready = _validate_ready(_parse(await socket.recv()))
        return WorkerConnection(socket, ready, settings, on_idle, on_lost)
    except (ConnectionClosed, ProtocolError) as error:
        await socket.close()
        raise ConnectionLost(f"the server at this URL is no tts-worker ({type(error).__name__})") from None
    except BaseException:
        socket.transport.abort()
        raise


def _handshake_error(response: Response) -> TTSWorkerError:
    """Convert an HTTP response to the handshake into a typed error."""
    try:
        error = json.loads(response.body or b"")["error"]
        info = json_messages.parse_error(error)
    except (ValueError, TypeError, KeyError, AttributeError):
        return ConnectionLost(f"the server at this URL is no tts-worker (HTTP status {response.status_code})")
    after = response.headers.get("Retry-After", "")
    return as_exception(replace(info, retry_after_s=float(after) if after.isdigit() else info.retry_after_s))


def _parse(raw: str | bytes) -> Message:
    try:
        message = json.loads(raw)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ProtocolError("the message is not a JSON object")
    return message


def _validate_ready(message: Message) -> Message:
    """Check type, protocol version and audio format. Raises ProtocolError, RemoteError."""
    if message.get("type") != "ready":
        raise ProtocolError("the first message is not ready")
    protocol = json_messages.require_int(message, "protocol")
    if protocol != PROTOCOL_VERSION:
        raise RemoteError(ErrorInfo(ErrorCode.CONFIG, f"the worker speaks protocol {protocol}, not {PROTOCOL_VERSION}"))
    if (message.get("format"), message.get("channels")) != ("pcm_s16le", 1):
        raise RemoteError(ErrorInfo(ErrorCode.CONFIG, "the worker's audio format is not s16le mono"))
    json_messages.require_int(message, "sample_rate")
    return message


class WorkerConnection:
    """A WebSocket connection that serves one session after the other; the ``Link`` of the current one.

    Attributes:
        sessions: Number of sessions opened so far.
        is_lost: The connection is closed and serves no further session.
    """

    def __init__(
        self,
        socket: ClientConnection,
        ready: Message,
        settings: ClientSettings,
        on_idle: Callable[[WorkerConnection], None],
        on_lost: Callable[[WorkerConnection], None],
    ) -> None:
        self.sessions = 0
        self.is_lost = False
        self._socket = socket
        self._ready = ready
        self._settings = settings
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._options = SessionOptions()
        self._session: RemoteSession | None = None
        self._ready_reply: asyncio.Future[Message] | None = None
        self._outbox: deque[Message] = deque()
        self._outgoing = asyncio.Event()
        self._writer = asyncio.create_task(self._write(), name="tts-client-writer")
        self._reader = asyncio.create_task(self._read(), name="tts-client-reader")

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def open_session(self, options: SessionOptions, audio_timeout_s: float) -> RemoteSession:
        """Open a session with these options. Raises the worker's own error, or ConnectionLost."""
        if self.is_lost:
            raise ConnectionLost("the connection to the worker was lost")
        if options != self._options:
            self._ready_reply = asyncio.get_running_loop().create_future()
            self._post(json_messages.start_message(options))
            try:
                self._ready = await self._ready_reply
            finally:
                self._ready_reply = None
            self._options = options
        self.sessions += 1
        self._session = RemoteSession(
            self,
            RemoteConfig(
                session=f"{self._ready.get('session', 'remote')}/{self.sessions}",
                context_prefix=f"{self.sessions}.",
                params=self._params(),
                audio_timeout_s=audio_timeout_s,
                read_ahead_s=self._settings.read_ahead_s,
                sample_rate_hz=json_messages.require_int(self._ready, "sample_rate"),
            ),
        )
        return self._session

    def _params(self) -> SynthesisParams:
        options = self._options
        voice = json_messages.require_str(self._ready, "voice")
        return SynthesisParams(voice, options.speed, options.seed, options.language, options.instruct)

    def close(self) -> None:
        """Close the connection. A current session ends with ConnectionLost."""
        self._disconnect(ConnectionLost("the connection was closed").info)

    async def wait_closed(self) -> None:
        """Wait until both tasks have ended."""
        await asyncio.wait({self._writer, self._reader})

    # -- Link ---------------------------------------------------------------------------------------------------------

    def text(self, context: str, text: str) -> None:
        last = self._outbox[-1] if self._outbox else None
        joins = last is not None and last["type"] == "text" and last["context"] == context
        if last is not None and joins and len(last["text"]) + len(text) <= _MESSAGE_CHARS:
            last["text"] += text
            return
        for start in range(0, len(text) or 1, _MESSAGE_CHARS):
            self._post({"type": "text", "text": text[start : start + _MESSAGE_CHARS], "context": context})

    def flush(self) -> None:
        self._post({"type": "flush"})

    def end_text(self, context: str) -> None:
        self._post({"type": "end", "context": context})

    def pause(self) -> None:
        self._post({"type": "pause"})

    def resume(self) -> None:
        self._post({"type": "resume"})

    def stop(self, reason: str, played_samples: int) -> None:
        self._post({"type": "stop", "reason": reason[:64], "played_samples": played_samples})

    def played(self, samples: int) -> None:
        self._post({"type": "played", "samples": samples})

    def configure(self, params: SynthesisParams) -> None:
        self._options = replace(
            self._options,
            voice=params.voice,
            speed=params.speed,
            seed=params.seed,
            language=params.language,
            instruct=params.instruct,
        )
        self._post(json_messages.start_message(self._options))

    def release(self, *, healthy: bool) -> None:
        self._session = None
        if not healthy:
            self.close()
        elif not self.is_lost:
            self._on_idle(self)

    def _post(self, message: Message) -> None:
        self._outbox.append(message)
        self._outgoing.set()

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        while True:
            while self._outbox:
                message = json.dumps(self._outbox.popleft(), separators=(",", ":"))
                try:
                    await self._socket.send(message)
                except ConnectionClosed:
                    return  # the reader reports the loss
            self._outgoing.clear()
            await self._outgoing.wait()

    async def _read(self) -> None:
        lost = ConnectionLost("the connection to the worker was lost")
        try:
            while not self.is_lost:
                if self._session is not None:
                    await self._session.wait_for_capacity()
                raw = await self._socket.recv()
                if isinstance(raw, bytes):
                    if self._session is not None:
                        self._session.on_audio(raw)
                else:
                    self._dispatch(_parse(raw))
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.reason:
                lost = ConnectionLost(f"the worker closed the connection: {closed.rcvd.reason}")
        except ProtocolError as wrong:
            lost = ConnectionLost(f"the worker sent a message that violates the protocol: {wrong}")
        finally:
            self._disconnect(lost.info)
            await self._socket.close()

    def _dispatch(self, message: Message) -> None:
        kind = message.get("type")
        if kind == "ready" or (kind == "rejected" and self._ready_reply is not None):
            self._resolve_ready_reply(message)
        elif self._session is not None:
            _dispatch_to(self._session, message)

    def _resolve_ready_reply(self, message: Message) -> None:
        """Answer a pending ``open_session`` with the worker's "ready" or "rejected"."""
        if self._ready_reply is None or self._ready_reply.done():
            return
        if message["type"] == "rejected":
            self._ready_reply.set_exception(as_exception(json_messages.parse_error(message)))
            return
        try:
            self._ready_reply.set_result(_validate_ready(message))
        except TTSWorkerError as error:
            self._ready_reply.set_exception(error)

    def _disconnect(self, error: ErrorInfo) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self._ready_reply is not None and not self._ready_reply.done():
            self._ready_reply.set_exception(ConnectionLost(error.message))
        session = self._session
        self._session = None
        if session is not None:
            session.on_lost(error)
        self._writer.cancel()
        if asyncio.current_task() is not self._reader:
            self._reader.cancel()
        self._on_lost(self)


def _dispatch_to(session: RemoteSession, message: Message) -> None:
    context = str(message.get("context", ""))
    match message.get("type"):
        case "started":
            session.on_started(context, json_messages.parse_params(message))
        case "words":
            session.on_words(json_messages.parse_words(message))
        case "paused":
            session.on_acknowledged(ControlName.PAUSE)
        case "resumed":
            session.on_acknowledged(ControlName.RESUME)
        case "rejected":
            session.on_rejected(json_messages.parse_error(message))
        case "stopped" if not message.get("applied", True):
            pass  # acknowledges a STOP that had nothing to stop
        case "done" | "stopped" | "truncated" | "error" as kind:
            outcome = json_messages.parse_outcome(message)
            error = json_messages.parse_error(message) if kind == "error" else None
            session.on_ended(context, outcome, json_messages.parse_receipt(message), error)
