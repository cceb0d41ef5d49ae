"""One WebSocket to a worker: the protocol of ``docs/protocol.md`` on one side, ``RemoteSession`` on the other.

Nothing a session does waits for the socket: its messages go into an outbox that one task empties while another reads.
Knows neither the pool nor what becomes of a session; a connection that breaks tells its session and its owner.
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

from tts_worker.client import reading
from tts_worker.client.base import ClientSettings
from tts_worker.client.link import RemoteConfig
from tts_worker.client.reading import Message, ProtocolError
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost, ErrorCode, ErrorInfo, RemoteError, TTSWorkerError, as_exception
from tts_worker.session.hub import SessionOptions
from tts_worker.types import ControlName, SynthesisParams

PROTOCOL_VERSION = 1

_MESSAGE_CHARS = 4_000
"""Text goes out in messages of at most this; deltas that wait in the outbox are joined up to it."""

_ACKNOWLEDGED = {"paused": ControlName.PAUSE, "resumed": ControlName.RESUME}
_ENDS = frozenset({"done", "stopped", "truncated", "error"})


async def dial(
    url: str,
    settings: ClientSettings,
    on_idle: Callable[[Connection], None],
    on_lost: Callable[[Connection], None],
) -> Connection:
    """A connection to a worker that is ready. Raises what the worker answers to the handshake, and ConnectionLost."""
    headers = {} if settings.api_key is None else {"Authorization": f"Bearer {settings.api_key}"}
    try:
        socket = await connect(
            url,
            additional_headers=headers,
            compression=None,  # sound does not compress
            max_size=None,
            open_timeout=None,  # the caller has a deadline for all of it
            ping_interval=settings.heartbeat_s,
            ping_timeout=settings.heartbeat_s,
            close_timeout=0.2,  # sound that nobody wants may stand in the way of a polite goodbye
        )
    except InvalidStatus as error:
        raise _refusal(error.response) from None
    except (OSError, InvalidHandshake, EOFError) as error:
        raise ConnectionLost(f"the worker cannot be reached ({type(error).__name__}): is it running?") from None
    try:
        ready = _ready(_parse(await socket.recv()))
        return Connection(socket, ready, settings, on_idle, on_lost)
    except (ConnectionClosed, ProtocolError) as error:
        await socket.close()
        raise ConnectionLost(f"no worker answers there ({type(error).__name__})") from None
    except BaseException:
        socket.transport.abort()
        raise


def _refusal(response: Response) -> TTSWorkerError:
    """What the worker says instead of opening a WebSocket."""
    try:
        error = json.loads(response.body or b"")["error"]
        info = reading.error_of(error)
    except (ValueError, TypeError, KeyError, AttributeError):
        return ConnectionLost(f"no worker answers there (HTTP status {response.status_code})")
    after = response.headers.get("Retry-After", "")
    return as_exception(replace(info, retry_after_s=float(after) if after.isdigit() else info.retry_after_s))


def _parse(raw: str | bytes) -> Message:
    try:
        message = json.loads(raw)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ProtocolError("no JSON object")
    return message


def _ready(message: Message) -> Message:
    """Checks what everything else relies on. Raises RemoteError where it cannot work."""
    if message.get("type") != "ready":
        raise ProtocolError("no greeting")
    theirs = reading.integer(message, "protocol")
    if theirs != PROTOCOL_VERSION:
        raise RemoteError(ErrorInfo(ErrorCode.CONFIG, f"the worker speaks protocol {theirs}, not {PROTOCOL_VERSION}"))
    if (message.get("format"), message.get("channels")) != ("pcm_s16le", 1):
        raise RemoteError(ErrorInfo(ErrorCode.CONFIG, "the worker sends another format than s16le mono"))
    reading.integer(message, "sample_rate")
    return message


class Connection:
    """``sessions`` counts the sessions it served; ``lost``: it will serve none any more. Also the ``Link`` of the
    session that has it now."""

    def __init__(
        self,
        socket: ClientConnection,
        ready: Message,
        settings: ClientSettings,
        on_idle: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self.sessions = 0
        self.lost = False
        self._socket = socket
        self._ready = ready
        self._settings = settings
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._options = SessionOptions()
        self._session: RemoteSession | None = None
        self._opening: asyncio.Future[Message] | None = None
        self._outbox: deque[Message] = deque()
        self._outgoing = asyncio.Event()
        self._writer = asyncio.create_task(self._write(), name="tts-client-writer")
        self._reader = asyncio.create_task(self._read(), name="tts-client-reader")

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def begin(self, options: SessionOptions, audio_timeout_s: float) -> RemoteSession:
        """A session with these options. Raises what the worker says, and ConnectionLost."""
        if self.lost:
            raise ConnectionLost("the connection to the worker was lost")
        if options != self._options:
            self._opening = asyncio.get_running_loop().create_future()
            self._post(reading.start_message(options))
            try:
                self._ready = await self._opening
            finally:
                self._opening = None
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
                sample_rate_hz=reading.integer(self._ready, "sample_rate"),
            ),
        )
        return self._session

    def _params(self) -> SynthesisParams:
        options = self._options
        voice = reading.string(self._ready, "voice")
        return SynthesisParams(voice, options.speed, options.seed, options.language, options.instruct)

    def close(self) -> None:
        """Hang up. What the session was saying ends with ConnectionLost."""
        self._lose(ConnectionLost("the connection was closed").info)

    async def wait_closed(self) -> None:
        """Until nothing of it is left."""
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
        self._post(reading.start_message(self._options))

    def settled(self, *, healthy: bool) -> None:
        self._session = None
        if not healthy:
            self.close()
        elif not self.lost:
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
                    return  # the reader says so
            self._outgoing.clear()
            await self._outgoing.wait()

    async def _read(self) -> None:
        lost = ConnectionLost("the connection to the worker was lost")
        try:
            while not self.lost:
                if self._session is not None:
                    await self._session.room()
                raw = await self._socket.recv()
                if isinstance(raw, bytes):
                    if self._session is not None:
                        self._session.on_audio(raw)
                else:
                    self._take(_parse(raw))
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.reason:
                lost = ConnectionLost(f"the worker closed the connection: {closed.rcvd.reason}")
        except ProtocolError as wrong:
            lost = ConnectionLost(f"the worker speaks another protocol: {wrong}")
        finally:
            self._lose(lost.info)
            await self._socket.close()

    def _take(self, message: Message) -> None:
        kind = message.get("type")
        if kind == "ready":
            if self._opening is not None and not self._opening.done():
                try:
                    self._opening.set_result(_ready(message))
                except TTSWorkerError as refused:
                    self._opening.set_exception(refused)
            return
        if kind == "rejected" and self._opening is not None:
            if not self._opening.done():
                self._opening.set_exception(as_exception(reading.error_of(message)))
            return
        session = self._session
        if session is None or not isinstance(kind, str):
            return
        context = str(message.get("context", ""))
        if kind == "started":
            session.on_started(context, reading.params_of(message))
        elif kind == "words":
            session.on_words(reading.words_of(message))
        elif kind in _ENDS:
            if kind != "stopped" or message.get("applied", True):
                error = reading.error_of(message) if kind == "error" else None
                session.on_ended(context, reading.outcome_of(message), reading.receipt_of(message), error)
        elif kind in _ACKNOWLEDGED:
            session.on_acknowledged(_ACKNOWLEDGED[kind])
        elif kind == "rejected":
            session.on_rejected(reading.error_of(message))

    def _lose(self, error: ErrorInfo) -> None:
        if self.lost:
            return
        self.lost = True
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(ConnectionLost(error.message))
        session = self._session
        self._session = None
        if session is not None:
            session.on_lost(error)
        self._writer.cancel()
        if asyncio.current_task() is not self._reader:
            self._reader.cancel()
        self._on_lost(self)
