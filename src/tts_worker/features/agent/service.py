"""What the conversations of a server share: where speech comes from, what answers, and what recognizes speech."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tts_worker.features.agent.chat import ChatModel
from tts_worker.features.agent.recognizer import Recognizer
from tts_worker.protocol.session import Session
from tts_worker.types import SessionOptions

INSTRUCTIONS = (
    "You are a voice agent. Everything you write is spoken aloud: answer in one to three short sentences of plain "
    "spoken language, without Markdown, lists or emoji. Your earlier messages hold only what the user has heard; a "
    "message that ends in the middle of a sentence was interrupted there by the user's next message."
)
"""Default instructions for the model."""

LEAD_MS = 250.0
"""Audio sent ahead of playback: it covers a busy moment of the page, which discards it when it is told to be silent."""
PAUSE_TIMEOUT_S = 60.0


def speech_options(voice: str | None = None, speed: float = 1.0) -> SessionOptions:
    """Return the options of the speech sessions of an agent."""
    return SessionOptions(voice=voice, speed=speed, lead_ms=LEAD_MS, pause_timeout_s=PAUSE_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class AgentService:
    """Parts of an agent.

    Attributes:
        open_session: Opens a speech session for a conversation, with these options; raises TTSWorkerError.
        model: What answers.
        recognizer: What recognizes speech; None leaves it to the browser.
        instructions: Sent to the model before the turns; may be empty.
        options: Options of the speech sessions; a page may choose another voice.
        is_reachable: Whether the server listens for other devices of the network.
    """

    open_session: Callable[[SessionOptions], Awaitable[Session]]
    model: ChatModel
    recognizer: Recognizer | None = None
    instructions: str = ""
    options: SessionOptions = field(default_factory=speech_options)
    is_reachable: bool = False
