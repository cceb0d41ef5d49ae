"""Removes text that is not read aloud: Markdown, tags, URLs, emoji and invisible characters.

Three stages: characters, the scanner for Markdown and URLs, whitespace. The scanner passes plain text in runs, found by
one regular expression, and decides a mark when the text that decides it has arrived. The result does not depend on how
the stream is split, and the work is linear. The delay is one character outside an open mark, and at most a few hundred
characters after an open ``[`` or ``<``. Every output character stands for one original character and has its offset.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tts_worker.text import markup
from tts_worker.text.character_filter import BREAK, PARAGRAPH, SOFT_SPACE, CharacterFilter, Push
from tts_worker.text.markup import SPACES
from tts_worker.text.whitespace import TextSink, WhitespaceFilter
from tts_worker.types import UrlMode

__all__ = ["TextFilter", "UrlMode", "filter_text"]

_BRACKET_LIMIT = 200
"""A bracket still open after this many original characters is plain text."""

_BRACKET_DEPTH = 4
_COMMENT_LIMIT = 2000
_SPELL_LIMIT = 200
"""Characters that an unclosed ``<spell>`` spells."""

_FENCE = 3
_BLANKS = " " + SOFT_SPACE


class TextFilter:
    """Pushes readable text to ``out``.

    With ``markdown=False`` it keeps markup and tags, and drops only characters and, depending on ``urls``, URLs.
    A break of given length is the character ``BREAK``; its length in ms goes into ``pauses``, by its offset.
    """

    def __init__(
        self,
        out: TextSink,
        *,
        markdown: bool = True,
        urls: UrlMode = UrlMode.DROP,
        pauses: dict[int, int] | None = None,
    ) -> None:
        self._whitespace = WhitespaceFilter(out)
        self._scanner: Scanner | None = None
        sink: Push = self._whitespace.push
        if markdown or urls is not UrlMode.KEEP:
            self._scanner = Scanner(self._whitespace, markdown=markdown, urls=urls, pauses=pauses)
            sink = self._scanner.push
        self._characters = CharacterFilter(sink)

    def push(self, text: str, start: int) -> None:
        """Take the next characters of the text, of which the first has the offset ``start``."""
        if self._scanner is None or not self._characters.is_idle or not self._scanner.push_plain(text, start):
            self._characters.push(text, start)

    def settle(self) -> None:
        """Resolve pending characters at the end of the text."""
        self._characters.settle()
        if self._scanner is not None:
            self._scanner.settle()

    def flush(self) -> None:
        """Resolve pending characters as if the text ended here; more text may follow."""
        self.settle()
        self._whitespace.settle()

    def release_mark(self) -> None:
        """Emit a pending mark that ends a sentence, unless it begins an image; other pending characters stay."""
        if self._scanner is not None:
            self._scanner.release_mark()


class _Collector:
    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def push(self, text: str, start: int) -> None:
        self.found += [(char, index) for index, char in enumerate(text, start)]

    def push_replacement(self, text: str, start: int, end: int, phonemes: str | None) -> None:
        self.found.append((text, start))

    def space_follows(self) -> None:
        pass


def filter_text(text: str, *, markdown: bool = True, urls: UrlMode = UrlMode.DROP) -> list[tuple[str, int]]:
    """Filter a whole text; return the characters that are read, each with its offset in ``text``."""
    sink = _Collector()
    stage = TextFilter(sink, markdown=markdown, urls=urls)
    if text:
        stage.push(text, 0)
    stage.settle()
    return sink.found


@dataclass(slots=True)
class _Bracket:
    """An open ``[``, which may be a link, an image, a footnote or a plain bracket."""

    place: int  # in the held text
    start: int  # in the original text
    is_image: bool
    is_at_line_start: bool


class Scanner:
    """Removes Markdown, tags and URLs from a stream of text.

    ``_text`` holds the undecided text and the character before it; ``_at`` is the place of the first undecided one. A
    handler reads what begins at a place and returns the place after it, or ``~place`` if the text after ``place`` must
    arrive first. With ``_is_final`` it decides as if the text ended there.
    """

    def __init__(
        self, out: WhitespaceFilter, *, markdown: bool, urls: UrlMode, pauses: dict[int, int] | None = None
    ) -> None:
        self._out = out.push
        self._push_replacement = out.push_replacement
        self._pauses = {} if pauses is None else pauses
        self._urls = urls
        self._markdown = markdown
        self._text = " "
        self._at = 1
        self._is_final = False
        self._is_plain = False  # whether text without marks may be passed on as it is
        self._shift = 0  # from a place in ``_text`` to the offset in the original text
        self._shifts: list[tuple[int, int]] = []  # places behind which a character was dropped, and the shift there
        self._read: Callable[[int], int] = self._line_start if markdown else self._inline
        # the line
        self._after_bullet = False
        self._is_heading = False
        self._is_row = False
        self._cell_seen = False  # whether the row has a cell with content
        self._plain_ticks = 0  # length of a run of backticks that opens no fence; -1 for any run
        self._fence = ""  # the marks that opened fenced code
        self._fence_run = -1  # fence marks at the start of the line; -1 within a line
        # within the line
        self._previous = " "  # the preceding character that counts for emphasis
        self._at_line_start = True  # no text was emitted on this line
        self._code = 0  # backticks that opened the current code span
        self._open: set[str] = set()  # open emphasis marks
        self._skip_closing_angle = False  # the ">" of <name@example.com>
        self._brackets: list[_Bracket] = []
        self._held: list[tuple[str, int]] = []  # text after the first open bracket
        self._comment_left = 0
        self._phonemes = ""  # of a <phoneme> tag
        self._spelled_left = 0  # characters that an open <spell> tag may still spell
        self._joins_spelled = False  # whether a spelled character precedes
        self._depth = 0  # open parentheses of a URL or a long link target
        self._in_angle_brackets = False  # whether the URL is in angle brackets
        self._marks = self._choose_marks()
        self._line_handlers: dict[str, Callable[[int], int]] = {
            "\n": lambda at: self._end_line(PARAGRAPH, at),
            "#": self._hashes,
            **dict.fromkeys("-+*•‣⁃_=", self._marker),
            **dict.fromkeys("`~", self._ticks),
        }
        self._handlers: dict[str, Callable[[int], int]] = {
            "\n": self._line_end,
            "\\": self._escape,
            "!": self._image,
            "&": self._entity,
            "[": self._bracket,
            "]": self._close,
            "<": self._angle,
            ">": self._close_angle,
            "|": self._pipe,
            "#": self._closing_hashes,
            "`": self._ticks,
            **dict.fromkeys("*_~", self._emphasis),
        }

    # -- the stream ---------------------------------------------------------------------------------------------------

    def push_plain(self, text: str, start: int) -> bool:
        """Pass ``text`` on if no stage has anything to do with it; return whether it was passed on."""
        if not self._is_plain or markup.PLAIN_STOP.search(self._text + text, 1):
            return False
        self._text = self._previous = text[-1]
        self._shift = start + len(text) - 1
        self._out(text, start)
        return True

    def push(self, text: str, start: int) -> None:
        shift = start - len(self._text)
        if shift != (self._shifts[-1][1] if self._shifts else self._shift):
            self._shifts.append((len(self._text), shift))
        self._text += text
        self._scan()

    def settle(self) -> None:
        """Resolve pending characters as if the text ended here."""
        self._is_final = True
        self._scan()
        self._is_final = False
        is_closed = self._read == self._fenced and self._fence_run >= len(self._fence)
        if is_closed or self._read in (self._url, self._comment, self._long_target):
            self._read = self._inline
        self._give_up_brackets()
        self._is_plain = False

    def release_mark(self) -> None:
        """Emit an exclamation mark that waits for a bracket ("![image]"): it ends a sentence when the text pauses."""
        if self._text[self._at :] == "!" and self._read == self._inline:
            self._keep(self._at, self._at + 1)
            self._trim(self._at + 1)

    def _scan(self) -> None:
        at = self._at
        end = len(self._text)
        while at < end:
            at = self._read(at)
            if at < 0:
                at = ~at
                break
        self._trim(at)
        self._is_plain = (
            len(self._text) == 1
            and self._read == self._inline
            and not (self._code or self._is_heading)
            and not (self._shifts or self._brackets or self._at_line_start or self._skip_closing_angle)
        )

    def _trim(self, at: int) -> None:
        """Forget the text before ``at``, except for one character."""
        self._at = 1
        cut = at - 1
        if not cut:
            return
        self._text = self._text[cut:]
        self._shift += cut
        if self._shifts:
            while self._shifts and self._shifts[0][0] <= at:
                self._shift = self._shifts.pop(0)[1] + cut
            self._shifts = [(place - cut, shift + cut) for place, shift in self._shifts]

    def _offset(self, place: int) -> int:
        shift = self._shift
        for first, later in self._shifts:
            if first > place:
                break
            shift = later
        return place + shift

    def _must_wait(self, place: int) -> bool:
        """Return whether the character at ``place`` must arrive before a decision."""
        return place >= len(self._text) and not self._is_final

    def _choose_marks(self) -> re.Pattern[str]:
        """Return the pattern of what ends plain text."""
        if not self._markdown:
            return markup.PLAIN_MARKS
        marks = markup.CODE_MARKS if self._code else markup.HEADING_MARKS if self._is_heading else markup.TEXT_MARKS
        return markup.MARKS_WITHOUT_URLS[marks] if self._urls is UrlMode.KEEP else marks

    # -- output -------------------------------------------------------------------------------------------------------

    def _keep(self, first: int, last: int) -> int:
        """Emit the text from ``first`` to ``last`` as it is, and return ``last``."""
        if first >= last:
            return last
        text = self._text[first:last]
        self._previous = text[-1]
        if self._at_line_start and text.strip(_BLANKS):
            self._at_line_start = False
        if self._shifts:
            for place, _ in self._shifts:
                if first < place < last:
                    self._send(self._text[first:place], self._offset(first))
                    first = place
            text = self._text[first:last]
        self._send(text, self._offset(first))
        return last

    def _emit_char(self, char: str, place: int) -> None:
        """Emit ``char`` instead of the character at ``place``."""
        self._previous = char
        if char not in SPACES:
            self._at_line_start = False
        self._send(char, self._offset(place))

    def _send(self, text: str, start: int) -> None:
        if not self._brackets:
            self._out(text, start)
            return
        self._held.append((text, start))
        last = start + len(text) - 1
        while self._brackets and last - self._brackets[0].start > _BRACKET_LIMIT:
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        del self._brackets[0]
        self._release()

    def _release(self) -> None:
        """Emit the held text before the first open bracket."""
        until = self._brackets[0].place if self._brackets else len(self._held)
        held = self._held[:until]
        del self._held[:until]
        for bracket in self._brackets:
            bracket.place -= until
        for text, start in held:
            self._out(text, start)

    def _give_up_brackets(self) -> None:
        """Treat all open brackets as plain text."""
        if self._brackets:
            self._brackets.clear()
            self._release()

    def _break(self, char: str, place: int) -> None:
        """Emit a line break, which ends all marks within the line."""
        self._give_up_brackets()
        self._code = 0
        self._marks = self._choose_marks()
        self._skip_closing_angle = False
        if char == PARAGRAPH:
            self._open.clear()
        self._previous = " "
        self._at_line_start = True
        self._out(char, self._offset(place))

    def _end_line(self, char: str, place: int) -> int:
        self._is_heading = self._is_row = self._after_bullet = False
        self._plain_ticks = 0
        self._break(char, place)
        if self._markdown:
            self._read = self._line_start
        return place + 1

    # -- the start of a line ------------------------------------------------------------------------------------------

    def _line_start(self, at: int) -> int:
        """Read the mark of a heading, list item, block quote, rule, table or fence."""
        text = self._text
        indent = (markup.INDENT_AFTER_BULLET if self._after_bullet else markup.INDENT).match(text, at)
        if indent:
            return indent.end()
        char = text[at]
        handler = self._line_handlers.get(char)
        if handler is not None:
            return handler(at)
        if "0" <= char <= "9":
            number = markup.NUMBER.match(text, at)
            if number and number["item"]:
                self._break(PARAGRAPH, at)
            elif number and self._must_wait(number.end()):
                return ~at
        elif char == "[" and self._after_bullet:
            box = markup.CHECKBOX.match(text, at)
            if box and box["whole"]:
                at = box.end()
            elif box and self._must_wait(box.end()):
                return ~at
        elif char == "|" and not self._after_bullet:
            self._break(PARAGRAPH, at)
            self._is_row = True
            self._cell_seen = False
        self._read = self._inline
        return at

    def _hashes(self, at: int) -> int:
        run = markup.HASHES.match(self._text, at)
        end = run.end() if run else at
        if self._must_wait(end):
            return ~at
        following = self._text[end : end + 1]
        if following == "\n":
            return self._end_line(PARAGRAPH, end)
        self._read = self._inline
        if following == " ":
            self._is_heading = True
            self._break(PARAGRAPH, at)
            return end + 1
        return self._keep(at, end) if following else end

    def _marker(self, at: int) -> int:
        """Read a run of bullet or rule characters: ``- item``, ``---``, ``**bold**``, ``-- text``."""
        text = self._text
        run = markup.MARKER.match(text, at)
        mark = text[at]
        end = run.end() if run else at
        length = run.end("marks") - at if run else 0
        if length == 1 and end > at + 1 and mark in "-+*•‣⁃":
            self._break(PARAGRAPH, at)
            self._after_bullet = True
            return at + 2
        if self._must_wait(end):
            return ~at
        following = text[end : end + 1]
        if following and following in "|:" and mark == "-" and end > at + 1:
            row = markup.DELIMITER.match(text, end)
            if row and self._must_wait(row.end()):
                return ~at
            if row and text[row.end() : row.end() + 1] == "\n":
                end = row.end()
                following = "\n"
        if following == "\n":
            return self._end_line(PARAGRAPH, end)
        self._read = self._inline
        if not following and not (length == 1 and mark in "-+"):
            return end
        if mark in "•‣⁃":
            self._break(PARAGRAPH, at)
            return end
        return at

    def _ticks(self, at: int) -> int:
        """Read a run of backticks, anywhere, or of tildes at the start of a line: fenced code, or marks in the line."""
        text = self._text
        run = markup.RUN.match(text, at)
        end = run.end() if run else at
        if self._must_wait(end):
            return ~at
        mark = text[at]
        length = end - at
        if length >= _FENCE and self._plain_ticks not in (-1, length):
            info = markup.INFO[mark].match(text, end)
            after = info.end() if info else end
            following = text[after : after + 1]
            if self._must_wait(after):
                return ~at
            if following in ("", "\n"):
                self._fence = text[at:end]
                self._fence_run = -1
                self._read = self._fenced
                return after
            self._plain_ticks = -1 if following == "`" else length
        elif self._plain_ticks in (-1, length):
            self._plain_ticks = 0
        self._read = self._inline
        if mark == "~":
            return self._emphasis(at)
        if not self._code:
            self._code = length
        elif self._code == length:
            self._code = 0
        self._marks = self._choose_marks()
        self._previous = mark
        return end

    def _fenced(self, at: int) -> int:
        """Skip fenced code. Without a closing fence everything after it is code, as in CommonMark."""
        text = self._text
        if self._fence_run < 0:
            end = text.find("\n", at)
            if end < 0:
                return len(text)
            self._fence_run = 0
            return end + 1
        char = text[at]
        closes = self._fence_run >= len(self._fence)
        if char == self._fence[0]:
            self._fence_run += 1
        elif closes and char == "\n":
            return self._end_line(PARAGRAPH, at)
        elif closes and char in _BLANKS:
            self._read = self._inline
            self._break(PARAGRAPH, at)
        elif char == "\n":
            self._fence_run = 0
        elif char not in _BLANKS + ">" or self._fence_run:
            self._fence_run = -1
        return at + 1

    # -- within a line ------------------------------------------------------------------------------------------------

    def _inline(self, at: int) -> int:
        text = self._text
        match = self._marks.search(text, at)
        place = match.start() if match else len(text)
        if place > at:
            if self._skip_closing_angle and not SPACES.isdisjoint(text[at:place]):
                self._skip_closing_angle = False
            self._keep(at, place)
        if match is None:
            return place
        kind = match.lastgroup
        if kind is not None:
            return self._url_start(place, markup.URL_KINDS[kind])
        handler = self._handlers.get(text[place])
        if handler is not None:
            return handler(place)
        # A letter that may begin a URL
        return self._keep(place, place + 1) if self._is_final else ~place

    def _line_end(self, at: int) -> int:
        return self._end_line(PARAGRAPH if self._is_heading or self._is_row else "\n", at)

    def _escape(self, at: int) -> int:
        if self._must_wait(at + 1):
            return ~at
        if self._text[at + 1 : at + 2] in markup.ESCAPABLE:
            return self._keep(at + 1, at + 2)
        return self._keep(at, at + 1)

    def _entity(self, at: int) -> int:
        entity = markup.ENTITY.match(self._text, at)
        if entity and entity["end"]:
            char = markup.entity_char(entity.group())
            if char is not None:
                if char:
                    self._emit_char(char, at)
                return entity.end()
        elif entity and self._must_wait(entity.end()):
            return ~at
        return self._keep(at, at + 1)

    def _pipe(self, at: int) -> int:
        """Read ``a | b``, a table without outer pipes or a separator: it becomes a comma. ``a|b`` stays."""
        if self._is_row:
            return self._cell(at)
        if self._code:
            return self._keep(at, at + 1)
        if self._must_wait(at + 1):
            return ~at
        following = self._text[at + 1 : at + 2]
        if following and (self._previous != " " or following not in SPACES):
            return self._keep(at, at + 1)
        if following == " " and not self._at_line_start:
            self._emit_char(",", at)
        return at + 1

    def _cell(self, at: int) -> int:
        """Read the pipe before a cell. It becomes a comma if the cell has content; ``|---|`` has none."""
        text = self._text
        cell = markup.CELL.match(text, at)
        end = cell.end() if cell else at + 1
        if self._must_wait(end):
            return ~at
        following = text[end : end + 1]
        if following in ("", "|"):
            return end
        if following == "\n":
            return self._end_line(PARAGRAPH, end)
        begin = cell.end("blanks") if cell else end
        if self._cell_seen:
            self._emit_char(",", at)
            if begin > at + 1:
                self._emit_char(" ", begin - 1)
        self._cell_seen = True
        return begin

    def _closing_hashes(self, at: int) -> int:
        """Read the closing marks of ``# Heading ##``."""
        if not self._is_heading:
            return self._keep(at, at + 1)
        hashes = markup.CLOSING_HASHES.match(self._text, at)
        end = hashes.end() if hashes else at + 1
        if self._must_wait(end):
            return ~at
        following = self._text[end : end + 1]
        if following == "\n":
            return self._end_line(PARAGRAPH, end)
        return self._keep(at, end) if following else end

    def _emphasis(self, at: int) -> int:
        run = markup.RUN.match(self._text, at)
        end = run.end() if run else at + 1
        if self._must_wait(end):
            return ~at
        mark = self._text[at]
        if self._is_text(mark, end - at, self._text[end : end + 1] or " "):
            self._keep(at, end)
        self._previous = mark
        return end

    def _is_text(self, mark: str, length: int, following: str) -> bool:
        """Return whether a run of ``mark`` is read aloud (``2*3``, ``snake_case``); record the emphasis it opens."""
        before = self._previous
        spaced_left = before in " \n"
        spaced_right = following in SPACES and following != SOFT_SPACE
        kind = mark * min(length, 2)
        within = before.isalnum() and following.isalnum()
        if mark == "~":
            return length == 1
        if mark == "_":
            return within
        if spaced_left and spaced_right:
            return length == 1
        if before.isdigit() and following.isdigit():
            return True
        if kind not in self._open:
            if length == 1 and (before.isalnum() or before in ")]") and (following.isalnum() or following in "(["):
                return True  # a*b, (a+b)*c
            if length == 2 and within and following.isdigit():
                return True  # x**2
            if not spaced_right:
                self._open.add(kind)
        else:
            self._open.discard(kind)
        return False

    # -- brackets -----------------------------------------------------------------------------------------------------

    def _image(self, at: int) -> int:
        """Read the beginning of ``![alt](picture)``."""
        if self._must_wait(at + 1):
            return ~at
        if self._text[at + 1 : at + 2] != "[":
            return self._keep(at, at + 1)
        return self._open_bracket(at, 2)

    def _bracket(self, at: int) -> int:
        return self._open_bracket(at, 1)

    def _open_bracket(self, at: int, length: int) -> int:
        if len(self._brackets) == _BRACKET_DEPTH:
            self._give_up_oldest()
        self._brackets.append(_Bracket(len(self._held), self._offset(at), length == 2, self._at_line_start))
        self._held += [(self._text[place], self._offset(place)) for place in range(at, at + length)]
        self._previous = "["
        return at + length

    def _close(self, at: int) -> int:
        if not self._brackets:
            return self._keep(at, at + 1)
        if self._must_wait(at + 1):
            return ~at
        following = self._text[at + 1 : at + 2]
        bracket = self._brackets[-1]
        content = "".join(text for text, _ in self._held[bracket.place + 1 + bracket.is_image :])
        is_footnote = content.startswith("^") or markup.CITATION.fullmatch(content) is not None
        if following == "(" and not content.startswith("^"):
            end, depth = markup.target_end(self._text, at + 1)
            if end >= 0 and depth and end - at <= markup.TARGET_LIMIT and not self._is_final:
                return ~at
            if end >= 0 and (not depth or end - at > markup.TARGET_LIMIT):
                self._depth = depth
                if depth:
                    self._read = self._long_target
                return self._drop_marks(bracket.is_image or is_footnote, end)
        elif following == "[" and not is_footnote:
            reference = markup.REFERENCE.match(self._text, at + 1)
            if reference and reference["end"]:
                return self._drop_marks(bracket.is_image, reference.end())
            if reference and self._must_wait(reference.end()):
                return ~at
        elif not bracket.is_image and is_footnote:
            self._drop_marks(True, at + 1)
            return at + 1 + (following == ":" and bracket.is_at_line_start)
        self._brackets.pop()
        self._release()
        return self._keep(at, at + 1 + (following != "" and following in "[("))

    def _drop_marks(self, with_content: bool, end: int) -> int:
        """Drop the innermost opening bracket and, on request, its content; the text goes on at ``end``."""
        bracket = self._brackets.pop()
        if with_content:
            del self._held[bracket.place :]
        else:
            del self._held[bracket.place]
        self._release()
        self._previous = self._text[end - 1]
        return end

    def _long_target(self, at: int) -> int:
        """Skip the rest of a link target that is too long to be kept."""
        for match in markup.TARGET_MARKS.finditer(self._text, at):
            char = match.group()
            self._depth += (char == "(") - (char == ")")
            if not self._depth or char not in "()":
                self._read = self._inline
                return match.end() if char == ")" else match.start()
        return len(self._text)

    # -- tags ---------------------------------------------------------------------------------------------------------

    def _angle(self, at: int) -> int:
        text = self._text
        url = markup.ANGLE_URL.match(text, at) if self._urls is not UrlMode.KEEP else None
        if url:
            return self._url_start(at, url.end() - at)
        if self._code or not self._markdown:
            partial = markup.CUT_ANGLE_URL.match(text, at)
            return ~at if partial and not self._is_final else self._keep(at, at + 1)
        tag = markup.TAG.match(text, at, at + markup.TAG_LIMIT)
        if tag:
            return self._tag(tag)
        if not self._is_final and len(text) - at < markup.TAG_LIMIT and markup.CUT_TAG.match(text, at):
            return ~at
        address = markup.ADDRESS.match(text, at)
        if address:
            self._skip_closing_angle = True
            return address.end()
        return self._keep(at, at + 1)

    def _tag(self, tag: re.Match[str]) -> int:
        end = tag.end()
        name = (tag["name"] or tag["closed"] or "").lower()
        if tag["comment"]:
            self._comment_left = _COMMENT_LIMIT
            self._read = self._comment
        elif tag["closed"]:
            self._close_tag(name, end)
        elif name == "break" and (pause_ms := markup.break_ms(tag["attributes"])) is not None:
            self._pauses[self._offset(end - 1)] = pause_ms
            self._break(BREAK, end - 1)
        elif name == "phoneme" and (phonemes := markup.phonemes_of(tag["attributes"])) is not None:
            self._phonemes = phonemes
            self._read = self._pronounced
        elif name == "spell":
            self._give_up_brackets()
            self._spelled_left = _SPELL_LIMIT
            self._joins_spelled = False
            self._read = self._spelled
        else:
            self._close_tag(name, end)
        return end

    def _close_tag(self, name: str, end: int) -> None:
        """Handle a tag that only separates text."""
        if name in markup.BREAKING_TAGS:
            self._break(PARAGRAPH, end - 1)
        elif name in markup.CELL_TAGS:
            self._emit_char(" ", end - 1)

    def _spelled(self, at: int) -> int:
        """Spell the next character of ``<spell>``, which ends with its closing tag, the line, or its limit."""
        char = self._text[at]
        if char == "<":
            closing = markup.CLOSING_SPELL.match(self._text, at)
            if closing and not closing["whole"] and self._must_wait(closing.end()):
                return ~at
            if closing and closing["whole"]:
                self._read = self._inline
                return closing.end()
        if char == "\n" or not self._spelled_left:
            self._read = self._inline
            return at
        self._spelled_left -= 1
        if not char.isalnum():
            self._joins_spelled = False
            return self._keep(at, at + 1)
        start = self._offset(at)
        name = markup.letter_name(char)
        self._push_replacement(f" {name}" if self._joins_spelled else name, start, start + 1, None)
        self._joins_spelled = True
        self._previous = char
        self._at_line_start = False
        return at + 1

    def _pronounced(self, at: int) -> int:
        """Read the content of ``<phoneme>`` with its phonemes. Without a closing tag nearby it is plain text."""
        content = markup.PRONOUNCED.match(self._text, at)
        if content is None or (not content["whole"] and not self._must_wait(content.end())):
            self._read = self._inline
            return at
        if not content["whole"]:
            return ~at
        self._give_up_brackets()
        written = content["content"]
        start = self._offset(content.start("content"))
        end = self._offset(content.end("content") - 1) + 1
        self._push_replacement(" ".join(written.split()), start, end, self._phonemes)
        self._previous = written[-1]
        self._at_line_start = False
        self._read = self._inline
        return content.end()

    def _close_angle(self, at: int) -> int:
        if self._skip_closing_angle:
            self._skip_closing_angle = False
            return at + 1
        return self._keep(at, at + 1)

    def _comment(self, at: int) -> int:
        limit = at + self._comment_left
        end = self._text.find("-->", at, limit)
        if end >= 0 or limit <= len(self._text) or self._is_final:
            self._read = self._inline
            return end + 3 if end >= 0 else min(limit, len(self._text))
        end = max(at, len(self._text) - 2)
        self._comment_left -= end - at
        return end if end > at else ~at

    # -- URLs ---------------------------------------------------------------------------------------------------------

    def _url_start(self, at: int, length: int) -> int:
        """Begin a URL whose prefix has ``length`` characters."""
        text = self._text
        first = at + length
        if text[first - 1] == ":":  # of "mailto:": the address is read
            self._previous = " "
            return first
        if text[first - 1] == "." and first == len(text):  # "www." and no host yet
            return self._keep(at, first) if self._is_final else ~at
        if self._urls is UrlMode.HOST:
            authority = markup.AUTHORITY.match(text, first)
            end = authority.end() if authority else first
            if self._must_wait(end):
                return ~at
            end = first + len(text[first:end].rstrip(markup.TAIL))
            begin = max(first, text.rfind("@", first, end) + 1)
            port = text.find(":", begin, end)
            if text[begin : begin + 4].lower() == "www.":
                begin += 4
            self._keep(begin, end if port < 0 else port)
            first = end
        else:
            self._emit_char(SOFT_SPACE, at)
        self._in_angle_brackets = text[at] == "<"
        self._depth = 0
        self._read = self._url
        return first

    def _url(self, at: int) -> int:
        """Skip a URL. Punctuation at its end belongs to the sentence."""
        text = self._text
        chars = markup.URL_CHARS.match(text, at)
        at = chars.end() if chars else at
        if at == len(text):
            return at
        if text[at] == ")" and self._depth:
            self._depth -= 1
            return at + 1
        tail = markup.URL_TAIL.match(text, at)
        if tail:
            end = tail.end()
            if self._must_wait(end):
                return ~at
            depth = self._depth + tail.group().count("(")
            following = text[end : end + 1]
            if following and (
                (following == ")" and depth) or following in markup.TAIL or markup.URL_CHAR.match(following)
            ):
                self._depth = depth
                return end
        self._read = self._inline
        return at + 1 if text[at] == ">" and self._in_angle_brackets else at
