"""Signs: addresses and names of files, powers, chemical formulas, and what is left."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from tts_worker.text.markup import letter_name
from tts_worker.text.reading.english.tables import TABLES
from tts_worker.text.reading.english.words import number, ordinal, short_number, spell, year
from tts_worker.text.span_rewriting import Rewrite

# -- addresses of mail and of web pages, names of files ---------------------------------------------------------------

_SPELLED = re.compile(
    "(?:us|it|es|a[iou]l|aws|api|ibm|irs|upc"
    "|(?!(?:ad|am|an|as|at|be|by|co|do|go|ha|he|hi|if|in|is|me|mr|ms|my|no|of|oh|ok|on|or|ox|pi|py|so|to|tv|up|we)$)[a-z]{2}"
    "|[b-df-hj-np-tv-xz]{2,5}|[a-z]{1,2}(?:[bdgp][cf]|[cghkpqv][bdgjv]|[mnt]q))"
)
"""Small letters that are no word: initials, no vowel, or an end as no word has it."""
_PARTS = re.compile(r"\d+|[^\W\d_]+|\W|_")


def path(written: str) -> str:
    parts = _PARTS.findall(written)
    return " ".join(map(word, parts))


def word(part: str) -> str:
    """Return how a part is read: what is no word by the names of its letters."""
    if part.isdecimal():
        return year(part) if re.fullmatch(r"(?:19|20)\d\d", part) else spell(part)
    if part in TABLES["PARTS"]:
        return TABLES["PARTS"][part]
    if not _SPELLED.fullmatch(part):
        return part
    letters = part.upper()
    return TABLES["WORDS"].get(letters, letters)


def read_address(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "joe@acme.io" as "joe at acme dot io"; the scheme and the query of a URL are not read."""
    groups = match.groupdict("")
    host, dot, domain = (groups.get("email") or groups["host"]).rpartition(".")
    known = domain.lower() in TABLES["SAID_DOMAINS"] or len(domain) > 3
    yield *match.span(), path(host + dot + (domain if known else domain.upper()) + groups["path"].rstrip("/"))


# -- powers and chemical formulas -------------------------------------------------------------------------------------

_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni")


def formula(written: str) -> str:
    """Read "H2SO4" as "H two S O four"; a long word of capitals with one number is no formula."""
    parts = re.findall(r"([A-Z][a-z]?)(\d*)", written.translate(_SUBSCRIPTS))
    if len(parts) > 3 and sum(count != "" for _, count in parts) < 2 and written.isupper():
        return ""
    words = (word for element, count in parts for word in (*map(letter_name, element), count and short_number(count)))
    return " ".join(filter(None, words)).rstrip(",")


def power(written: str) -> str:
    """Read the exponent of "x²" as "squared", of "10⁶" and "10^6" as "to the sixth", of "x^n" as "to the N"."""
    exponent = written.strip("^*{}() ").translate(_SUPERSCRIPTS)
    if exponent in ("2", "3"):
        return "squared" if exponent == "2" else "cubed"
    if exponent.lstrip("-+−").isdecimal():
        return f"to the {signed_ordinal(exponent)}"
    return f"to the {exponent.upper() if len(exponent) == 1 else exponent}"


def signed_ordinal(written: str) -> str:
    """Return an exponent: "sixth", "minus six"."""
    exponent = written.strip("()").translate(_SUPERSCRIPTS)
    digits = exponent.lstrip("-+−").lstrip("0") or "0"
    return f"minus {short_number(digits)}" if exponent[0] in "-−" else ordinal(digits)


# -- what is left -----------------------------------------------------------------------------------------------------

_PAUSE = ", "
_PAUSES = frozenset("|•·◦‣⁃▪●○¦")


def read_sign(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read one sign, or a letter of compatibility as what it stands for."""
    sign = match["sign"]
    if unicodedata.category(sign)[0] == "M":  # an accent of its own
        return
    if sign in _PAUSES:
        yield *match.span(), _PAUSE
        return
    name = TABLES["SIGNS"].get(sign, "")
    plain = unicodedata.normalize("NFKC", sign)
    if sign == "#" and re.match(r"\s\w", match.string[match.start() - 1 : match.start()] + match.string[match.end() :]):
        name = "hashtag"
    elif sign in "<>^~" and not re.match(" . ", match.string[max(0, match.start() - 1) : match.end() + 1]):
        name = ""  # a bracket or a mark, no operator
    elif not name and plain != sign and plain.isalnum() and sign != "™":
        name = number(plain) if plain.isdecimal() else plain
    yield *match.span(), name
