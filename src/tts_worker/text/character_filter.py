"""First stage of the filter: drops characters that are not read aloud.

Drops emoji and their joiners, keycaps, control, zero-width and bidi characters, variation selectors, private use and
unpaired surrogates; folds all other blanks to a plain space or line feed. The look-ahead is one character, because an
emoji selector changes the character before it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from tts_worker.text.characters import is_pictograph

Push = Callable[[str, int], None]
"""Input of a stage: one character and its offset in the original text. Offsets strictly increase."""

SOFT_SPACE = "\u200b"
"""Replaces dropped characters: a space if two words would otherwise be joined, else nothing."""

PARAGRAPH = "\u2029"
"""An intended line break: blank line, list item, heading, table row. A plain line break stays a line feed."""

_LINE_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_KEYCAP = "\u20e3"
_EMOJI_SELECTOR = "\ufe0f"
_TEXT_SELECTOR = "\ufe0e"
_MAY_BECOME_EMOJI = frozenset("0123456789#*©®‼⁉™ℹ↔↕↖↗↘↙↩↪Ⓜ")
# Not read aloud despite their category: combining grapheme joiner, Hangul fillers, object and decoding replacement
# characters; daggers mark footnotes.
_SILENT = frozenset("\u034f\u115f\u1160\u3164\uffa0\ufffc\ufffd†‡" + _KEYCAP)


def is_filtered(char: str) -> bool:
    """Return whether ``char`` is dropped in any context. Line breaks and spaces are folded, not dropped."""
    if char.isascii():
        return (char < " " or char == "\x7f") and not char.isspace()
    if char.isspace():
        return False
    return (
        char in _SILENT
        or is_pictograph(char)
        or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn")
        or "\ufe00" <= char <= "\ufe0f"
        or "\U000e0100" <= char <= "\U000e01ef"
        or "\u180b" <= char <= "\u180f"
    )


class CharacterFilter:
    """Pushes the remaining characters to ``out``, with spaces as ``" "`` and line breaks as ``"\\n"``."""

    def __init__(self, out: Push) -> None:
        self._out = out
        self._pending: tuple[str, int] | None = None  # possible base of an emoji
        self._after_return = False

    def push(self, char: str, index: int) -> None:
        if self._pending is not None:
            pending = self._pending
            self._pending = None
            if char in (_EMOJI_SELECTOR, _KEYCAP):
                self._out(SOFT_SPACE, pending[1])
                return
            self._out(*pending)
        if char in _MAY_BECOME_EMOJI:
            self._pending = (char, index)
        elif " " <= char <= "~":
            self._out(char, index)
        elif char in _LINE_BREAKS:
            if not (char == "\n" and self._after_return):
                self._out("\n", index)
            self._after_return = char == "\r"
            return
        elif char.isspace() or char == "\u2800":
            self._out(" ", index)
        elif is_pictograph(char):
            self._out(SOFT_SPACE, index)
        elif not is_filtered(char):
            self._out(char, index)
        self._after_return = False

    def settle(self) -> None:
        """Resolve the pending character as if the text ended here."""
        if self._pending is not None:
            pending = self._pending
            self._pending = None
            self._out(*pending)
