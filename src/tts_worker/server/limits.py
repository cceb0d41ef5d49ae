"""Limits that all APIs of the HTTP server share."""

from __future__ import annotations

from dataclasses import dataclass


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
