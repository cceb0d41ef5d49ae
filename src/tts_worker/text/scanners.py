"""Recognizers with bounded look-ahead: an HTML or SSML tag, and the target of a Markdown link.

Each takes one character at a time and reports whether it needs more, is complete, or fails. The caller keeps the text.
No scanner accepts the character that begins another construct of its kind, so rereading after a failure has bounded
cost.
"""

from __future__ import annotations

from enum import Enum

_TAG_LIMIT = 300
_TARGET_LIMIT = 500
_TITLE_LIMIT = 300

BREAKING_TAGS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "break", "dd", "details", "div", "dl", "dt"),
        *("figcaption", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav"),
        *("ol", "p", "pre", "section", "summary", "table", "tr", "ul"),
    )
)
CELL_TAGS = frozenset(("td", "th"))


class Step(Enum):
    MORE = "more"
    DONE = "done"  # the construct is complete
    FAIL = "fail"  # the character does not belong to the construct


class TagScanner:
    """Recognizes the text after ``<``: a tag, a declaration, or a special token ``<|...|>`` of a model.

    Attributes need ``=``, so that ``a <b and c> d`` stays text.

    Attributes:
        name: Name of the tag, empty for declarations and tokens.
        comment: Whether the text is ``<!--``, the start of a comment.
    """

    def __init__(self) -> None:
        self.name = ""
        self.comment = False
        self._text = ""
        self._length = 0
        self._state = "start"
        self._quote = ""

    def feed(self, char: str) -> Step:
        self._length += 1
        if self._length > _TAG_LIMIT or char in "\n\u2029":
            return Step.FAIL
        if self._state == "start":
            return self._start(char)
        if self._state == "name":
            return self._name(char)
        if self._state == "token":
            closed = char == ">" and self._text.endswith("|")
            self._text += char
            if closed:
                return Step.DONE
            return Step.MORE if char.isalnum() or char in "_|-/ " else Step.FAIL
        if self._state == "declaration":
            self._text += char
            if self._text == "--":
                self.comment = True
                return Step.DONE
            return Step.DONE if char == ">" else Step.MORE
        return self._attributes(char)

    def _start(self, char: str) -> Step:
        if char.isascii() and char.isalpha():
            self.name = char
            self._state = "name"
        elif char == "/":
            self._state = "name"
        elif char in "!?":
            self._state = "declaration"
        elif char == "|":
            self._state = "token"
        else:
            return Step.FAIL
        return Step.MORE

    def _name(self, char: str) -> Step:
        if char.isascii() and (char.isalnum() or char in "-:_."):
            self.name += char
            return Step.MORE
        if char == ">":
            return Step.DONE if self.name else Step.FAIL
        if char == " " and self.name:
            self._state = "gap"
        elif char == "/" and self.name:
            self._state = "slash"
        else:
            return Step.FAIL
        return Step.MORE

    def _attributes(self, char: str) -> Step:
        state = self._state
        if state == "quoted":
            self._state = "gap" if char == self._quote else state
            return Step.FAIL if char == "<" else Step.MORE
        if char == ">":
            return Step.DONE if state in ("gap", "slash", "bare") else Step.FAIL
        if state == "gap" and (char.isascii() and char.isalpha()):
            self._state = "attribute"
        elif state == "gap" and char == "/":
            self._state = "slash"
        elif state == "attribute" and char == "=":
            self._state = "value"
        elif state == "value" and char in "\"'":
            self._state = "quoted"
            self._quote = char
        elif state == "value" and char not in " <":
            self._state = "bare"
        elif state == "bare" and char == " ":
            self._state = "gap"
        elif not (
            (state == "gap" and char == " ")
            or (state == "attribute" and char.isascii() and (char.isalnum() or char in "-:_."))
            or (state == "bare" and char not in "<\"'")
        ):
            return Step.FAIL
        return Step.MORE


class TargetScanner:
    """Recognizes the text after ``](``: a link target without spaces and an optional quoted title, up to ``)``."""

    def __init__(self) -> None:
        self._state = "target"
        self._depth = 0
        self._length = 0
        self._quote = ""

    @property
    def is_long(self) -> bool:
        """Whether the target is too long to be readable text, so that the caller need not keep it."""
        return self._state == "target" and self._length > _TARGET_LIMIT

    def feed(self, char: str) -> Step:
        if char in "\n\u2029[]<":
            return Step.FAIL
        self._length += 1
        if self._state == "title":
            if char == self._quote:
                self._state = "end"
            return Step.FAIL if self._length > _TITLE_LIMIT else Step.MORE
        if char == ")" and (self._state != "target" or not self._depth):
            return Step.DONE
        if char == " ":
            if self._depth or self.is_long:
                return Step.FAIL
            if self._state == "target":
                self._state = "gap"
            return Step.MORE
        if self._state == "target":
            self._depth += (char == "(") - (char == ")")
            return Step.MORE
        if self._state == "gap" and char in "\"'":
            self._state = "title"
            self._quote = char
            self._length = 0
            return Step.MORE
        return Step.FAIL
