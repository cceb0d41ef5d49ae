"""Search and cursor pagination of the listed voices. A cursor is the name of a voice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tts_worker.errors import InvalidRequest
from tts_worker.voices.description import VoiceDescription


@dataclass(frozen=True, slots=True)
class VoicePage:
    """One page. ``has_more``: further voices follow in the direction of the paging."""

    voices: Sequence[VoiceDescription]
    has_more: bool


def search(voices: Iterable[VoiceDescription], text: str | None) -> list[VoiceDescription]:
    """Return the voices with ``text`` in their name or description, ignoring case; all of them for None."""
    needle = (text or "").casefold()
    return [voice for voice in voices if needle in f"{voice.name}\n{voice.description}".casefold()]


def page(
    voices: Sequence[VoiceDescription], *, limit: int, after: str | None = None, before: str | None = None
) -> VoicePage:
    """Return at most ``limit`` voices: the first ones after ``after``, or the last ones before ``before``.

    Raises:
        InvalidRequest: A cursor names no voice of the list.
    """
    start = _index(voices, after) + 1 if after is not None else 0
    stop = _index(voices, before) if before is not None else len(voices)
    matches = voices[start:stop]
    if before is not None and after is None:
        return VoicePage(matches[-limit:], len(matches) > limit)
    return VoicePage(matches[:limit], len(matches) > limit)


def _index(voices: Sequence[VoiceDescription], cursor: str) -> int:
    for index, voice in enumerate(voices):
        if voice.name == cursor:
            return index
    raise InvalidRequest("the cursor names no voice of this list")
