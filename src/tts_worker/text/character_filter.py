"""First stage of the filter: drops characters that are not read aloud.

Drops emoji and their joiners, keycaps, control, zero-width and bidi characters, variation selectors, private use and
unpaired surrogates; folds all other blanks to a plain space or line feed. The look-ahead is one character, because an
emoji selector changes the character before it.
"""

from __future__ import annotations

import re
import unicodedata

from tts_worker.text.characters import is_pictograph
from tts_worker.text.mapped_text import MappedText

SOFT_SPACE = "\u200b"
"""Replaces dropped characters: a space if two words would otherwise be joined, else nothing."""

PARAGRAPH = "\u2029"
"""An intended line break: blank line, list item, heading, table row. A plain line break stays a line feed."""

BREAK = "\ufdd0"
"""A silence of given length. The character is never in text: it is filtered."""

NO_PAUSE = -1
"""Length of a break that only ends the segment."""

LINE_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_KEYCAP = "\u20e3"
_EMOJI_SELECTOR = "\ufe0f"
_MAY_BECOME_EMOJI = frozenset("0123456789#*©®‼⁉™ℹ↔↕↖↗↘↙↩↪Ⓜ")
# Not read aloud despite their category: combining grapheme joiner, Hangul fillers, object and decoding replacement
# characters; daggers mark footnotes.
_SILENT = frozenset("\u034f\u115f\u1160\u3164\uffa0\ufffc\ufffd†‡" + _KEYCAP)

# Everything but characters in common use that are read aloud, and line feeds after a carriage return.
_UNUSUAL = re.compile(
    "[^ -~\u00a1-\u00ac\u00ae-\u024f\u0300-\u034e\u0391-\u03a1\u03a3-\u0482\u048a-\u052f\u0e01-\u0e3a\u0e40-\u0e5b"
    "\u2010-\u2015\u2018-\u201f\u2026\u20a0-\u20bf\u3001-\u3029\u3041-\u3096\u30a1-\u30ff\u3400-\u4dbf\u4e00-\u9fef"
    "\uac00-\ud7a3\uff01-\uff5e](?:(?<!\n)|(?<=\r\n))"
)


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
    """Appends the remaining characters to ``out``, with spaces as ``" "`` and line breaks as ``"\\n"``."""

    def __init__(self, out: MappedText) -> None:
        self._out = out
        self.held = ""  # possible base of an emoji
        self._held_at = 0
        self._after_return = False

    def push(self, text: str, start: int) -> None:
        """Take the next characters of the text, of which the first has the offset ``start``."""
        append = self._out.append
        last = text[-1]
        if not (self.held or self._after_return or last in _MAY_BECOME_EMOJI or _UNUSUAL.search(text)):  # most text
            append(text, start)
            return
        begin = 1 if self._after_return and text[0] == "\n" else 0  # of the run that is not passed on yet
        self._after_return = last == "\r"
        start -= len(self.held)
        text = self.held + text
        self.held = last if last in _MAY_BECOME_EMOJI else ""
        end = len(text) - len(self.held)
        self._held_at = start + end
        for unusual in _UNUSUAL.finditer(text, begin, end):
            place = unusual.start()
            char = text[place]
            replaced = _replacement(char)
            if replaced == char:
                continue
            run_end = place
            if char in _EMOJI_SELECTOR + _KEYCAP and place > begin and text[place - 1] in _MAY_BECOME_EMOJI:
                run_end -= 1
                replaced = SOFT_SPACE
            append(text[begin:run_end], start + begin)
            append(replaced, start + run_end)
            begin = place + 1
        append(text[begin:end], start + begin)

    def settle(self) -> None:
        """Resolve the held character as if the text ended here."""
        self._out.append(self.held, self._held_at)
        self.held = ""


def _replacement(char: str) -> str:
    """Return what an unusual character is replaced by. A line feed after a carriage return belongs to it."""
    if char in LINE_BREAKS:
        return "" if char == "\n" else "\n"
    if char.isspace() or char == "\u2800":
        return " "
    if is_pictograph(char):
        return SOFT_SPACE
    return "" if is_filtered(char) else char
