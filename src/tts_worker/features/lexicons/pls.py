"""Reads PLS, the W3C's Pronunciation Lexicon Specification 1.0: lexemes in XML, with graphemes and how to say them.

Of several pronunciations the preferred one is taken, otherwise the first; of several lexemes with one grapheme the
first, since roles are not known here. A document type declaration is refused, so that a file has no entities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from tts_worker.errors import InvalidRequest
from tts_worker.text.lexicon import MAX_ENTRIES

_NAMESPACE = "http://www.w3.org/2005/01/pronunciation-lexicon"
_MAX_DEPTH = 8
_ALPHABETS = frozenset({"ipa", "cmu-arpabet", "arpabet", "pinyin"})
_READINGS = frozenset({"phoneme", "alias"})


def check_alphabet(alphabet: str) -> None:
    """Raise InvalidRequest for an alphabet of phonemes that no voice reads."""
    if alphabet.lower().removeprefix("x-") not in _ALPHABETS:
        raise InvalidRequest(f"the alphabet {alphabet[:32]!r} is not supported: use ipa or cmu-arpabet, or an alias")


def phonemes_entry(phonemes: str) -> str:
    """Return the value of an entry that is pronounced so."""
    return f"/{phonemes.strip().strip('/')}/"


def read_pls(data: bytes) -> dict[str, Any]:
    """Return the entries of a PLS file, as ``Lexicon.from_mapping`` takes them.

    A grapheme that differs from another one only in case matches exactly; others match as ``from_mapping`` says.

    Raises:
        InvalidRequest: The file is not PLS, or has something that cannot be read; names the line.
    """
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InvalidRequest(f"line {error.lineno}: not valid XML ({expat.ErrorString(error.code)})") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"line {reader.parser.CurrentLineNumber}: {error.message}") from None
    except (ValueError, LookupError):  # an encoding that is unknown, or has more than one byte a character
        raise InvalidRequest("the encoding of the file is not supported: use UTF-8") from None
    return _with_exact_case(reader.entries)


def _with_exact_case(entries: Mapping[str, str]) -> dict[str, Any]:
    spellings = Counter(grapheme.lower() for grapheme in entries)
    return {
        grapheme: {"say": value, "case_sensitive": True} if spellings[grapheme.lower()] > 1 else value
        for grapheme, value in entries.items()
    }


@dataclass(slots=True)
class _Lexeme:
    graphemes: list[str] = field(default_factory=list)
    reading: str | None = None
    is_preferred: bool = False


class _Reader:
    """Collects the entries while expat parses."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._add_text
        self._depth = 0
        self._skipped = 0  # depth of an element of another kind; 0 outside of one
        self._alphabets: list[str] = []
        self._lexeme: _Lexeme | None = None
        self._attributes: Mapping[str, str] = {}
        self._text: list[str] | None = None

    def _refuse_doctype(self, *_: object) -> None:
        raise InvalidRequest("a document type declaration is not read: delete <!DOCTYPE ...>")

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InvalidRequest("the elements are nested too deeply")
        namespace, _, local = name.rpartition(" ")
        if self._depth == 1:
            if local != "lexicon" or namespace not in ("", _NAMESPACE):
                raise InvalidRequest("this is no PLS file: its root is not <lexicon>")
            self._alphabets.append(attributes.get("alphabet", "ipa"))
        elif self._skipped or namespace not in ("", _NAMESPACE):
            self._skipped = self._skipped or self._depth
        elif local == "lexeme" and self._depth == 2:
            self._lexeme = _Lexeme()
        elif self._lexeme is not None and self._depth == 3 and (local == "grapheme" or local in _READINGS):
            self._attributes = attributes
            self._text = []
        else:
            self._skipped = self._depth

    def _add_text(self, text: str) -> None:
        if self._text is not None and not self._skipped:
            self._text.append(text)

    def _end(self, name: str) -> None:
        depth, self._depth = self._depth, self._depth - 1
        if self._skipped:
            if depth == self._skipped:
                self._skipped = 0
            return
        local = name.rpartition(" ")[2]
        if depth == 3 and self._text is not None and self._lexeme is not None:
            self._add_part(self._lexeme, local, " ".join("".join(self._text).split()))
            self._text = None
        elif depth == 2 and self._lexeme is not None:
            self._add_entries(self._lexeme)
            self._lexeme = None

    def _add_part(self, lexeme: _Lexeme, name: str, text: str) -> None:
        if name == "grapheme":
            lexeme.graphemes.append(text)
            return
        is_preferred = self._attributes.get("prefer", "").strip() in ("true", "1")
        if name == "phoneme":
            check_alphabet(self._attributes.get("alphabet", self._alphabets[0]))
            text = phonemes_entry(text)
        if lexeme.reading is None or (is_preferred and not lexeme.is_preferred):
            lexeme.reading, lexeme.is_preferred = text, is_preferred

    def _add_entries(self, lexeme: _Lexeme) -> None:
        if not lexeme.graphemes:
            raise InvalidRequest("the lexeme has no <grapheme>")
        if lexeme.reading is None:
            raise InvalidRequest("the lexeme has neither <alias> nor <phoneme>")
        for grapheme in lexeme.graphemes:
            self.entries.setdefault(grapheme, lexeme.reading)
        if len(self.entries) > MAX_ENTRIES:
            raise InvalidRequest(f"the file has too many entries; at most {MAX_ENTRIES} are allowed")
