"""English number words, American: no "and" within a number."""

from __future__ import annotations

import re

from tts_worker.text.markup import letter_name
from tts_worker.text.reading.digit_groups import groups_of
from tts_worker.text.reading.english.tables import TABLES

ONES = list(TABLES["ONES"])
TENS = ["", "", *TABLES["TENS"]]
SCALES = ["", *(f" {name}" for name in TABLES["SCALES"])]
_MAX_BARE_DIGITS = 12
"""Longer numbers without separators are read digit by digit, as listeners cannot take in their value."""
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+|[1-9]\d?(?:,\d\d)+,\d{3}")  # the second is Indian: 1,50,000


def cardinal(digits: str) -> str:
    """Return decimal digits as a number: "two thousand five". Of more than 36 digits, each one."""
    digits = digits.lstrip("0") or "0"
    if len(digits) > 3 * len(SCALES):
        return spell(digits)
    if len(digits) < 3 and int(digits) < 20:
        return ONES[int(digits)]
    groups = [int(digits[max(0, end - 3) : end]) for end in range(len(digits), 0, -3)]  # least significant first
    return " ".join([_below_thousand(group) + SCALES[i] for i, group in enumerate(groups) if group][::-1])


def _below_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    words = [f"{ONES[hundreds]} hundred"] if hundreds else []
    if rest:
        words.append(ONES[rest] if rest < 20 else TENS[rest // 10] + (f"-{ONES[rest % 10]}" if rest % 10 else ""))
    return " ".join(words)


def ordinal(number: int | str) -> str:
    """Return "first", "twenty-second", "thirtieth"."""
    words = cardinal(str(number))
    cut = max(words.rfind("-"), words.rfind(" ")) + 1
    last = words[cut:]
    return words[:cut] + (TABLES["ORDINALS"].get(last) or (f"{last[:-1]}ieth" if last[-1] == "y" else f"{last}th"))


def year(digits: str) -> str:
    """Return a year: "nineteen ninety-nine", "nineteen oh five", "nineteen hundred", "two thousand nine"."""
    if digits[1:3] == "00" or len(digits) != 4:
        return cardinal(digits)
    return pairs(digits)


def pairs(digits: str) -> str:
    """Return an identifier of three or four digits: "fourteen fifty", "nineteen oh five", "one twenty-three"."""
    before, rest = digits[:-2], digits[-2:]
    if before[-2:] in ("", "0", "00") or (rest == "00" and before[-1] == "0"):
        return number(digits)
    if rest == "00":
        return f"{cardinal(before)} hundred"
    return f"{cardinal(before)} " + (f"oh {cardinal(rest)}" if rest[0] == "0" else cardinal(rest))


def plural_number(words: str) -> str:
    """Return a number as a noun in the plural: "twenties", "sixes", "nineteen nineties"."""
    return f"{words[:-1]}ies" if words[-1] == "y" else f"{words}es" if words[-1] == "x" else f"{words}s"


def split_number(written: str) -> tuple[str, str | None]:
    """Return the digits before and behind the decimal mark of a number; None behind if there is no mark.

    The last of two different marks is the decimal one, "1.234,56". A comma is a mark of thousands only before exactly
    three digits; several points are marks of thousands. A comma after a single zero is a decimal mark: "0,125".
    """
    comma, point = written.rfind(","), written.rfind(".")
    if comma >= 0 and point >= 0:
        mark = max(comma, point)
    elif comma >= 0:
        mark = -1 if _THOUSANDS.fullmatch(written) and written[:2] != "0," else comma
    else:
        mark = point if written.count(".") == 1 else -1
    whole = re.sub("[.,]", "", written[:mark] if mark >= 0 else written)
    return whole, written[mark + 1 :] if mark >= 0 else None


def number(written: str) -> str:
    """Return a number without a sign: "1,234" or "1234" as a cardinal, "3.50" with each digit behind the point.

    Args:
        written: Digits with marks of thousands or a decimal mark, which may come first.
    """
    whole, fraction = split_number(written)
    is_code = (len(whole) > 1 and whole[0] == "0") or (len(whole) > _MAX_BARE_DIGITS and whole == written)
    words = spell(whole) if is_code else cardinal(whole) if whole else ""
    return f"{words} point {spell(fraction)}".lstrip() if fraction else words


def spell(text: str) -> str:
    """Return ``text`` letter by letter and digit by digit; other characters make a pause."""
    groups = re.findall(r"[^\W_]+", text)
    return ", ".join(" ".join(map(_spelled, group)).rstrip(",") for group in groups)


def _spelled(char: str) -> str:
    return ONES[int(char)] if char.isdecimal() else letter_name(char)


def digit_groups(digits: str) -> str:
    """Return a code in groups that are easy to remember: 6 digits as 3 and 3, 7 as 3 and 4, 8 as 4 and 4."""
    return ", ".join(map(spell, groups_of(digits)))


def short_number(digits: str) -> str:
    """Return up to four digits as a number, more of them one by one."""
    return number(digits) if len(digits) <= 4 else spell(digits)
