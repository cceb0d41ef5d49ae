"""The listed voices as vendors' clients page through them: searched, then cut by a cursor.

A cursor is the name of a voice. It knows no vendor's field names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tts_worker.errors import InvalidRequest
from tts_worker.voices import Voice


@dataclass(frozen=True, slots=True)
class VoicePage:
    """``has_more``: voices follow in the direction of the paging."""

    voices: Sequence[Voice]
    has_more: bool


def search(voices: Iterable[Voice], text: str | None) -> list[Voice]:
    """The voices with ``text`` in their name or description, in any case; all of them for None."""
    wanted = (text or "").casefold()
    return [voice for voice in voices if wanted in f"{voice.name}\n{voice.description}".casefold()]


def page(voices: Sequence[Voice], *, limit: int, after: str | None = None, before: str | None = None) -> VoicePage:
    """At most ``limit`` voices behind ``after``, or those that end right in front of ``before``.

    Raises InvalidRequest for a cursor that names no voice of the list.
    """
    start = _place(voices, after) + 1 if after is not None else 0
    stop = _place(voices, before) if before is not None else len(voices)
    found = voices[start:stop]
    if before is not None and after is None:
        return VoicePage(found[-limit:], len(found) > limit)
    return VoicePage(found[:limit], len(found) > limit)


def _place(voices: Sequence[Voice], cursor: str) -> int:
    for place, voice in enumerate(voices):
        if voice.name == cursor:
            return place
    raise InvalidRequest("the cursor names no voice of this list")
