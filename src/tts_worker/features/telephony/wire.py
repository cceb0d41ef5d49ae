"""The messages of media streams: Twilio's, and Telnyx's, which have the same events and other field names.

An unknown event is ignored, because providers add events; a known one with a missing or wrong field is an error.
Sources: Twilio, "Media Streams - WebSocket Messages"; Telnyx, "Media Streaming over WebSockets".
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tts_worker.audio.g711 import MULAW_SILENCE
from tts_worker.errors import InvalidRequest
from tts_worker.protocol.json_codec import dumps, parse_object

MAX_ID_CHARS = 128
MAX_PARAMETERS = 32
MAX_PARAMETER_CHARS = 2_000
MIN_MEDIA_BYTES = 160
"""20 ms of mu-law, the least that Telnyx accepts in one message."""


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The call and its stream.

    Attributes:
        stream_id: Names the stream in messages to the provider.
        call_id: The provider's name for the call, which its webhook tells, too.
        encoding: Encoding of the caller's audio, in the provider's words.
        parameters: The parameters that the operator of the call has set.
    """

    stream_id: str
    call_id: str
    encoding: str
    parameters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallerAudio:
    """Audio of the caller, in the encoding of the stream."""

    data: bytes


@dataclass(frozen=True, slots=True)
class MarkReturned:
    """The audio before a mark was played or cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class DigitPressed:
    """The caller has pressed a key."""

    digit: str


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The call has ended, or the provider goes on with its instructions."""


StreamEvent = StreamStarted | CallerAudio | MarkReturned | DigitPressed | StreamStopped


@dataclass(frozen=True, slots=True)
class MediaStreamFormat:
    """The field names of a provider.

    Attributes:
        provider: Name of the provider.
        stream_id: Field of every message after ``connected``.
        call_id: Field of ``start``.
        parameters: Field of ``start``.
        media_format: Field of ``start``.
    """

    provider: str
    stream_id: str
    call_id: str
    parameters: str
    media_format: str

    def parse(self, raw: str | bytes) -> StreamEvent | None:
        """Parse a message. None is ``connected``, an unknown event, or audio that is not the caller's.

        Raises:
            InvalidRequest: The message is not of this format; names the field.
        """
        if isinstance(raw, bytes):
            raise InvalidRequest("binary messages are not supported: send JSON text")
        message = parse_object(raw, "message")
        event = _text(message, "event")
        match event:
            case "start":
                return self._parse_start(message)
            case "media":
                media = _object(message, "media")
                if str(media.get("track", "inbound")).startswith("outbound"):
                    return None
                return CallerAudio(_decode(_text(media, "payload", None)))
            case "mark":
                return MarkReturned(_text(_object(message, "mark"), "name"))
            case "dtmf":
                return DigitPressed(_text(_object(message, "dtmf"), "digit", 1))
            case "stop":
                return StreamStopped()
        return None

    def _parse_start(self, message: Mapping[str, Any]) -> StreamStarted:
        start = _object(message, "start")
        found = message if self.stream_id in message else start
        stream_id = check_identifier(found.get(self.stream_id), self.stream_id)
        call_id = check_identifier(start.get(self.call_id), self.call_id)
        media_format = start.get(self.media_format)
        encoding = media_format.get("encoding") if isinstance(media_format, dict) else None
        parameters = start.get(self.parameters) or {}
        if not isinstance(parameters, dict) or len(parameters) > MAX_PARAMETERS:
            raise InvalidRequest(f"start.{self.parameters} must be an object with at most {MAX_PARAMETERS} fields")
        texts = {str(name): str(value) for name, value in parameters.items()}
        if any(len(name) > MAX_ID_CHARS or len(value) > MAX_PARAMETER_CHARS for name, value in texts.items()):
            raise InvalidRequest(f"a value in start.{self.parameters} has more than {MAX_PARAMETER_CHARS} characters")
        return StreamStarted(stream_id, call_id, str(encoding or "")[:MAX_ID_CHARS], texts)

    def media(self, stream_id: str, mulaw: bytes) -> str:
        """Encode audio for the call: mu-law at 8 kHz. Fills a short last frame with silence."""
        payload = base64.b64encode(mulaw.ljust(MIN_MEDIA_BYTES, MULAW_SILENCE)).decode()
        return self._message("media", stream_id, media={"payload": payload})

    def mark(self, stream_id: str, name: str) -> str:
        """Encode a mark, which the provider returns when the audio before it was played."""
        return self._message("mark", stream_id, mark={"name": name})

    def clear(self, stream_id: str) -> str:
        """Encode the message that drops the audio which was not played."""
        return self._message("clear", stream_id)

    def _message(self, event: str, stream_id: str, **fields: object) -> str:
        return dumps({"event": event, self.stream_id: stream_id, **fields})


TWILIO = MediaStreamFormat("twilio", "streamSid", "callSid", "customParameters", "mediaFormat")
TELNYX = MediaStreamFormat("telnyx", "stream_id", "call_control_id", "custom_parameters", "media_format")


def _object(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = message.get(name)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name}: expected an object")
    return value


def check_identifier(value: object, name: str) -> str:
    """Return ``value`` if it can name a call or a stream, in logs and addresses. Raises InvalidRequest."""
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]{1,128}", value):
        raise InvalidRequest(f"{name}: expected 1 to {MAX_ID_CHARS} printable ASCII characters without spaces")
    return value


def _text(fields: Mapping[str, Any], name: str, max_chars: int | None = MAX_ID_CHARS) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value or (max_chars is not None and len(value) > max_chars):
        limit = "" if max_chars is None else f" of 1 to {max_chars} characters"
        raise InvalidRequest(f"{name}: expected a text{limit}")
    return value


def _decode(payload: str) -> bytes:
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("media.payload is not valid base64") from None
