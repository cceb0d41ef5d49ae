"""The W3C trace context of the current request, which transports set and the records of utterances read.

It costs one header look-up per request; OpenTelemetry is needed only to export traces (``features.tracing``).
"""

from __future__ import annotations

import re
from contextvars import ContextVar

_VALID = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")

_traceparent: ContextVar[str] = ContextVar("traceparent", default="")


def current_traceparent() -> str:
    """Return the trace context of the running task, inherited by the tasks it starts; empty without one."""
    return _traceparent.get()


def set_traceparent(value: object) -> None:
    """Set the trace context for the rest of the running task; a malformed one is ignored, as the standard asks."""
    _traceparent.set(valid_traceparent(value))


def valid_traceparent(value: object) -> str:
    """Return a trace context if it is well-formed, else an empty text."""
    return value if isinstance(value, str) and len(value) <= 128 and _VALID.fullmatch(value) is not None else ""


def trace_id(traceparent: str) -> str | None:
    """Return the trace id of a well-formed trace context, None for an empty one."""
    return traceparent[3:35] or None
