"""Protobuf encoding of the messages (``proto/tts_worker.proto``), for gRPC. Needs the extra ``grpc``.

A field that an older or newer peer does not set has its default and is never an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tts_worker.errors import ErrorCode, ErrorInfo, InvalidRequest
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    ConfigureMessage,
    ControlMessage,
    EndMessage,
    FlushMessage,
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
from tts_worker.types import SAMPLE_RATE_HZ, Alignment, Outcome, Receipt, Word

_MAX_REASON_CHARS = 64

_VOICING = ("voice", "speed", "seed", "language", "instruct")
_START = (
    *("realtime", "raw_chunks", "lead_ms", "frame_ms", "markdown", "urls", "normalise", "pause_timeout_s"),
    *("text_idle_timeout_s", "model", "needs", "flush_after_ms"),
)
_EMPTY_MESSAGES: dict[str | None, Callable[[], ClientMessage]] = {
    "flush": FlushMessage,
    "pause": PauseMessage,
    "resume": ResumeMessage,
}
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
    request = pb.ConverseRequest()
    try:
        match message:
            case StartMessage():
                request.start.CopyFrom(_encode_start(message))
            case ConfigureMessage():
                request.configure.CopyFrom(_encode_voicing(message))
            case TextMessage():
                request.say.CopyFrom(request.Say(context=message.context, text=message.text))
            case EndMessage():
                request.end.CopyFrom(request.EndText(context=message.context))
            case FlushMessage():
                request.flush.SetInParent()
            case PauseMessage():
                request.pause.SetInParent()
            case ResumeMessage():
                request.resume.SetInParent()
            case StopMessage():
                request.stop.CopyFrom(request.Stop(reason=message.reason, played_samples=message.played_samples))
            case PlayedMessage():
                request.played.samples = message.samples
            case _:
                raise InvalidRequest(f"protobuf has no message {message.type_name()}")
    except (ValueError, TypeError):
        raise InvalidRequest("an option has a type or value that does not fit its protobuf field") from None
    return request


def _encode_start(message: StartMessage) -> pb.ConverseRequest.Start:
    return pb.ConverseRequest.Start(
        protocol_version=PROTOCOL_VERSION,
        voicing=_encode_voicing(message),
        lexicon_json="" if message.lexicon is None else json.dumps(message.lexicon),
        **{name: getattr(message, name) for name in _START},
    )


def _encode_voicing(message: StartMessage | ConfigureMessage) -> pb.ConverseRequest.Voicing:
    return pb.ConverseRequest.Voicing(**{name: getattr(message, name) for name in _VOICING})


def parse_client_message(request: pb.ConverseRequest) -> ClientMessage:
    """Parse a client's message. Raises InvalidRequest."""
    name = request.WhichOneof("message")
    message = _EMPTY_MESSAGES[name]() if name in _EMPTY_MESSAGES else None
    match name:
        case "say":
            message = convert({"context": _context(request.say.context), "text": request.say.text}, TextMessage)
        case "end":
            message = convert({"context": _context(request.end.context)}, EndMessage)
        case "stop":
            played = max(0, request.stop.played_samples) if request.stop.HasField("played_samples") else None
            message = StopMessage(reason=request.stop.reason[:_MAX_REASON_CHARS] or None, played_samples=played)
        case "played":
            message = PlayedMessage(samples=max(0, request.played.samples))
        case "configure":
            message = convert(_present(request.configure, _VOICING), ConfigureMessage)
        case "start":
            message = _parse_start(request.start)
    if message is None:
        raise InvalidRequest("unknown message type in this version of the protocol")
    return message


def _context(name: str) -> str:
    if not name:
        raise InvalidRequest("context must have 1 to 128 characters")
    return name


def _parse_start(start: pb.ConverseRequest.Start) -> StartMessage:
    if start.protocol_version != PROTOCOL_VERSION:
        raise InvalidRequest(
            f"this worker uses protocol version {PROTOCOL_VERSION}, the client {start.protocol_version}"
        )
    try:
        lexicon = json.loads(start.lexicon_json) if start.lexicon_json else None
    except (ValueError, RecursionError):
        raise InvalidRequest("lexicon_json must be a JSON object") from None
    fields = {**_present(start, _START), **_present(start.voicing, _VOICING)}
    return convert({**fields, "needs": tuple(start.needs), "lexicon": lexicon}, StartMessage)


def _present(message: Any, names: Iterable[str]) -> dict[str, Any]:
    """The fields that are set, and those without presence."""
    presence = {field.name for field in message.DESCRIPTOR.fields if field.has_presence}
    return {name: getattr(message, name) for name in names if name not in presence or message.HasField(name)}


# -- worker -> client -------------------------------------------------------------------------------------------------


def encode_worker_message(message: WorkerMessage | bytes) -> pb.ConverseResponse:
    """Encode a worker's message, or PCM."""
    response = pb.ConverseResponse
    match message:
        case bytes():
            return response(pcm=message)
        case WordsMessage():
            return response(words=response.Words(words=encode_words(message.words)))
        case StartedMessage():
            started = response.Started(context=message.context, **{n: getattr(message, n) for n in _VOICING})
            return response(started=started)
        case ReportMessage():
            error = message.error
            ended = response.Ended(
                context=message.context,
                receipt=encode_receipt(message.receipt, message.outcome),
                error=None if error is None else encode_error(error),
            )
            return response(ended=ended)
        case ControlMessage():
            command = next(number for number, kind in _ACKNOWLEDGEMENTS.items() if isinstance(message, kind))
            position = message.position_samples
            return response(
                acknowledged=response.Acknowledged(command=command, applied=message.applied, position_samples=position)
            )
        case RejectedMessage():
            rejected = response.Rejected(context=message.context, error=encode_error(message.error))
            return response(rejected=rejected)
        case ReadyMessage():
            ready = response.Ready(
                protocol_version=message.protocol,
                session=message.session,
                sample_rate=message.sample_rate,
                voice=message.voice,
                alignment=message.alignment,
            )
            return response(ready=ready)
    raise TypeError(f"protobuf has no message {message.type_name()}")


def parse_worker_message(response: pb.ConverseResponse) -> WorkerMessage | bytes | None:
    """Parse a worker's message, or return its PCM. None is a message that this version does not know."""
    match response.WhichOneof("message"):
        case "pcm":
            return response.pcm
        case "words":
            return WordsMessage(words=parse_words(response.words.words))
        case "started":
            started = response.started
            return StartedMessage(context=started.context, **_present(started, _VOICING))
        case "ended":
            ended = response.ended
            outcome = parse_outcome(ended.receipt)
            error = parse_error(ended.error) if outcome is Outcome.ERROR else None
            return report_message(outcome, parse_receipt(ended.receipt), error, context=ended.context)
        case "acknowledged":
            kind = _ACKNOWLEDGEMENTS.get(response.acknowledged.command)
            applied = response.acknowledged.applied
            position = response.acknowledged.position_samples
            return None if kind is None else kind(applied=applied, position_samples=position)
        case "rejected":
            return RejectedMessage.of(parse_error(response.rejected.error), context=response.rejected.context)
        case "ready":
            ready = response.ready
            return ReadyMessage(
                protocol=ready.protocol_version,
                session=ready.session,
                sample_rate=ready.sample_rate,
                voice=ready.voice,
                alignment=ready.alignment,
            )
        case _:
            return None


# -- playback reports, words and errors -------------------------------------------------------------------------------


def encode_words(words: Iterable[Word], rate_hz: int = SAMPLE_RATE_HZ) -> list[pb.Word]:
    """Encode words with positions in samples at ``rate_hz``."""
    return [
        pb.Word(
            text=word.text,
            char_start=word.start_char,
            char_end=word.end_char,
            start_sample=word.start_sample * rate_hz // SAMPLE_RATE_HZ,
            end_sample=word.end_sample * rate_hz // SAMPLE_RATE_HZ,
            start_ms=round(word.start_sample * 1000 / SAMPLE_RATE_HZ),
            end_ms=round(word.end_sample * 1000 / SAMPLE_RATE_HZ),
        )
        for word in words
    ]


def parse_words(messages: Iterable[pb.Word]) -> tuple[Word, ...]:
    return tuple(Word(m.text, m.char_start, m.char_end, m.start_sample, m.end_sample) for m in messages)


def encode_receipt(receipt: Receipt, outcome: Outcome, rate_hz: int = SAMPLE_RATE_HZ) -> pb.Receipt:
    """Encode a playback report with positions in samples at ``rate_hz``."""
    played = receipt.samples_played
    return pb.Receipt(
        outcome=outcome.value,
        reason=receipt.reason,
        samples_generated=receipt.samples_generated * rate_hz // SAMPLE_RATE_HZ,
        samples_sent=receipt.samples_sent * rate_hz // SAMPLE_RATE_HZ,
        samples_played=None if played is None else played * rate_hz // SAMPLE_RATE_HZ,
        text_spoken=receipt.text_spoken,
        text_remaining=receipt.text_remaining,
        words=encode_words(receipt.words, rate_hz),
        alignment=receipt.alignment.value,
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
