"""Respelling: a bundle's list of words in the spelling that its language model reads, for example phonemes.

An extension of the official layout: ``respelling.tsv`` beside the vocabulary, a word and its spelling in each line,
separated by a tab. A small model then need not learn pronunciation. The spelling of other words is put together from
fragments, lines that begin with ``~``, the longest first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tts_worker.errors import BundleError

FILE = "respelling.tsv"
FRAGMENT = "~"
_APOSTROPHES = re.compile("[’ʼ]")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_HYPHEN = re.compile(r"(?<=\w)-(?=[^\W\d_])")


class Respelling:
    """Replaces words; marks and spaces stay.

    Args:
        spellings: Spelling by word, in lower case; by ``~`` and a fragment of a word.
    """

    def __init__(self, spellings: Mapping[str, str]) -> None:
        self._spellings = spellings
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
            if not (word.strip(FRAGMENT) and tab and spelling.strip()):
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
