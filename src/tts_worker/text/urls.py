"""Filter stage for bare URLs.

Recognizes ``http://``, ``https://``, ``ftp://``, ``www.`` and ``mailto:``, with or without angle brackets. Punctuation
at the end of a URL belongs to the sentence. The stage is an automaton over single characters and buffers at most nine
characters before a URL is certain.
"""

from __future__ import annotations

from tts_worker.text.character_filter import SOFT_SPACE, Push
from tts_worker.text.characters import is_unspaced

_PREFIXES = ("http://", "https://", "ftp://", "www.", "mailto:")
_FIRST_LETTERS = frozenset(prefix[0] for prefix in _PREFIXES) | frozenset(prefix[0].upper() for prefix in _PREFIXES)
_NOT_IN_URL = frozenset('<>"`{}|\\^[]')
_TAIL = frozenset(".,;:!?'*_~(")
_HOST_LIMIT = 253
_TAIL_LIMIT = 32


class UrlFilter:
    """Pushes everything but URLs to ``out``; a URL becomes ``SOFT_SPACE`` or its host name."""

    def __init__(self, out: Push, *, host: bool) -> None:
        self._out = out
        self._keeps_host = host
        self._state: Push = self._text
        self._previous = " "
        self._pending: list[tuple[str, int]] = []  # a possible prefix; within a URL, punctuation that may end it
        self._prefix_text = ""  # the possible prefix in lower case
        self._in_angle_brackets = False  # whether the URL is in angle brackets
        self._depth = 0  # open parentheses within the URL
        self._host: list[tuple[str, int]] | None = None

    def push(self, char: str, index: int) -> None:
        self._state(char, index)

    def settle(self) -> None:
        """Resolve pending characters as if the text ended here."""
        if self._state == self._in_url:
            self._end()
        elif self._state != self._text:
            self._release()

    def _text(self, char: str, index: int) -> None:
        if char == "<" or (char in _FIRST_LETTERS and self._begins_word()):
            self._pending = [(char, index)]
            self._in_angle_brackets = char == "<"
            self._prefix_text = "" if self._in_angle_brackets else char.lower()
            self._state = self._prefix
        else:
            self._previous = char
            self._out(char, index)

    def _begins_word(self) -> bool:
        return not self._previous.isalnum() or is_unspaced(self._previous)

    def _release(self) -> None:
        pending = self._pending
        self._pending = []
        self._state = self._text
        for char, index in pending:
            self._previous = char
            self._out(char, index)

    def _prefix(self, char: str, index: int) -> None:
        self._prefix_text += char.lower()
        if self._prefix_text == "mailto:":  # the address is read
            pending = self._pending
            self._pending = []
            self._state = self._text
            self._previous = " "
            if self._in_angle_brackets:
                self._out(*pending[0])
        elif self._prefix_text == "www.":
            self._pending.append((char, index))
            self._state = self._after_www
        elif self._prefix_text in _PREFIXES:
            self._begin()
        elif any(prefix.startswith(self._prefix_text) for prefix in _PREFIXES):
            self._pending.append((char, index))
        else:
            self._release()
            self._text(char, index)

    def _after_www(self, char: str, index: int) -> None:
        if char.isalnum():
            self._begin()
            self._in_url(char, index)
        else:
            self._release()
            self._text(char, index)

    def _begin(self) -> None:
        if not self._keeps_host:
            self._out(SOFT_SPACE, self._pending[0][1])
        self._pending.clear()
        self._host = [] if self._keeps_host else None
        self._depth = 0
        self._state = self._in_url

    def _in_url(self, char: str, index: int) -> None:
        if self._ends(char):
            if self._in_angle_brackets and char == ">":
                self._pending.clear()
                self._end()
            else:
                self._end()
                self._state(char, index)
            return
        self._depth += (char == "(") - (char == ")")
        if char in _TAIL and len(self._pending) < _TAIL_LIMIT:
            self._pending.append((char, index))
            return
        if self._host is not None:
            if char == "@":  # the text before it was a user name
                self._host = []
            elif char in "/#?&=%" or len(self._host) >= _HOST_LIMIT or (self._pending and self._pending[-1][0] == ":"):
                self._emit_host()
            else:
                self._host += [*self._pending, (char, index)]
        self._pending.clear()

    def _ends(self, char: str) -> bool:
        if char <= " " or char in _NOT_IN_URL or (char == ")" and not self._depth):
            return True
        return char > "~" and (is_unspaced(char) or not char.isalnum())

    def _emit_host(self) -> None:
        host = self._host or []
        self._host = None
        if "".join(char for char, _ in host[:4]).lower() == "www.":
            host = host[4:]
        for char, index in host:
            self._out(char, index)

    def _end(self) -> None:
        self._emit_host()
        self._previous = "/"
        tail = self._pending
        self._pending = []
        self._state = self._text
        for char, index in tail:
            self._state(char, index)
