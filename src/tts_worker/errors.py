"""The exceptions of this package. Each has an error code, a message that says what to do, and whether to retry.

The tables below map codes to HTTP and gRPC statuses and WebSocket close codes. Messages never contain user text.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum


class ErrorCode(str, Enum):
    INVALID_REQUEST = "invalid_request"
    ILLEGAL_COMMAND = "illegal_command"
    TEXT_TOO_LONG = "text_too_long"
    UNSPEAKABLE_TEXT = "unspeakable_text"
    UNKNOWN_VOICE = "unknown_voice"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_LEXICON = "unknown_lexicon"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    OVER_CAPACITY = "over_capacity"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"
    DRAINING = "draining"
    NOT_READY = "not_ready"
    SESSION_CLOSED = "session_closed"
    SEND_TIMEOUT = "send_timeout"
    CONNECTION_LOST = "connection_lost"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    MISSING_EXTRA = "missing_extra"
    CONFIG = "config"
    OUT_OF_MEMORY = "out_of_memory"
    SYNTHESIS_FAILED = "synthesis_failed"
    ENGINE_FAULT = "engine_fault"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as data, in events and on the wire."""

    code: ErrorCode
    message: str
    retryable: bool = False
    retry_after_s: float | None = None


class TTSWorkerError(Exception):
    """Base class of the exceptions of this package. Subclasses define the code and whether a retry can help."""

    code: ErrorCode = ErrorCode.INTERNAL
    retryable: bool = False

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def info(self) -> ErrorInfo:
        return ErrorInfo(self.code, self.message, self.retryable, self.retry_after_s)


class InvalidRequest(TTSWorkerError):
    """A value is missing, of the wrong type or out of range."""

    code = ErrorCode.INVALID_REQUEST


class IllegalCommand(TTSWorkerError):
    """The command is not allowed in this state; the state did not change."""

    code = ErrorCode.ILLEGAL_COMMAND


class TextTooLong(TTSWorkerError):
    code = ErrorCode.TEXT_TOO_LONG


class UnspeakableText(TTSWorkerError):
    """The voice cannot pronounce any of the text (for example, another script)."""

    code = ErrorCode.UNSPEAKABLE_TEXT


class UnknownVoice(TTSWorkerError):
    code = ErrorCode.UNKNOWN_VOICE


class UnknownModel(TTSWorkerError):
    code = ErrorCode.UNKNOWN_MODEL


class UnknownLexicon(TTSWorkerError):
    code = ErrorCode.UNKNOWN_LEXICON


class Unauthenticated(TTSWorkerError):
    code = ErrorCode.UNAUTHENTICATED


class Forbidden(TTSWorkerError):
    code = ErrorCode.FORBIDDEN


class OverCapacity(TTSWorkerError):
    code = ErrorCode.OVER_CAPACITY
    retryable = True


class RateLimited(TTSWorkerError):
    """The caller exceeds the worker's rate limit."""

    code = ErrorCode.RATE_LIMITED
    retryable = True


class QuotaExceeded(TTSWorkerError):
    """A quota of the API key is exhausted for now; other keys are not affected."""

    code = ErrorCode.QUOTA_EXCEEDED
    retryable = True


class VoiceQuotaExceeded(TTSWorkerError):
    """The API key has all the voices it may store; waiting does not help, deleting one does."""

    code = ErrorCode.QUOTA_EXCEEDED


class Draining(TTSWorkerError):
    code = ErrorCode.DRAINING
    retryable = True


class NotReady(TTSWorkerError):
    code = ErrorCode.NOT_READY
    retryable = True


class SessionClosed(TTSWorkerError):
    code = ErrorCode.SESSION_CLOSED


class SendTimeout(TTSWorkerError):
    """The client stopped reading."""

    code = ErrorCode.SEND_TIMEOUT


class ConnectionLost(TTSWorkerError):
    """The worker cannot be reached, or the connection was lost."""

    code = ErrorCode.CONNECTION_LOST
    retryable = True


class DeadlineExceeded(TTSWorkerError):
    """The worker did not answer, or sent no audio, within the caller's time limit."""

    code = ErrorCode.DEADLINE_EXCEEDED
    retryable = True


CLIENT_SOURCE = "./packages/tts-worker-client"
"""The client's distribution in a clone."""


class MissingExtra(TTSWorkerError):
    """An optional dependency is not installed; the message contains the pip command.

    The message contains no path of this machine, because it may be sent to a client; ``tts-worker doctor`` prints the
    command for this installation.

    Args:
        feature: What needs it.
        extra: Name of the extra.
        source: The distribution that has the extra, as a path in a clone.
        oldest_python: What the extra can be installed on, where that is not every Python of the package.
    """

    code = ErrorCode.MISSING_EXTRA

    def __init__(
        self, feature: str, extra: str, source: str = ".", *, oldest_python: tuple[int, int] | None = None
    ) -> None:
        needs = f'the extra "{extra}"'
        if oldest_python is not None and sys.version_info[:2] < oldest_python:
            oldest, current = (".".join(map(str, version)) for version in (oldest_python, sys.version_info[:2]))
            needs = f"Python {oldest} or newer, not {current}, and {needs}"
        super().__init__(
            f'{feature} needs {needs}: pip install "{source}[{extra}]" in the clone, or see "tts-worker doctor"'
        )
        self.extra = extra


class MissingServer(TTSWorkerError):
    """Only the client is installed; the message contains the pip command."""

    code = ErrorCode.MISSING_EXTRA

    def __init__(self, feature: str) -> None:
        super().__init__(f"{feature} needs the distribution tts-worker: pip install {CLIENT_SOURCE} . in the clone")


class MissingPackage(TTSWorkerError):
    """A package that only this feature needs is not installed; the message contains the pip command."""

    code = ErrorCode.MISSING_EXTRA

    def __init__(self, feature: str, package: str) -> None:
        super().__init__(f"{feature} needs {package}: pip install {package}")


class ConfigError(TTSWorkerError):
    """A setting is invalid; the message names the key."""

    code = ErrorCode.CONFIG


class AddressInUse(TTSWorkerError):
    """Another process listens on the address; once it has ended, another attempt succeeds."""

    code = ErrorCode.NOT_READY
    retryable = True


class BackendUnavailable(ConfigError):
    """A back end of the networks cannot be used on this machine; the message says why."""


class BackendMismatch(BackendUnavailable):
    """The results of a back end differ from PyTorch's by more than rounding."""


class BundleError(TTSWorkerError):
    """A model directory, weight file or stored voice is incomplete, damaged or unsafe; the message names it."""

    code = ErrorCode.CONFIG


class OutOfMemory(TTSWorkerError):
    """The device has no memory for this utterance; other utterances continue."""

    code = ErrorCode.OUT_OF_MEMORY
    retryable = True


class SynthesisFailed(TTSWorkerError):
    """The engine could not finish this utterance; the engine itself is healthy."""

    code = ErrorCode.SYNTHESIS_FAILED
    retryable = True


class EngineFault(TTSWorkerError):
    """The engine has failed (sticky device error, hang) and is being restarted."""

    code = ErrorCode.ENGINE_FAULT
    retryable = True


class DeviceLost(EngineFault):
    """The device of an engine no longer answers this process (sticky CUDA error); a new process may use it."""


HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.ILLEGAL_COMMAND: 409,
    ErrorCode.TEXT_TOO_LONG: 413,
    ErrorCode.UNSPEAKABLE_TEXT: 422,
    ErrorCode.UNKNOWN_VOICE: 404,
    ErrorCode.UNKNOWN_MODEL: 404,
    ErrorCode.UNKNOWN_LEXICON: 404,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.OVER_CAPACITY: 503,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.DRAINING: 503,
    ErrorCode.NOT_READY: 503,
    ErrorCode.SESSION_CLOSED: 409,
    ErrorCode.SEND_TIMEOUT: 408,
    ErrorCode.CONNECTION_LOST: 502,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.MISSING_EXTRA: 501,
    ErrorCode.CONFIG: 500,
    ErrorCode.OUT_OF_MEMORY: 503,
    ErrorCode.SYNTHESIS_FAILED: 500,
    ErrorCode.ENGINE_FAULT: 503,
    ErrorCode.INTERNAL: 500,
}

WEBSOCKET_CLOSE: dict[ErrorCode, int] = {
    ErrorCode.INVALID_REQUEST: 1007,
    ErrorCode.TEXT_TOO_LONG: 1009,
    ErrorCode.UNAUTHENTICATED: 1008,
    ErrorCode.FORBIDDEN: 1008,
    ErrorCode.OVER_CAPACITY: 1013,
    ErrorCode.RATE_LIMITED: 1008,
    ErrorCode.QUOTA_EXCEEDED: 1013,
    ErrorCode.DRAINING: 1012,
    ErrorCode.NOT_READY: 1013,
    ErrorCode.SEND_TIMEOUT: 1008,
    ErrorCode.ENGINE_FAULT: 1011,
    ErrorCode.INTERNAL: 1011,
}

GRPC_STATUS: dict[ErrorCode, str] = {
    ErrorCode.INVALID_REQUEST: "INVALID_ARGUMENT",
    ErrorCode.ILLEGAL_COMMAND: "FAILED_PRECONDITION",
    ErrorCode.TEXT_TOO_LONG: "INVALID_ARGUMENT",
    ErrorCode.UNSPEAKABLE_TEXT: "INVALID_ARGUMENT",
    ErrorCode.UNKNOWN_VOICE: "NOT_FOUND",
    ErrorCode.UNKNOWN_MODEL: "NOT_FOUND",
    ErrorCode.UNKNOWN_LEXICON: "NOT_FOUND",
    ErrorCode.UNAUTHENTICATED: "UNAUTHENTICATED",
    ErrorCode.FORBIDDEN: "PERMISSION_DENIED",
    ErrorCode.OVER_CAPACITY: "RESOURCE_EXHAUSTED",
    ErrorCode.RATE_LIMITED: "RESOURCE_EXHAUSTED",
    ErrorCode.QUOTA_EXCEEDED: "RESOURCE_EXHAUSTED",
    ErrorCode.DRAINING: "UNAVAILABLE",
    ErrorCode.NOT_READY: "UNAVAILABLE",
    ErrorCode.SESSION_CLOSED: "NOT_FOUND",
    ErrorCode.SEND_TIMEOUT: "DEADLINE_EXCEEDED",
    ErrorCode.CONNECTION_LOST: "UNAVAILABLE",
    ErrorCode.DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    ErrorCode.MISSING_EXTRA: "UNIMPLEMENTED",
    ErrorCode.CONFIG: "FAILED_PRECONDITION",
    ErrorCode.OUT_OF_MEMORY: "RESOURCE_EXHAUSTED",
    ErrorCode.SYNTHESIS_FAILED: "INTERNAL",
    ErrorCode.ENGINE_FAULT: "UNAVAILABLE",
    ErrorCode.INTERNAL: "INTERNAL",
}
"""Names of gRPC status codes; the error code itself is sent in the trailing metadata."""


def error_info(exc: BaseException) -> ErrorInfo:
    """Convert an exception to data. A foreign one becomes INTERNAL without its message, which may contain user text."""
    if isinstance(exc, TTSWorkerError):
        return exc.info
    return ErrorInfo(ErrorCode.INTERNAL, f"internal error ({type(exc).__name__})")


class RemoteError(TTSWorkerError):
    """An error reported by another process whose code has no exception class."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message, retry_after_s=info.retry_after_s)
        self.code = info.code
        self.retryable = info.retryable


def as_exception(info: ErrorInfo) -> TTSWorkerError:
    """Convert error data to an exception of the class of its code."""
    for kind in TTSWorkerError.__subclasses__():
        takes_message = kind.__init__ is TTSWorkerError.__init__
        if takes_message and kind.code is info.code and kind.retryable is info.retryable:
            return kind(info.message, retry_after_s=info.retry_after_s)
    return RemoteError(info)
