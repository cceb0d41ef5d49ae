"""Patterns of the text filter: Markdown, tags, URLs.

Every pattern has bounded length, so that undecided text at the end of a stream is bounded, and reading it again with
the next delta has bounded cost.
"""

from __future__ import annotations

import html
import re

from tts_worker.text.character_filter import PARAGRAPH, SOFT_SPACE, is_filtered
from tts_worker.text.characters import UNSPACED_CLASS

ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
SPACES = frozenset((" ", "\n", SOFT_SPACE, PARAGRAPH))
BREAKING_TAGS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "break", "dd", "details", "div", "dl", "dt"),
        *("figcaption", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav"),
        *("ol", "p", "pre", "section", "summary", "table", "tr", "ul"),
    )
)
CELL_TAGS = frozenset(("td", "th"))
CITATION = re.compile(r"\d{1,3}(?:[,–-] ?\d{1,3})*")

# -- the start of a line ----------------------------------------------------------------------------------------------

INDENT = re.compile(f"[ {SOFT_SPACE}>]+")
INDENT_AFTER_BULLET = re.compile(f"[ {SOFT_SPACE}]+")
HASHES = re.compile("#{1,6}")
MARKER = re.compile(rf"(?P<marks>([-+*•‣⁃_=])\2{{0,63}})[ {SOFT_SPACE}]{{0,64}}")
DELIMITER = re.compile(r"[-:| ]{0,200}")
NUMBER = re.compile(r"[0-9]{1,9}(?:[.)](?P<item> )?)?")
CHECKBOX = re.compile(r"\[(?:[ xX](?:\](?P<whole> )?)?)?")
CELL = re.compile(f"\\|(?P<blanks>[ {SOFT_SPACE}]{{0,64}})[-: {SOFT_SPACE}]{{0,128}}")
CLOSING_HASHES = re.compile("#[# ]{0,63}")
INFO = {"~": re.compile(r"[^\n]{0,100}"), "`": re.compile(r"[^\n`]{0,100}")}
RUN = re.compile(r"([*_~`])\1{0,63}")

# -- URLs -------------------------------------------------------------------------------------------------------------

TAIL = ".,;:!?'*_~("
"""Punctuation that belongs to the sentence at the end of a URL."""

_PREFIXES = ("http://", "https://", "ftp://", "www.", "mailto:")
URL_TAIL = re.compile(r"[.,;:!?'*_~(]{1,32}")
_URL_STOPS = r"\x00- <>\"`{}|\\^\[\]"
_URL_CHAR = rf"[!-~](?<![{_URL_STOPS}])|[^\W_](?<![{UNSPACED_CLASS}])"
URL_CHAR = re.compile(rf"(?!\))(?:{_URL_CHAR})")
URL_CHARS = re.compile(rf"(?:(?![.,;:!?'*_~()])(?:{_URL_CHAR}))*")
AUTHORITY = re.compile(rf"(?:(?![/#?&=%()*~])(?:{_URL_CHAR})){{0,253}}")
ANGLE_URL = re.compile(r"<(?:https?://|ftp://|(?=www\.[^\W_]))", re.IGNORECASE)
CUT_ANGLE_URL = re.compile(
    r"<(?:h(?:t(?:t(?:p(?:s?(?::/?)?)?)?)?)?|f(?:t(?:p(?::/?)?)?)?|w(?:w(?:w\.?)?)?)?\Z", re.IGNORECASE
)


def _partial(text: str) -> str:
    """Return a pattern for the proper beginnings of ``text`` (after its first character) at the end of the stream."""
    pattern = r"\Z"
    for char in reversed(text[1:-1]):
        pattern = rf"(?:{re.escape(char)}{pattern}|\Z)"
    return pattern


def _url_start() -> str:
    """Return a pattern for a URL prefix at the start of a word, whole or cut off by the end of the stream."""
    branches = []
    for prefix in _PREFIXES:
        first = prefix[0]
        rest = re.escape(prefix[1:]) + (r"(?=[^\W_]|\Z)" if prefix == "www." else "")
        branches.append(
            rf"[{first}{first.upper()}](?<![^\W_{UNSPACED_CLASS}].)(?i:(?P<{_name(prefix)}>{rest})|{_partial(prefix)})"
        )
    return "|".join(branches)


def _name(prefix: str) -> str:
    return "url_" + prefix.rstrip(":/.")


URL_KINDS = {_name(prefix): len(prefix) for prefix in _PREFIXES}
"""Group of ``_url_start`` -> length of the prefix."""

_MARKS = r"[\n\\\[\]<>|*_~`]|!(?=\[|\Z)|&(?=[A-Za-z0-9#]|\Z)"
TEXT_MARKS = re.compile(_MARKS + "|" + _url_start(), re.DOTALL)
HEADING_MARKS = re.compile(_MARKS + "|#|" + _url_start(), re.DOTALL)
CODE_MARKS = re.compile(r"[\n`|#<]|" + _url_start(), re.DOTALL)
"""Where plain text ends, by context. ``MARKS_WITHOUT_URLS`` is for text whose URLs are read."""
MARKS_WITHOUT_URLS = {
    TEXT_MARKS: re.compile(_MARKS),
    HEADING_MARKS: re.compile(_MARKS + "|#"),
    CODE_MARKS: re.compile(r"[\n`|#<]"),
}
PLAIN_MARKS = re.compile("[\n<]|" + _url_start(), re.DOTALL)
"""For text without Markdown."""

PLAIN_STOP = re.compile(
    "[^ -~\u00c0-\u024f\u2013\u2014\u2018-\u201f\u2026\u4e00-\u9fef]|[0-9#*]\\Z|" + TEXT_MARKS.pattern, re.DOTALL
)
"""What text without any mark, URL or unusual character does not contain."""

# -- within a line ----------------------------------------------------------------------------------------------------

ENTITY = re.compile(r"&(?P<name>[A-Za-z0-9#]{1,10})?(?P<end>;)?")
REFERENCE = re.compile(rf"\[[^\[\n{PARAGRAPH}\]]{{0,60}}(?P<end>\])?")
_NAME_CHARS = r"[A-Za-z0-9\-:_.]"
_ATTRIBUTE = rf"[A-Za-z]{_NAME_CHARS}*="
_NO_LINE = rf"\n{PARAGRAPH}"
_GAP = rf"""(?:[ ]|{_ATTRIBUTE}(?:"[^"<{_NO_LINE}]*"|'[^'<{_NO_LINE}]*'|[^ <>"'{_NO_LINE}]+(?=[ >])))*"""
_CUT_ATTRIBUTE = rf"""[A-Za-z]{_NAME_CHARS}*(?:=(?:"[^"<{_NO_LINE}]*|'[^'<{_NO_LINE}]*|[^ <>"'{_NO_LINE}]*)?)?"""
_TAG_NAME = rf"(?P<name>[A-Za-z]{_NAME_CHARS}*)|/(?P<closed>{_NAME_CHARS}+)"
TAG = re.compile(
    rf"<(?:(?:{_TAG_NAME})(?P<attributes>[ ]{_GAP})?/?>|(?P<comment>[!?]--)|[!?][^>{_NO_LINE}]*>|\|[\w|\-/ ]*\|>)"
)
CUT_TAG = re.compile(
    rf"<(?:/?(?:[A-Za-z]|(?<=/){_NAME_CHARS}){_NAME_CHARS}*(?:[ ]{_GAP}(?:{_CUT_ATTRIBUTE})?)?/?"
    rf"|/|[!?][^>{_NO_LINE}]*|\|[\w|\-/ ]*)?\Z"
)
"""A tag that is cut off by the end of the stream."""

CLOSING_SPELL = re.compile(r"<(?:/(?:s(?:p(?:e(?:l(?:l {0,8}(?P<whole>>)?)?)?)?)?)?)?", re.IGNORECASE)
PRONOUNCED = re.compile(
    rf"(?P<content>[^<{_NO_LINE}]{{1,100}})(?:<(?:/(?:p(?:h(?:o(?:n(?:e(?:m(?:e(?P<whole>>)?)?)?)?)?)?)?)?)?)?",
    re.IGNORECASE,
)
_BREAK_TIME = re.compile(r"(?<![\w-])time=[\"']?(\d{1,6}(?:\.\d{1,3})?)(ms|s)(?![\w.])", re.IGNORECASE)
_PHONEMES = re.compile(r"(?<![\w-])ph=(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_ALPHABET = re.compile(r"(?<![\w-])alphabet=[\"']?([\w-]+)", re.IGNORECASE)
MAX_BREAK_MS = 10_000
_MAX_PHONEMES = 100
ADDRESS = re.compile(rf"<(?:mailto:)?(?=[A-Za-z]{_NAME_CHARS}*@)", re.IGNORECASE)
TAG_LIMIT = 301
TARGET_LIMIT = 500
TARGET_MARKS = re.compile(rf"[()\[\]< {_NO_LINE}]")
_TITLE = re.compile(rf" {{1,64}}(?:\"[^\"\[\]<{_NO_LINE}]{{0,300}}\"|'[^'\[\]<{_NO_LINE}]{{0,300}}')? {{0,64}}\)")
_CUT_TITLE = re.compile(
    rf" {{1,64}}(?:\"[^\"\[\]<{_NO_LINE}]{{0,300}}(?:\" {{0,64}})?|'[^'\[\]<{_NO_LINE}]{{0,300}}(?:' {{0,64}})?)?\Z"
)


def target_end(text: str, start: int) -> tuple[int, int]:
    """Read the target of a link, from the ``(`` at ``start``: a target without spaces and an optional quoted title.

    Returns:
        The end, and the number of open parentheses there: 0 if the target is whole, otherwise the text ends in it. The
        end is -1 if this is no target.
    """
    depth = 0
    limit = start + 1 + TARGET_LIMIT
    for match in TARGET_MARKS.finditer(text, start, limit):
        char = match.group()
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return match.end(), 0
        elif char == " " and depth == 1:
            titled = _TITLE.match(text, match.start())
            if titled:
                return titled.end(), 0
            return (len(text), 1) if _CUT_TITLE.match(text, match.start()) else (-1, 0)
        else:
            return -1, 0
    return min(len(text), limit), depth


def break_ms(attributes: str | None) -> int | None:
    """Return the length of a break: ``time="300ms"``, ``time="1.5s"``, at most 10 s. None without a valid length."""
    found = _BREAK_TIME.search(attributes or "")
    if found is None:
        return None
    return min(MAX_BREAK_MS, round(float(found[1]) * (1000 if found[2].lower() == "s" else 1)))


def phonemes_of(attributes: str | None) -> str | None:
    """Return the phonemes of a ``<phoneme>`` tag in IPA; None if it has none, or in another alphabet."""
    attributes = attributes or ""
    alphabet = _ALPHABET.search(attributes)
    found = _PHONEMES.search(attributes)
    phonemes = " ".join((found[1] or found[2] or "").split()) if found else ""
    if not phonemes or len(phonemes) > _MAX_PHONEMES or (alphabet and alphabet[1].lower() != "ipa"):
        return None
    return phonemes


def letter_name(char: str) -> str:
    """Return how a spelled character is written, so that no engine reads "A" as the article."""
    return "A," if char in "Aa" else char.upper()


def entity_char(written: str) -> str | None:
    """Return the character that an entity stands for, "" for one that is not read; None if it stands for none."""
    meant = html.unescape(written)
    if meant == written or len(meant) != 1:
        return None
    if meant.isspace():
        return " "
    return "" if is_filtered(meant) else meant
