"""Decides whether a period ends a sentence: titles, abbreviations, initials, ordinals.

Holds the word lists by language. The decision uses the words before the period and the first character of the next
word; after "a.m.", a day or "Art." as much of that word as tells a time zone, a date or a Roman numeral from others.

Before a small letter a sentence goes on after any short word that is not a common one: "Your appt. with Dr. Lee". A
wrong decision costs a later first segment there, and a pause within a sentence otherwise.
"""

from __future__ import annotations

import re
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
    "mr mrs ms dr prof gen col capt cpt lt sgt cmdr adm gov sen pres supt insp messrs mme mlle st mt ft "
    "vs cf viz al ste rm bldg v"
)
_CAPITAL_TITLES = _words("Apt Ext Fl Hon Rep Rev")
# End a sentence if the next word begins with a capital.
_MAY_END = _words(
    "etc inc ltd co corp llc bros jr sr esq dept univ assn no nos fig figs vol pp ch sec eq approx est ext tel ed eds "
    "ave blvd rd min max avg misc jan feb mar apr jun jul aug sept sep oct nov dec mon tue tues wed thu thurs fri sat "
    "sun oz lb lbs hr hrs mi km apt acct fl tsp tbsp sq cu rt rte hwy gal qt incl excl dep arr art pt ca ex hon rep "
    "rev amend assoc attn chap cont eqn equip para pkg prelim sect supp vols lg sm med in"
)
# Abbreviations before a number, else words: before a small letter they end the sentence.
_ALSO_WORDS = _words("no fig figs art sun sat mar hon rep rev in")
_ROMAN_FOLLOWS = _words("amend art bk ch chap fig para pt sec sect vol vols")
_ROMAN = re.compile("[IVXLC][IVXLCM]|[VX][ .,;:)]|I[.,;:)]")
_SIZES = _words("lg sm med")
"""After a number the sentence goes on before a capital: "1 lg. Coke"."""
_COUNTS = _words("a an one two three")
_TIME_FOLLOWS = _words("a.m p.m mon tue tues wed thu thurs fri sat sun")
_TIMES = _words(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun "
    "January February March April May June July August September October November December "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Eastern Central Mountain Pacific Atlantic Greenwich "
    "ET CT MT PT EST EDT CST CDT MST MDT PST PDT AKST AKDT HST AST ADT UTC GMT BST WET WEST CET CEST EET EEST "
    "MSK IST SGT HKT JST KST AWST ACST AEST AEDT NZST NZDT"
)
_TIME_PREFIXES = frozenset(name[:length] for name in _TIMES for length in range(1, len(name) + 1))
TIME_CHARS = 1 + max(map(len, _TIMES)) + 1
"""Length of the following text that always decides: an opening bracket, a time, and what ends it."""
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
    "order item part model serial invoice account flight ref reference tracking ticket claim case policy the total "
    "routing rma acct sku po phone fax passport license card"
)
"""What has a number: "order no. A-1", "the total no. of"."""
_ORDINAL_STOPS = _words("de da nb nn no fi cs sk pl hu hr sl sr tr et lv")
_PHRASES_OF_LETTERS = _words("de pl cs nl")  # "z. B.", "d. h.": a space between the letters
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHORT = 4
"""Longest word that may be an abbreviation that no list has."""
_VOWELS = frozenset("aeiouy")
# Short words that end a sentence in any case, so that it need not wait for the next letter.
_COMMON = _words(
    "am an as at be by do go he if is it me my of oh ok on or so to up us we act add age ago air all and any app are "
    "arm ask ate bad bag bar bed big bit box boy bus but buy bye can car cat cup cut day did die dog dry due ear eat "
    "egg end eye fan far fee few fit fix fly for fun gas get got guy had has hat her hey him his hit hmm hot how ice "
    "ill its job joy key kid law leg let lie lot low mad man map may men met mix mom new nor not now odd off oil old "
    "one our out own pay pen per pet pie put ran red rid run sad saw say sea see set she shy sit six sky son sum tax "
    "tea ten the tie tip too top toy try two use via war was way web wet who why win won yes yet you zoo able area "
    "away baby back ball band bank base bath beat been beer best bill bird blue boat body book born both call came "
    "card care case cash city club coat code cold come cook cool copy cost dark data date days dead deal deep desk "
    "does done door down draw duty each easy east else even ever face fact fail fair fall farm fast fear feel feet "
    "felt file fill film find fine fire fish five flow food foot form four free from full fund gain game gave gift "
    "girl give glad goal goes gold gone good hair half hall hand hard hate have head hear heat held help here hers "
    "hide high hill hold home hope host hour huge idea into item join just keep kept kids kind king knew know lake "
    "land last late lead left less life like line link list live loan long look lose loss lost love luck made mail "
    "main make many mark math meal mean meat meet menu mind mine miss mood moon more most move much must name near "
    "neck need news next nice nine none note okay once only onto open oven over page paid pain pair park part pass "
    "past path pick plan play plus pool poor post pull push race rain rate read real rent rest rice rich ride "
    "ring risk road role roof room rule safe said sale salt same save seat seem seen self sell send sent ship shop "
    "show shut sick side sign site size skin slow snow soft sold some song soon sort spot star stay step stop such "
    "suit sure take talk task team tell test text than that them then they thin this till time told took tool tour "
    "town tree trip true turn type unit upon used user very view vote wait walk wall want warm wash wear week well "
    "hi went were west what when wide wife wild will wind wine wish with wood word work yard yeah year your zero"
)


class PeriodRules:
    """Rules for one language (a BCP-47 tag or None); the English lists apply to every language."""

    def __init__(self, language: str | None) -> None:
        primary = primary_tag(language or "")
        self._titles = _TITLES | _TITLES_BY_LANGUAGE.get(primary, frozenset())
        self._ordinals = primary in _ORDINAL_STOPS
        self._letters = primary in _PHRASES_OF_LETTERS
        self._is_english = primary in ("", "en")

    def classify(self, word: str) -> Period:
        """Return whether the period after ``word`` (without it) ends the sentence."""
        if word.isdigit():
            return Period.AMBIGUOUS if len(word) <= 2 else Period.ENDS_SENTENCE
        lower = word.lower()
        if lower in self._titles or lower in _MAY_END:
            return Period.AMBIGUOUS
        if len(word) > 1 and "." not in word:  # as most words
            return Period.AMBIGUOUS if self._may_be_short(lower) else Period.ENDS_SENTENCE
        letters = [part for part in word.split(".") if part]
        if all(len(part) <= 3 and part.isalpha() for part in letters) and (len(letters) > 1 or len(word) == 1):
            return Period.ENDS_SENTENCE if word == "I" else Period.AMBIGUOUS
        return Period.ENDS_SENTENCE

    def _may_be_short(self, lower: str) -> bool:
        """Return whether a word that no list has may be an abbreviation."""
        if len(lower) > _SHORT or not (lower.isascii() and lower.isalpha()):
            return False
        return lower not in _COMMON if self._is_english else _VOWELS.isdisjoint(lower)

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
            ends = word in _ALSO_WORDS or (lower == "no" and before is None)
            return not ends or _is_counted(before) or (lower == "no" and _is_numbered(before))
        if lower in _ROMAN_FOLLOWS and first in "IVXLC":
            return _begins_numeral(word, following)
        if lower in _TIME_FOLLOWS:
            return _begins_time(following)
        return self._takes_name(word, first, before)

    def _takes_number(self, word: str, before: str | None) -> bool:
        lower = word.lower()
        if lower == "in":
            return _is_counted(before)
        if len(word) == 1 or lower in _MAY_END or not word.isalpha():
            return True
        return _VOWELS.isdisjoint(lower) and not word.isupper()

    def _takes_name(self, word: str, first: str, before: str | None) -> bool:
        """Return whether the sentence continues before a word that begins with ``first``, not a small letter."""
        if word.isdigit():
            return before is None or self._ordinals
        lower = word.lower()
        if word in _CAPITAL_TITLES or lower in _DOTTED_NEVER_END or (lower == "no" and _is_numbered(before)):
            return True
        if lower in _SIZES:
            return _is_counted(before) or (before or "").lower() in _COUNTS
        if len(word) == 1:
            return self._letters if word.islower() else first.isupper()  # initials: "J. Smith"
        return "." in word and lower not in _DOTTED_MAY_END and first.isupper()  # acronyms: "the U.S. Army"


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
