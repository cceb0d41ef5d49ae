"""Connector for ``grpc://`` and ``grpcs://`` (TLS): one ``Converse`` call per session over a shared channel.

The channel stays open, so opening a session takes one round trip.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import grpc

from tts_worker.client.base import OpenedSession
from tts_worker.client.batches import ONLY_HTTP, BatchAccess
from tts_worker.client.converse_stream import ConverseStream, open_converse_stream
from tts_worker.client.conversion import ConversionAccess
from tts_worker.client.grpc_conversion import GrpcConversion
from tts_worker.client.grpc_voices import GrpcVoices
from tts_worker.client.link import RemoteConfig
from tts_worker.client.remote import RemoteSession
from tts_worker.client.settings import ClientSettings
from tts_worker.client.voices import VoiceAccess
from tts_worker.errors import ConfigError, ConnectionLost, DeadlineExceeded, InvalidRequest
from tts_worker.timeouts import fail_after
from tts_worker.types import SessionOptions

DEFAULT_PORT = 7002


def connector(url: str, settings: ClientSettings) -> GrpcConnector:
    """See ``base.SchemeModule``. ``grpc://host[:port]`` or ``grpcs://``; the default port is 7002."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port = parts.port or DEFAULT_PORT
    except ValueError:  # the port is not a number
        host = None
    if not host or parts.path not in ("", "/") or parts.query or "@" in parts.netloc:
        raise InvalidRequest("a gRPC URL needs a host and an optional port, such as grpc://127.0.0.1:7002")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return GrpcConnector(address, settings, secure=parts.scheme == "grpcs")


class GrpcConnector:
    """Connector to the worker at ``address`` (``host:port``). See ``base.Connector``.

    With ``secure``, TLS is used and the certificate is verified against gRPC's default roots, or those in
    GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
    """

    def __init__(self, address: str, settings: ClientSettings, *, secure: bool = False) -> None:
        self.address = address
        self._secure = secure
        self._settings = settings
        self._channel: grpc.aio.Channel | None = None
        self._streams: set[ConverseStream] = set()
        self._sessions = 0
        self._closed = False

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._streams)

    @property
    def connected(self) -> bool:
        """Whether the channel is connected, so that a session opens without connecting."""
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def prewarm(self) -> None:
        try:
            async with fail_after(self._settings.connect_timeout_s):
                await self._open_channel().channel_ready()
        except TimeoutError:
            raise ConnectionLost("the worker cannot be reached: is it running?") from None

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> OpenedSession:
        reused = self.connected
        stream = await self.open_stream(options)
        session = RemoteSession(stream, self.remote_config(stream, audio_timeout_s))
        self.adopt(stream)
        stream.attach(session, self._streams.discard)
        return OpenedSession(session, connection_reused=reused)

    async def voice_access(self) -> VoiceAccess:
        return GrpcVoices(self._open_channel(), self._settings)

    async def conversion_access(self) -> ConversionAccess:
        return GrpcConversion(self._open_channel(), self._settings)

    async def batch_access(self) -> BatchAccess:
        raise InvalidRequest(ONLY_HTTP)

    async def open_stream(self, options: SessionOptions) -> ConverseStream:
        """Open a stream without a receiver; the caller attaches one. Raises like ``open``."""
        try:
            async with fail_after(self._settings.connect_timeout_s):
                return await open_converse_stream(self._open_channel(), options, self._settings)
        except TimeoutError:
            raise DeadlineExceeded(f"the worker did not answer within {self._settings.connect_timeout_s:g} s") from None

    def adopt(self, stream: ConverseStream) -> None:
        """Close the stream together with this connector."""
        self._streams.add(stream)

    def forget(self, stream: ConverseStream) -> None:
        """Remove a closed stream."""
        self._streams.discard(stream)

    def remote_config(self, stream: ConverseStream, audio_timeout_s: float) -> RemoteConfig:
        self._sessions += 1
        return RemoteConfig(
            session=f"{stream.session}/{self._sessions}",
            context_prefix="",
            params=stream.params,
            audio_timeout_s=audio_timeout_s,
            read_ahead_s=self._settings.read_ahead_s,
            sample_rate_hz=stream.sample_rate_hz,
            encoding=stream.encoding,
            model=stream.model,
        )

    def _open_channel(self) -> grpc.aio.Channel:
        if self._closed:
            raise ConnectionLost("the client is closed")
        if self._channel is None:
            heartbeat_ms = int(1000 * self._settings.heartbeat_s)
            options: list[tuple[str, Any]] = [
                ("grpc.keepalive_time_ms", heartbeat_ms),
                ("grpc.keepalive_timeout_ms", heartbeat_ms),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.initial_reconnect_backoff_ms", 100),
                # Also the timeout of one connection attempt. Without it gRPC gives up after the 100 ms backoff, which
                # is too short for a distant or busy worker.
                ("grpc.min_reconnect_backoff_ms", int(1000 * min(self._settings.connect_timeout_s, 3_600.0))),
                ("grpc.max_reconnect_backoff_ms", 1_000),
                ("grpc.use_local_subchannel_pool", 1),  # closing one client must not close another's connection
                ("grpc.enable_http_proxy", 0),
            ]
            if self._secure:
                credentials = self._credentials()
                self._channel = grpc.aio.secure_channel(self.address, credentials, options=options)
            else:
                self._channel = grpc.aio.insecure_channel(self.address, options=options)
        return self._channel

    def _credentials(self) -> grpc.ChannelCredentials:
        file = self._settings.tls_certificate
        if file is None:
            return grpc.ssl_channel_credentials()
        try:
            pem = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"tls_certificate cannot be read: {error.strerror}") from None
        return grpc.ssl_channel_credentials(private_key=pem, certificate_chain=pem)

    async def aclose(self) -> None:
        self._closed = True
        conversations = list(self._streams)
        for stream in conversations:
            stream.close()
        for stream in conversations:
            await stream.wait_closed()
        if self._channel is not None:
            await self._channel.close()
