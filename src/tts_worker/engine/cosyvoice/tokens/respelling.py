"""Respelling: a bundle's list of words in the spelling that its language model reads, for example phonemes.

An extension of the official layout: ``respelling.tsv`` beside the vocabulary, a word and its spelling in each line,
separated by a tab. A small model then need not learn pronunciation.

A word that is not listed may be a listed one with an ending. Lines that begin with ``-`` have endings, in the order in
which they are tried: ``-ing=e`` is ``ing`` in place of the word's last ``e``. Of its spellings, separated by spaces,
the first fits whose characters behind ``/`` include the last one of the word's spelling; without ``/`` it always fits.

The spelling of all other words is put together from fragments, lines that begin with ``~``, the longest first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tts_worker.errors import BundleError

FILE = "respelling.tsv"
FRAGMENT = "~"
ENDING = "-"
_LEAST_LETTERS = 2  # of a word with an ending
_APOSTROPHES = re.compile("[’ʼ]")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_HYPHEN = re.compile(r"(?<=\w)-(?=[^\W\d_])")


@dataclass(frozen=True)
class _Ending:
    """An ending of words.

    Attributes:
        letters: What it is written with.
        dropped: What the word ends in without it.
        forms: Its spellings, each with the last characters of the word's spelling that it fits; "": any.
    """

    letters: str
    dropped: str
    forms: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, key: str, value: str) -> _Ending:
        letters, _, dropped = key.removeprefix(ENDING).partition("=")
        forms = (form.partition("/") for form in value.split())
        return cls(letters, dropped, tuple((form, last) for form, _, last in forms))

    def spell(self, word: str, spellings: Mapping[str, str]) -> str | None:
        """Return the spelling of ``word`` if it is a word of ``spellings`` with this ending."""
        if not word.endswith(self.letters):
            return None
        stem = word.removesuffix(self.letters) + self.dropped
        known = spellings.get(stem)
        if known is None or len(stem) < _LEAST_LETTERS:
            return None
        return next((known + form for form, last in self.forms if not last or known[-1] in last), None)


class Respelling:
    """Replaces words; marks and spaces stay.

    Args:
        spellings: Spelling by word, in lower case; by ``~`` and a fragment of a word; by ``-`` and an ending.
    """

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
        self._endings = [_Ending.parse(key, spellings[key]) for key in spellings if key[0] == ENDING]
        self._longest = max((len(key) - 1 for key in spellings if key[0] == FRAGMENT), default=0)

    @classmethod
    def load(cls, file: Path) -> Respelling:
        """Read a file.

        Raises:
            BundleError: It is not UTF-8, or a line is not a word and its spelling; names the line.
        """
        spellings = {}
        try:
            lines = file.read_text("utf-8").splitlines()
        except UnicodeDecodeError:
            raise BundleError(f"{file}: is not UTF-8") from None
        for number, line in enumerate(lines, 1):
            word, tab, spelling = line.partition("\t")
            if not (word.strip(FRAGMENT + ENDING).partition("=")[0] and tab and spelling.strip()):
                raise BundleError(f"{file}: line {number} is not a word, a tab and its spelling")
            spellings[word] = spelling
        return cls(spellings)

    def __call__(self, text: str) -> str:
        """Respell ``text``. Parts of words joined by a hyphen become one word."""
        spelled = _WORD.sub(self._spell, _APOSTROPHES.sub("'", text))
        return _HYPHEN.sub("", spelled)

    def _spell(self, match: re.Match[str]) -> str:
        word = match[0].casefold()
        known = self._spellings.get(word)
        if known is None:
            known = next(filter(None, (ending.spell(word, self._spellings) for ending in self._endings)), None)
        return known if known is not None else self._spell_fragments(word)

    def _spell_fragments(self, word: str) -> str:
        parts = []
        at = 0
        while at < len(word):
            for end in range(min(len(word), at + self._longest), at, -1):
                spelling = self._spellings.get(FRAGMENT + word[at:end])
                if spelling is not None:
                    parts.append(spelling)
                    at = end
                    break
            else:
                parts.append(word[at])
                at += 1
        return "".join(parts)
