"""The routes of telephone calls: ``/twilio`` and ``/telnyx`` for providers, ``/v1/calls/{call}`` for agents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import SecretStr
from starlette.websockets import WebSocket

from tts_worker.errors import HTTP_STATUS, Draining, OverCapacity, TTSWorkerError, Unauthenticated
from tts_worker.features.telephony.call_stream import CallStream, call_options
from tts_worker.features.telephony.calls import CallDirectory
from tts_worker.features.telephony.media_stream import MediaStream
from tts_worker.features.telephony.settings import TelephonySettings
from tts_worker.features.telephony.signature import is_sent_by_telnyx, is_signed_by_twilio
from tts_worker.features.telephony.wire import TELNYX, TWILIO, MediaStreamFormat, check_identifier
from tts_worker.protocol.json_codec import parse_start_query, parse_truth
from tts_worker.server.application import Application
from tts_worker.server.keys import KeyRing
from tts_worker.server.limits import ApiLimits
from tts_worker.server.responses import error_response
from tts_worker.session.hub import SessionHub

CALLS_PATH = "/v1/calls/"
PATHS = ("/twilio", "/telnyx", CALLS_PATH)
MAX_UNSTARTED = 64
"""Streams that have not started at the same time, whose provider is not known yet; a new one ends the oldest."""
CALLER_AUDIO = "caller_audio"
"""Query parameter of an agent: send the caller's audio."""


def add_routes(app: Application) -> None:
    """Add the routes. Providers authenticate with the handshake, or with the first message of their stream."""
    routes = app.routes
    settings = app.settings.section(TelephonySettings)
    server = Telephony(app.hub, app.limits, settings, app.keys)
    tokens = {TWILIO: settings.twilio_auth_token, TELNYX: settings.telnyx_auth_token}
    app.paths.own_auth |= {f"/{wire.provider}": token is not None for wire, token in tokens.items()}
    app.paths.transports |= dict.fromkeys(PATHS, "telephony")

    @routes.websocket("/twilio", "Media Streams of a Twilio call")
    async def twilio(websocket: WebSocket) -> None:
        await server.serve_provider(websocket, TWILIO, settings.twilio_auth_token)

    @routes.websocket("/telnyx", "Media streaming of a Telnyx call")
    async def telnyx(websocket: WebSocket) -> None:
        await server.serve_provider(websocket, TELNYX, settings.telnyx_auth_token)

    @routes.websocket(CALLS_PATH + "{call:path}", "Speech in a telephone call, with the messages of /v1/stream")
    async def agent(websocket: WebSocket, call: str) -> None:
        await server.serve_agent(websocket, call)


@dataclass(slots=True)
class Telephony:
    hub: SessionHub
    limits: ApiLimits
    settings: TelephonySettings
    keys: KeyRing
    directory: CallDirectory = field(init=False)
    calls: int = 0
    unstarted: dict[MediaStream, None] = field(default_factory=dict)  # oldest first

    def __post_init__(self) -> None:
        self.directory = CallDirectory()

    async def serve_provider(self, websocket: WebSocket, wire: MediaStreamFormat, token: SecretStr | None) -> None:
        """Serve a media stream. A rejection is the HTTP response to the handshake."""
        try:
            if token is not None:
                await self._check_handshake(websocket, wire, token.get_secret_value())
            if self.hub.draining:
                raise Draining("the worker is shutting down; use another one")
            self._check_capacity()
        except TTSWorkerError as error:
            await websocket.send_denial_response(error_response(error.info, HTTP_STATUS[error.code]))
            return
        await MediaStream(websocket, wire, self.directory, self.limits, None if token else self.keys, self).run()

    @contextmanager
    def waiting(self, stream: MediaStream) -> Iterator[None]:
        """Hold a stream that has not started. Few wait at a time: what is not authenticated yet takes no call."""
        if len(self.unstarted) >= MAX_UNSTARTED:
            oldest = next(iter(self.unstarted))
            del self.unstarted[oldest]  # now: the next of a burst must end another one
            oldest.evict()
        self.unstarted[stream] = None
        try:
            yield
        finally:
            self.unstarted.pop(stream, None)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Count a call. Raises OverCapacity."""
        self._check_capacity()
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    def _check_capacity(self) -> None:
        if self.calls >= self.settings.max_calls:
            raise OverCapacity(f"all {self.settings.max_calls} calls are taken", retry_after_s=1.0)

    async def _check_handshake(self, websocket: WebSocket, wire: MediaStreamFormat, token: str) -> None:
        """
        Raises:
            Unauthenticated: The provider's signature or token is missing or wrong.
            QuotaExceeded: The address has sent many wrong ones.
        """
        headers = websocket.headers
        if wire is TWILIO:
            valid = is_signed_by_twilio(headers, websocket.url.path, token, self.settings.public_url)
        else:
            valid = is_sent_by_telnyx(headers, token)
        if valid:
            return
        address = websocket.client.host if websocket.client is not None else "unknown"
        error = await self.keys.rejection("", address, "telephony")
        if not isinstance(error, Unauthenticated):
            raise error
        raise Unauthenticated(f"{wire.provider}: the signature or token of the connection is missing or wrong")

    async def serve_agent(self, websocket: WebSocket, call: str) -> None:
        """Serve the agent of a call. A rejection is the HTTP response to the handshake."""
        params = dict(websocket.query_params)
        session = None
        try:
            check_identifier(call, "call")
            options = call_options(parse_start_query(params).options(), self.settings.lead_ms)
            wants_audio = parse_truth(params.get(CALLER_AUDIO, "false"), CALLER_AUDIO)
            session = await self.hub.admit(options)
            connection = CallStream(
                websocket,
                self.hub,
                session,
                options,
                self.limits,
                self.directory,
                call,
                self.settings.lead_ms,
                wants_audio,
            )
        except TTSWorkerError as error:
            if session is not None:
                session.close("refused")
            await websocket.send_denial_response(error_response(error.info, HTTP_STATUS[error.code]))
            return
        await connection.run()
