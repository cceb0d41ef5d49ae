"""How names are said: a word or phrase is read by another spelling, or by phonemes written between slashes.

Owns the entries of the three levels (server < voice < session, later ones win), their checks, and the search for them
in a stream of characters: whole words, longest match, across every cut of the stream. What is found goes on as one
piece, so that no later stage cuts inside it. It knows nothing of segments; reading files is the caller's business.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Protocol

from tts_worker.errors import InvalidRequest
from tts_worker.text.characters import extends, is_unspaced
from tts_worker.text.cleaning import is_filtered
from tts_worker.text.layout import TextSink

MAX_ENTRIES = 5000
MAX_WRITTEN_CHARS = 64
MAX_SAID_CHARS = 256
MAX_LEXICON_CHARS = 200_000
"""Of all entries of one lexicon, written and said: what checking it may cost."""

_INSIDE_A_WORD = re.compile(r"(?<=[^\W_])[^\W\d_a-z]")  # letters but a to z
_is_filtered = lru_cache(maxsize=4096)(is_filtered)


@dataclass(frozen=True, slots=True)
class Entry:
    """``written`` is read as ``said``, or by ``phonemes`` (the engine's alphabet; ``said`` is then as written).

    ``case_sensitive`` entries match exactly as written; the others in any case.
    """

    written: str
    said: str | None = None
    phonemes: str | None = None
    case_sensitive: bool = False


class Lexicon:
    """An immutable set of entries. ``len`` counts them. Later ``entries`` win over earlier ones."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._spellings: dict[str, dict[str, Entry]] = {}  # by folded spelling, then exact ("" for any case)
        for entry in entries:
            folded = _folded(entry.written)
            if entry.case_sensitive:
                self._spellings.setdefault(folded, {})[entry.written] = entry
            else:  # says what every spelling becomes, also those that an earlier entry knew exactly
                self._spellings[folded] = {"": entry}

    @cached_property
    def root(self) -> _Node:
        """Of the search tree, which grows where a text reaches it."""
        return _Node(0, tuple(self))

    def __len__(self) -> int:
        return sum(map(len, self._spellings.values()))

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(spellings.values() for spellings in self._spellings.values())

    @classmethod
    def from_mapping(cls, data: object, *, name: str = "lexicon") -> Lexicon:
        """A lexicon from what a YAML or JSON file holds: ``{"nginx": "engine x", "Siobhan": "/ʃɪˈvɔːn/"}``.

        A value is a spelling, phonemes between slashes, or ``{say: ..., case_sensitive: bool}``. Without the latter a
        key matches in any case unless it has a capital inside a word ("NASA", "iOS"). ``name`` (where the
        data stands, for example ``voice.lexicon``) goes into messages.

        Raises InvalidRequest that names the key: wrong type, empty, too long, more than MAX_ENTRIES entries, or more
        than MAX_LEXICON_CHARS characters in all.
        """
        if not isinstance(data, Mapping):
            raise InvalidRequest(f"{name} must be a mapping of words to how they are said, not {_kind(data)}")
        if len(data) > MAX_ENTRIES:
            raise InvalidRequest(f"{name} has {len(data)} entries; at most {MAX_ENTRIES} are allowed")
        return cls(_entries(data, name))

    @classmethod
    def merged(cls, *levels: Lexicon) -> Lexicon:
        """All entries of ``levels`` (server, voice, session); where they disagree the later level wins."""
        levels = tuple(level for level in levels if level)
        if len(levels) == 1:
            return levels[0]
        merged = cls()
        for level in levels:
            for folded, spellings in level._spellings.items():
                before = {} if "" in spellings else merged._spellings.get(folded, {})
                merged._spellings[folded] = {**before, **spellings}
        return merged


def _entries(data: Mapping[object, object], name: str) -> Iterator[Entry]:
    chars = 0
    for key, value in data.items():
        entry = _entry(key, value, name)
        chars += len(entry.written) + len(entry.said or entry.phonemes or "")
        if chars > MAX_LEXICON_CHARS:
            raise InvalidRequest(f"{name} has too much text: at most {MAX_LEXICON_CHARS} characters are allowed")
        yield entry


def _entry(key: object, value: object, name: str) -> Entry:
    if not isinstance(key, str):
        raise InvalidRequest(f"{name} has a key that is {_kind(key)}; write it in quotes")
    written = " ".join(key.split())
    try:
        return _checked(written, value)
    except _Problem as problem:
        raise InvalidRequest(f"{name}[{key[:MAX_WRITTEN_CHARS]!r}]{problem}") from None


class _Problem(Exception):
    """What is wrong with an entry, behind its name in the message."""


def _checked(written: str, value: object) -> Entry:
    if not any(map(str.isalnum, written)):
        raise _Problem(": a key needs a letter or a digit")
    if len(written) > MAX_WRITTEN_CHARS:
        raise _Problem(f"...: a key has at most {MAX_WRITTEN_CHARS} characters")
    _check_characters(written)
    case_sensitive = any(map(str.isupper, _INSIDE_A_WORD.findall(written)))
    if isinstance(value, Mapping):
        unknown = sorted(str(option) for option in value if option not in ("say", "case_sensitive"))
        if unknown or "say" not in value:
            raise _Problem(" takes say and case_sensitive, and needs say")
        chosen = value.get("case_sensitive", case_sensitive)
        if not isinstance(chosen, bool):
            raise _Problem(f".case_sensitive must be true or false, not {_kind(chosen)}")
        case_sensitive = chosen
        value = value["say"]
    if not isinstance(value, str):
        raise _Problem(f" must be a spelling or /phonemes/, not {_kind(value)}")
    said = " ".join(value.split())
    if len(said) > MAX_SAID_CHARS:
        raise _Problem(f": at most {MAX_SAID_CHARS} characters may be said")
    _check_characters(said)
    if len(said) > 2 and said[0] == said[-1] == "/":
        return Entry(written, phonemes=said[1:-1], case_sensitive=case_sensitive)
    if not any(map(str.isalnum, said)):
        raise _Problem(" must say something: a spelling, or phonemes between slashes")
    return Entry(written, said=said, case_sensitive=case_sensitive)


def _check_characters(text: str) -> None:
    if not (text.isascii() and text.isprintable()) and any(map(_is_filtered, text)):
        raise _Problem(" has a character that is never read aloud (emoji, control, zero-width)")


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _fold(char: str) -> str:
    lower = char.lower()
    return lower if len(lower) == 1 else char


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_fold, text))


# -- search -----------------------------------------------------------------------------------------------------------


class _Node:
    """A place in the search tree, ``depth`` characters into ``entries``. Its children are made when a text gets there:
    most of a large lexicon is never reached."""

    __slots__ = ("_depth", "_waiting", "entry", "exact", "folded")

    def __init__(self, depth: int, entries: Sequence[Entry]) -> None:
        self._depth = depth
        self._waiting: Sequence[Entry] = entries
        self.exact: dict[str, _Node] = {}
        self.folded: dict[str, _Node] = {}
        self.entry: Entry | None = next((entry for entry in entries if len(entry.written) == depth), None)

    def following(self, char: str, folded: str) -> Iterator[_Node]:
        """Where ``char`` leads, exact spellings first."""
        if self._waiting:
            self._grow()
        if char in self.exact:
            yield self.exact[char]
        if folded in self.folded:
            yield self.folded[folded]

    def _grow(self) -> None:
        depth = self._depth
        exact: dict[str, list[Entry]] = {}
        by_fold: dict[str, list[Entry]] = {}
        for entry in self._waiting:
            if len(entry.written) > depth:
                char = entry.written[depth]
                if entry.case_sensitive:
                    exact.setdefault(char, []).append(entry)
                else:
                    by_fold.setdefault(_fold(char), []).append(entry)
        self.exact = {char: _Node(depth + 1, entries) for char, entries in exact.items()}
        self.folded = {char: _Node(depth + 1, entries) for char, entries in by_fold.items()}
        self._waiting = ()


class LexiconSink(TextSink, Protocol):
    def push_said(self, text: str, start: int, end: int, phonemes: str | None) -> None:
        """Original characters ``[start, end)`` are said as ``text``, in one piece."""
        ...


class LexiconStage:
    """Passes filtered characters on to ``out`` and what the lexicon knows as single pieces.

    Holds back at most MAX_WRITTEN_CHARS + 1 characters, and only while they begin an entry.
    """

    def __init__(self, lexicon: Lexicon, out: LexiconSink) -> None:
        self._root = lexicon.root
        self._out = out
        self._previous = " "
        self._held: list[tuple[str, int]] = []
        self._nodes: list[_Node] = []  # where the held characters lead; exact spellings first
        self._found: tuple[int, Entry] | None = None  # the longest entry so far, and its length

    def push(self, char: str, index: int) -> None:
        todo = deque(((char, index),))
        while todo:
            char, index = todo.popleft()
            if self._nodes:
                if self._parts(self._held[-1][0], char):
                    self._note_entry()
                onward = _onward(self._nodes, char)
                self._held.append((char, index))
                if onward:
                    self._nodes = onward
                else:
                    todo.extendleft(reversed(self._decide()))
                continue
            onward = _onward([self._root], char) if self._parts(self._previous, char) else []
            if onward:
                self._nodes = onward
                self._held.append((char, index))
            else:
                self._pass_on(char, index)

    def space_follows(self) -> None:
        if not self._nodes:
            self._out.space_follows()

    def settle(self) -> None:
        """Decide what is held as if the text ended here."""
        while self._nodes:
            self._note_entry()
            for char, index in self._decide():
                self.push(char, index)

    def _note_entry(self) -> None:
        for node in self._nodes:
            if node.entry is not None:
                self._found = (len(self._held), node.entry)
                return

    def _decide(self) -> list[tuple[str, int]]:
        """Nothing longer can match: pass on what was found, or one character. The rest is to be read again."""
        held = self._held
        self._held = []
        found = self._found
        self._found = None
        self._nodes = []
        if found is None:
            self._pass_on(*held[0])
            return held[1:]
        length, entry = found
        written = "".join(char for char, _ in held[:length])
        said = written if entry.said is None else entry.said
        self._previous = written[-1]
        self._out.push_said(said, held[0][1], held[length - 1][1] + 1, entry.phonemes)
        return held[length:]

    def _pass_on(self, char: str, index: int) -> None:
        self._previous = char
        self._out.push(char, index)

    @staticmethod
    def _parts(before: str, after: str) -> bool:
        """Whether a word may end between the two."""
        if extends(after):
            return False
        if is_unspaced(before) or is_unspaced(after):
            return True
        return not ((before.isalnum() or before == "_") and (after.isalnum() or after == "_"))


def _onward(nodes: list[_Node], char: str) -> list[_Node]:
    folded = _fold(char)
    return [child for node in nodes for child in node.following(char, folded)]
