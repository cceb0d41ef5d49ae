"""English number words."""

from __future__ import annotations

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = {
    **{"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"},
    "twelve": "twelfth",
}
_SCALES = (
    *("", " thousand", " million", " billion", " trillion", " quadrillion", " quintillion", " sextillion"),
    *(" septillion", " octillion", " nonillion", " decillion"),
)


def number_words(digits: str) -> str:
    """Return decimal digits as an American number: "two thousand five"."""
    return spell_out_number(digits).replace(" and ", " ").replace(",", "")


def year_words(digits: str) -> str:
    """Return a year of four digits as it is read: "nineteen ninety-nine", "nineteen oh five", "two thousand nine"."""
    century, rest = digits[:2], digits[2:]
    if digits[1:3] == "00":
        return number_words(digits)
    last = "hundred" if rest == "00" else f"oh {number_words(rest)}" if rest[0] == "0" else number_words(rest)
    return f"{number_words(century)} {last}"


def ordinal_words(number: int) -> str:
    """Return "first", "twenty-second", "thirtieth"."""
    words = number_words(str(number))
    before, last = words[: words.rfind("-") + 1], words[words.rfind("-") + 1 :]
    return before + (_ORDINALS.get(last) or (f"{last[:-1]}ieth" if last[-1] == "y" else f"{last}th"))


def spell_out_number(digits: str) -> str:
    """Return decimal digits of any script as an English number; more than 36 of them one by one."""
    digits = "".join(str(int(digit)) for digit in digits).lstrip("0") or "0"
    if len(digits) > 3 * len(_SCALES):
        return " ".join(_ONES[int(digit)] for digit in digits)
    if int(digits) < 20:
        return _ONES[int(digits)]
    groups = [int(digits[max(0, end - 3) : end]) for end in range(len(digits), 0, -3)]  # least significant first
    parts = [_below_thousand(group) + _SCALES[i] for i, group in enumerate(groups) if group][::-1]
    if len(parts) > 1 and 0 < groups[0] < 100:
        parts[-2:] = [f"{parts[-2]} and {parts[-1]}"]
    return ", ".join(parts)


def _below_thousand(value: int) -> str:
    hundreds, rest = divmod(value, 100)
    low = _ONES[rest] if rest < 20 else _TENS[rest // 10] + (f"-{_ONES[rest % 10]}" if rest % 10 else "")
    if not hundreds:
        return low
    return f"{_ONES[hundreds]} hundred" + (f" and {low}" if rest else "")
