"""Log formatting: text or one JSON object per line, structured fields, request IDs, redacted secrets.

Only this package's loggers follow ``log_level``; libraries log warnings and errors. At lower levels libraries log what
goes over the wire: API keys in headers and URLs, and the text to be spoken.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@~-]{0,127}")
_KEY_IN_URL = re.compile(r"\b((?:xi[_-])?api[_-]key|access_token)=[^&\s\"']+", re.IGNORECASE)
_REDACTED = "[redacted]"

_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Characters that would begin a new line, move the cursor or reverse the text. Clients choose paths and names."""
_OF_CLIENTS = re.compile("without completing (handshake|response)|Invalid UTF-8 sequence")
_AMBIGUOUS = re.compile(r"[\s\"=]")

_secrets: tuple[str, ...] = ()
"""Secrets of this process, longest first. They stay redacted after they have been replaced."""

_request_id: ContextVar[str] = ContextVar("request_id", default="")


def current_request_id() -> str:
    """Return the request ID of the running task, inherited by the tasks it starts. Empty outside a request."""
    return _request_id.get()


def set_request_id(request_id: str | None = None) -> str:
    """Set the request ID for the rest of the running task.

    Args:
        request_id: The ID sent by the client. A missing or malformed one is replaced by a random one.

    Returns:
        The request ID in effect.
    """
    if request_id is None or _VALID_REQUEST_ID.fullmatch(request_id) is None:
        request_id = secrets.token_hex(8)
    _request_id.set(request_id)
    return request_id


def fields(**values: object) -> dict[str, object]:
    """Build the ``extra`` of a log call. JSON lines get one key per field, text lines ``name=value``. Skips None."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def hide_secrets(values: Iterable[str]) -> None:
    """Redact these values from every line from now on."""
    global _secrets
    _secrets = tuple(sorted({*_secrets, *values}, key=len, reverse=True))


def configure_logs(level: str, form: str, hidden: Iterable[str] = ()) -> None:
    """Log to standard error.

    Args:
        level: Level of this package's loggers.
        form: "text" or "json".
        hidden: Secrets to redact from every line. ``hide_secrets`` adds those that are read later.
    """
    hide_secrets(hidden)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    set_log_level(level)
    # uvicorn warns about every request that is not valid HTTP, which any client can send. The metric
    # tts_connections_closed_total counts these.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # uvicorn also reports rejected WebSocket handshakes and responses that are cut off as errors of the application,
    # and text that is not UTF-8 with a traceback.
    logging.getLogger("uvicorn.error").addFilter(_is_not_intended)


def set_log_level(level: str) -> None:
    """Set the level of this package's loggers."""
    logging.getLogger("tts_worker").setLevel(level.upper())


def json_line(message: str, **values: object) -> str:
    """Format a message as ``JsonLines`` does, for standard output."""
    record = logging.LogRecord("tts_worker", logging.INFO, "", 0, message, None, None)
    record.__dict__.update(fields(**values))
    return JsonLines().format(record)


def discard_output() -> None:
    """Redirect standard output, whose reader is gone, so that the flush at exit does not fail again."""
    with suppress(OSError, ValueError):  # standard output has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_not_intended(record: logging.LogRecord) -> bool:
    return _OF_CLIENTS.search(record.getMessage()) is None


class _RedactingFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def redact(self, text: str) -> str:
        for secret in _secrets:
            text = text.replace(secret, _REDACTED)
        return _KEY_IN_URL.sub(rf"\1={_REDACTED}", text)


def _escape(text: str) -> str:
    """Write control characters as JSON does, so that a record has one line."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _field(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if _AMBIGUOUS.search(text) else text


class TextLines(_RedactingFormatter):
    """Human-readable lines; fields follow the message. The lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        values: dict[str, object] = getattr(record, "fields", {})
        suffix = "".join(f" {name}={_field(value)}" for name, value in values.items())
        return _escape(super().formatMessage(record) + suffix)

    def format(self, record: logging.LogRecord) -> str:
        line, *trace = super().format(record).split("\n")
        return self.redact("\n".join([line, *(f"  {_escape(each)}" for each in trace)]))


class JsonLines(_RedactingFormatter):
    """One object per record: time (UTC), level, logger, message, fields, and the exception if there is one."""

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
        return self.redact(_escape(json.dumps(data, ensure_ascii=False, default=str)))
