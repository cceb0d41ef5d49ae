"""Second stage of the filter: Markdown at the start of lines.

Drops the marks of headings, list items, block quotes, rules, tables and fenced code, turns table pipes into commas, and
marks intended line breaks with ``PARAGRAPH``. It is an automaton over single characters, so the result does not depend
on how the stream is split. It buffers at most a line's marker (about 64 characters) or the first 100 characters after a
fence; fenced code is dropped, not buffered.
"""

from __future__ import annotations

from tts_worker.text.character_filter import PARAGRAPH, SOFT_SPACE, Push

_BULLETS = "-+*•‣⁃"
_MARKERS = _BULLETS + "_="
_RUN_LIMIT = 64
_DELIMITER_LIMIT = 200
_INFO_LIMIT = 100
_FENCE = 3


class BlockFilter:
    """Pushes inline text to ``out``. An unclosed fence drops everything after it, as in CommonMark."""

    def __init__(self, out: Push) -> None:
        self._out = out
        self._state: Push = self._indent
        self._pending: list[tuple[str, int]] = []
        self._after_bullet = False
        self._heading = False
        self._row = False
        self._cell_seen = False  # whether the row has a cell with content
        self._pipe: int | None = None  # offset of the pipe before the next cell
        self._fence_char = ""
        self._fence_length = 0
        self._info_length = 0  # characters after the opening fence
        self._fence_run = 0
        self._fence_line_open = False  # whether the line has only fence characters so far
        self._inline_ticks = 0  # backticks that opened a long code span on this line

    def push(self, char: str, index: int) -> None:
        self._state(char, index)

    def settle(self) -> None:
        """Resolve pending characters as if the line ended here. Fences stay open."""
        state = self._state
        if state == self._ticks and len(self._pending) >= _FENCE:
            self._begin_info()
        if self._state == self._info:  # the fence stays open, so its pending text is code
            self._pending.clear()
        elif state in (self._number, self._ticks, self._checkbox) or self._is_sign():
            self._release()
        elif state == self._fence and self._fence_line_open and self._fence_run >= self._fence_length:
            self._state = self._body
        elif state not in (self._info, self._fence, self._indent):
            self._pending.clear()
            self._state = self._body

    def _is_sign(self) -> bool:
        return self._state == self._marker and len(self._pending) == 1 and self._pending[0][0] in "-+"

    def _release(self) -> None:
        """Emit the pending characters as ordinary text."""
        pending = self._pending
        self._pending = []
        self._state = self._body
        for char, index in pending:
            self._out(char, index)

    def _release_before(self, char: str, index: int) -> None:
        self._release()
        self._body(char, index)

    def _end_line(self, mark: str, index: int) -> None:
        self._pending.clear()
        self._heading = self._row = self._after_bullet = False
        self._inline_ticks = 0
        self._state = self._indent
        self._out(mark, index)

    # -- at the start of a line -----------------------------------------------------------------------------------

    def _indent(self, char: str, index: int) -> None:
        if char in (" ", SOFT_SPACE):
            return
        if char == "\n":
            self._end_line(PARAGRAPH, index)
        elif char == ">" and not self._after_bullet:
            return
        elif char == "#":
            self._stage(self._hashes, char, index)
        elif char in _MARKERS:
            self._stage(self._marker, char, index)
        elif "0" <= char <= "9":
            self._stage(self._number, char, index)
        elif char in "`~":
            self._fence_char = char
            self._stage(self._ticks, char, index)
        elif char == "[" and self._after_bullet:
            self._stage(self._checkbox, char, index)
        elif char == "|" and not self._after_bullet:
            self._out(PARAGRAPH, index)
            self._row = True
            self._cell_seen = False
            self._pipe = None
            self._state = self._cell
        else:
            self._state = self._body
            self._body(char, index)

    def _stage(self, state: Push, char: str, index: int) -> None:
        self._pending.append((char, index))
        self._state = state

    def _hashes(self, char: str, index: int) -> None:
        if char == "#" and len(self._pending) < 6:
            self._pending.append((char, index))
        elif char == " ":
            self._out(PARAGRAPH, self._pending[0][1])
            self._pending.clear()
            self._heading = True
            self._state = self._body
        elif char == "\n":
            self._end_line(PARAGRAPH, index)
        else:
            self._release_before(char, index)

    def _marker(self, char: str, index: int) -> None:
        """Handle a run of bullet or rule characters: ``- item``, ``---``, ``**bold**``, ``-- text``."""
        mark, first = self._pending[0]
        length = len(self._pending)
        if char == mark and self._pending[-1][0] == mark:
            if length < _RUN_LIMIT:
                self._pending.append((char, index))
        elif char in (" ", SOFT_SPACE):
            if length == 1 and mark in _BULLETS:
                self._pending.clear()
                self._after_bullet = True
                self._state = self._indent
                self._out(PARAGRAPH, first)
            elif self._pending[-1][0] == mark:
                self._pending.append((" ", index))
        elif char == "\n":
            self._end_line(PARAGRAPH, index)
        elif char in "|:" and mark == "-" and length > 1:
            self._stage(self._delimiter, char, index)
        elif mark in "•‣⁃":
            self._pending.clear()
            self._out(PARAGRAPH, first)
            self._state = self._body
            self._body(char, index)
        else:
            self._release_before(char, index)

    def _number(self, char: str, index: int) -> None:
        """Handle ``1. item``: the number is read and the line is a list item."""
        last = self._pending[-1][0]
        if last.isdigit() and ("0" <= char <= "9" or char in ".)") and len(self._pending) < 10:
            self._pending.append((char, index))
        elif char == " " and last in ".)":
            self._out(PARAGRAPH, self._pending[0][1])
            self._release_before(char, index)
        else:
            self._release_before(char, index)

    def _checkbox(self, char: str, index: int) -> None:
        """Handle ``- [x] item``."""
        want = ("[", " xX", "]", " ")[len(self._pending)]
        if char not in want:
            self._release_before(char, index)
        elif len(self._pending) == 3:
            self._pending.clear()
            self._state = self._body
        else:
            self._pending.append((char, index))

    def _delimiter(self, char: str, index: int) -> None:
        """Handle ``--- | :--:``, the line below a table header without outer pipes."""
        if char == "\n":
            self._end_line(PARAGRAPH, index)
        elif char in "-:| " and len(self._pending) < _DELIMITER_LIMIT:
            self._pending.append((char, index))
        else:
            self._release_before(char, index)

    # -- within a line --------------------------------------------------------------------------------------------

    def _body(self, char: str, index: int) -> None:
        if char == "\n":
            self._end_line(PARAGRAPH if self._heading or self._row else "\n", index)
        elif char == "`":
            self._fence_char = char
            self._stage(self._ticks, char, index)
        elif char == "\\":
            self._out(char, index)
            self._state = self._escaped
        elif char == "|" and self._row:
            self._pipe = index
            self._state = self._cell
        elif char == "#" and self._heading:
            self._stage(self._closing, char, index)
        else:
            self._out(char, index)

    def _escaped(self, char: str, index: int) -> None:
        self._state = self._body
        if char == "\n":
            self._body(char, index)
        else:
            self._out(char, index)

    def _closing(self, char: str, index: int) -> None:
        """Handle the closing marks of ``# Heading ##``."""
        if char == "\n":
            self._end_line(PARAGRAPH, index)
        elif char in "# " and len(self._pending) < _RUN_LIMIT:
            self._pending.append((char, index))
        else:
            self._release_before(char, index)

    def _cell(self, char: str, index: int) -> None:
        """Handle the text after a pipe. The comma is emitted with the first content of the cell; ``|---|`` has none."""
        if char == "\n":
            self._end_line(PARAGRAPH, index)
        elif char == "|":
            self._pending.clear()
        elif char in "-:":
            if len(self._pending) < _RUN_LIMIT:
                self._pending.append((char, index))
        elif char in (" ", SOFT_SPACE):
            if self._pending and self._pending[-1][0] != " ":
                self._pending.append((" ", index))
        else:
            begin = self._pending[0][1] if self._pending else index
            if self._pipe is not None and self._cell_seen:
                self._out(",", self._pipe)
                if begin > self._pipe + 1:
                    self._out(" ", begin - 1)
            self._cell_seen = True
            self._release_before(char, index)

    # -- code -----------------------------------------------------------------------------------------------------

    def _ticks(self, char: str, index: int) -> None:
        if char == self._fence_char:
            if len(self._pending) < _RUN_LIMIT:
                self._pending.append((char, index))
        elif len(self._pending) < _FENCE:
            self._release_before(char, index)
        elif self._fence_char == "`" and self._inline_ticks == len(self._pending):
            self._inline_ticks = 0
            self._release_before(char, index)
        else:
            self._begin_info()
            self._info(char, index)

    def _begin_info(self) -> None:
        self._fence_length = len(self._pending)
        self._info_length = 0
        self._state = self._info

    def _info(self, char: str, index: int) -> None:
        """Handle the line after an opening fence. Further backticks or a long line mean that it is a code span."""
        if char == "\n":
            self._pending.clear()
            self._fence_run = 0
            self._fence_line_open = True
            self._state = self._fence
        elif char == self._fence_char == "`":
            self._release()
            self._out(char, index)
            self._state = self._closing_ticks
        elif self._info_length < _INFO_LIMIT:
            self._info_length += 1
            self._pending.append((char, index))
        else:
            self._inline_ticks = self._fence_length
            self._release_before(char, index)

    def _closing_ticks(self, char: str, index: int) -> None:
        if char == "`":
            self._out(char, index)
        else:
            self._state = self._body
            self._body(char, index)

    def _fence(self, char: str, index: int) -> None:
        if char == "\n":
            if self._fence_line_open and self._fence_run >= self._fence_length:
                self._end_line(PARAGRAPH, index)
            self._fence_run = 0
            self._fence_line_open = True
        elif self._fence_line_open:
            if char == self._fence_char:
                self._fence_run += 1
            elif char in (" ", SOFT_SPACE) and self._fence_run >= self._fence_length:
                self._state = self._body
                self._out(PARAGRAPH, index)
            elif char not in (" ", SOFT_SPACE, ">") or self._fence_run:
                self._fence_line_open = False
