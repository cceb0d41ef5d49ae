"""Decides whether a period ends a sentence: titles, abbreviations, initials, ordinals.

Holds the word lists by language. The decision uses the word before the period and the first character of the next word.
"""

from __future__ import annotations

from enum import Enum

from tts_worker.text.language import primary_tag


class Period(Enum):
    """Meaning of a period after a word, before the next word is known."""

    ENDS_SENTENCE = "ends"
    AMBIGUOUS = "ambiguous"  # depends on the next word: see ``sentence_continues``


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name or number follows in any case: never the end of a sentence.
_TITLES = _words(
    "mr mrs ms dr prof rev hon gen col capt cpt lt sgt cmdr adm gov sen rep pres supt insp messrs mme mlle st mt ft "
    "vs cf viz al ste rm bldg v"
)
_CAPITAL_TITLES = _words("Apt Ext Fl")
# End a sentence if the next word begins with a capital.
_MAY_END = _words(
    "etc inc ltd co corp llc bros jr sr esq dept univ assn no nos fig figs vol pp ch sec eq approx est ext tel ed eds "
    "ave blvd rd min max avg misc jan feb mar apr jun jul aug sept sep oct nov dec mon tue tues wed thu thurs fri sat "
    "sun oz lb lbs hr hrs mi km apt acct fl tsp tbsp sq cu rt rte hwy gal qt incl excl dep arr art pt ca ex"
)
# More titles by language. German nouns are capitalized, so no German abbreviation ends a sentence.
_TITLES_BY_LANGUAGE: dict[str, frozenset[str]] = {
    "de": _words(
        "hr fr frl dipl ing nr bzw evtl ggf vgl inkl exkl ca str abs art bd hrsg jh sog zzgl abzgl mind tel mio mrd "
        "bspw geb gest allg max"
    ),
    "fr": _words("m mm mgr bd av env chap tél réf"),
    "es": _words("sr sra srta dra ud uds pág págs núm art avda av tel"),
    "it": _words("sig sigg dott ing avv arch pag art tel ecc"),
    "pt": _words("sr sra dra exmo pág núm av tel"),
    "nl": _words("dhr mevr mw drs ir bijv blz nr ca incl excl"),
    "pl": _words("ul np tzn godz nr inż mgr"),
}
# Abbreviations with periods inside ("e.g."); the sentence continues after the first group in any case.
_DOTTED_NEVER_END = _words("e.g i.e z.b d.h u.a p.ex p.ej b.v m.a.w a.k.a")
_DOTTED_MAY_END = _words("a.m p.m a.d b.c u.s.w")
_NUMBERED = _words(
    "order item part model serial invoice account flight ref reference tracking ticket claim case policy"
)
"""What has a number: "order no. A-1"."""
_ORDINAL_STOPS = _words("de da nb nn no fi cs sk pl hu hr sl sr tr et lv")
_PHRASES_OF_LETTERS = _words("de pl cs nl")  # "z. B.", "d. h.": a space between the letters


class PeriodRules:
    """Rules for one language (a BCP-47 tag or None); the English lists apply to every language."""

    def __init__(self, language: str | None) -> None:
        primary = primary_tag(language or "")
        self._titles = _TITLES | _TITLES_BY_LANGUAGE.get(primary, frozenset())
        self._ordinals = primary in _ORDINAL_STOPS
        self._letters = primary in _PHRASES_OF_LETTERS

    def classify(self, word: str) -> Period:
        """Return whether the period after ``word`` (without it) ends the sentence."""
        if word.isdigit():
            return Period.AMBIGUOUS if len(word) <= 2 else Period.ENDS_SENTENCE
        lower = word.lower()
        if lower in self._titles or lower in _MAY_END:
            return Period.AMBIGUOUS
        if len(word) > 1 and "." not in word:  # as most words
            return Period.ENDS_SENTENCE
        letters = [part for part in word.split(".") if part]
        if all(len(part) <= 3 and part.isalpha() for part in letters) and (len(letters) > 1 or len(word) == 1):
            return Period.ENDS_SENTENCE if word == "I" else Period.AMBIGUOUS
        return Period.ENDS_SENTENCE

    def sentence_continues(self, word: str, following: str, before: str | None) -> bool:
        """Return whether the sentence continues after an ambiguous period.

        Args:
            word: Word before the period.
            following: First character of the next word.
            before: Word before it; None if there is none. A number is then a list marker.
        """
        if following.islower() or following.isdigit() or following == "#":
            return True
        if word.isdigit():
            return before is None or self._ordinals
        lower = word.lower()
        if lower == "no" and before is not None and before.lower() in _NUMBERED:
            return True
        if lower in self._titles or word in _CAPITAL_TITLES or lower in _DOTTED_NEVER_END:
            return True
        if lower in _MAY_END or lower in _DOTTED_MAY_END:
            return False
        if len(word) == 1 and word.islower():
            return self._letters
        return following.isupper()  # initials and acronyms: "J. Smith", "the U.S. Army"
