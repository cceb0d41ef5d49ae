"""Log lines: text or one JSON object each, events with fields, request ids, and no secrets.

Only this package's own loggers follow ``log_level``; libraries log warnings and errors. Below that they write what goes
over the wire: API keys in headers and URLs, and the text that is spoken.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@~-]{0,127}")
_KEY_IN_URL = re.compile(r"\b((?:xi[_-])?api[_-]key|access_token)=[^&\s\"']+", re.IGNORECASE)
_REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the work of a task comes from: the transport and the id of the request."""

    transport: str = "local"
    request_id: str = ""


_ORIGIN: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039  (frozen)


def current_origin() -> Origin:
    """Of the running task, and of the tasks that it started."""
    return _ORIGIN.get()


def set_origin(transport: str, request_id: str | None = None) -> Origin:
    """For the rest of the running task. A request id is the caller's if it is a sane one, else a new one."""
    if request_id is None or _REQUEST_ID.fullmatch(request_id) is None:
        request_id = secrets.token_hex(8)
    origin = Origin(transport, request_id)
    _ORIGIN.set(origin)
    return origin


def fields(**values: object) -> dict[str, object]:
    """The ``extra`` of a log call: fields of their own in JSON, ``name=value`` in text. None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure_logs(level: str, form: str, hidden: Collection[str] = ()) -> None:
    """Log to standard error. ``form``: "text" or "json". ``hidden``: secrets that no line may hold."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(hidden) if form == "json" else TextLines(hidden))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("tts_worker").setLevel(level.upper())
    # uvicorn warns of every request that is no valid HTTP, which any client can send; the metric
    # tts_connections_closed_total counts them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # It also takes a refused WebSocket handshake for a mistake of the application, and says so each time.
    logging.getLogger("uvicorn.error").addFilter(_is_no_refused_handshake)


def json_line(message: str, **values: object) -> str:
    """A line as ``JsonLines`` writes it, for standard output."""
    record = logging.LogRecord("tts_worker", logging.INFO, "", 0, message, None, None)
    record.__dict__.update(fields(**values))
    return JsonLines().format(record)


def _is_no_refused_handshake(record: logging.LogRecord) -> bool:
    return "without completing handshake" not in record.getMessage()


class _Redacting(logging.Formatter):
    def __init__(self, hidden: Collection[str] = ()) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._hidden = sorted(hidden, key=len, reverse=True)

    def redact(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, _REDACTED)
        return _KEY_IN_URL.sub(rf"\1={_REDACTED}", text)


class TextLines(_Redacting):
    """A line for people; fields follow the message."""

    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = getattr(record, "fields", {})
        text, newline, trace = super().format(record).partition("\n")
        more = "".join(f" {name}={value}" for name, value in values.items())
        return self.redact(f"{text}{more}{newline}{trace}")


class JsonLines(_Redacting):
    """One object per record: time (UTC), level, logger, message, the fields, and the exception if there is one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        data: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        data |= getattr(record, "fields", {})
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return self.redact(json.dumps(data, ensure_ascii=False, default=str))
