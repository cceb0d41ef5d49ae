"""The messages of a conversation with the worker, declared once; ``docs/protocol.md`` explains them.

``json_codec`` and ``proto_codec`` convert them to bytes and back; the JSON Schema is generated from them. Unknown
fields are ignored, since newer peers may send them. An optional field that has its default is not sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from tts_worker.errors import ErrorCode, ErrorInfo, InvalidRequest
from tts_worker.types import (
    Acknowledged,
    Alignment,
    ControlName,
    Ended,
    Expression,
    Notice,
    Outcome,
    PcmFrame,
    Receipt,
    SessionOptions,
    Skipped,
    Started,
    SynthesisParams,
    UrlMode,
    Word,
    Words,
)

MAX_NEEDS = 16
"""Capabilities that a client may ask of a voice."""

PROTOCOL_VERSION = 1

_T = TypeVar("_T")
_M = TypeVar("_M", bound="Message")

_VALID = r"^[^\uD800-\uDFFF]*$"
"""Text without lone surrogates, which neither UTF-8 nor an engine can take. The text to speak may have some."""

Name = Annotated[str, Meta(max_length=128, pattern=_VALID)]
Samples = Annotated[int, Meta(ge=0)]
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_EXPECTED = re.compile(r"Expected `([^`]+)`(?: (?:of length )?(<=|>=) (-?\d+))?(?:, got `([\w.]+)`)?")
_PLAIN_TYPES = MappingProxyType(
    {
        "int": "a whole number",
        "float": "a number",
        "str": "text",
        "bool": "true or false",
        "array": "a list",
        "object": "an object",
    }
)
_PROBLEM = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", re.DOTALL)
_SURROGATE_NAME = "names of fields must not contain lone surrogates"

VOICE_FIELDS = tuple(field.name for field in dataclasses.fields(SynthesisParams))
_RECEIPT = tuple(field.name for field in dataclasses.fields(Receipt))

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def _always_sent(default: _T) -> _T:
    """Declare a field whose default is sent: msgspec leaves out only plain defaults."""
    return field(default_factory=lambda: default)


def _select(source: object, names: Iterable[str]) -> dict[str, Any]:
    """Return some attributes by name."""
    return {name: getattr(source, name) for name in names}


class Message(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all messages."""

    @classmethod
    def type_name(cls) -> str:
        """The field ``type`` of the message."""
        return str(cls.__struct_config__.tag)


class InvalidMessage(InvalidRequest):
    """A message has an invalid field.

    Attributes:
        command: Type of the message.
        context: The client's name for its utterance, if it has one.
    """

    def __init__(self, message: str, command: str, context: str | None = None) -> None:
        super().__init__(message)
        self.command = command
        self.context = context


def convert(fields: dict[str, Any], kind: type[_M], *, strict: bool = True) -> _M:
    """Validate the fields of a message.

    Raises:
        InvalidMessage: Names the invalid field, never its value.
    """
    try:
        return parse_fields({"type": kind.type_name(), **fields}, kind, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        context = _context(fields) if "context" in kind.__struct_fields__ else None
        raise InvalidMessage(explain(error, kind, strict=strict), kind.type_name(), context) from None


def parse_fields(fields: object, kind: type[_M], *, strict: bool = True) -> _M:
    """Convert the fields of a message.

    Raises:
        msgspec.ValidationError: A field is invalid, for ``explain``.
        RecursionError: The fields are nested too deeply.
    """
    try:
        return msgspec.convert(fields, kind, strict=strict)
    except UnicodeEncodeError:  # lone surrogates in a name, or where no text is expected; that error names no field
        msgspec.convert(_without_surrogates(fields), kind, strict=strict)
        raise msgspec.ValidationError(_SURROGATE_NAME) from None


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(each) for name, each in value.items()}
    return [_without_surrogates(each) for each in value] if isinstance(value, list) else value


def _context(fields: dict[str, Any]) -> str | None:
    """The client's name for the utterance of a message that is invalid; None if the name is invalid, too."""
    try:
        return msgspec.convert(fields.get("context"), Name | None)
    except msgspec.ValidationError:
        return None


def explain(error: Exception, kind: type[Message], *, strict: bool = True) -> str:
    """Describe a validation error of a message: the field first, and no value.

    Args:
        error: What msgspec raised.
        kind: The message.
        strict: The values have the types of JSON; otherwise all are text, whose type says nothing.
    """
    if str(error) == _SURROGATE_NAME:
        return _SURROGATE_NAME
    match = _PROBLEM.fullmatch(str(error))
    problem, name = (match[1], match[2] or "the message") if match is not None else (str(error), "the message")
    if (missing := _MISSING.fullmatch(problem)) is not None:
        return f"{missing[1]} is missing" if name == "the message" else f"{name}.{missing[1]} is missing"
    if choices := _choices(kind, name):
        return f"{name} must be one of {', '.join(map(str, choices))}"
    if "regex" in problem:
        return f"{name} must not contain lone surrogates"
    if (expected := _EXPECTED.match(problem)) is None:
        return f"{name} is invalid"
    types, comparison, limit, found = expected.groups()
    plain = " or ".join(_PLAIN_TYPES.get(each, each) for each in types.split(" | ") if each != "null")
    if comparison is not None:
        unit = {"str": " characters", "array": " items"}.get(types.split(" | ")[0], "")
        return f"{name} must be {plain} of at {'most' if comparison == '<=' else 'least'} {limit}{unit}"
    return f"{name} must be {plain}, not {_PLAIN_TYPES.get(found, found)}" if strict else f"{name} must be {plain}"


@lru_cache(maxsize=64)
def _choices(kind: type[Message], name: str) -> tuple[object, ...]:
    """The values that a field may have, if they are listed in its type."""
    if name not in kind.__struct_fields__:
        return ()
    annotation = get_type_hints(kind)[name]
    literals = [each for each in (annotation, *get_args(annotation)) if get_origin(each) is Literal]
    return tuple(value for each in literals for value in get_args(each))


# -- client -> worker -------------------------------------------------------------------------------------------------


class StartMessage(Message, tag="start"):
    """Configures the session: as the first message, or later for subsequent utterances. Answered by ``ready``."""

    voice: Name | None = None
    model: Name | None = None
    needs: Annotated[tuple[str, ...], Meta(max_length=MAX_NEEDS)] = ()
    speed: float = 1.0
    seed: int = 0
    language: Annotated[str, Meta(max_length=35, pattern=_VALID)] | None = None
    instruct: Annotated[str, Meta(max_length=2_000, pattern=_VALID)] | None = None
    realtime: bool = True
    lead_ms: float | None = None
    frame_ms: int | None = None
    raw_chunks: bool = False
    sample_rate: Literal[8_000, 16_000, 22_050, 24_000, 44_100, 48_000] | None = None
    encoding: Literal["pcm_s16le", "mulaw", "alaw", "opus", "wav"] | None = None
    lexicon: dict[str, Any] | Annotated[str, Meta(max_length=256, pattern=_VALID)] | None = None
    markdown: bool | None = None
    urls: Literal["drop", "host", "keep"] | None = None
    normalize: bool | None = None
    pause_timeout_s: float | None = None
    text_idle_timeout_s: float | None = None
    flush_after_ms: float | None = None
    traceparent: Annotated[str, Meta(max_length=128, pattern=_VALID)] | None = None

    def options(self) -> SessionOptions:
        """Convert to session options."""
        return SessionOptions(
            **{**_select(self, self.__struct_fields__), "urls": None if self.urls is None else UrlMode(self.urls)}
        )

    @classmethod
    def of(cls, options: SessionOptions) -> StartMessage:
        """Build the message for these options."""
        lexicon = dict(options.lexicon) if isinstance(options.lexicon, Mapping) else options.lexicon
        urls = None if options.urls is None else options.urls.value
        return cls(**{**_select(options, cls.__struct_fields__), "lexicon": lexicon, "urls": urls})


def check_options(options: SessionOptions) -> None:
    """Check the types of a client's options, and values that no worker takes.

    Raises:
        InvalidMessage: Names the invalid option, never its value.
    """
    if not isinstance(options, SessionOptions):
        raise InvalidMessage("options must be SessionOptions", StartMessage.type_name())
    fields: dict[str, Any] = {name: getattr(options, name) for name in StartMessage.__struct_fields__}
    if isinstance(options.urls, UrlMode):
        fields["urls"] = options.urls.value
    if isinstance(options.lexicon, Mapping):
        fields["lexicon"] = dict(options.lexicon)
    _check_fields(fields, StartMessage)
    try:
        json.dumps(fields["lexicon"])
    except (TypeError, ValueError, RecursionError):
        raise InvalidMessage("lexicon has a value that JSON cannot express", StartMessage.type_name()) from None


def _check_fields(fields: dict[str, Any], kind: type[Message]) -> None:
    convert(fields, kind)
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidMessage(f"{name} must be a finite number", kind.type_name())


class ConfigureMessage(Message, tag="configure"):
    """Sets the voice of later utterances. Only protobuf has it; a JSON client sends ``start``."""

    voice: str | None = None
    speed: float = 1.0
    seed: int = 0
    language: str | None = None
    instruct: str | None = None

    @classmethod
    def of(cls, params: SynthesisParams) -> ConfigureMessage:
        """Build the message for these parameters."""
        return cls(**{**_select(params, VOICE_FIELDS), "voice": params.voice or None})

    def apply(self, options: SessionOptions) -> SessionOptions:
        """Return the options with this voice."""
        return dataclasses.replace(options, **_select(self, VOICE_FIELDS))


def check_params(params: SynthesisParams) -> None:
    """Check the types of a client's parameters. Raises InvalidMessage, which names the invalid one, never its value."""
    if not isinstance(params, SynthesisParams):
        raise InvalidMessage("params must be SynthesisParams", ConfigureMessage.type_name())
    _check_fields(_select(params, VOICE_FIELDS), ConfigureMessage)


class TextMessage(Message, tag="text"):
    """Text of the utterance being written, or of a new one.

    Attributes:
        text: Text to append.
        end: Complete the utterance.
        context: The client's name for the utterance. Text for a stopped context is dropped, so text sent before the
            client knew of a STOP does not start a new utterance.
    """

    text: str
    end: bool = False
    context: Name | None = None


class EndMessage(Message, tag="end"):
    """Completes the utterance."""

    context: Name | None = None


class FlushMessage(Message, tag="flush"):
    """Speaks the text so far without waiting for the end of the sentence."""


class PauseMessage(Message, tag="pause"):
    """Pauses the audio."""


class ResumeMessage(Message, tag="resume"):
    """Resumes at the next sample."""


class StopMessage(Message, tag="stop"):
    """Ends all utterances, whichever the position belongs to.

    Attributes:
        played_samples: Samples of the utterance that were played, if known.
        utterance: Number of that utterance, see ``PlayedMessage``.
        context: A context whose text may be still on its way; it is dropped.
    """

    played_samples: Samples | None = None
    utterance: int | None = None
    context: Name | None = None
    reason: Annotated[str, Meta(max_length=64, pattern=_VALID)] | None = None


class ClearMessage(StopMessage, tag="clear"):
    """Does the same as ``stop``."""


class PlayedMessage(Message, tag="played"):
    """Reports how much of an utterance was played.

    Attributes:
        samples: Its samples that were played.
        utterance: Its number in ``started``; None is the current one. The position of another than the current one is
            ignored: it comes too late.
    """

    samples: Samples
    utterance: int | None = None


class ExpressMessage(Message, tag="express"):
    """Sets how the session speaks, from the next word on that is not synthesized, until the next ``express``.

    Spans of the text change it further. What is left out is as the voice has it.

    Attributes:
        rate: Factor of the speaking rate.
        volume_db: Change of the level.
        pitch_semitones: Change of the pitch.
        style: Emotion or manner of speaking.
    """

    rate: Annotated[float, Meta(ge=0.25, le=4.0)] = 1.0
    volume_db: Annotated[float, Meta(ge=-60, le=12)] = 0.0
    pitch_semitones: Annotated[float, Meta(ge=-12, le=12)] = 0.0
    style: Annotated[str, Meta(max_length=64, pattern=_VALID)] = ""

    @property
    def expression(self) -> Expression:
        return Expression(**_select(self, Expression._fields))

    @classmethod
    def of(cls, expression: Expression) -> ExpressMessage:
        """Build the message for this expression. Raises InvalidMessage for a value that is out of range."""
        if not isinstance(expression, Expression):
            raise InvalidMessage("expression must be an Expression", cls.type_name())
        _check_fields(expression._asdict(), cls)
        return cls(**expression._asdict())


class PingMessage(Message, tag="ping"):
    """Answered by ``pong`` with the same ``id``."""

    id: Int64 | Name | None = None


class CloseMessage(Message, tag="close"):
    """Ends the session."""


ClientMessage = (
    StartMessage
    | ConfigureMessage
    | TextMessage
    | EndMessage
    | FlushMessage
    | PauseMessage
    | ResumeMessage
    | StopMessage
    | PlayedMessage
    | ExpressMessage
    | PingMessage
    | CloseMessage
)

# -- worker -> client -------------------------------------------------------------------------------------------------


class ReadyMessage(Message, tag="ready"):
    """The first message, and the answer to ``start``.

    Attributes:
        unsupported_expressions: What the voice does not perform of what a text can ask for ("rate", "volume", "pitch",
            "style", "sound").
    """

    protocol: int
    session: str
    sample_rate: int
    voice: str
    alignment: str = _always_sent("estimated")
    format: str = _always_sent("pcm_s16le")
    channels: int = _always_sent(1)
    synthetic: bool = _always_sent(True)
    model: str = ""
    unsupported_expressions: tuple[str, ...] = ()


class StartedMessage(Message, tag="started"):
    """The audio of the utterance follows."""

    voice: str
    utterance: int = _always_sent(0)
    speed: float = _always_sent(1.0)
    seed: int = _always_sent(0)
    language: str | None = None
    instruct: str | None = None
    context: str | None = None
    synthetic: bool = _always_sent(True)

    @property
    def params(self) -> SynthesisParams:
        """Parameters of the utterance."""
        return SynthesisParams(**_select(self, VOICE_FIELDS))


class WordsMessage(Message, tag="words"):
    """Word timestamps, sent before the audio in which the words begin."""

    words: tuple[Word, ...]
    utterance: int = _always_sent(0)
    context: str | None = None
    skipped: tuple[Skipped, ...] = ()


class ChunkMessage(Message, tag="chunk"):
    """Describes the audio message that follows, for a client that has asked for checksums.

    Attributes:
        utterance: Number of the utterance.
        index: Number of the audio message in the utterance.
        start_sample: Position of its first sample.
        samples: Its length.
        sha256: SHA-256 of its bytes, in hexadecimal.
    """

    utterance: int
    index: int
    start_sample: int
    samples: int
    sha256: str

    @classmethod
    def of(cls, frame: PcmFrame) -> ChunkMessage:
        digest = hashlib.sha256(frame.pcm).hexdigest()
        return cls(frame.key.generation, frame.index, frame.start_sample, frame.samples, digest)


class ControlMessage(Message):
    """Base of acknowledgements. ``applied`` is false if the command changed nothing.

    Attributes:
        utterance: The current utterance, if any.
        position_samples: Audio sent of that utterance.
    """

    applied: bool = _always_sent(True)
    utterance: int | None = _always_sent(None)
    position_samples: int = _always_sent(0)


class PausedMessage(ControlMessage, tag="paused"):
    """Acknowledges ``pause``."""


class ResumedMessage(ControlMessage, tag="resumed"):
    """Acknowledges ``resume``."""


class NothingStoppedMessage(ControlMessage, tag="stopped"):
    """Acknowledges a ``stop`` when nothing is being spoken: ``applied`` is false."""


class ReportMessage(Message):
    """Base of the messages that end an utterance: its playback report, see ``types.Receipt``."""

    reason: str
    samples_generated: int
    samples_sent: int
    text_spoken: str
    text_remaining: str
    words: tuple[Word, ...] = _always_sent(())
    alignment: str = _always_sent("estimated")
    samples_played: int | None = None
    skipped: tuple[Skipped, ...] = ()
    utterance: int | None = _always_sent(None)
    context: str | None = None
    synthetic: bool = _always_sent(True)

    @property
    def outcome(self) -> Outcome:
        """How the utterance ended."""
        return Outcome(self.type_name())

    @property
    def receipt(self) -> Receipt:
        """The playback report. An alignment that this version does not know counts as estimated."""
        alignment = next((known for known in Alignment if known.value == self.alignment), Alignment.ESTIMATED)
        return Receipt(**{**_select(self, _RECEIPT), "alignment": alignment})

    @property
    def error(self) -> ErrorInfo | None:
        """Why synthesis failed, if it did."""
        return None


class DoneMessage(ReportMessage, tag="done"):
    """All audio was sent."""


class StoppedMessage(ReportMessage, tag="stopped"):
    """Ended by ``stop``, a timeout or a drain."""

    applied: bool = _always_sent(True)


class TruncatedMessage(ReportMessage, tag="truncated"):
    """The speech ends before the text does."""


class ErrorMessage(ReportMessage, tag="error"):
    """Synthesis failed."""

    code: str = _always_sent(ErrorCode.INTERNAL.value)
    message: str = _always_sent("the worker reported an error")
    retryable: bool = _always_sent(False)
    retry_after_s: float | None = None

    @property
    def error(self) -> ErrorInfo:
        """Why synthesis failed."""
        return _error_info(self)


class RejectedMessage(Message, tag="rejected"):
    """A message was invalid or not allowed; nothing changed."""

    command: str | None = _always_sent(None)
    context: str | None = None
    code: str = _always_sent(ErrorCode.INTERNAL.value)
    message: str = _always_sent("the worker reported an error")
    retryable: bool = _always_sent(False)
    retry_after_s: float | None = None

    @property
    def error(self) -> ErrorInfo:
        """Why the message was rejected."""
        return _error_info(self)

    @classmethod
    def of(cls, error: ErrorInfo, command: str | None = None, context: str | None = None) -> RejectedMessage:
        """Build the message for an error."""
        return cls(command=command, context=context, **error_fields(error))


class PongMessage(Message, tag="pong"):
    """Answers ``ping``."""

    id: int | str | None = _always_sent(None)


class CallMessage(Message, tag="call"):
    """The telephone call of a session (``/v1/calls/{call}``) has joined or ended.

    Attributes:
        state: ``joined``: its audio is played to the caller. ``ended``: the connection is closed next.
        call: The name of the call.
        provider: Where the call comes from.
        stream: The provider's name for the media stream.
        encoding: Encoding of the caller's audio, in the provider's words.
        parameters: Parameters that the operator of the call has set.
        reason: Why it ended: ``stopped`` by the provider, ``disconnected``, ``no_call``, or an error code.
    """

    state: Literal["joined", "ended"]
    call: str
    provider: str | None = None
    stream: str | None = None
    encoding: str | None = None
    parameters: dict[str, str] = {}
    reason: str | None = None


class DtmfMessage(Message, tag="dtmf"):
    """The caller has pressed a key of the telephone."""

    digit: str


WorkerMessage = (
    ReadyMessage
    | StartedMessage
    | WordsMessage
    | ChunkMessage
    | PausedMessage
    | ResumedMessage
    | NothingStoppedMessage
    | DoneMessage
    | StoppedMessage
    | TruncatedMessage
    | ErrorMessage
    | RejectedMessage
    | PongMessage
    | CallMessage
    | DtmfMessage
)

_REPORTS: dict[Outcome, type[DoneMessage | StoppedMessage | TruncatedMessage | ErrorMessage]] = {
    Outcome.DONE: DoneMessage,
    Outcome.STOPPED: StoppedMessage,
    Outcome.TRUNCATED: TruncatedMessage,
    Outcome.ERROR: ErrorMessage,
}
_ACKNOWLEDGEMENTS: dict[ControlName, type[PausedMessage | ResumedMessage | NothingStoppedMessage]] = {
    ControlName.PAUSE: PausedMessage,
    ControlName.RESUME: ResumedMessage,
    ControlName.STOP: NothingStoppedMessage,
}


def event_message(event: Notice, context: str | None = None) -> WorkerMessage:
    """Build the message for a session event; ``context`` is the client's name for the utterance."""
    match event:
        case Started(key, params):
            return StartedMessage(utterance=key.generation, context=context, **_select(params, VOICE_FIELDS))
        case Words(key, words, skipped):
            return WordsMessage(utterance=key.generation, words=words, context=context, skipped=skipped)
        case Acknowledged():
            return _ACKNOWLEDGEMENTS[event.command](
                applied=event.applied,
                utterance=event.key.generation if event.key is not None else None,
                position_samples=event.position_samples,
            )
        case Ended():
            return report_message(event.outcome, event.receipt, event.error, event.key.generation, context)


def report_message(
    outcome: Outcome,
    receipt: Receipt,
    error: ErrorInfo | None = None,
    utterance: int | None = None,
    context: str | None = None,
) -> DoneMessage | StoppedMessage | TruncatedMessage | ErrorMessage:
    """Build the message that ends an utterance."""
    fields = {**_select(receipt, _RECEIPT), "alignment": receipt.alignment.value}
    return _REPORTS[outcome](
        utterance=utterance, context=context, **fields, **({} if error is None else error_fields(error))
    )


def error_fields(error: ErrorInfo) -> dict[str, Any]:
    """The fields of an error in a message. ``retry_after_s`` is present only if it is known."""
    fields: dict[str, Any] = {"code": error.code.value, "message": error.message, "retryable": error.retryable}
    return fields if error.retry_after_s is None else {**fields, "retry_after_s": error.retry_after_s}


def parse_error(fields: dict[str, Any]) -> ErrorInfo:
    """Parse the fields of an error; values of a wrong type get defaults."""
    after_s = fields.get("retry_after_s")
    return _error_info(
        RejectedMessage(
            code=str(fields.get("code")),
            message=str(fields.get("message", "the worker reported an error")),
            retryable=fields.get("retryable") is True,
            retry_after_s=float(after_s) if isinstance(after_s, int | float) else None,
        )
    )


def _error_info(message: ErrorMessage | RejectedMessage) -> ErrorInfo:
    """An error code that this version does not know becomes INTERNAL and keeps ``retryable``."""
    code = next((known for known in ErrorCode if known.value == message.code), ErrorCode.INTERNAL)
    return ErrorInfo(code, message.message, message.retryable, message.retry_after_s)
