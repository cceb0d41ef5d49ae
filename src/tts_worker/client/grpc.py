"""``grpc://`` and, with TLS, ``grpcs://``: sessions on a worker's gRPC port, one call each over a channel that
stays open.

Owns the channel. A session needs no connection of its own, so beginning one is a single round trip. What goes over a
call is ``conversation``'s affair, what a session promises ``remote``'s.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import anyio

from tts_worker.client.base import ClientSettings, Opened
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.errors import ConnectionLost, DeadlineExceeded, InvalidRequest, MissingExtra
from tts_worker.session.hub import SessionOptions

try:
    import grpc

    from tts_worker.client.conversation import Conversation, converse
except ModuleNotFoundError:
    raise MissingExtra("a grpc:// worker", "grpc") from None

DEFAULT_PORT = 7002


def connector(url: str, settings: ClientSettings) -> GrpcConnector:
    """See ``base.SchemeModule``: ``grpc://host[:port]`` or ``grpcs://``, the port is 7002 unless it says another."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port or DEFAULT_PORT
    except ValueError:  # a port that is no number
        host = None
    if not host or parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
        raise InvalidRequest("a gRPC URL names a host and perhaps a port, such as grpc://127.0.0.1:7002")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return GrpcConnector(address, settings, secure=parts.scheme == "grpcs")


class GrpcConnector:
    """The worker at ``address`` (``host:port``). See ``base.Connector``. ``secure``: over TLS; the certificate is
    checked against gRPC's default roots, or those in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH."""

    def __init__(self, address: str, settings: ClientSettings, *, secure: bool = False) -> None:
        self._address = address
        self._secure = secure
        self._settings = settings
        self._channel: grpc.aio.Channel | None = None
        self._conversations: set[Conversation] = set()
        self._sessions = 0
        self._closed = False

    @property
    def sessions(self) -> int:
        """How many live now."""
        return len(self._conversations)

    @property
    def connected(self) -> bool:
        """Whether a session could begin without dialling."""
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def prewarm(self) -> None:
        with anyio.move_on_after(self._settings.connect_timeout_s) as patience:
            await self._ready().channel_ready()
        if patience.cancelled_caught:
            raise ConnectionLost("the worker cannot be reached: is it running?")

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> Opened:
        reused = self.connected
        conversation = await self.begin(options)
        session = RemoteSession(conversation, self.remote_config(conversation, audio_timeout_s))
        self.adopt(conversation)
        conversation.attach(session, self._conversations.discard)
        return Opened(session, connection_reused=reused)

    async def begin(self, options: SessionOptions) -> Conversation:
        """A conversation that nobody listens to yet. Raises as ``open`` does."""
        try:
            with anyio.fail_after(self._settings.connect_timeout_s):
                return await converse(self._ready(), options, self._settings)
        except TimeoutError:
            raise DeadlineExceeded(f"the worker did not answer within {self._settings.connect_timeout_s:g} s") from None

    def adopt(self, conversation: Conversation) -> None:
        """Close it with this connector."""
        self._conversations.add(conversation)

    def forget(self, conversation: Conversation) -> None:
        """It is over."""
        self._conversations.discard(conversation)

    def remote_config(self, conversation: Conversation, audio_timeout_s: float) -> RemoteConfig:
        self._sessions += 1
        return RemoteConfig(
            session=f"{conversation.session}/{self._sessions}",
            context_prefix="",
            params=conversation.params,
            audio_timeout_s=audio_timeout_s,
            read_ahead_s=self._settings.read_ahead_s,
            sample_rate_hz=conversation.sample_rate_hz,
        )

    def _ready(self) -> grpc.aio.Channel:
        if self._closed:
            raise ConnectionLost("the client is closed")
        if self._channel is None:
            heartbeat_ms = int(1000 * self._settings.heartbeat_s)
            options: list[tuple[str, Any]] = [
                ("grpc.keepalive_time_ms", heartbeat_ms),
                ("grpc.keepalive_timeout_ms", heartbeat_ms),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                # So long an attempt to connect may take: else it is given up after the backoff of 100 ms, which
                # neither a worker far away keeps nor a busy one.
                ("grpc.min_reconnect_backoff_ms", int(1000 * min(self._settings.connect_timeout_s, 3_600.0))),
                ("grpc.max_reconnect_backoff_ms", 1_000),
                ("grpc.use_local_subchannel_pool", 1),  # a client that closes cuts nobody else's connection
                ("grpc.enable_http_proxy", 0),
            ]
            if self._secure:
                credentials = grpc.ssl_channel_credentials()
                self._channel = grpc.aio.secure_channel(self._address, credentials, options=options)
            else:
                self._channel = grpc.aio.insecure_channel(self._address, options=options)
        return self._channel

    async def aclose(self) -> None:
        self._closed = True
        conversations = list(self._conversations)
        for conversation in conversations:
            conversation.close()
        for conversation in conversations:
            await conversation.wait_closed()
        if self._channel is not None:
            await self._channel.close()
