"""Protobuf encoding of the messages (``proto/tts_worker.proto``), for gRPC.

A field that an older or newer peer does not set has its default and is never an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tts_worker.errors import ErrorCode, ErrorInfo, InvalidRequest
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.messages import (
    MAX_NEEDS,
    PROTOCOL_VERSION,
    VOICE_FIELDS,
    ChunkMessage,
    ClientMessage,
    ConfigureMessage,
    ControlMessage,
    EndMessage,
    ExpressMessage,
    FlushMessage,
    InvalidMessage,
    NothingStoppedMessage,
    PausedMessage,
    PauseMessage,
    PlayedMessage,
    ReadyMessage,
    RejectedMessage,
    ReportMessage,
    ResumedMessage,
    ResumeMessage,
    StartedMessage,
    StartMessage,
    StopMessage,
    TextMessage,
    WordsMessage,
    WorkerMessage,
    convert,
    report_message,
)
from tts_worker.types import SAMPLE_RATE_HZ, Alignment, Expression, Outcome, Receipt, Skipped, Word

_START = tuple(
    name for name in StartMessage.__struct_fields__ if name in pb.ConverseRequest.Start.DESCRIPTOR.fields_by_name
)
_CLIENT_MESSAGES: dict[str, tuple[type[ClientMessage], tuple[str, ...]]] = {
    "start": (StartMessage, _START),
    "say": (TextMessage, ("context", "text")),
    "end": (EndMessage, ("context",)),
    "flush": (FlushMessage, ()),
    "pause": (PauseMessage, ()),
    "resume": (ResumeMessage, ()),
    "stop": (StopMessage, ("reason", "played_samples", "utterance", "context")),
    "played": (PlayedMessage, ("samples", "utterance")),
    "configure": (ConfigureMessage, VOICE_FIELDS),
    "express": (ExpressMessage, Expression._fields),
}
"""Name in protobuf -> message, and the fields that both have."""

_CHUNK = ("utterance", "index", "start_sample", "samples", "sha256")
_STARTED = ("utterance", "context", *VOICE_FIELDS)
_READY = ("session", "sample_rate", "voice", "alignment", "format", "model", "unsupported_expressions")

_ACKNOWLEDGEMENTS: dict[pb.ControlCommand, type[PausedMessage | ResumedMessage | NothingStoppedMessage]] = {
    pb.PAUSE: PausedMessage,
    pb.RESUME: ResumedMessage,
    pb.STOP: NothingStoppedMessage,
}

CODE_KEY = "tts-error-code"
RETRY_AFTER_KEY = "tts-retry-after-s"
RETRYABLE_KEY = "tts-retryable"
"""Trailing metadata of a failed call: the error details that a status code lacks."""


# -- client -> worker -------------------------------------------------------------------------------------------------


def encode_client_message(message: ClientMessage) -> pb.ConverseRequest:
    """Encode a client's message.

    Raises:
        InvalidRequest: A value does not fit its protobuf field, or protobuf has no such message.
    """
    found = ((name, fields) for name, (kind, fields) in _CLIENT_MESSAGES.items() if isinstance(message, kind))
    name, fields = next(found, ("", ()))
    if not name:
        raise InvalidRequest(f"protobuf has no message {message.type_name()}")
    request = pb.ConverseRequest()
    part = getattr(request, name)
    part.SetInParent()
    _fill(part, message, fields)
    if isinstance(message, StartMessage):
        part.protocol_version = PROTOCOL_VERSION
        _fill(part.voicing, message, VOICE_FIELDS)
        if message.lexicon is not None:
            try:
                part.lexicon_json = json.dumps(message.lexicon)
            except (ValueError, TypeError, RecursionError):
                raise InvalidRequest("lexicon has a value that JSON cannot express") from None
    return request


def parse_client_message(request: pb.ConverseRequest) -> ClientMessage:
    """Parse a client's message. Raises InvalidRequest, or InvalidMessage if the type of the message is known."""
    name = request.WhichOneof("message")
    if name not in _CLIENT_MESSAGES:
        raise InvalidRequest("unknown message type in this version of the protocol")
    kind, names = _CLIENT_MESSAGES[name]
    part = getattr(request, name)
    fields = _present(part, names)
    if isinstance(part, pb.ConverseRequest.Start):
        fields |= _start_fields(part)
    elif kind in (TextMessage, EndMessage) and "context" not in fields:
        raise InvalidMessage("context must have 1 to 128 characters", kind.type_name())
    if "reason" in fields:
        fields["reason"] = fields["reason"][:64]
    for position in {"played_samples", "samples"} & fields.keys():
        fields[position] = max(0, fields[position])  # a STOP must not fail because of a wrong position
    return convert(fields, kind)


def _start_fields(start: pb.ConverseRequest.Start) -> dict[str, Any]:
    if start.protocol_version != PROTOCOL_VERSION:
        raise InvalidRequest(
            f"this worker uses protocol version {PROTOCOL_VERSION}, the client {start.protocol_version}"
        )
    try:
        lexicon = json.loads(start.lexicon_json) if start.lexicon_json else None
    except (ValueError, RecursionError):
        raise InvalidRequest("lexicon_json must be a JSON object") from None
    return {**_present(start.voicing, VOICE_FIELDS), "needs": tuple(start.needs[: MAX_NEEDS + 1]), "lexicon": lexicon}


def _fill(part: Any, message: Any, names: Iterable[str]) -> None:
    """Set the fields that are not None. Raises InvalidRequest for a value that does not fit its field."""
    for name in names:
        value = getattr(message, name)
        try:
            if isinstance(value, tuple):
                getattr(part, name).extend(value)
            elif value is not None:
                setattr(part, name, value)
        except (ValueError, TypeError):
            raise InvalidRequest(f"{name} has a type or value that does not fit its protobuf field") from None


def _present(part: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that are set, and those without presence; an empty name is not set."""
    presence = {field.name for field in part.DESCRIPTOR.fields if field.has_presence}
    values = {name: getattr(part, name) for name in names if name not in presence or part.HasField(name)}
    return {name: value for name, value in values.items() if value != "" or name not in ("context", "reason")}


# -- worker -> client -------------------------------------------------------------------------------------------------


def encode_worker_message(message: WorkerMessage | bytes, sample_rate_hz: int = SAMPLE_RATE_HZ) -> pb.ConverseResponse:
    """Encode a worker's message, or audio, of a session at ``sample_rate_hz``."""
    response = pb.ConverseResponse()
    match message:
        case bytes():
            response.pcm = message
        case ChunkMessage():
            _fill(response.chunk, message, _CHUNK)
        case WordsMessage():
            response.words.words.extend(encode_words(message.words, sample_rate_hz))
            response.words.skipped.extend(encode_skipped(message.skipped))
        case StartedMessage():
            _fill(response.started, message, _STARTED)
        case ReportMessage():
            _fill(response.ended, message, ("context",))
            response.ended.receipt.CopyFrom(encode_receipt(message.receipt, message.outcome, sample_rate_hz))
            if (error := message.error) is not None:
                response.ended.error.CopyFrom(encode_error(error))
        case ControlMessage():
            command = next(number for number, kind in _ACKNOWLEDGEMENTS.items() if isinstance(message, kind))
            response.acknowledged.command = command
            _fill(response.acknowledged, message, ("applied", "position_samples"))
        case RejectedMessage():
            _fill(response.rejected, message, ("command", "context"))
            response.rejected.error.CopyFrom(encode_error(message.error))
        case ReadyMessage():
            response.ready.protocol_version = message.protocol
            _fill(response.ready, message, _READY)
        case _:
            raise TypeError(f"protobuf has no message {message.type_name()}")
    return response


def parse_worker_message(response: pb.ConverseResponse) -> WorkerMessage | bytes | None:
    """Parse a worker's message, or return its PCM. None is a message that this version does not know."""
    message: WorkerMessage | bytes | None = None
    match response.WhichOneof("message"):
        case "pcm":
            message = response.pcm
        case "chunk":
            message = ChunkMessage(**_present(response.chunk, _CHUNK))
        case "words":
            skipped = parse_skipped(response.words.skipped)
            message = WordsMessage(words=parse_words(response.words.words), skipped=skipped)
        case "started":
            message = StartedMessage(**{"voice": "", **_present(response.started, _STARTED)})
        case "ended":
            ended = response.ended
            outcome = parse_outcome(ended.receipt)
            error = parse_error(ended.error) if outcome is Outcome.ERROR else None
            message = report_message(outcome, parse_receipt(ended.receipt), error, context=ended.context)
        case "acknowledged":
            fields = _present(response.acknowledged, ("applied", "position_samples"))
            kind = _ACKNOWLEDGEMENTS.get(response.acknowledged.command)
            message = None if kind is None else kind(**fields)
        case "rejected":
            rejected = response.rejected
            message = RejectedMessage.of(parse_error(rejected.error), rejected.command or None, rejected.context)
        case "ready":
            ready = response.ready
            values = {name: getattr(ready, name) for name in _READY if getattr(ready, name) or name != "format"}
            values["unsupported_expressions"] = tuple(ready.unsupported_expressions)
            message = ReadyMessage(protocol=ready.protocol_version, **values)
    return message


# -- playback reports, words and errors -------------------------------------------------------------------------------


def encode_words(words: Iterable[Word], sample_rate_hz: int) -> list[pb.Word]:
    """Encode words of a session at ``sample_rate_hz``."""
    return [
        pb.Word(
            text=word.text,
            char_start=word.start_char,
            char_end=word.end_char,
            start_sample=word.start_sample,
            end_sample=word.end_sample,
            start_ms=round(word.start_sample * 1000 / sample_rate_hz),
            end_ms=round(word.end_sample * 1000 / sample_rate_hz),
        )
        for word in words
    ]


def parse_words(messages: Iterable[pb.Word]) -> tuple[Word, ...]:
    return tuple(Word(m.text, m.char_start, m.char_end, m.start_sample, m.end_sample) for m in messages)


def encode_skipped(skipped: Iterable[Skipped]) -> list[pb.Skipped]:
    return [pb.Skipped(start=run.start, end=run.end, reason=run.reason) for run in skipped]


def parse_skipped(messages: Iterable[pb.Skipped]) -> tuple[Skipped, ...]:
    return tuple(Skipped(m.start, m.end, m.reason) for m in messages)


def encode_receipt(receipt: Receipt, outcome: Outcome, sample_rate_hz: int) -> pb.Receipt:
    """Encode a report of a session at ``sample_rate_hz``."""
    return pb.Receipt(
        outcome=outcome.value,
        reason=receipt.reason,
        samples_generated=receipt.samples_generated,
        samples_sent=receipt.samples_sent,
        samples_played=receipt.samples_played,
        text_spoken=receipt.text_spoken,
        text_remaining=receipt.text_remaining,
        words=encode_words(receipt.words, sample_rate_hz),
        alignment=receipt.alignment.value,
        skipped=encode_skipped(receipt.skipped),
    )


def parse_receipt(message: pb.Receipt) -> Receipt:
    known = (alignment for alignment in Alignment if alignment.value == message.alignment)
    return Receipt(
        reason=message.reason,
        samples_generated=message.samples_generated,
        samples_sent=message.samples_sent,
        samples_played=message.samples_played if message.HasField("samples_played") else None,
        text_spoken=message.text_spoken,
        text_remaining=message.text_remaining,
        words=parse_words(message.words),
        alignment=next(known, Alignment.ESTIMATED),
        skipped=parse_skipped(message.skipped),
    )


def parse_outcome(message: pb.Receipt) -> Outcome:
    """Parse the outcome; an unknown one of a newer worker becomes DONE."""
    return next((outcome for outcome in Outcome if outcome.value == message.outcome), Outcome.DONE)


def encode_error(error: ErrorInfo) -> pb.Error:
    return pb.Error(
        code=error.code.value, message=error.message, retryable=error.retryable, retry_after_s=error.retry_after_s
    )


def parse_error(message: pb.Error) -> ErrorInfo:
    """Parse an error; an unknown code becomes INTERNAL and keeps the worker's ``retryable``."""
    code = next((known for known in ErrorCode if known.value == message.code), ErrorCode.INTERNAL)
    retry_after_s = message.retry_after_s if message.HasField("retry_after_s") else None
    return ErrorInfo(code, message.message or "the worker reported an error", message.retryable, retry_after_s)


def encode_trailers(error: ErrorInfo) -> tuple[tuple[str, str], ...]:
    """Encode what a status code lacks as trailing metadata of a failed call."""
    trailers = ((CODE_KEY, error.code.value), (RETRYABLE_KEY, str(error.retryable).lower()))
    return trailers if error.retry_after_s is None else (*trailers, (RETRY_AFTER_KEY, f"{error.retry_after_s:g}"))


def parse_trailers(trailers: Mapping[str, str], details: str) -> ErrorInfo | None:
    """Parse the error of a failed call; None if its trailing metadata names no known code."""
    code = next((known for known in ErrorCode if known.value == trailers.get(CODE_KEY)), None)
    if code is None:
        return None
    after_s = trailers.get(RETRY_AFTER_KEY, "")
    retry_after_s = float(after_s) if after_s.replace(".", "", 1).isdigit() else None
    return ErrorInfo(code, details or code.value, trailers.get(RETRYABLE_KEY) == "true", retry_after_s)
