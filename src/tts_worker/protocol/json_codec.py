"""JSON encoding of the messages, for WebSockets and data channels.

An invalid message of a client is an InvalidRequest that names the field, never its value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from tts_worker.errors import InvalidRequest
from tts_worker.protocol.messages import (
    ClearMessage,
    ClientMessage,
    ConfigureMessage,
    Message,
    NothingStoppedMessage,
    StartMessage,
    WorkerMessage,
    convert,
    explain,
    parse_fields,
)

CLIENT_MESSAGES: tuple[type[Message], ...] = (
    *(kind for kind in get_args(ClientMessage) if kind is not ConfigureMessage),
    ClearMessage,
)
WORKER_MESSAGES: tuple[type[Message], ...] = get_args(WorkerMessage)

_CLIENT_TYPES = {kind.type_name(): kind for kind in CLIENT_MESSAGES}
_WORKER_TYPES = {kind.type_name(): kind for kind in WORKER_MESSAGES}

_TRUTH = {"yes": True, "on": True, "true": True, "1": True, "no": False, "off": False, "false": False, "0": False}
_FLAGS = frozenset({"realtime", "raw_chunks", "markdown", "normalize", "packetize"})
_M = TypeVar("_M", bound=Message)


class ProtocolError(Exception):
    """A message of the worker violates the protocol."""


def dumps(value: object) -> str:
    """Encode a message, or an object of strings, numbers, lists and dicts, as JSON that is valid UTF-8.

    Canonical text contains no lone surrogates; a name chosen by a client may, and is then escaped.
    """
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def parse_client_message(raw: str | bytes) -> ClientMessage:
    """Parse a client's message. Raises InvalidRequest, or InvalidMessage if the type of the message is known."""
    if isinstance(raw, bytes):
        raise InvalidRequest("binary messages are not supported: send JSON text")
    data = parse_object(raw, "message")
    name = data.get("type")
    kind = _CLIENT_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        known = ", ".join(_CLIENT_TYPES)
        raise InvalidRequest(f'"type" must be one of {known}' if "type" in data else 'the message has no "type"')
    return convert(data, kind)  # type: ignore[return-value]


def parse_start(fields: Mapping[str, Any]) -> StartMessage:
    """Validate the fields of a ``start`` that were not sent as a message. Raises InvalidRequest."""
    return convert({**fields, "type": "start"}, StartMessage)


def parse_start_query(params: Mapping[str, str]) -> StartMessage:
    """Parse a ``start`` in a URL, such as ``?voice=heart&speed=1.1&needs=instruct``. Raises InvalidRequest."""
    return parse_strings({"type": "start", **params}, StartMessage)


def parse_truth(text: str, name: str) -> bool:
    """Parse a truth value in a URL. Raises InvalidRequest."""
    value = _TRUTH.get(text.strip().lower())
    if value is None:
        raise InvalidRequest(f"{name} must be true or false")
    return value


def parse_strings(values: Mapping[str, str], kind: type[_M]) -> _M:
    """Parse a message whose fields are all strings. Raises InvalidRequest."""
    fields: dict[str, Any] = dict(values)
    if "needs" in fields:
        fields["needs"] = fields["needs"].split(",")
    for name in _FLAGS & fields.keys():
        fields[name] = _TRUTH.get(fields[name].strip().lower(), fields[name])
    return convert(fields, kind, strict=False)


def parse_worker_message(raw: str | bytes) -> WorkerMessage | None:
    """Parse a worker's message. None is a type that this version does not know. Raises ProtocolError."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ProtocolError("the message is not a JSON object")
    name = data.get("type")
    kind = _WORKER_TYPES.get(name) if isinstance(name, str) else None
    if name == "stopped" and data.get("applied") is False:
        kind = NothingStoppedMessage
    if kind is None:
        return None
    try:
        return parse_fields(data, kind)  # type: ignore[return-value]
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(explain(error, kind)) from None


def parse_object(raw: str | bytes, noun: str) -> dict[str, Any]:
    """Parse a JSON object; ``noun`` names it in the error message. Raises InvalidRequest."""
    try:
        # Unlike msgspec, json.loads accepts lone surrogates, sent by clients that split text by UTF-16 units.
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"the {noun} is not valid JSON") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"the {noun} must be a JSON object")
    return data


def find_lexicon(raw: str) -> dict[str, Any] | str | None:
    """Return the lexicon in a client's message, or its name; None if it has none or is invalid."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    lexicon = data.get("lexicon") if isinstance(data, dict) else None
    return lexicon if isinstance(lexicon, dict | str) else None


def find_voice(raw: str | bytes) -> str | None:
    """Return the voice that a ``start`` in a client's message names, None if it names none or is invalid."""
    if not isinstance(raw, str) or '"start"' not in raw:
        return None
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    voice = data.get("voice") if isinstance(data, dict) and data.get("type") == "start" else None
    return voice if isinstance(voice, str) else None


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all messages, in both directions."""
    kinds = {"ClientMessage": CLIENT_MESSAGES, "WorkerMessage": WORKER_MESSAGES}
    references, definitions = msgspec.json.schema_components(
        [kind for group in kinds.values() for kind in group], ref_template="#/$defs/{name}"
    )
    unions: dict[str, Any] = {}
    for name, group in kinds.items():
        unions[name] = {"anyOf": list(references[: len(group)])}
        references = references[len(group) :]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tts-worker /v1/stream",
        "description": "Text messages of the WebSocket protocol; binary ones are mono audio in the format of ready.",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in kinds],
        "$defs": {**unions, **definitions},
    }
