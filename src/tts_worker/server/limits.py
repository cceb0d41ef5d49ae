"""Limits that all APIs of the servers share."""

from __future__ import annotations

from dataclasses import dataclass

from tts_worker.settings import Settings


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Limits of one request or connection; see ``settings.ServerSettings``.

    Attributes:
        max_message_chars: Text of one message of a connection.
        send_timeout_s: How long a client may read nothing.
        max_messages_per_s: Average rate of messages of a connection.
        max_input_chars: Text of one request.
    """

    max_message_chars: int = 100_000
    send_timeout_s: float = 10.0
    max_messages_per_s: float = 1_000.0
    max_input_chars: int = 20_000

    @classmethod
    def of(cls, settings: Settings) -> ApiLimits:
        """Return the limits of these settings."""
        server = settings.server
        return cls(send_timeout_s=server.send_timeout_s, max_input_chars=server.max_input_chars)
