"""The messages of ``/v1/agent``; ``docs/agent.md`` explains them. Binary messages are PCM (s16le, mono) both ways."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tts_worker.errors import ErrorInfo, InvalidRequest
from tts_worker.features.agent.chat import MAX_ANSWER_CHARS
from tts_worker.features.agent.conversation import MAX_TURNS
from tts_worker.protocol.messages import CloseMessage, Message, PingMessage, Samples, convert
from tts_worker.types import Skipped, Word

MAX_TEXT_CHARS = 4_000
MAX_TURN = 2**53
"""Numbers of turns: what a browser can count to."""

UserText = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]

# -- page -> server ---------------------------------------------------------------------------------------------------


class SayMessage(Message, tag="say"):
    """The user typed this; it ends the answer in progress."""

    text: UserText
    played_samples: Samples | None = None
    turn: int | None = None


class TranscriptMessage(Message, tag="transcript"):
    """Words that the browser recognized: all since the last final ones. Final without words: it was no speech."""

    text: UserText
    final: bool = False


class SpeechMessage(Message, tag="speech"):
    """The user's voice begins or ends. Between the two the microphone's audio may follow as binary messages."""

    active: bool
    played_samples: Samples | None = None
    turn: int | None = None
    sample_rate: Annotated[int, Meta(ge=8_000, le=192_000)] = 48_000


class PlaybackMessage(Message, tag="playback"):
    """How much of the answer was played; ``complete``: all of it."""

    turn: int
    samples: Samples
    complete: bool = False


class InterruptMessage(Message, tag="interrupt"):
    """Stop the answer, without saying anything."""

    played_samples: Samples | None = None
    turn: int | None = None


class EarlierTurn(msgspec.Struct, frozen=True):
    """A turn of an earlier connection: what the user said, or what was heard of an answer."""

    turn: Annotated[int, Meta(ge=1, le=MAX_TURN)]
    role: Literal["user", "assistant"]
    text: Annotated[str, Meta(max_length=MAX_ANSWER_CHARS)]


class ResumeMessage(Message, tag="resume"):
    """Continue the conversation of a connection that was lost. Only before the first turn."""

    turns: Annotated[tuple[EarlierTurn, ...], Meta(max_length=MAX_TURNS)]


PageMessage = (
    SayMessage
    | TranscriptMessage
    | SpeechMessage
    | PlaybackMessage
    | InterruptMessage
    | ResumeMessage
    | PingMessage
    | CloseMessage
)
_PAGE_TYPES: dict[str, type[Message]] = {
    kind.type_name(): kind
    for kind in (
        SayMessage,
        TranscriptMessage,
        SpeechMessage,
        PlaybackMessage,
        InterruptMessage,
        ResumeMessage,
        PingMessage,
        CloseMessage,
    )
}

# -- server -> page ---------------------------------------------------------------------------------------------------


class AgentReadyMessage(Message, tag="ready"):
    """The first message.

    Attributes:
        model: What answers: the name of a model, or "script".
        recognizer: Whether the server recognizes speech; otherwise the page does.
        voice: The voice of the agent; None for the default of the worker.
        address: The page for other devices of the network; None if the server listens on this machine only.
    """

    sample_rate: int
    format: str
    channels: int
    model: str
    recognizer: bool
    voice: str | None = None
    address: str | None = None


class RefusedMessage(Message, tag="refused"):
    """There is no conversation; the connection ends."""

    code: str
    message: str


class PhaseMessage(Message, tag="phase"):
    """What the agent is doing, see ``conversation.Phase``. Playback rests while it is "held"."""

    phase: str


class UserMessage(Message, tag="user"):
    """The user has said this. ``turn`` is 0 while the words are not final."""

    turn: int
    text: str


class AskedMessage(Message, tag="asked"):
    """What the model was sent for this turn, as a change of what it was sent before.

    Attributes:
        kept: Number of messages at the beginning that stay.
        removed: Number of messages after these that are gone; the ones behind stay.
        messages: Those that follow.
    """

    turn: int
    kept: int
    removed: int
    messages: tuple[dict[str, str], ...]


class AnswerMessage(Message, tag="answer"):
    """Text of an answer, to be appended."""

    turn: int
    text: str


class SpeakingMessage(Message, tag="speaking"):
    """The audio of this turn follows."""

    turn: int


class AgentWordsMessage(Message, tag="words"):
    """Word timestamps, sent before the audio in which the words begin, and what the voice skips before them."""

    turn: int
    words: tuple[Word, ...]
    skipped: tuple[Skipped, ...] = ()


class CutMessage(Message, tag="cut"):
    """Stop the audio of this turn now."""

    turn: int


class SentMessage(Message, tag="sent"):
    """All audio of this turn was sent."""

    turn: int


class SettledMessage(Message, tag="settled"):
    """The turn has ended: the played part of the answer, and the rest.

    Attributes:
        skipped: What the voice skipped of the played part: it was not heard.
        reason: Why it ended.
    """

    turn: int
    heard: str
    unheard: str
    reason: str
    skipped: tuple[Skipped, ...] = ()


class ProblemMessage(Message, tag="problem"):
    """Something failed; the conversation continues."""

    code: str
    message: str

    @classmethod
    def of(cls, error: ErrorInfo) -> ProblemMessage:
        """Build the message for an error."""
        return cls(code=error.code.value, message=error.message)


def parse_page_message(raw: str) -> PageMessage:
    """Parse a message of the page. Raises InvalidRequest, which names the field and never its value."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        raise InvalidRequest("the message is not valid JSON") from None
    kind = _PAGE_TYPES.get(data["type"]) if isinstance(data, dict) and isinstance(data.get("type"), str) else None
    if kind is None:
        raise InvalidRequest(f'the message must be an object whose "type" is one of {", ".join(_PAGE_TYPES)}')
    return convert(data, kind)  # type: ignore[return-value]
