"""Pronunciation lexicon: replaces a word or phrase by another spelling or by phonemes between slashes.

Entries come from three levels (server < voice < session; later levels win). ``LexiconStage`` finds them in a stream of
characters: whole words, longest match, independent of how the stream is split. A replacement stays one unit, so that no
later stage splits it. Reading files is the caller's task. The vocabulary follows the W3C Pronunciation Lexicon
Specification (grapheme, alias, phoneme).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from tts_worker.errors import InvalidRequest
from tts_worker.text.character_filter import is_filtered
from tts_worker.text.characters import extends, is_unspaced
from tts_worker.text.whitespace import TextSink

MAX_ENTRIES = 5000
MAX_GRAPHEME_CHARS = 64
MAX_ALIAS_CHARS = 256
MAX_LEXICON_CHARS = 200_000
"""Total characters of one lexicon, graphemes and replacements; bounds the cost of validation."""

_INSIDE_A_WORD = re.compile(r"(?<=[^\W_])[^\W\d_a-z]")  # letters except a to z
_is_filtered = lru_cache(maxsize=4096)(is_filtered)


@dataclass(frozen=True, slots=True)
class LexiconEntry:
    """One lexicon entry.

    Attributes:
        grapheme: Spelling to match.
        alias: Spelling to read instead; None with ``phonemes``.
        phonemes: Phonemes in the engine's alphabet.
        case_sensitive: Whether the match is exact; otherwise any case matches.
    """

    grapheme: str
    alias: str | None = None
    phonemes: str | None = None
    case_sensitive: bool = False


class Lexicon:
    """An immutable set of entries; later ``entries`` replace earlier ones."""

    def __init__(self, entries: Iterable[LexiconEntry] = ()) -> None:
        self._spellings: dict[str, dict[str, LexiconEntry]] = {}  # by folded, then exact spelling ("" for any case)
        for entry in entries:
            folded = _folded(entry.grapheme)
            if entry.case_sensitive:
                self._spellings.setdefault(folded, {})[entry.grapheme] = entry
            else:  # applies to every spelling, also to exact ones of earlier entries
                self._spellings[folded] = {"": entry}

    @cached_property
    def root(self) -> _Node:
        """Root of the search tree, which is expanded on demand."""
        return _Node(0, tuple(self))

    def __len__(self) -> int:
        return sum(map(len, self._spellings.values()))

    def __iter__(self) -> Iterator[LexiconEntry]:
        return chain.from_iterable(spellings.values() for spellings in self._spellings.values())

    @classmethod
    def from_mapping(cls, data: object, *, name: str = "lexicon") -> Lexicon:
        """Build a lexicon from YAML or JSON data: ``{"nginx": "engine x", "Siobhan": "/ʃɪˈvɔːn/"}``.

        A value is a spelling, phonemes between slashes, or ``{say: ..., case_sensitive: bool}``. By default a key
        matches in any case unless it has a capital letter inside a word ("NASA", "iOS").

        Args:
            data: The mapping.
            name: Where the data comes from (for example ``voice.lexicon``), for error messages.

        Raises:
            InvalidRequest: Names the key: wrong type, empty, too long, more than ``MAX_ENTRIES`` entries, or more than
                ``MAX_LEXICON_CHARS`` characters in total.
        """
        if not isinstance(data, Mapping):
            raise InvalidRequest(f"{name} must be a mapping of words to spellings, not {_type_name(data)}")
        if len(data) > MAX_ENTRIES:
            raise InvalidRequest(f"{name} has {len(data)} entries; at most {MAX_ENTRIES} are allowed")
        return cls(_entries(data, name))

    @classmethod
    def merged(cls, *levels: Lexicon) -> Lexicon:
        """Merge ``levels`` (server, voice, session); a later level wins over an earlier one."""
        levels = tuple(level for level in levels if level)
        if len(levels) == 1:
            return levels[0]
        merged = cls()
        for level in levels:
            for folded, spellings in level._spellings.items():
                before = {} if "" in spellings else merged._spellings.get(folded, {})
                merged._spellings[folded] = {**before, **spellings}
        return merged


def _entries(data: Mapping[object, object], name: str) -> Iterator[LexiconEntry]:
    chars = 0
    for key, value in data.items():
        entry = _named_entry(key, value, name)
        chars += len(entry.grapheme) + len(entry.alias or entry.phonemes or "")
        if chars > MAX_LEXICON_CHARS:
            raise InvalidRequest(f"{name} has too much text: at most {MAX_LEXICON_CHARS} characters are allowed")
        yield entry


def _named_entry(key: object, value: object, name: str) -> LexiconEntry:
    if not isinstance(key, str):
        raise InvalidRequest(f"{name} has a key of type {_type_name(key)}; put it in quotes")
    grapheme = " ".join(key.split())
    try:
        return _parse_entry(grapheme, value)
    except _EntryError as problem:
        raise InvalidRequest(f"{name}[{key[:MAX_GRAPHEME_CHARS]!r}]{problem}") from None


class _EntryError(Exception):
    """The fault of an entry, appended to its name in the message."""


def _parse_entry(grapheme: str, value: object) -> LexiconEntry:
    if not any(map(str.isalnum, grapheme)):
        raise _EntryError(": a key needs a letter or a digit")
    if len(grapheme) > MAX_GRAPHEME_CHARS:
        raise _EntryError(f"...: a key has at most {MAX_GRAPHEME_CHARS} characters")
    _check_characters(grapheme)
    case_sensitive = any(map(str.isupper, _INSIDE_A_WORD.findall(grapheme)))
    if isinstance(value, Mapping):
        unknown = sorted(str(option) for option in value if option not in ("say", "case_sensitive"))
        if unknown or "say" not in value:
            raise _EntryError(" takes say and case_sensitive, and needs say")
        explicit = value.get("case_sensitive", case_sensitive)
        if not isinstance(explicit, bool):
            raise _EntryError(f".case_sensitive must be true or false, not {_type_name(explicit)}")
        case_sensitive = explicit
        value = value["say"]
    if not isinstance(value, str):
        raise _EntryError(f" must be a spelling or /phonemes/, not {_type_name(value)}")
    alias = " ".join(value.split())
    if len(alias) > MAX_ALIAS_CHARS:
        raise _EntryError(f": the replacement has at most {MAX_ALIAS_CHARS} characters")
    _check_characters(alias)
    if len(alias) > 2 and alias[0] == alias[-1] == "/":
        return LexiconEntry(grapheme, phonemes=alias[1:-1], case_sensitive=case_sensitive)
    if not any(map(str.isalnum, alias)):
        raise _EntryError(" needs something to say: a spelling, or phonemes between slashes")
    return LexiconEntry(grapheme, alias=alias, case_sensitive=case_sensitive)


def _check_characters(text: str) -> None:
    if not (text.isascii() and text.isprintable()) and any(map(_is_filtered, text)):
        raise _EntryError(" has a character that is never read aloud (emoji, control, zero-width)")


def _type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _fold(char: str) -> str:
    lower = char.lower()
    return lower if len(lower) == 1 else char


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_fold, text))


# -- search -----------------------------------------------------------------------------------------------------------


class _Node:
    """A node of the search tree at depth ``depth``; children are created on demand, since most are never reached."""

    __slots__ = ("_depth", "_unexpanded", "entry", "exact", "folded")

    def __init__(self, depth: int, entries: Sequence[LexiconEntry]) -> None:
        self._depth = depth
        self._unexpanded: Sequence[LexiconEntry] = entries
        self.exact: dict[str, _Node] = {}
        self.folded: dict[str, _Node] = {}
        self.entry: LexiconEntry | None = next((entry for entry in entries if len(entry.grapheme) == depth), None)

    def children(self, char: str, folded: str) -> Iterator[_Node]:
        """Yield the nodes that ``char`` leads to, exact spellings first."""
        if self._unexpanded:
            self._expand()
        if char in self.exact:
            yield self.exact[char]
        if folded in self.folded:
            yield self.folded[folded]

    def _expand(self) -> None:
        depth = self._depth
        exact: dict[str, list[LexiconEntry]] = {}
        by_fold: dict[str, list[LexiconEntry]] = {}
        for entry in self._unexpanded:
            if len(entry.grapheme) > depth:
                char = entry.grapheme[depth]
                if entry.case_sensitive:
                    exact.setdefault(char, []).append(entry)
                else:
                    by_fold.setdefault(_fold(char), []).append(entry)
        self.exact = {char: _Node(depth + 1, entries) for char, entries in exact.items()}
        self.folded = {char: _Node(depth + 1, entries) for char, entries in by_fold.items()}
        self._unexpanded = ()


class LexiconStage:
    """Passes filtered text to ``out``, and lexicon matches as single units.

    Buffers at most ``MAX_GRAPHEME_CHARS + 1`` characters, and only while they can begin an entry.
    """

    def __init__(self, lexicon: Lexicon, out: TextSink) -> None:
        self._root = lexicon.root
        self._out = out
        self._previous = " "
        self._pending: list[tuple[str, int]] = []
        self._nodes: list[_Node] = []  # nodes reached by the pending characters; exact spellings first
        self._match: tuple[int, LexiconEntry] | None = None  # length and entry of the longest match so far

    def push(self, text: str, start: int) -> None:
        plain = 0  # characters before this place are passed on
        for place, char in enumerate(text):
            if self._nodes:
                self._take(char, start + place)
                plain = place + 1
                continue
            before = text[place - 1] if place > plain else self._previous
            if self._is_word_boundary(before, char) and _next_nodes([self._root], char):
                self._emit(text[plain:place], start + plain)
                self._take(char, start + place)
                plain = place + 1
        self._emit(text[plain:], start + plain)

    def _take(self, char: str, index: int) -> None:
        """Take the next character of a possible match, or the first."""
        todo = deque(((char, index),))
        while todo:
            char, index = todo.popleft()
            if self._nodes:
                if self._is_word_boundary(self._pending[-1][0], char):
                    self._record_match()
                next_nodes = _next_nodes(self._nodes, char)
                self._pending.append((char, index))
                if next_nodes:
                    self._nodes = next_nodes
                else:
                    todo.extendleft(reversed(self._decide()))
                continue
            next_nodes = _next_nodes([self._root], char) if self._is_word_boundary(self._previous, char) else []
            if next_nodes:
                self._nodes = next_nodes
                self._pending.append((char, index))
            else:
                self._emit(char, index)

    def push_replacement(self, text: str, start: int, end: int, phonemes: str | None) -> None:
        self.settle()
        self._previous = text[-1]
        self._out.push_replacement(text, start, end, phonemes)

    def space_follows(self) -> None:
        if not self._nodes:
            self._out.space_follows()

    def settle(self) -> None:
        """Resolve pending characters as if the text ended here."""
        while self._nodes:
            self._record_match()
            for char, index in self._decide():
                self._take(char, index)

    def _record_match(self) -> None:
        for node in self._nodes:
            if node.entry is not None:
                self._match = (len(self._pending), node.entry)
                return

    def _decide(self) -> list[tuple[str, int]]:
        """Emit the longest match, or one character without a match; return the characters to process again."""
        pending = self._pending
        self._pending = []
        match = self._match
        self._match = None
        self._nodes = []
        if match is None:
            self._emit(*pending[0])
            return pending[1:]
        length, entry = match
        written = "".join(char for char, _ in pending[:length])
        alias = written if entry.alias is None else entry.alias
        self._previous = written[-1]
        self._out.push_replacement(alias, pending[0][1], pending[length - 1][1] + 1, entry.phonemes)
        return pending[length:]

    def _emit(self, text: str, start: int) -> None:
        if text:
            self._previous = text[-1]
            self._out.push(text, start)

    @staticmethod
    def _is_word_boundary(before: str, after: str) -> bool:
        """Return whether a word may end between the two characters."""
        if extends(after):
            return False
        if is_unspaced(before) or is_unspaced(after):
            return True
        return not ((before.isalnum() or before == "_") and (after.isalnum() or after == "_"))


def _next_nodes(nodes: list[_Node], char: str) -> list[_Node]:
    folded = _fold(char)
    return [child for node in nodes for child in node.children(char, folded)]
