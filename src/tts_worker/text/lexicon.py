"""Pronunciation lexicon: replaces a word or phrase by another spelling or by phonemes between slashes.

Entries come from three levels (server < voice < session; later levels win). ``LexiconStage`` finds them in a stream of
characters: whole words, longest match, independent of how the stream is split. A replacement stays one unit, so that no
later stage splits it. Reading files is the caller's task. The vocabulary follows the W3C Pronunciation Lexicon
Specification (grapheme, alias, phoneme).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from tts_worker.errors import InvalidRequest
from tts_worker.text.character_filter import is_filtered
from tts_worker.text.characters import extends, is_unspaced
from tts_worker.text.mapped_text import MappedText
from tts_worker.text.segmenter import Segmenter
from tts_worker.types import Span

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

    def find(self, written: str) -> LexiconEntry | None:
        """Return the entry of a spelling, exact spellings first."""
        spellings = self._spellings.get(_folded(written), {})
        return spellings.get(written) or spellings.get("")

    def has_beginning(self, written: str) -> bool:
        """Return whether an entry begins with ``written``."""
        exact, folded = self._sorted
        return _has_beginning(exact, written) or _has_beginning(folded, _folded(written))

    @cached_property
    def _sorted(self) -> tuple[list[str], list[str]]:
        """The spellings that only match exactly, and the folded ones."""
        exact = sorted(entry.grapheme for entry in self if entry.case_sensitive)
        return exact, sorted(_folded(entry.grapheme) for entry in self if not entry.case_sensitive)

    @cached_property
    def starts(self) -> re.Pattern[str]:
        """A pattern of the first characters of all entries."""
        return re.compile("[" + re.escape("".join({entry.grapheme[0] for entry in self})) + "]", re.IGNORECASE)

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
        if not isinstance(key, str):
            raise InvalidRequest(f"{name} has a key of type {_type_name(key)}; put it in quotes")
        entry = _parse_entry(" ".join(key.split()), value, f"{name}[{key[:MAX_GRAPHEME_CHARS]!r}]")
        chars += len(entry.grapheme) + len(entry.alias or entry.phonemes or "")
        if chars > MAX_LEXICON_CHARS:
            raise InvalidRequest(f"{name} has too much text: at most {MAX_LEXICON_CHARS} characters are allowed")
        yield entry


def _parse_entry(grapheme: str, value: object, name: str) -> LexiconEntry:
    if not any(map(str.isalnum, grapheme)):
        raise InvalidRequest(f"{name}: a key needs a letter or a digit")
    if len(grapheme) > MAX_GRAPHEME_CHARS:
        raise InvalidRequest(f"{name}...: a key has at most {MAX_GRAPHEME_CHARS} characters")
    _check_characters(grapheme, name)
    case_sensitive = any(map(str.isupper, _INSIDE_A_WORD.findall(grapheme)))
    if isinstance(value, Mapping):
        if "say" not in value or not value.keys() <= {"say", "case_sensitive"}:
            raise InvalidRequest(f"{name} takes say and case_sensitive, and needs say")
        explicit = value.get("case_sensitive", case_sensitive)
        if not isinstance(explicit, bool):
            raise InvalidRequest(f"{name}.case_sensitive must be true or false, not {_type_name(explicit)}")
        case_sensitive = explicit
        value = value["say"]
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a spelling or /phonemes/, not {_type_name(value)}")
    alias = " ".join(value.split())
    if len(alias) > MAX_ALIAS_CHARS:
        raise InvalidRequest(f"{name}: the replacement has at most {MAX_ALIAS_CHARS} characters")
    _check_characters(alias, name)
    if len(alias) > 2 and alias[0] == alias[-1] == "/":
        return LexiconEntry(grapheme, phonemes=alias[1:-1], case_sensitive=case_sensitive)
    if not any(map(str.isalnum, alias)):
        raise InvalidRequest(f"{name} needs something to say: a spelling, or phonemes between slashes")
    return LexiconEntry(grapheme, alias=alias, case_sensitive=case_sensitive)


def _check_characters(text: str, name: str) -> None:
    if not (text.isascii() and text.isprintable()) and any(map(_is_filtered, text)):
        raise InvalidRequest(f"{name} has a character that is never read aloud (emoji, control, zero-width)")


def _type_name(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _fold(char: str) -> str:
    lower = char.lower()
    return lower if len(lower) == 1 else char


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_fold, text))


# -- search -----------------------------------------------------------------------------------------------------------


_Match = tuple[int, LexiconEntry | None]
_NO_MATCH: _Match = (0, None)


class LexiconStage:
    """Passes ``source`` to the segmenter, with lexicon matches as replacements.

    Holds at most ``MAX_GRAPHEME_CHARS + 1`` characters, and only while they can begin an entry.
    """

    def __init__(self, lexicon: Lexicon, source: MappedText, out: Segmenter) -> None:
        self.source = source  # what is not decided
        self._before = " "  # the character before it
        self._lexicon = lexicon
        self._out = out

    @property
    def is_matching(self) -> bool:
        """Whether text is held because it may begin an entry."""
        return self.source.text != ""

    def run(self, *, is_final: bool = False) -> None:
        """Pass on what is decided; with ``is_final`` as if the text ended here."""
        text = self.source.text
        done = place = 0
        while start := self._lexicon.starts.search(text, place):
            place = start.start()
            begins_word = _is_word_boundary(text[place - 1] if place else self._before, text[place])
            match = self._match(place, is_final=is_final) if begins_word else _NO_MATCH
            if match is None:
                break
            end, entry = match
            if entry is not None:
                if done < place:
                    self._out.source.extend(self.source, done, place)
                written = text[place:end]
                first = self.source.span_at(place).start
                last = self.source.span_at(end - 1).end
                self._out.source.append_unit(Span(entry.alias or written, first, last, entry.phonemes))
                done = end
            place = max(end, place + 1)
        else:
            place = len(text)
        if done < place:
            self._out.source.extend(self.source, done, place)
        if place:
            self._before = text[place - 1]
            self.source.cut(place)

    def space_follows(self) -> None:
        """Tell the segmenter that a space or a line break precedes the next letter, unless text before it is held."""
        self.run()
        if not self.is_matching:
            self._out.space_follows()

    def _match(self, first: int, *, is_final: bool) -> _Match | None:
        """Return the end and the entry of the longest match at ``first``; None if the next text decides."""
        text = self.source.text
        found = _NO_MATCH
        for place in range(first, len(text)):
            if place > first and _is_word_boundary(text[place - 1], text[place]):
                found = self._longer(found, text[first:place], place)
            if not self._lexicon.has_beginning(text[first : place + 1]):
                return found
        return self._longer(found, text[first:], len(text)) if is_final else None

    def _longer(self, found: _Match, written: str, end: int) -> _Match:
        entry = self._lexicon.find(written)
        return found if entry is None else (end, entry)


def _has_beginning(words: Sequence[str], beginning: str) -> bool:
    """Return whether one of the sorted ``words`` begins with ``beginning``."""
    place = bisect_left(words, beginning)
    return place < len(words) and words[place].startswith(beginning)


def _is_word_boundary(before: str, after: str) -> bool:
    """Return whether a word may end between the two characters."""
    if extends(after):
        return False
    if is_unspaced(before) or is_unspaced(after):
        return True
    return not ((before.isalnum() or before == "_") and (after.isalnum() or after == "_"))
