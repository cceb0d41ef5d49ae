"""Removes text that is not read aloud: Markdown, tags, reasoning, URLs, emoji and invisible characters.

The scanner for Markdown and URLs reads what ``CharacterFilter`` leaves. It appends plain text to ``ReadableText`` in
runs, up to the next mark that one regular expression finds, and decides a mark when the text that decides it has
arrived; so the result does not depend on how the stream is split, and the work is linear. The delay is one character
outside an open mark, and at most a few hundred characters after an open ``[`` or ``<``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from tts_worker.text import directions, formulas, markup, reasoning
from tts_worker.text.blocks import Block, EnclosedBlock, JsonValue, Url
from tts_worker.text.character_filter import BREAK, NO_PAUSE, PARAGRAPH, SOFT_SPACE, CharacterFilter
from tts_worker.text.expression import ExpressionTrack, delivery
from tts_worker.text.language import primary_tag
from tts_worker.text.mapped_text import MappedText
from tts_worker.text.markup import SPACES
from tts_worker.text.options import TextOptions
from tts_worker.text.patience import NO_PATIENCE, Patience, UndecidedError
from tts_worker.text.readable import ReadableText
from tts_worker.text.tables import PATTERNS
from tts_worker.types import Span, UrlMode

_SPELL_LIMIT = 200
"""Characters that an unclosed ``<spell>`` spells."""

_INDENT = f" >{SOFT_SPACE}"
_ENDED_BLOCKS = ("heading", "row")
"""Blocks that end with their line."""


_MAX_PATIENCE = 1024


_T = TypeVar("_T")


class _Mode(Enum):
    """What the next character is read as."""

    TEXT = "text within a line"
    LINE_START = "the mark of a heading, list item, block quote, rule or table"
    SPELLED = "a character of <spell>"
    BLOCK = "reasoning, code, or another block that is not read"

    __hash__ = object.__hash__  # by identity, which is faster


class TextFilter:
    """Passes readable text to ``out``: single spaces, ``"\\n"`` at the end of a paragraph, ``BREAK``, replacements.

    ``_source`` holds the undecided text and the character before it. A handler reads what begins at a place and returns
    the place after it. It changes nothing before the text that it needs has arrived; with ``_is_final`` it decides as
    if the text ended there.

    Args:
        out: Takes the text that is read.
        options: How text is read. Formulas are read in words if its language is English or None.
        pauses: Gets the length in ms of every ``BREAK``, by its offset.
        expression: Gets the changes of how the text is spoken.
    """

    def __init__(
        self, out: ReadableText, options: TextOptions, pauses: dict[int, int], expression: ExpressionTrack
    ) -> None:
        self._source = MappedText()
        self._source.append(" ", -1)
        self._characters = CharacterFilter(self._source)
        self._text = " "  # of the source, or of the link that is read
        self._shift: int | None = None  # from places to offsets, if all of the source is adjacent
        self._out = out
        self._pauses = pauses
        self._expression = expression
        self._options = options
        self._urls = UrlMode(options.urls)
        self._is_final = False
        self._patience: Patience | None = NO_PATIENCE  # of what is undecided
        self._in_english = primary_tag(options.language or "en") == "en"
        self._line_mode = _Mode.LINE_START if options.markdown or options.drop_reasoning else _Mode.TEXT
        self._mode = self._line_mode
        self._readers: dict[_Mode, Callable[[int], int]] = {
            _Mode.LINE_START: self._line_start if options.markdown else self._plain_line,
            _Mode.SPELLED: self._spelled,
            _Mode.BLOCK: self._skip_block,
        }
        # the line
        self._block = ""  # "heading", "row", or "bullet" until more of the line is known
        self._cell_seen = False  # whether the row has a cell with content
        self._at_line_start = True  # whether no text of the line was passed on
        self._skipped: Block | None = None  # with the mode BLOCK
        self._skipped_at = 0  # its original offset
        if options.drop_reasoning == "from_start":
            self._skipped = EnclosedBlock("from_start")
            self._mode = _Mode.BLOCK
        # within the line
        self._code = 0  # backticks that opened the current code span
        self._open: set[str] = set()  # open emphasis marks
        self._spelled_left = 0  # characters that an open <spell> tag may still spell
        self._closing_spelled = markup.CLOSING_SPELLED["spell"]
        has_urls = self._urls is not UrlMode.KEEP
        has_tags = options.drop_reasoning or options.control_tags is not None
        chars = markup.TEXT_MARKS if options.markdown else r"<\[" if has_tags else "<" * has_urls
        self._text_marks = markup.marks(markup.LINE_MARKS + chars, urls=has_urls)
        self._code_marks = markup.marks(markup.LINE_MARKS + markup.CODE_MARKS, urls=has_urls)
        self._marks = self._text_marks  # where plain text ends
        self._handlers: dict[str, Callable[[int], int]] = {
            **dict.fromkeys(markup.CLOSE_UP, self._plain),
            "\n": self._line_end,
            SOFT_SPACE: self._gap,
            "\\": self._escape,
            "!": self._image if options.markdown else self._plain,
            "&": self._entity,
            "[": self._bracket,
            "<": self._angle,
            "$": self._dollar,
            "^": self._caret,
            "|": self._pipe,
            "#": self._closing_hashes,
            **dict.fromkeys("`~", self._ticks),
            **dict.fromkeys("*_", self._emphasis),
            **dict.fromkeys(markup.URL_LETTERS, self._url),
        }

    # -- the stream ---------------------------------------------------------------------------------------------------

    @property
    def patience(self) -> Patience | None:
        """Which text changes nothing that is pending; None if nothing is that a segment may end before."""
        if len(self._text) == 1:  # nothing waits
            if self._skipped is not None:
                return _MAX_PATIENCE, self._skipped.marks
        elif self._patience is not None:
            return self._patience
        if self._mode is _Mode.SPELLED:
            return self._patience
        return NO_PATIENCE if self._out.is_undecided else None

    @property
    def unclosed_at(self) -> int | None:
        """Original offset of the block that is open; None if there is none."""
        return None if self._skipped is None else self._skipped_at

    def push(self, text: str, start: int) -> None:
        """Take the next characters of the text, of which the first has the offset ``start``."""
        self._characters.push(text, start)
        self._read()

    def settle(self) -> None:
        """Resolve pending characters at the end of the text."""
        self._characters.settle()
        self._is_final = True
        self._read()
        self._is_final = False
        if self._skipped is not None and self._skipped.ends_with_text:
            self._mode = _Mode.TEXT
            self._skipped = None

    def flush(self) -> None:
        """Resolve pending characters as if the text ended here; more text may follow."""
        self.settle()
        self._out.flush()

    def release_mark(self) -> None:
        """Emit an exclamation mark that waits for a bracket ("![image]"): it ends a sentence when the text pauses."""
        if self._text[1:] == "!" and self._mode is _Mode.TEXT:
            self._shift = self._source.shift
            self._forget(self._plain(1))

    def _read(self) -> None:
        """Read what can be decided, and forget it; the last character that is read stays."""
        self._text = self._source.text
        self._shift = self._source.shift
        self._patience = NO_PATIENCE
        self._forget(self._scan(1))

    def _forget(self, at: int) -> None:
        if at > 1:
            self._source.cut(at - 1)
            self._text = self._source.text

    def _offset(self, place: int) -> int:
        """Return the offset of the character at ``place`` in the original text."""
        return self._source.offset(place) if self._shift is None else place + self._shift

    def _scan(self, at: int) -> int:
        """Read ``_text`` from ``at`` and return the place of the first undecided character."""
        text = self._text
        end = len(text)
        handlers = self._handlers
        try:
            while at < end:
                if self._mode is not _Mode.TEXT:
                    at = self._readers[self._mode](at)
                    continue
                mark = self._marks.search(text, at)
                place = mark.start() if mark else end
                if at < place:
                    at = self._keep(at, place)
                if mark:
                    at = handlers[text[at]](at)
        except UndecidedError as error:
            self._patience = error.patience
        return at

    def _wait_for(self, place: int, until: re.Pattern[str] | None = None, *, is_quiet: bool = False) -> None:
        """Go on only if the character at ``place`` has arrived, or never will.

        Args:
            place: The place.
            until: What may tell before.
            is_quiet: Whether no segment ends before what is undecided.
        """
        missing = place + 1 - len(self._text)
        if missing > 0 and not self._is_final:
            raise UndecidedError((missing - 1, until) if until else None if is_quiet else NO_PATIENCE)

    def _match(self, name: str, at: int) -> re.Match[str] | None:
        return PATTERNS[name].match(self._text, at)

    def _end_of(self, name: str, at: int, *, is_quiet: bool = False) -> int:
        """Return the end of what a pattern matches at ``at``, when the character there has arrived."""
        match = self._match(name, at)
        end = match.end() if match else at
        if end == len(self._text):
            self._wait_for(end, is_quiet=is_quiet)
        return end

    def _found(self, find: Callable[[str, int], _T], at: int) -> _T | None:
        """Return what ``find`` finds at ``at``; None if the text ends before that is decided."""
        try:
            return find(self._text, at)
        except UndecidedError:
            if self._is_final:
                return None
            raise

    # -- output -------------------------------------------------------------------------------------------------------

    def _keep(self, first: int, last: int) -> int:
        """Pass on the text from ``first`` to ``last`` as it is, and return ``last``."""
        if first < last:
            self._at_line_start = False
            if self._shift is not None:
                self._out.run(self._text[first:last], first + self._shift)
            else:
                for span in self._source.spans(first, last):
                    self._out.run(span.text, span.start)
        return last

    def _plain(self, at: int) -> int:
        return self._keep(at, at + 1)

    def _write(self, char: str, place: int) -> None:
        """Pass on ``char`` instead of the character at ``place``."""
        self._at_line_start = False
        self._out.run(char, self._offset(place))

    def _gap(self, place: int) -> int:
        """Read the place of dropped characters."""
        self._at_line_start = False
        self._out.gap(self._offset(place))
        return place + 1

    def _speak(self, spoken: str, first: int, last: int, phonemes: str | None = None) -> int:
        """Pass on a replacement of the text from ``first`` to ``last``, and return ``last``."""
        self._at_line_start = False
        self._out.unit(Span(spoken, self._offset(first), self._offset(last - 1) + 1, phonemes))
        return last

    def _drop(self, first: int, last: int) -> int:
        """Pass on a space instead of the text from ``first`` to ``last``, and return ``last``."""
        if not self._at_line_start:
            self._write(" ", first)
        return last

    def _pause(self, pause_ms: int, place: int) -> None:
        """Pass on a silence instead of the character at ``place``."""
        self._pauses[self._offset(place)] = pause_ms
        self._break(BREAK, place)

    def _cut_at_style(self, place: int) -> None:
        """End the segment at ``place`` if the style has changed and the engine has one for each segment."""
        if self._options.cuts_styles and self._expression.take_style_change():
            self._pauses[self._offset(place)] = NO_PAUSE
            self._break(BREAK, place)

    def _break(self, char: str, place: int) -> None:
        """Pass on a line break or silence, which ends all marks within the line."""
        if self._code:
            self._set_code(0)
        if char == PARAGRAPH:
            self._open.clear()
        self._at_line_start = True
        self._out.end_line(char, self._offset(place))

    def _end_line(self, char: str, place: int) -> int:
        self._block = ""
        self._mode = self._line_mode
        self._break(char, place)
        return place + 1

    # -- the start of a line ------------------------------------------------------------------------------------------

    def _line_start(self, at: int) -> int:
        """Read the mark of a heading, list item, block quote, rule or table."""
        char = self._text[at]
        if char.isalpha():
            self._mode = _Mode.TEXT
            return at
        if char == "\n":
            return self._end_line(PARAGRAPH, at)
        if char in "{[" and self._begins_call(at):
            return at
        indent = "INDENT_AFTER_BULLET" if self._block == "bullet" else "INDENT"
        if char in _INDENT and (blanks := self._match(indent, at)):
            return blanks.end()
        mark = self._match("LINE_MARK", at)
        kind = mark.lastgroup if mark else None
        end = mark.end() if mark else at
        if kind in ("rule", "cut") and end == len(self._text):
            self._wait_for(end, is_quiet=True)
            self._mode = _Mode.TEXT
            return at if kind == "cut" or self._text[at:] in ("-", "+") else end
        if kind == "rule":
            return self._end_line(PARAGRAPH, self._text.index("\n", end - 1))
        if kind == "bullet":
            self._break(PARAGRAPH, at)
            self._block = kind
            return end
        self._mode = _Mode.TEXT
        return end if kind is not None and self._begin_block(kind, at) else at

    def _plain_line(self, at: int) -> int:
        """Begin a line without Markdown."""
        if self._text[at] not in "{[" or not self._begins_call(at):
            self._mode = _Mode.TEXT
        return at

    def _begin_block(self, kind: str, at: int) -> bool:
        """Begin the text of a heading, item or row; return whether its mark is dropped."""
        if kind == "checkbox":
            return self._block == "bullet"
        if kind != "row" or self._block != "bullet":
            self._block = kind
            self._cell_seen = False
            self._break(PARAGRAPH, at)
        return kind in ("heading", "dot")

    # -- blocks that are not read -------------------------------------------------------------------------------------

    def _hidden(self, at: int) -> int | None:
        """Read the beginning of reasoning or tool text, or a stray end of it; None if there is none at ``at``."""
        text = self._text
        if not self._options.drop_reasoning or self._code or (text[at - 1] == "`" and not self._options.markdown):
            return None
        block, end = reasoning.begin(text, at, is_final=self._is_final)
        if block is None:
            return self._drop(at, end) if end else None
        self._drop(at, end)
        return self._skip(block, at, end)

    def _begins_call(self, at: int) -> bool:
        """Begin to skip a call in JSON at the start of a line; return whether there is one."""
        begins = self._options.drop_reasoning and self._found(reasoning.begins_call, at)
        if begins:
            self._skip(JsonValue(), at, at)
        return bool(begins)

    def _skip(self, block: Block, at: int, first: int) -> int:
        """Begin to skip a block whose opening ranges from ``at`` to ``first``."""
        self._skipped = block
        self._skipped_at = self._offset(at)
        self._mode = _Mode.BLOCK
        return first

    def _skip_block(self, at: int) -> int:
        block = self._skipped
        assert block is not None
        end = block.skip(self._text, at, is_final=self._is_final)
        if block.is_done:
            self._skipped = None
            if block.is_paragraph and self._text[end - 1] in f" {SOFT_SPACE}\n":
                return self._end_line(PARAGRAPH, end - 1)
            self._mode = self._line_mode if self._at_line_start else _Mode.TEXT
        elif end == at:
            raise UndecidedError
        return end

    # -- within a line ------------------------------------------------------------------------------------------------

    def _line_end(self, at: int) -> int:
        return self._end_line(PARAGRAPH if self._block in _ENDED_BLOCKS else "\n", at)

    def _escape(self, at: int) -> int:
        self._wait_for(at + 1)
        if (end := self._formula(at)) is not None:
            return end
        if self._text[at + 1 : at + 2] in markup.ESCAPABLE:
            return self._plain(at + 1)
        return self._plain(at)

    def _dollar(self, at: int) -> int:
        end = self._formula(at)
        return self._plain(at) if end is None else end

    def _formula(self, at: int) -> int | None:
        """Read a formula in LaTeX; None if there is none at ``at``."""
        text = self._text
        end, width = self._found(formulas.extent, at) or (0, 0)
        if not end:
            return None
        self._wait_for(end)
        formula = text[at + width : end - width]
        reader = formulas.formula_reader()
        if reader is not None and not self._in_english:
            for char, place in reader.symbols(formula):
                self._write(char, at + width + place)
            return end
        words = reader.spoken(formula) if reader else ""
        if not words:
            return self._drop(at, end)
        return self._speak(" " * text[at - 1].isalnum() + words + " " * text[end : end + 1].isalnum(), at, end)

    def _caret(self, at: int) -> int:
        """Read ``^^``, which stresses the word between two of them."""
        self._wait_for(at + 2)
        before, marks, following = self._text[at - 1], self._text[at : at + 2], self._text[at + 2 : at + 3]
        is_open = marks in self._open
        if marks != "^^" or "^" in (before, following) or (following if is_open else before).isalnum():
            return self._plain(at)
        if is_open:
            self._open.discard(marks)
        elif following.isalnum():
            self._open.add(marks)
        else:
            return self._plain(at)
        return at + 2

    def _entity(self, at: int) -> int:
        entity = self._match("ENTITY", at)
        if not entity:
            self._end_of("CUT_ENTITY", at)
        char = markup.entity_char(entity.group()) if entity else None
        if not entity or char is None:
            return self._plain(at)
        if char:
            self._write(char, at)
        return entity.end()

    def _pipe(self, at: int) -> int:
        """Read ``a | b``, a table without outer pipes or a separator: it becomes a comma. ``a|b`` stays."""
        if self._block == "row":
            return self._cell(at)
        if self._code:
            return self._plain(at)
        self._wait_for(at + 1)
        following = self._text[at + 1 : at + 2]
        if following and not (following in SPACES and self._text[at - 1] in SPACES):
            return self._plain(at)
        if following == " " and not self._at_line_start:
            self._write(",", at)
        return at + 1

    def _cell(self, at: int) -> int:
        """Read the pipe before a cell. It becomes a comma if the cell has content; ``|---|`` has none."""
        end = self._end_of("CELL", at, is_quiet=True)
        following = self._text[end : end + 1]
        if following in ("", "|"):
            return end
        if following == "\n":
            return self._end_line(PARAGRAPH, end)
        begin = self._end_of("CELL_BLANKS", at)
        if self._cell_seen:
            self._write(",", at)
            if begin > at + 1:
                self._write(" ", at + 1)
        self._cell_seen = True
        return begin

    def _closing_hashes(self, at: int) -> int:
        """Read the closing marks of ``# Heading ##``."""
        if self._block != "heading":
            return self._plain(at)
        end = self._end_of("CLOSING_HASHES", at)
        following = self._text[end : end + 1]
        if following == "\n":
            return self._end_line(PARAGRAPH, end)
        return self._keep(at, end) if following else end

    def _pair(self, at: int) -> re.Match[str] | None:
        """Return a plain word or phrase between two marks, as most emphasis and code is."""
        return self._match("PAIR", at) if self._text[at - 1] in " \n(" else None

    def _ticks(self, at: int) -> int:
        """Read a run of backticks, or of tildes at the start of a line: fenced code, or marks in the line."""
        text = self._text
        if not self._code and (pair := self._pair(at)):
            return self._keep(*pair.span(2)) + len(pair[1])
        end = self._end_of("RUN", at, is_quiet=True)
        if not self._code and (text[at] == "`" or self._at_line_start) and (fence := self._match("FENCE", at)):
            self._wait_for(fence.end())
            if text[fence.end() : fence.end() + 1] in ("", "\n"):
                mark = text[at:end]
                return self._skip(EnclosedBlock("fence", f"{mark}{mark[0]}{{0,64}}"), at, fence.end())
        if text[at] == "~":
            return self._emphasis(at)
        if self._code in (0, end - at):
            self._set_code(0 if self._code else end - at)
        return end

    def _set_code(self, ticks: int) -> None:
        """Begin or end a code span."""
        self._code = ticks
        self._marks = self._code_marks if ticks else self._text_marks

    def _emphasis(self, at: int) -> int:
        text = self._text
        if text[at] == "*" and (end := self._star_key(at)):
            return end
        if text[at] == "*" and text[at - 1] in SPACES and self._out.ends_sentence and (end := self._action(at)):
            return end
        pair = self._pair(at)
        if pair is not None and pair[1] not in self._open:
            return self._keep(*pair.span(2)) + len(pair[1])
        end = self._end_of("RUN", at, is_quiet=True)
        if self._is_text(text[at - 1], text[at:end], text[end : end + 1] or " "):
            self._keep(at, end)
        return end

    def _star_key(self, at: int) -> int | None:
        """Read the star of "dial *67" and "press *1 or *2"; None if it is a mark, as that of "press *1*"."""
        key = self._match("STAR_KEY", at) if self._text[at - 1] == " " else None
        if key is None or not PATTERNS["BEFORE_STAR_KEY"].search(self._out.tail):
            return None
        end = key.end()
        self._wait_for(end)
        following = self._text[end : end + 1]
        if following == "*":
            self._wait_for(end + 1)  # a digit goes on
        return None if following == "*" or following.isalnum() else self._keep(at, end)

    def _is_text(self, before: str, run: str, following: str) -> bool:
        """Return whether a run of marks is read aloud (``2*3``, ``snake_case``); record the emphasis it opens."""
        around = before + run + following
        if PATTERNS["LITERAL_RUN"].fullmatch(around):
            return True
        if run[0] != "*" or (before in SPACES and following in SPACES):
            return False
        kind = run[:2]
        if kind in self._open:
            self._open.discard(kind)
            return False
        if PATTERNS["PRODUCT"].fullmatch(around):
            return True
        if following not in SPACES:
            self._open.add(kind)
        return False

    # -- stage directions ---------------------------------------------------------------------------------------------

    def _direction(self, content: str, first: int, last: int) -> int | None:
        """Read a direction from ``first`` to ``last``; None if ``content`` is none."""
        if (pause_ms := directions.pause_ms(content)) is not None:
            self._pause(pause_ms, last - 1)
            return last
        tag = directions.direction(content)
        if tag is None:
            return None
        if tag and self._options.control_tags is not None and tag in self._options.control_tags:
            return self._speak(tag, first, last, tag)
        if not tag:
            self._expression.read_direction(content, self._offset(first))
            self._cut_at_style(last - 1)
        return self._drop(first, last)

    def _action(self, at: int) -> int | None:
        """Read ``*laughs*`` at the beginning of a sentence."""
        action = self._match("ACTION", at)
        if not action:
            return None
        if action["end"]:
            self._wait_for(action.end())
            is_action = directions.is_action(action["content"])
            return self._direction(action["content"], at, action.end()) if is_action else None
        if self._text[action.end() :] in ("", " ") and directions.may_be_action(action["content"]):
            self._wait_for(len(self._text))
        return None

    def _style(self, at: int) -> int | None:
        """Read ``<<warm>>``, ``<<slow: text>>`` or ``<clears throat>``."""
        style = self._match("STYLE", at)
        if not style:
            self._end_of("CUT_STYLE", at)
        if not style or (style["colon"] and directions.direction(style["style"]) is None):
            return None
        if not style["colon"]:
            done = self._direction(style["style"] or style["action"], at, style.end())
            return self._keep(at, style.end()) if done is None and style["style"] else done
        text = self._match("STYLED", style.end())
        if not text or not text["whole"]:
            self._wait_for(text.end() if text else style.end())
            return None
        self._expression.open("<<", delivery(style["style"]), self._offset(at))
        self._cut_at_style(style.end() - 1)
        self._scan_content(style.end(), text.end("text"))
        self._expression.close("<<", self._offset(text.end() - 1))
        self._cut_at_style(text.end() - 1)
        return text.end()

    # -- brackets -----------------------------------------------------------------------------------------------------

    def _image(self, at: int) -> int:
        """Read the beginning of ``![alt](picture)``."""
        if self._code:
            return self._plain(at)
        self._wait_for(at + 1)
        return self._bracket(at) if self._text[at + 1 : at + 2] == "[" else self._plain(at)

    def _control_tag(self, at: int) -> int | None:
        """Pass on a tag that the engine acts on, after a "!" before it; None if there is none at ``at``."""
        tags = self._options.control_tags
        if tags is None or self._code:
            return None
        place = at + (self._text[at] == "!")
        length = self._found(tags.length_at, place)
        if not length:
            return None
        if place > at:
            return self._keep(at, place)
        return self._speak(self._text[at : at + length], at, at + length, self._text[at : at + length])

    def _bracket(self, at: int) -> int:
        """Read a control tag, link, image, footnote, direction or plain bracket."""
        if (end := self._control_tag(at)) is not None or (end := self._hidden(at)) is not None:
            return end
        if not self._options.markdown:
            return self._plain(at)
        text = self._text
        is_image = text[at] == "!"
        begin = at + 1 + is_image
        bracket = PATTERNS["BRACKET"].match(text, at, at + markup.BRACKET_LIMIT)
        if bracket is None or not bracket["end"]:
            if "\n" not in text[at:]:
                self._wait_for(at + markup.BRACKET_LIMIT - 1, PATTERNS["BRACKET_END"])
            return self._keep(at, begin)
        close = bracket.end()
        self._wait_for(close)
        is_note = bracket["content"].startswith("^")
        is_footnote = is_note or PATTERNS["CITATION"].fullmatch(bracket["content"]) is not None
        end = self._link_end(close, is_footnote=is_footnote, is_note=is_note)
        if end == close and is_footnote and not is_image:
            return close + (text[close : close + 1] == ":" and self._at_line_start)
        if end == close:
            if is_image:
                return self._plain(at)
            done = self._direction(bracket["content"].strip("[]"), at, close)
            return self._keep(at, begin) if done is None else done
        if not (is_image or is_footnote):
            self._scan_content(begin, close - 1)
        return end

    def _link_end(self, at: int, *, is_footnote: bool, is_note: bool) -> int:
        """Return the end of the target or label at ``at``, behind a bracket; ``at`` if there is none."""
        following = self._text[at : at + 1]
        if following == "(" and not is_note:
            end, depth = markup.target_end(self._text, at)
            if depth and end - at > markup.TARGET_LIMIT:
                return self._skip(EnclosedBlock("target", depth=depth), at, end)
            if depth:
                self._wait_for(at + markup.TARGET_LIMIT, PATTERNS["TARGET_END"])
            return at if depth or end < 0 else end
        if following == "[" and not is_footnote and (label := self._match("REFERENCE", at)):
            if label["end"]:
                return label.end()
            self._wait_for(label.end())
        return at

    def _scan_content(self, first: int, last: int) -> None:
        """Read the text of a link, which ends at ``last``."""
        text, is_final, mode = self._text, self._is_final, self._mode
        self._text, self._is_final, self._mode = text[:last], True, _Mode.TEXT
        self._scan(first)
        self._text, self._is_final, self._mode = text, is_final, mode

    # -- tags ---------------------------------------------------------------------------------------------------------

    def _angle(self, at: int) -> int:
        """Read a control tag, URL, tag, comment or mail address in angle brackets."""
        if (end := self._control_tag(at)) is not None or (end := self._hidden(at)) is not None:
            return end
        text = self._text
        if self._urls is not UrlMode.KEEP:
            url = self._match("URL_PREFIX", at + 1)
            if url and text[url.end() - 1] != ":":
                return self._begin_url(at, url.end())
        if self._code or not self._options.markdown:
            self._wait_for_url(at + 1)
            return self._plain(at)
        if (end := self._style(at)) is not None:
            return end
        tag = PATTERNS["TAG"].match(text, at, at + markup.TAG_LIMIT)
        if tag:
            return self._tag(tag)
        if self._match("CUT_TAG", at):
            self._wait_for(at + markup.TAG_LIMIT - 1)
        address = self._match("ADDRESS", at)
        if address and not address["whole"]:
            self._wait_for(address.end())
        if not address or not address["whole"]:
            return self._plain(at)
        self._keep(*address.span("address"))
        return address.end()

    def _tag(self, tag: re.Match[str]) -> int:
        end = tag.end()
        name = (tag["name"] or tag["closed"] or "").lower()
        values = {} if tag["closed"] else markup.values_of(tag["attributes"])
        if tag["comment"]:
            return self._skip(EnclosedBlock("comment"), tag.start(), end)
        if tag["closed"]:
            self._expression.close(name, self._offset(tag.start()))
        else:
            self._expression.read_tag(name, values, self._offset(tag.start()), is_empty=tag[0].endswith("/>"))
        self._cut_at_style(end - 1)
        if name == "break" and (pause_ms := markup.break_ms(values)) is not None:
            self._pause(pause_ms, end - 1)
        elif name == "phoneme" and (phonemes := markup.phonemes_of(values, self._options.alphabets)) is not None:
            return self._replaced(end, name, phonemes=phonemes)
        elif name == "sub" and (alias := markup.alias_of(values)) is not None:
            return self._replaced(end, name, alias=alias)
        elif not tag["closed"] and markup.is_spelled(name, values):
            self._spelled_left = _SPELL_LIMIT
            self._closing_spelled = markup.CLOSING_SPELLED[name]
            self._mode = _Mode.SPELLED
        elif name in markup.BREAKING_TAGS or markup.ends_sentence(tag):
            self._break(PARAGRAPH, end - 1)
        elif not tag["closed"] and (words := directions.words_of(name, values)) is not None:
            return self._direction(words, tag.start(), end) or self._drop(tag.start(), end)
        elif name in markup.SPACED_TAGS:
            self._write(" ", end - 1)
        return end

    def _spelled(self, at: int) -> int:
        """Spell the next character of ``<spell>``, which ends with its closing tag, the line, or its limit."""
        text = self._text
        char = text[at]
        if char == "<" and (closing := self._closing_spelled.match(text, at)):
            if closing["whole"]:
                self._mode = _Mode.TEXT
                return closing.end()
            self._wait_for(closing.end())
        if char == "\n" or not self._spelled_left:
            self._mode = _Mode.TEXT
            return at
        self._spelled_left -= 1
        if char.isalnum():
            return self._speak(" " * text[at - 1].isalnum() + markup.letter_name(char), at, at + 1)
        return (self._entity if char == "&" else self._gap if char == SOFT_SPACE else self._plain)(at)

    def _replaced(self, at: int, name: str, *, alias: str | None = None, phonemes: str | None = None) -> int:
        """Read the content of ``<phoneme>``, ``<sub>``. Without it, or a closing tag nearby, the tag has no effect."""
        content = markup.REPLACED[name].match(self._text, at)
        if not content or not content["whole"]:
            self._wait_for(content.end() if content else at)
            return at
        words = content["content"].split()
        if not words:
            return at
        self._speak(alias or " ".join(words), at, content.end("content"), phonemes)
        return content.end()

    # -- URLs ---------------------------------------------------------------------------------------------------------

    def _wait_for_url(self, at: int) -> None:
        if self._match("CUT_PREFIX", at):
            self._wait_for(len(self._text), is_quiet=True)

    def _url(self, at: int) -> int:
        """Read a letter that may begin a URL."""
        prefix = self._match("URL_PREFIX", at)
        if prefix is None:
            self._wait_for_url(at)
            return self._plain(at)
        end = prefix.end()
        return end if self._text[end - 1] == ":" else self._begin_url(at, end)  # the address after "mailto:" is read

    def _begin_url(self, at: int, first: int) -> int:
        """Begin a URL whose prefix ends at ``first``."""
        text = self._text
        if text[first - 1] == "." and first == len(text):  # "www." and no host yet
            self._wait_for(first)
            return self._keep(at, first)
        if self._urls is UrlMode.HOST:
            end = first + len(text[first : self._end_of("AUTHORITY", first)].rstrip(markup.TAIL))
            begin = max(first, text.rfind("@", first, end) + 1)
            port = text.find(":", begin, end)
            if text[begin : begin + 4].lower() == "www.":
                begin += 4
            self._keep(begin, end if port < 0 else port)
            first = end
        else:
            self._gap(at)
        return self._skip(Url(in_angle_brackets=text[at] == "<"), at, first)
