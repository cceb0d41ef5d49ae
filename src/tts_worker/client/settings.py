"""Settings of a client, which all schemes share."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from tts_worker.client.arguments import check_seconds
from tts_worker.errors import ConfigError, InvalidRequest


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client, for every scheme. Times are in seconds.

    Raises:
        InvalidRequest: ``api_key`` cannot be sent in a header, or a number is unsuitable.

    Attributes:
        api_key: Sent as ``Authorization: Bearer``, never logged. A worker found in a registry receives it only if its
            entry is signed with ``registry_secret``.
        registry_secret: The workers' ``registry.secret``; None reads TTS_WORKER_REGISTRY__SECRET.
        connect_timeout_s: Limit from connecting to an admitted session.
        audio_timeout_s: Limit without audio after the text has ended, while not paused; then the utterance ends with
            ``DeadlineExceeded``.
        heartbeat_s: Ping interval; a worker that does not answer within it counts as lost.
        idle_connections: Connections kept open for the next sessions. Each holds one session of the worker.
        idle_s: How long an unused connection is kept.
        read_ahead_s: Audio buffered on this side before the client stops reading (backpressure).
        tls_certificate: PEM file of this client's certificate and key, for a worker that requires one.
    """

    api_key: str | None = None
    registry_secret: str | None = None
    connect_timeout_s: float = 5.0
    audio_timeout_s: float = 10.0
    heartbeat_s: float = 10.0
    idle_connections: int = 1
    idle_s: float = 600.0
    read_ahead_s: float = 5.0
    tls_certificate: Path | None = None

    def __post_init__(self) -> None:
        if self.api_key is not None and not (
            isinstance(self.api_key, str) and re.fullmatch("[ -~]*", self.api_key) is not None
        ):
            raise InvalidRequest("api_key: one line of ASCII characters (does it end with a line break?)")
        for name in ("connect_timeout_s", "audio_timeout_s", "heartbeat_s", "read_ahead_s"):
            check_seconds(getattr(self, name), name)
        check_seconds(self.idle_s, "idle_s", or_zero=True)
        count = self.idle_connections
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise InvalidRequest("idle_connections must be a whole number, 0 or more")

    def tls_context(self) -> ssl.SSLContext:
        """Return a context that trusts the system's authorities and shows ``tls_certificate``. Raises ConfigError."""
        context = ssl.create_default_context()
        if self.tls_certificate is not None:
            try:
                context.load_cert_chain(self.tls_certificate, password=lambda: "")
            except OSError as error:  # also ssl.SSLError
                raise ConfigError(f"tls_certificate cannot be used ({error.strerror or 'no PEM file'})") from None
        return context

    def __repr__(self) -> str:  # keeps the key out of logs
        return f"ClientSettings(connect_timeout_s={self.connect_timeout_s}, audio_timeout_s={self.audio_timeout_s})"
