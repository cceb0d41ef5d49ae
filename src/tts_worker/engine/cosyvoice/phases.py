"""Phases of an utterance of the CosyVoice engine, its text and its passes. No tensors."""

from __future__ import annotations

from enum import Enum


class SequencePhase(Enum):
    """Where a sequence is in its life.

    WAITING_VOICE -> PREPARING -> SPEAKING -> ENDED, and WAITING_PAGES in between. While it speaks, tokens and audio
    overlap: see ``TokenPass``.
    """

    WAITING_VOICE = "waiting for its voice"  # which is read from a file
    PREPARING = "preparing"  # the prompt of its voice is not fully computed
    SPEAKING = "speaking"  # text becomes tokens, tokens become audio
    WAITING_PAGES = "waiting for pages"  # that another utterance will return
    ENDED = "ended"  # finished, failed or cancelled: results in flight are dropped


SEQUENCE_TRANSITIONS: dict[SequencePhase, frozenset[SequencePhase]] = {
    SequencePhase.WAITING_VOICE: frozenset({SequencePhase.PREPARING, SequencePhase.SPEAKING, SequencePhase.ENDED}),
    SequencePhase.PREPARING: frozenset({SequencePhase.SPEAKING, SequencePhase.WAITING_PAGES, SequencePhase.ENDED}),
    SequencePhase.SPEAKING: frozenset({SequencePhase.WAITING_PAGES, SequencePhase.ENDED}),
    SequencePhase.WAITING_PAGES: frozenset({SequencePhase.PREPARING, SequencePhase.SPEAKING, SequencePhase.ENDED}),
    SequencePhase.ENDED: frozenset(),
}


class TokenPass(Enum):
    """The pass of the language model that a sequence is in: NONE -> IDS or FIRST_CHUNK -> NONE."""

    NONE = "none"
    IDS = "ids for the host"
    FIRST_CHUNK = "ids that its first chunk is rendered from before the host has read them"


TOKEN_PASS_TRANSITIONS: dict[TokenPass, frozenset[TokenPass]] = {
    TokenPass.NONE: frozenset({TokenPass.IDS, TokenPass.FIRST_CHUNK}),
    TokenPass.IDS: frozenset({TokenPass.NONE}),
    TokenPass.FIRST_CHUNK: frozenset({TokenPass.NONE}),
}


class TextPhase(Enum):
    """How far the text of an utterance is known: OPEN -> ENDED, and TRUNCATED if its speech is cut short."""

    OPEN = "more may follow"
    ENDED = "complete"
    TRUNCATED = "ignored from now on"


TEXT_TRANSITIONS: dict[TextPhase, frozenset[TextPhase]] = {
    TextPhase.OPEN: frozenset({TextPhase.ENDED, TextPhase.TRUNCATED}),
    TextPhase.ENDED: frozenset({TextPhase.TRUNCATED}),
    TextPhase.TRUNCATED: frozenset(),
}
