"""Decides whether a period ends a sentence: titles, abbreviations, initials, ordinals.

The word lists are in ``data/abbreviations.tsv``; the abbreviations that are read in words in other languages
(``reading.further``) join them. The decision uses the words before the period and the first character of the next
word; after "a.m.", a day or "Art." as much of that word as tells a time zone, a date or a Roman numeral from others.

Before a small letter a sentence goes on after any short word that is not a common one: "Your appt. with Dr. Lee". A
wrong decision costs a later first segment there, and a pause within a sentence otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from tts_worker.text.language import primary_tag
from tts_worker.text.reading import roman
from tts_worker.text.reading.further import further_languages
from tts_worker.text.tables import words

_LISTS = words("abbreviations")
_TITLES, _MAY_END, _NUMBERED, _TIMES = (_LISTS[key] for key in ("title", "may end", "numbered", "time"))
_TIME_PREFIXES = frozenset(name[:length] for name in _TIMES for length in range(1, len(name) + 1))
TIME_CHARS = 1 + max(map(len, _TIMES)) + 1
"""Length of the following text that always decides: an opening bracket, a time, and what ends it."""
_ROMAN = re.compile("[IVXLC][IVXLCM]|[VX][ .,;:)]|I[.,;:)]")
_READ = ("ABBREVIATIONS", "BEFORE_NUMBER", "BEFORE_NAME", "ENDINGS")
"""Tables of the abbreviations that are read in words."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHORT = 4
"""Longest word that may be an abbreviation that no list has."""
_VOWELS = frozenset("aeiouy")


class PeriodRules:
    """Rules for one language (a BCP-47 tag or None); the English lists apply to every language."""

    def __init__(self, language: str | None) -> None:
        primary = primary_tag(language or "")
        read = {kind: frozenset(_abbreviations(primary, kind)) for kind in _READ}
        self._suffixes = tuple(word[1:] for word in read["ABBREVIATIONS"] if word[0] == "-")
        may_end = read["ENDINGS"].union(read["BEFORE_NUMBER"], _LISTS.get(f"may end {primary}", ()))
        titles = {word for word in read["ABBREVIATIONS"] - may_end if len(word) > 1}
        self._may_end = _MAY_END | may_end
        self._titles = _TITLES.union(titles, _LISTS.get(f"title {primary}", ()))
        self._before_name = read["BEFORE_NAME"] - self._titles
        self._listed = self._titles | self._may_end | self._before_name
        self._before_roman = _LISTS["before roman"] | read["BEFORE_NUMBER"]
        self._ordinals = primary in _LISTS["language with ordinals"]
        self._letters = primary in _LISTS["language with letters"]
        self._is_english = primary in ("", "en")

    def is_ambiguous(self, word: str) -> bool:
        """Return whether the next word tells if the period after ``word`` (without it) ends the sentence."""
        if word.isdigit():
            return len(word) <= 2
        lower = word.lower()
        if lower in self._listed or (self._suffixes and self._is_ending(lower)) or self._is_ordinal(word):
            return True
        if len(word) > 1 and "." not in word:  # as most words
            return self._may_be_short(lower)
        letters = [part for part in word.split(".") if part]
        is_short = all(len(part) <= 3 and part.isalpha() for part in letters)
        return is_short and (len(letters) > 1 or len(word) == 1) and word != "I"

    def _is_ending(self, lower: str) -> bool:
        """Return whether a word is an abbreviation that may end a sentence."""
        return lower in self._may_end or lower.endswith(self._suffixes)

    def _is_ordinal(self, word: str) -> bool:
        """Return whether the period makes an ordinal of a Roman numeral: "im II. Weltkrieg"."""
        return self._ordinals and roman.value(word) > 0

    def _may_be_short(self, lower: str) -> bool:
        """Return whether a word that no list has may be an abbreviation."""
        if len(lower) > _SHORT or not (lower.isascii() and lower.isalpha()):
            return False
        return lower not in _LISTS["common"] if self._is_english else _VOWELS.isdisjoint(lower)

    def sentence_continues(self, word: str, following: str, before: str | None) -> bool | None:
        """Return whether the sentence continues after an ambiguous period.

        Args:
            word: Word before the period.
            following: Text after it from the next word on, at least a character; ``TIME_CHARS`` always decide.
            before: Word before it; None if there is none. A number is then a list marker.

        Returns:
            None if more text must follow to decide.
        """
        if following[0] == "(":
            following = following[1:]
            if not following:
                return None
        first = following[0]
        lower = word.lower()
        if lower in self._titles:
            return True
        if first.isdigit() or first == "#":
            return self._takes_number(word, before)
        if first.islower():
            ends = word in _LISTS["also word"] or (lower == "no" and before is None)
            return not ends or _is_counted(before) or (lower == "no" and _is_numbered(before))
        if lower in self._before_roman and first in "IVXLC":
            return _begins_numeral(word, following)
        if lower in _LISTS["before time"]:
            return _begins_time(following)
        return self._takes_name(word, first, before)

    def _takes_number(self, word: str, before: str | None) -> bool:
        lower = word.lower()
        if lower == "in":
            return _is_counted(before)
        if len(word) == 1 or self._is_ending(lower) or not word.isalpha():
            return True
        return _VOWELS.isdisjoint(lower) and not word.isupper()

    def _takes_name(self, word: str, first: str, before: str | None) -> bool:
        """Return whether the sentence continues before a word that begins with ``first``, not a small letter."""
        if word.isdigit():
            return before is None or self._ordinals
        if self._is_ordinal(word):  # the noun of an ordinal follows, or the sentence after the name of a ruler
            return before is not None and before.islower()
        lower = word.lower()
        if lower in self._before_name:
            return not _is_counted(before)  # "2020 г." is a year
        if (
            word in _LISTS["title capital"]
            or lower in _LISTS["dotted never end"]
            or (lower == "no" and _is_numbered(before))
        ):
            return True
        if lower in _LISTS["size"]:
            return _is_counted(before) or (before or "").lower() in _LISTS["count"]
        if len(word) == 1:
            return self._letters if word.islower() else first.isupper()  # initials: "J. Smith"
        return "." in word and lower not in _LISTS["dotted may end"] and first.isupper()  # acronyms: "the U.S. Army"


@lru_cache(maxsize=64)
def period_rules(language: str | None) -> PeriodRules:
    return PeriodRules(language)


def _abbreviations(language: str, table: str) -> Iterator[str]:
    """Yield the words of a table of a language that end with a period, without it: "p", "ej"."""
    further = None if language in ("", "en") else further_languages()
    for written in further.abbreviations(language, table) if further else ():
        yield from (word[:-1].lower() for word in written.split() if word[-1] == ".")


def _is_counted(before: str | None) -> bool:
    """Return whether the word before an abbreviation is a number: "5 in." is a measure."""
    return before is not None and before[-1:].isdigit()


def _is_numbered(before: str | None) -> bool:
    return before is not None and before.lower() in _NUMBERED


def _begins_numeral(word: str, text: str) -> bool | None:
    """Return whether ``text`` begins with a Roman numeral; None if more must follow to decide."""
    if len(text) == 1:
        return None
    is_pronoun = word[0].islower() or word == "Art"
    return _ROMAN.match(text) is not None or (text[:2] == "I " and not is_pronoun)


def _begins_time(text: str) -> bool | None:
    """Return whether ``text`` begins with a day, a month or a time zone; None if more must follow to decide."""
    name = text[: len(text) - len(text.lstrip(_LETTERS))]
    if name == text:
        return None if name in _TIME_PREFIXES else False
    if name == "May":  # or the verb
        return None if text == "May " else text[4:5].isdigit() and text[3] == " "
    return name in _TIMES
