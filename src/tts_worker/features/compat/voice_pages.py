"""Search of voices, and cursor pagination of lists. A cursor is the name of a voice or a lexicon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tts_worker.errors import InvalidRequest
from tts_worker.voices.description import VoiceDescription


class Named(Protocol):
    """Has a name, which no other one of its list has."""

    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)


@dataclass(frozen=True)
class Page(Generic[Item]):
    """One page. ``has_more``: further items follow in the direction of the paging."""

    items: Sequence[Item]
    has_more: bool


def search(voices: Iterable[VoiceDescription], text: str | None) -> list[VoiceDescription]:
    """Return the voices with ``text`` in their name or description, ignoring case; all of them for None."""
    needle = (text or "").casefold()
    return [voice for voice in voices if needle in f"{voice.name}\n{voice.description}".casefold()]


def page(items: Sequence[Item], *, limit: int, after: str | None = None, before: str | None = None) -> Page[Item]:
    """Return at most ``limit`` items: the first ones after ``after``, or the last ones before ``before``.

    Raises:
        InvalidRequest: A cursor names nothing in the list.
    """
    start = _index(items, after) + 1 if after is not None else 0
    stop = _index(items, before) if before is not None else len(items)
    matches = items[start:stop]
    if before is not None and after is None:
        return Page(matches[-limit:], len(matches) > limit)
    return Page(matches[:limit], len(matches) > limit)


def _index(items: Sequence[Named], cursor: str) -> int:
    for index, item in enumerate(items):
        if item.name == cursor:
            return index
    raise InvalidRequest("the cursor names nothing in this list")
