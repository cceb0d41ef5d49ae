"""Numbers: cardinals, ordinals, fractions, ranges, lists, versions, Roman numerals, digits and telephone numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from tts_worker.text.reading import roman
from tts_worker.text.reading.english.tables import TABLES, plural
from tts_worker.text.reading.english.words import (
    cardinal,
    digit_groups,
    number,
    ordinal,
    pairs,
    plural_number,
    short_number,
    spell,
)
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite

# -- cardinals and ordinals -------------------------------------------------------------------------------------------

_SUFFIXES = {"1": "st", "2": "nd", "3": "rd"}


def read_ordinal(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "21st" and "1,000th"; a suffix that does not fit stays: "1th"."""
    digits = match["digits"].replace(",", "")
    suffix = "th" if digits[-2:-1] == "1" else _SUFFIXES.get(digits[-1], "th")
    if match["suffix"].lower() == suffix and digits.strip("0"):
        yield *match.span(), ordinal(digits)


def several(digits: str) -> str:
    """Return "sixes" for "6", "seven forty-sevens" for "747"."""
    is_airplane = len(digits) == 3 and digits[0] == digits[2]
    return plural_number(f"{cardinal(digits[0])} {cardinal(digits[1:])}" if is_airplane else number(digits))


def grouped(written: str) -> str:
    return cardinal(written.replace(" ", ""))


def read_any(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read what looks like no number, part by part: "1.2.3.4.5"."""
    for part in re.finditer(r"\d+|[.,:]", match.group()):
        written = part.group()
        words = number(written[:30]) if written.isdecimal() else {".": " point "}.get(written, ", ")
        yield match.start() + part.start(), match.start() + part.end(), words if len(written) <= 30 else spell(written)


def numeral(written: str) -> str:
    return cardinal(str(roman.value(written)))


def numeral_of_ruler(written: str) -> str:
    return f"the {ordinal(roman.value(written))}"


# -- fractions and mixed numbers --------------------------------------------------------------------------------------

_NAMED = {2: "half", 4: "quarter"}
_NAMED_UP_TO = 20
_NAMED_TENS = (30, 32, 40, 50, 60, 64, 100, 1000, 10000)


def fraction(above: int, below: int) -> str:
    """Return "one half", "two thirds", "five over seventy-three"."""
    if not (2 <= below <= _NAMED_UP_TO or below in _NAMED_TENS) or above == 0 or above > 100 > below:
        return f"{cardinal(str(above))} over {cardinal(str(below))}"
    name = _NAMED.get(below) or ordinal(below)
    several = "halves" if below == 2 else f"{name}s"
    return f"{cardinal(str(above))} {name if above == 1 else several}"


def vulgar(written: str) -> str:
    """Return "¾" or "3/4" as a fraction."""
    above, below = re.split("[/\u2044]", unicodedata.normalize("NFKC", written))
    return fraction(int(above), int(below))


def added(written: str) -> str:
    """Return the fraction of a mixed number: "a half" of "2 1/2", "an eighth", "three quarters"."""
    words = vulgar(written.strip(" -"))
    return ("an " if words[4:10] == "eighth" else "a ") + words[4:] if words.startswith("one ") else words


def read_fraction(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "2/3", but not the division "10/2 = 5"."""
    above, below = int(match["above"]), int(match["below"])
    if above < below or match.string[match.end() :].lstrip()[:1] != "=":
        yield *part_span(match), fraction(above, below)


def spoon(written: str) -> str:
    return TABLES["SPOONS"][written.lower()]


def spoons(written: str) -> str:
    return plural(spoon(written))


# -- ranges and lists -------------------------------------------------------------------------------------------------


def read_range(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5-10" as "five to ten", but not a telephone number, a month of a year, or "747-400"."""
    first, last = match["first"], match["last"]
    is_month = len(first) == 4 and len(last) == 2 and last <= "12"
    is_phone = len(first) == 3 and len(last) == 4 and match.end("last") == match.end()
    is_airplane = first[0] == first[2:] == "7" and len(last) == 3
    if not (is_month or is_phone or is_airplane) and (
        match["part"] == "–" or int(first) < 200 or len(last) == 2 < len(first) or int(first) < int(last)
    ):
        yield *part_span(match), "to"


def read_spaced(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "5 - 10" as a range and "8 - 3" as a difference."""
    is_range = float(match["first"].replace(",", "")) < float(match["last"].replace(",", ""))
    yield *part_span(match), " to " if is_range else " minus "


def serial(written: str) -> str:
    """Return "747-400" in pairs, "01-02" and "1-2-3" with pauses."""
    groups = re.split("[-–]", written)
    is_airplane = len(groups) == 2 and groups[0][:1] == groups[0][2:3] == "7"
    read = pairs if is_airplane else spell if any(group[0] == "0" for group in groups) else short_number
    return (" " if is_airplane else ", ").join(map(read, groups))


def read_list(match: re.Match[str]) -> Iterator[Rewrite]:
    for mark in re.compile(",").finditer(match.string, *part_span(match)):
        yield *mark.span(), ", "


# -- versions, sections and addresses of machines: each part counts ---------------------------------------------------


def points(written: str) -> str:
    return " point ".join(map(short_number, written.lstrip("vV.").split(".")))


def dotted(written: str) -> str:
    """Return "3.10.2", an IP address, or "1.000.000"."""
    parts = written.split(".")
    if [len(part) for part in parts[1:]] == [3] * (len(parts) - 1) and len(parts) < 4 and parts[0] != "0":
        return cardinal("".join(parts))
    return " dot ".join(map(spell, parts)) if len(parts) == 4 else points(written)


def tagged(written: str) -> str:
    """Return "1.0.0-rc.2"."""
    version, name, dot, count = re.findall(r"([^-]+)-([a-z]+)([.-]?)(\d*)", written)[0]
    parts = [
        "version" * (version[0] in "vV"),
        f"{points(version)} dash {name.upper() if name == 'rc' else name}",
        "dot" * (dot == "."),
        count and short_number(count),
    ]
    return " ".join(filter(None, parts))


def model(written: str) -> str:
    """Return "Llama-3.1-8B" from the first digit on."""
    name, size = written.strip("-").split("-")
    return f"{points(name)} {number(size[:-1])} {size[-1]}"


# -- digits and telephone numbers -------------------------------------------------------------------------------------

_MIN_DIGITS, _MAX_DIGITS = 7, 15


def code(written: str) -> str:
    code = written.lstrip("#")
    if sum(map(str.isdigit, code)) < 3 and len(code) < 5:
        return ""
    return digit_groups(code) if code.isdigit() else spell(code)


def keys(written: str) -> str:
    """Read the keys of a telephone: "*67" as "star six seven", "*#06#" as "star pound zero six pound"."""
    names = {"*": "star", "#": "pound"}
    return " ".join(names.get(part) or digit_groups(part) for part in re.findall(r"\d+|\D", written))


def paired_parts(written: str) -> str:
    return ", ".join(map(pairs, written.split("-")))


def read_short_numbers(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "call 911, not 411"."""
    for code in re.finditer(r"(?<![\w.,:-])(?:[2-9]11|112|999|988)\b(?![.,:-]\d| (?:people|[a-z]+s)\b)", match.group()):
        yield match.start() + code.start(), match.start() + code.end(), spell(code.group())


def read_words(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read each word of the part sign by sign; all but the last end with a pause."""
    start, end = part_span(match)
    for word in re.compile(r"\S+").finditer(match.string, start, end):
        yield *word.span(), _word(word.group()) + "," * (word.end() < end)


def _word(word: str) -> str:
    if word.startswith("+1") and len(word) == 12:
        return f"plus one, {_word(word[2:])}"
    if word.isdigit() and len(word) == 10:
        return ", ".join((spell(word[:3]), spell(word[3:6]), spell(word[6:])))
    if re.fullmatch(r"\+[2-9]\d", word):
        return f"plus {cardinal(word[1:])}"
    return ("plus " if word[0] == "+" else "") + (digit_groups(word) if word.isdigit() else spell(word))


def read_bank_account(match: re.Match[str]) -> Iterator[Rewrite]:
    if " " in match.group():
        yield from read_words(match)
    else:
        yield *match.span(), ", ".join(map(spell, re.findall(".{1,4}", match.group())))


def read_phone(match: re.Match[str]) -> Iterator[Rewrite]:
    if _MIN_DIGITS <= sum(map(str.isdigit, match["part"])) <= _MAX_DIGITS:
        yield from read_words(match)


def read_vanity_number(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1-800-FLOWERS" by its word."""
    prefix = [cardinal(group) if group in ("1", "800") else spell(group) for group in match["prefix"].split("-")]
    words = re.sub(r"\d+", lambda digits: f" {spell(digits[0])} ", match["words"].replace("-", " ").title())
    yield *match.span(), ", ".join([*prefix, " ".join(words.split())])
