"""Third stage of the filter: marks within a line.

Handles emphasis, code spans, links, images, footnotes, tags, entities and escapes. Emphasis marks are classified by
their neighbors alone and never wait for a closing mark; an open ``[`` or ``<`` delays text by at most a few hundred
characters and is then read as plain text. The stage is an automaton over single characters: linear, and independent of
how the stream is split.
"""

from __future__ import annotations

import html
import re

from tts_worker.text.brackets import BracketBuffer
from tts_worker.text.character_filter import PARAGRAPH, SOFT_SPACE, Push, is_filtered
from tts_worker.text.scanners import (
    BREAKING_TAGS,
    CELL_TAGS,
    Step,
    TagScanner,
    TargetScanner,
)

_SPACES = frozenset((" ", "\n", SOFT_SPACE, PARAGRAPH))
_ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CITATION = re.compile(r"\d{1,3}(?:[,–-] ?\d{1,3})*")
_RUN_LIMIT = 64
_COMMENT_LIMIT = 2000
_ENTITY_LIMIT = 10
_REFERENCE_LIMIT = 60


def _is_word(char: str) -> bool:
    return char.isalnum()


class InlineFilter:
    """Pushes readable text to ``out``."""

    def __init__(self, out: Push) -> None:
        self._out = BracketBuffer(out)
        self._emit_break = out
        self._state: Push = self._text
        self._previous = " "  # the preceding original character
        self._at_line_start = True  # no text was emitted on this line
        self._code = 0  # backticks that opened the current code span
        self._open: set[str] = set()  # open emphasis marks
        self._pending: list[tuple[str, int]] = []
        self._skip_closing_angle = False  # the ">" of <name@example.com>
        self._closed_at = 0
        self._tag = TagScanner()
        self._comment_tail = ""
        self._comment_length = 0
        self._target = TargetScanner()
        self._code_handlers: dict[str, Push] = {"\n": self._line_end, PARAGRAPH: self._line_end, "`": self._tick}
        self._handlers: dict[str, Push] = {
            **self._code_handlers,
            **dict.fromkeys("*_~", self._mark),
            "!": self._stager(self._bang),
            "\\": self._stager(self._escape),
            "&": self._stager(self._entity),
            "[": self._bracket,
            "]": self._close,
            "<": self._angle,
            ">": self._close_angle,
            "|": self._stager(self._pipe),
        }

    def push(self, char: str, index: int) -> None:
        self._state(char, index)

    def settle(self) -> None:
        """Resolve pending characters as if the text ended here."""
        while self._state != self._text:  # pending text may begin another mark, a few times at most
            state = self._state
            if state == self._run:
                self._resolve_run(" ")
            elif state == self._ticks:
                self._resolve_ticks()
            elif state == self._after_close:
                self._resolve_close(" ")
                self._state = self._text
            elif state == self._in_target:
                self._not_a_link()
            elif state == self._reference:
                self._not_a_reference()
            elif state in (self._pipe, self._comment):
                self._pending.clear()
                self._state = self._text
            else:
                self._reprocess()
        self._out.give_up()

    def release_mark(self) -> None:
        """Emit an exclamation mark that waits for a bracket ("![image]"): it ends a sentence when the text pauses."""
        if self._state == self._bang:
            self._reprocess()

    def _emit(self, char: str, index: int) -> None:
        self._at_line_start = False
        self._previous = char
        self._out.push(char, index)

    def _reprocess(self) -> None:
        """Emit the first pending character as text and process the others again.

        Pending text never contains another mark of its kind, so a character is processed at most three times.
        """
        pending = self._pending
        self._pending = []
        self._state = self._text
        self._emit(*pending[0])
        for char, index in pending[1:]:
            self._state(char, index)

    def _reprocess_before(self, char: str, index: int) -> None:
        self._reprocess()
        self._state(char, index)

    def _stager(self, state: Push) -> Push:
        def stage(char: str, index: int) -> None:
            self._pending = [(char, index)]
            self._state = state

        return stage

    # -- plain text -----------------------------------------------------------------------------------------------

    def _text(self, char: str, index: int) -> None:
        handler = (self._code_handlers if self._code else self._handlers).get(char)
        if handler is not None:
            handler(char, index)
        elif char in _SPACES:
            self._previous = char
            self._skip_closing_angle = False
            self._out.push(char, index)
        else:
            self._emit(char, index)

    def _line_end(self, char: str, index: int) -> None:
        self._out.give_up()
        self._code = 0
        self._skip_closing_angle = False
        if char == PARAGRAPH:
            self._open.clear()
        self._previous = " "
        self._at_line_start = True
        self._emit_break(char, index)

    def _bang(self, char: str, index: int) -> None:
        """Handle ``![alt](picture)``."""
        if char == "[":
            self._out.open([*self._pending, (char, index)], image=True, at_line_start=self._at_line_start)
            self._pending.clear()
            self._previous = char
            self._state = self._text
        else:
            self._reprocess_before(char, index)

    def _escape(self, char: str, index: int) -> None:
        if char in _ESCAPABLE:
            self._pending.clear()
            self._state = self._text
            self._emit(char, index)
        else:
            self._reprocess_before(char, index)

    def _entity(self, char: str, index: int) -> None:
        if char == ";" and len(self._pending) > 1:
            begin = self._pending[0][1]
            written = "".join(c for c, _ in self._pending) + ";"
            meant = html.unescape(written)
            if meant == written or len(meant) != 1:
                self._reprocess_before(char, index)
                return
            self._pending.clear()
            self._state = self._text
            if meant.isspace():
                self._text(" ", begin)
            elif not is_filtered(meant):
                self._emit(meant, begin)
        elif ((char.isascii() and char.isalnum()) or char == "#") and len(self._pending) <= _ENTITY_LIMIT:
            self._pending.append((char, index))
        else:
            self._reprocess_before(char, index)

    def _pipe(self, char: str, index: int) -> None:
        """Handle ``a | b``, a table without outer pipes or a separator: it becomes a comma. ``a|b`` stays."""
        spaced = self._previous == " "
        _, begin = self._pending[0]
        if spaced and char in _SPACES:
            self._pending.clear()
            self._state = self._text
            if char == " " and not self._at_line_start:
                self._emit(",", begin)
            self._text(char, index)
        else:
            self._reprocess_before(char, index)

    # -- emphasis and code ----------------------------------------------------------------------------------------

    def _mark(self, char: str, index: int) -> None:
        self._pending = [(char, index)]
        self._state = self._run

    def _run(self, char: str, index: int) -> None:
        if char == self._pending[0][0]:
            if len(self._pending) < _RUN_LIMIT:
                self._pending.append((char, index))
            return
        self._resolve_run(char)
        self._text(char, index)

    def _resolve_run(self, following: str) -> None:
        mark = self._pending[0][0]
        pending = self._pending
        self._pending = []
        self._state = self._text
        if self._is_text(mark, len(pending), following):
            for char, index in pending:
                self._emit(char, index)
        self._previous = mark

    def _is_text(self, mark: str, length: int, following: str) -> bool:
        """Return whether a run of ``mark`` is read aloud (``2*3``, ``snake_case``); record the emphasis it opens."""
        before = self._previous
        spaced_left = before in " \n"
        spaced_right = following in _SPACES - {SOFT_SPACE}
        kind = mark * min(length, 2)
        within = _is_word(before) and _is_word(following)
        if mark == "~":
            return length == 1
        if mark == "_":
            return within
        if spaced_left and spaced_right:
            return length == 1
        if before.isdigit() and following.isdigit():
            return True
        if kind not in self._open:
            if length == 1 and (_is_word(before) or before in ")]") and (_is_word(following) or following in "(["):
                return True  # a*b, (a+b)*c
            if length == 2 and within and following.isdigit():
                return True  # x**2
            if not spaced_right:
                self._open.add(kind)
        else:
            self._open.discard(kind)
        return False

    def _tick(self, char: str, index: int) -> None:
        self._pending = [(char, index)]
        self._state = self._ticks

    def _ticks(self, char: str, index: int) -> None:
        if char == "`":
            if len(self._pending) < _RUN_LIMIT:
                self._pending.append((char, index))
            return
        self._resolve_ticks()
        self._text(char, index)

    def _resolve_ticks(self) -> None:
        """Drop backticks. A code span is closed only by as many backticks as opened it."""
        if not self._code:
            self._code = len(self._pending)
        elif self._code == len(self._pending):
            self._code = 0
        self._pending.clear()
        self._previous = "`"
        self._state = self._text

    # -- brackets -------------------------------------------------------------------------------------------------

    def _bracket(self, char: str, index: int) -> None:
        self._out.open([(char, index)], image=False, at_line_start=self._at_line_start)
        self._previous = char

    def _close(self, char: str, index: int) -> None:
        if not self._out.is_open:
            self._emit(char, index)
            return
        self._closed_at = index
        self._state = self._after_close

    def _after_close(self, char: str, index: int) -> None:
        if char == "(" and not self._out.content().startswith("^"):
            self._pending = [(char, index)]
            self._target = TargetScanner()
            self._state = self._in_target
        elif char == "[" and not self._is_footnote():
            self._pending = [(char, index)]
            self._state = self._reference
        else:
            definition = self._resolve_close(char)
            self._state = self._text
            if not definition:
                self._text(char, index)

    def _is_footnote(self) -> bool:
        """Return whether the bracket is a footnote or citation: ``[^1]``, ``[1]``, ``[2, 3]``."""
        content = self._out.content()
        return content.startswith("^") or _CITATION.fullmatch(content) is not None

    def _resolve_close(self, following: str) -> bool:
        """Resolve a bracket without target; return True if ``following`` is the colon of a footnote definition."""
        if self._out.is_image or not self._is_footnote():
            self._out.keep()
            self._emit("]", self._closed_at)
            return False
        definition = following == ":" and self._out.is_at_line_start
        self._out.drop()
        return definition

    def _in_target(self, char: str, index: int) -> None:
        step = self._target.feed(char)
        if step is Step.MORE:
            if not self._target.is_long:
                self._pending.append((char, index))
        elif step is Step.DONE:
            self._pending.clear()
            if self._out.is_image or self._is_footnote():
                self._out.drop()
            else:
                self._out.unwrap()
            self._previous = char
            self._state = self._text
        else:
            self._not_a_link()
            self._state(char, index)

    def _not_a_link(self) -> None:
        self._out.keep()
        self._emit("]", self._closed_at)
        if self._target.is_long:
            del self._pending[1:]
        self._reprocess()

    def _reference(self, char: str, index: int) -> None:
        """Handle ``[text][label]``."""
        if char == "]":
            self._pending.clear()
            if self._out.is_image:
                self._out.drop()
            else:
                self._out.unwrap()
            self._previous = char
            self._state = self._text
        elif char in ("[", "\n", PARAGRAPH) or len(self._pending) > _REFERENCE_LIMIT:
            self._not_a_reference()
            self._state(char, index)
        else:
            self._pending.append((char, index))

    def _not_a_reference(self) -> None:
        self._out.keep()
        self._emit("]", self._closed_at)
        self._reprocess()

    # -- tags -----------------------------------------------------------------------------------------------------

    def _angle(self, char: str, index: int) -> None:
        self._pending = [(char, index)]
        self._tag = TagScanner()
        self._state = self._in_tag

    def _close_angle(self, char: str, index: int) -> None:
        if self._skip_closing_angle:
            self._skip_closing_angle = False
        else:
            self._emit(char, index)

    def _in_tag(self, char: str, index: int) -> None:
        step = self._tag.feed(char)
        if step is Step.MORE:
            self._pending.append((char, index))
        elif step is Step.FAIL:
            if char == "@" and self._tag.name:  # <name@example.com>
                del self._pending[0]
                self._skip_closing_angle = True
            self._reprocess_before(char, index)
        elif self._tag.comment:
            self._pending = []
            self._comment_tail = ""
            self._comment_length = 0
            self._state = self._comment
        else:
            self._pending.clear()
            self._state = self._text
            if self._tag.name.lower() in BREAKING_TAGS:
                self._line_end(PARAGRAPH, index)
            elif self._tag.name.lower() in CELL_TAGS:
                self._text(" ", index)

    def _comment(self, char: str, index: int) -> None:
        self._comment_tail = (self._comment_tail + char)[-3:]
        self._comment_length += 1
        if self._comment_tail == "-->" or self._comment_length >= _COMMENT_LIMIT:
            self._state = self._text
