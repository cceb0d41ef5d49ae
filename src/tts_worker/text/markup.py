"""Patterns of the text filter: Markdown, tags, URLs.

Every pattern has bounded length, so that undecided text at the end of a stream is bounded, and reading it again with
the next delta has bounded cost.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Mapping
from functools import cache

from tts_worker.text.character_filter import SOFT_SPACE, is_filtered
from tts_worker.text.characters import UNSPACED_CLASS
from tts_worker.text.tables import words

ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
SPACES = frozenset(" \n")
_TAGS = words("tags")
BREAKING_TAGS, SPACED_TAGS = _TAGS["breaking"], _TAGS["spaced"]
CITATION = re.compile(r"\d{1,3}(?:[,–-] ?\d{1,3})*")

# -- the start of a line ----------------------------------------------------------------------------------------------

BLANKS = f" {SOFT_SPACE}"
_BLANK = f"[{BLANKS}]"
INDENT = re.compile(f"[ {SOFT_SPACE}>]+")
INDENT_AFTER_BULLET = re.compile(f"{_BLANK}+")
_RULE = rf"(?P<mark>[-+*•‣⁃_=])(?P=mark){{0,63}}{_BLANK}{{0,64}}"
_TABLE_BORDER = r"-[- ]{1,64}[|:][-:| ]{0,200}|\|[-:| ]{0,200}"
LINE_MARK = re.compile(
    rf"(?P<heading>#{{1,6}} )|(?P<bullet>[-+*•‣⁃]{_BLANK})|(?P<item>[0-9]{{1,9}}[.)] )"
    rf"|(?P<rule>(?:#{{1,6}}|{_RULE}|{_TABLE_BORDER})(?=\n|\Z))|(?P<row>\|)"
    r"|(?P<dot>[•‣⁃])|(?P<checkbox>\[[ xX]\] )|(?P<cut>(?:[0-9]{1,9}[.)]?|\[(?:[ xX]\]?)?)\Z)"
)
"""What begins a line. ``rule`` at the end of the stream may be the beginning of another mark; ``cut`` is only that."""
CELL = re.compile(rf"\|{_BLANK}{{0,64}}[-: {SOFT_SPACE}]{{0,128}}")
CELL_BLANKS = re.compile(rf"\|{_BLANK}{{0,64}}")
CLOSING_HASHES = re.compile("#[# ]{0,63}")
PAIR = re.compile(r"(\*\*?|_|`)([A-Za-z0-9]+(?:[ '-][A-Za-z0-9]+)*)\1(?=[ \n.,:;!?)])")
LITERAL_RUN = re.compile(r".~.|[^\W_]_+[^\W_]|[ \n]\*[ \n]|\d\*+\d", re.DOTALL)
"""A run of marks that is read aloud: ``~5``, ``snake_case``, ``2*3``."""
PRODUCT = re.compile(r"(?:[^\W_]|[)\]])\*(?:[^\W_]|[(\[])|[^\W_]\*\*\d")
"""A run that is read aloud if it closes no emphasis: ``a*b``, ``(a+b)*c``, ``x**2``."""
RUN = re.compile(r"([*_~`])\1{0,63}")
FENCE = re.compile(r"(`{3,64})[^\n`]{0,100}|(~{3,64})[^\n]{0,100}")
ENDED_FENCE = frozenset(f"{BLANKS}\n")
"""What may follow the mark at the end of fenced code."""

# -- URLs -------------------------------------------------------------------------------------------------------------

TAIL = ".,;:!?'*_~("
"""Punctuation that belongs to the sentence at the end of a URL."""

URL_TAIL = re.compile(r"[.,;:!?'*_~(]{1,32}")
_URL_STOPS = r"\x00- <>\"`{}|\\^\[\]"
_URL_CHAR = rf"[!-~](?<![{_URL_STOPS}])|[^\W_](?<![{UNSPACED_CLASS}])"
URL_CHAR = re.compile(rf"(?!\))(?:{_URL_CHAR})")
URL_CHARS = re.compile(rf"(?:(?![.,;:!?'*_~()])(?:{_URL_CHAR}))*")
AUTHORITY = re.compile(rf"(?:(?![/#?&=%()*~])(?:{_URL_CHAR})){{0,253}}")
URL_PREFIX = re.compile(r"https?://|ftp://|www\.(?=[^\W_]|\Z)|mailto:", re.IGNORECASE)
CUT_PREFIX = re.compile(
    r"(?:h(?:t(?:t(?:p(?:s?(?::/?)?)?)?)?)?|f(?:t(?:p(?::/?)?)?)?|w(?:w(?:w\.?)?)?|m(?:a(?:i(?:l(?:to?)?)?)?)?)?\Z",
    re.IGNORECASE,
)
"""The beginning of a prefix at the end of the stream."""

# -- where plain text ends --------------------------------------------------------------------------------------------


URL_LETTERS = "hHfFwWmM"
# The two letters that begin a URL, and no letter before them; the second may not have arrived.
_URL_START = (
    r"(?=[tTwWaA]|\Z)(?:(?<=[hHfF])(?=[tT]|\Z)|(?<=[wW])(?=[wW]|\Z)|(?<=[mM])(?=[aA](?:[iI]|\Z)|\Z))"
    rf"(?<![^\W_{UNSPACED_CLASS}].)"
)


@cache
def marks(chars: str, *, urls: bool) -> re.Pattern[str]:
    """Return the pattern of one of ``chars``, a mark after a space, or the first letter of what may be a URL."""
    letters = URL_LETTERS if urls else ""
    url = f"|{_URL_START}" if urls else ""
    close_up = re.escape(CLOSE_UP)
    # The class comes first, because the search for a class is fast.
    return re.compile(rf"[{chars}{close_up}{letters}](?:(?<=[{chars}])|(?<= [{close_up}]){url})", re.DOTALL)


CLOSE_UP = ".,;:!?)。，；：！？、"
"""Marks that follow a word without a space."""
LINE_MARKS = rf"\n{SOFT_SPACE}"
TEXT_MARKS = r"\\\[<|*_~`!&#$^"
CODE_MARKS = r"<|`"

# -- within a line ----------------------------------------------------------------------------------------------------

CUT_ENTITY = re.compile("&[A-Za-z0-9#]{0,10}")
ENTITY = re.compile("&[A-Za-z0-9#]{1,10};")
BRACKET_LIMIT = 203
"""A bracket still open after this many characters is plain text."""
BRACKET = re.compile(r"!?\[(?P<content>(?:[^\[\]\\\n]|\\.|\[[^\[\]\n]*\])*)(?P<end>\])?")
BRACKET_END = re.compile(r"[]\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
TARGET_END = re.compile(r"[]\[)<\s]")
"""What ends the content or the target of a link, or shows that it is none."""
REFERENCE = re.compile(r"\[[^\[\n\]]{0,60}(?P<end>\])?")
_NAME_CHARS = r"[A-Za-z0-9\-:_.]"
_ATTRIBUTE = rf"[A-Za-z]{_NAME_CHARS}*="
_ATTRIBUTES = rf"""(?:[ ]|{_ATTRIBUTE}(?:"[^"<\n]*"|'[^'<\n]*'|[^ <>"'\n]+(?=[ >])))*"""
_CUT_ATTRIBUTE = rf"""[A-Za-z]{_NAME_CHARS}*(?:=(?:"[^"<\n]*|'[^'<\n]*|[^ <>"'\n]*)?)?"""
_TAG_NAME = rf"(?P<name>[A-Za-z]{_NAME_CHARS}*)|/(?P<closed>{_NAME_CHARS}+)"
TAG = re.compile(
    rf"<(?:(?:{_TAG_NAME})(?P<attributes>[ ]{_ATTRIBUTES})?/?>|(?P<comment>[!?]--)|[!?][^>\n]*>|\|[\w|\-/ ]*\|>)"
)
CUT_TAG = re.compile(
    rf"<(?:/?(?:[A-Za-z]|(?<=/){_NAME_CHARS}){_NAME_CHARS}*(?:[ ]{_ATTRIBUTES}(?:{_CUT_ATTRIBUTE})?)?/?"
    rf"|/|[!?][^>\n]*|\|[\w|\-/ ]*)?\Z"
)
"""A tag that is cut off by the end of the stream."""


def _closing(name: str) -> str:
    """Return a pattern of the closing tag of ``name``, or its beginning; the group "whole" is set for a whole tag."""
    tag = f"</{name}"
    return "(?:" + "(?:".join(map(re.escape, tag)) + r" {0,8}(?P<whole>>)?" + ")?" * len(tag)


CLOSING_SPELLED = {name: re.compile(_closing(name), re.IGNORECASE) for name in ("spell", "say-as", "expr")}
REPLACED = {
    name: re.compile(r"(?P<content>[^<\n]{1,100})" + _closing(name), re.IGNORECASE) for name in ("phoneme", "sub")
}
"""The content and the closing tag of what is spoken otherwise."""
_VALUE = re.compile(r"""(?<![\w-])([\w-]+)=(?:"([^"]*)"|'([^']*)'|([^ >"']+))""")
_BREAK_TIME = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s)", re.IGNORECASE)
_SPELLED_AS = ("characters", "spell-out", "digits", "telephone")
MAX_BREAK_MS = 10_000
_MAX_PHONEMES = 100
ADDRESS = re.compile(
    rf"<(?:mailto:)?(?P<address>[A-Za-z]{_NAME_CHARS}{{0,64}}@[\w.-]{{0,100}})(?P<whole>>)?", re.IGNORECASE
)
TAG_LIMIT = 301
TARGET_LIMIT = 500
TARGET_MARKS = re.compile(r"[()\[\]< \n]")
_TITLE = re.compile(r" {1,64}(?:\"[^\"\[\]<\n]{0,300}\"|'[^'\[\]<\n]{0,300}')? {0,64}\)")
_CUT_TITLE = re.compile(r" {1,64}(?:\"[^\"\[\]<\n]{0,300}(?:\" {0,64})?|'[^'\[\]<\n]{0,300}(?:' {0,64})?)?\Z")


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
            titled = _TITLE.match(text, match.start(), limit)
            if titled:
                return titled.end(), 0
            is_cut = len(text) < limit and _CUT_TITLE.match(text, match.start())
            return (len(text), 1) if is_cut else (-1, 0)
        else:
            return -1, 0
    return min(len(text), limit), depth


def values_of(attributes: str | None) -> dict[str, str]:
    """Return the values of a tag's attributes by lower-case name."""
    return {name.lower(): "".join(value) for name, *value in _VALUE.findall(attributes or "")}


def break_ms(values: Mapping[str, str]) -> int | None:
    """Return the length of a break: ``time="300ms"``, ``time="1.5s"``, at most 10 s. None without a valid length."""
    found = _BREAK_TIME.fullmatch(values.get("time", ""))
    if found is None:
        return None
    return min(MAX_BREAK_MS, round(float(found[1]) * (1000 if found[2].lower() == "s" else 1)))


def phonemes_of(values: Mapping[str, str], alphabets: Collection[str]) -> str | None:
    """Return the phonemes of a ``<phoneme>`` tag; None if it has none, or in an alphabet not among ``alphabets``."""
    phonemes = " ".join(values.get("ph", "").split())
    alphabet = values.get("alphabet", "").lower()
    return phonemes if 0 < len(phonemes) <= _MAX_PHONEMES and (not alphabet or alphabet in alphabets) else None


def alias_of(values: Mapping[str, str]) -> str | None:
    """Return what is spoken instead of the content of a ``<sub>`` tag; None if nothing can be spoken."""
    alias = " ".join(ENTITY.sub(_entity_text, values.get("alias", "")).split())
    return alias if any(map(str.isalnum, alias)) else None


def _entity_text(entity: re.Match[str]) -> str:
    char = entity_char(entity.group())
    return entity.group() if char is None else char


def ends_sentence(tag: re.Match[str]) -> bool:
    """Return whether a tag is ``</s>`` after text without a stop."""
    return tag["closed"] in ("s", "S") and tag.string[tag.start() - 1] not in ".!?…"


def is_spelled(name: str, values: Mapping[str, str]) -> bool:
    """Return whether the content of an opening tag is read character by character."""
    if name == "expr":
        return values.get("type") == "spell"
    return name == "spell" or (name == "say-as" and values.get("interpret-as", "").lower() in _SPELLED_AS)


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
