"""Russian: the case and gender of a number by what stands around it."""

from __future__ import annotations

import re

from tts_worker.features.languages.tables import load

_CASES = {word: case for case, words in load("ru")["CASES"].items() for word in words.split()}
_LAST_WORD = re.compile(r"([а-яё]+)[ \xa0]\Z", re.IGNORECASE)
_NOMINATIVE_DATE = frozenset(("сегодня", "завтра", "вчера", "послезавтра", "на", "по", "за", "это"))


def word_before(before: str) -> str:
    """Return the word at the end of a text, before a space, in small letters."""
    found = _LAST_WORD.search(before)
    return found[1].lower() if found else ""


def case_of_number(number: int, before: str, noun: str = "") -> str:
    """Return the case of a number: n, g, d, a, i or p.

    Args:
        number: Its value.
        before: The text before it, with a preposition at its end or none.
        noun: The word after it.
    """
    word = word_before(before)
    is_one = number % 10 == 1 and number % 100 != 11
    if noun.endswith(("ами", "ями", "ьми")) or (word in ("с", "со") and is_one and noun.endswith(("ом", "ем"))):
        return "i"
    if word in _CASES:
        return _CASES[word]
    if noun.endswith(("ах", "ях")) or (word in ("в", "на", "о", "об", "при") and is_one and noun.endswith("е")):
        return "p"
    if noun.endswith(("ам", "ям")) and len(noun) > 4:
        return "d"
    return "a" if is_one and noun[-1:] in tuple("ую") else "n"


def gender_of_noun(noun: str, case: str) -> str:
    """Return the gender that a number in an oblique case agrees with, as far as the noun tells."""
    endings = {"g": ("ы", "и"), "i": ("ой", "ей"), "a": ("у", "ю")}.get(case, ())
    return "f" if endings and noun.endswith(endings) else "m"


def case_of_date(before: str, after: str) -> str:
    """Return the case of a day: "сегодня пятое мая", "к пятому мая", else "пятого мая"."""
    word = word_before(before)
    if word in _NOMINATIVE_DATE or re.match(r" ?[—–] ", after):
        return "n"
    return "d" if word in ("к", "ко") else "g"
