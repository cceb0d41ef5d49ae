"""Control tags: tags in the text that an engine acts on, such as ``[laughter]``, ``<strong>`` or ``[AA1]``.

They are not markup for this package: the filter passes each on as a unit, whose phonemes are the tag itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from tts_worker.text.patience import UndecidedError

PHONEME_ALPHABETS = ("cmu-arpabet", "x-arpabet", "pinyin", "x-pinyin")
"""Alphabets of engines whose model has phonemes. Such an engine knows no IPA: it reads the text instead."""

_TAG = re.compile(r"[\[<][^\[\]<>\s]{0,30}[\]>]?")


class ControlTags:
    """Finds the control tags of one engine."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = frozenset(tags)
        self._beginnings = {tag[:length] for tag in self._tags for length in range(1, len(tag))}

    def __contains__(self, tag: str) -> bool:
        return tag in self._tags

    def length_at(self, text: str, at: int) -> int:
        """Return the length of the tag at ``at``, 0 if there is none.

        Raises:
            UndecidedError: Its rest may follow.
        """
        found = _TAG.match(text, at)
        if found is None:
            return 0
        if found[0] in self._tags:
            return len(found[0])
        if found.end() == len(text) and found[0] in self._beginnings:
            raise UndecidedError
        return 0


@cache
def control_tags(tags: tuple[str, ...], phonemes: tuple[str, ...]) -> ControlTags | None:
    """Return what finds the tags and phonemes of an engine in a text; None if it has neither."""
    return ControlTags((*tags, *(f"[{phoneme}]" for phoneme in phonemes))) if tags or phonemes else None
