"""Chinese: numbers, amounts, dates, times, measures, codes and signs as Chinese words.

A token begins at a digit or sign; the first rule that applies to it decides how it is read. Latin words stay. Without
context the reading that keeps the value wins: ``3/4`` is a fraction, and a date only beside words for dates.
"""

from __future__ import annotations

import re
import unicodedata

from tts_worker.features.languages.scanner import Scanner, compiled
from tts_worker.features.languages.tables import load
from tts_worker.text.reading import roman
from tts_worker.text.reading.folding import WIDE, Fold
from tts_worker.text.span_rewriting import Rewrite

_TABLES = load("zh")
_CURRENCIES, _CENTS, _UNITS = _TABLES["CURRENCIES"], _TABLES["CENTS"], _TABLES["UNITS"]
_MARKS = _TABLES["NAMED"]["MARKS"]
"""Punctuation that stays."""
_NAMED = {
    **_TABLES["NAMED"],
    "CODES": "|".join(code for code in _CURRENCIES if code.isalpha()),
    "CURRENCY": "|".join(sorted(map(re.escape, _CURRENCIES), key=len, reverse=True)),
    "UNIT": f"(?:{'|'.join(sorted(_UNITS, key=len, reverse=True))})(?:[²³]|(?<=m)[23])?",
    "COMPARISONS": "|".join(_TABLES["COMPARISONS"]),
}
_PATTERNS = {name: compiled(pattern, _NAMED) for name, pattern in _TABLES["PATTERNS"].items()}
_DIGITS = "零一二三四五六七八九"
_BY_DIGIT = str.maketrans(dict(zip("0123456789,. -()", [*_DIGITS, "", "点", *"，，，，"], strict=True)))
_MAX_CARDINAL_DIGITS = 16
_CODE_DIGITS = 11
"""A longer number without a unit is a code and read digit by digit."""


# -- numbers ----------------------------------------------------------------------------------------------------------


def _cardinal(value: int) -> str:
    for base, name in ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十")):
        if value >= base:
            high, rest = divmod(value, base)
            gap = "零" if 0 < rest < base // 10 else ""
            return _cardinal(high) + name + gap + (_cardinal(rest) if rest else "")
    return _DIGITS[value]


def _by_digit(written: str, one: str = "一") -> str:
    return written.translate(_BY_DIGIT).replace("一", one).strip("，")


def _number(written: str) -> str:
    """Read a number with thousands marks and decimals: "1,200.50" is "一千两百点五零"; a long one digit by digit."""
    whole, _, decimals = written.replace(",", "").partition(".")
    if len(whole) > _MAX_CARDINAL_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        words = _by_digit(whole)
    else:
        words = _cardinal(int(whole or 0))
        words = words[1:] if words.startswith("一十") else words
        words = "两" + words[1:] if words[0] == "二" and words[1:2] in ("百", "千", "万", "亿") else words
    return words + ("点" + _by_digit(decimals) if decimals else "")


def _counted(written: str, follows: str) -> str:
    """Read a number before ``follows``: "2" is "两" before a measure word."""
    return "两" if written == "2" and _PATTERNS["counted"].match(follows) else _number(written)


# -- amounts ----------------------------------------------------------------------------------------------------------

_MULTIPLES = {"k": 3, "m": 6, "million": 6, "b": 9, "bn": 9, "billion": 9}


def _is_counted(text: str, place: int) -> bool:
    """Return whether a measure word or a unit follows."""
    return bool(_PATTERNS["counted"].match(text, place) or _PATTERNS["measured"].match(text, place))


def _amount(number: str, currency: str) -> str:
    """Read an amount: "12.50" yuan as "十二元五角"."""
    whole, _, cents = number.replace(",", "").partition(".")
    if len(cents) == 2 and cents != "00" and (currency == "元" or currency in _CENTS):
        words = _counted(whole, currency) + currency if whole.strip("0") else ""
        if currency != "元":
            return words + _number(str(int(cents))) + _CENTS[currency]
        tens, ones = (_DIGITS[int(digit)] for digit in cents)
        words += tens + "角" if cents[0] != "0" else "零" if words else ""
        return words + (ones + "分" if cents[1] != "0" else "")
    cents = cents.rstrip("0")
    return _counted(whole + ("." + cents if cents else ""), currency) + currency


def read_price_after_sign(match: re.Match[str]) -> str:
    currency, low, number = _CURRENCIES[match[1]], match[3], match["number"]
    multiple = (match["multiple"] or "").strip()
    words = _number(low) + "到" if low else "负" if match["minus"] else ""
    if not multiple:
        return words + _amount(number, currency)
    power = _MULTIPLES.get(multiple.lower())
    if power is None:
        return words + _counted(number, multiple) + multiple + currency
    whole, _, decimals = number.replace(",", "").partition(".")
    rest = decimals[power:].rstrip("0")
    whole = (whole + decimals[:power].ljust(power, "0")).lstrip("0") or "0"
    return words + _number(whole + ("." + rest if rest else "")) + currency


def read_price_before_name(match: re.Match[str]) -> str:
    return _amount(match["number"], match["name"] or _CURRENCIES[match["sign"]])


# -- dates and times --------------------------------------------------------------------------------------------------


def _month_day(month: int, day: int) -> str | None:
    return f"{_number(str(month))}月{_number(str(day))}日" if 1 <= month <= 12 and 1 <= day <= 31 else None


def read_date(match: re.Match[str]) -> str | None:
    parts = match.groupdict()
    month, day = int(parts["month"]), parts.get("day")
    words = _month_day(month, int(day)) if day else f"{_number(str(month))}月"
    year = parts.get("year")
    return words and (_by_digit(year) + "年" + words if year else words)


def read_years(match: re.Match[str]) -> str | None:
    is_amount = match.string[match.end() : match.end() + 1] != "年" and _is_counted(match.string, match.end())
    if match["first"] >= match["last"] or is_amount:
        return None
    return f"{_by_digit(match['first'])}到{_by_digit(match['last'])}"


def _is_score(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 14) : match.start()]
    return bool(_PATTERNS["score before"].search(before) or _PATTERNS["score after"].match(match.string, match.end()))


def _of_day(hour: int, half: str | None) -> str:
    if half is None:
        return ""
    if half in "aA":
        return "凌晨" if hour < 5 or hour == 12 else "上午"
    return "中午" if hour == 12 else "下午" if hour < 6 else "晚上"


def read_time(match: re.Match[str]) -> str | None:
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 24 or _is_score(match):
        return None

    def part(value: int, name: str) -> str:
        return ("零" if 0 < value < 10 else "") + _number(str(value)) + name

    words = _of_day(hour, match[4]) + _counted(str(hour), "点") + "点"
    words += part(minute, "分") if minute or second else ""
    return words + (part(second, "秒") if second else "")


def read_hour(match: re.Match[str]) -> str:
    hour = int(match[1])
    return _of_day(hour, match[2]) + _counted(str(hour), "点") + "点"


def read_ratio(match: re.Match[str]) -> str | None:
    if "：" in match[0] and not _is_score(match):
        return None  # "步骤1：2个鸡蛋"
    return "比".join(map(_number, re.split("[:：]", match[0])))


# -- fractions, percentages and measures ------------------------------------------------------------------------------

_PERCENTS = {"%": "百", "‰": "千", "‱": "万"}
_POWERS = {"2": "平方", "²": "平方", "3": "立方", "³": "立方"}


def read_fraction(match: re.Match[str]) -> str | None:
    text, whole, upper, lower = match.string, match["whole"], match["upper"], match["lower"]
    before = text[max(0, match.start() - 8) : match.start()]
    if not lower.strip("0") or before.endswith("/"):
        return None
    if before.rstrip().endswith(("血压", "BP", "血压是", "血压为")):
        return f"{_number(upper)}，{_number(lower)}" + ("毫米汞柱" if match["unit"] else "")
    is_dated = _PATTERNS["date before"].search(before) or _PATTERNS["date after"].match(text, match.end())
    if is_dated and not whole:
        words = _month_day(int(upper), int(lower)) if len(upper + lower) <= 4 else None
        if words is not None:
            return words[:-1] if text[match.end() : match.end() + 1] in ("日", "号") else words
    return (_number(whole) + "又" if whole else "") + f"{_number(lower)}分之{_number(upper)}"


def read_percent(match: re.Match[str]) -> str:
    low, minus, high, sign = match.groups()

    def part(number: str) -> str:
        return _PERCENTS[sign] + "分之" + ("百" if (number, sign) == ("100", "%") else _number(number))

    return (part(low) + ("到负" if minus else "到") if low else "") + part(high)


def _unit(symbol: str) -> str:
    if symbol in _UNITS:
        return _UNITS[symbol]
    power = _POWERS.get(symbol[-1:])
    return power + _UNITS[symbol[:-1]] if power else symbol


def read_measure(match: re.Match[str]) -> str | None:
    number, symbol, per = match.groups()
    if re.search("[A-Za-z]-?\\Z", match.string[max(0, match.start() - 2) : match.start()]):
        return None  # "A4g"
    unit = _unit(symbol)
    words = _counted(number, unit) + unit
    if per is None:
        return words
    per = "百公里" if per == "100km" else _unit(per)
    is_range_end = re.search(r"\d\s?[-–—~]\s?\Z", match.string[max(0, match.start() - 4) : match.start()])
    of_time = per in ("小时", "秒", "分钟", "百公里", "天", "日", "月", "年") and not is_range_end
    return f"每{per}{words}" if of_time else f"{words}每{per}"


# -- telephones, codes and versions -----------------------------------------------------------------------------------


def _is_code(text: str, start: int) -> bool:
    return _PATTERNS["code before"].search(text[max(0, start - 32) : start]) is not None


def read_email(match: re.Match[str]) -> str:
    signs = {"@": "艾特", ".": "点", "_": "下划线", "-": "杠", "+": "加"}
    return re.sub(r"[@._+\d-]", lambda char: signs.get(char[0]) or _by_digit(char[0]), match[0])


def read_version(match: re.Match[str]) -> str:
    parts = match[0].split(".")
    by_digit = len(parts) == 4 and all(len(part) <= 3 for part in parts) and max(map(len, parts)) > 1
    return "点".join(map(_by_digit if by_digit else _number, parts))


def read_telephone(match: re.Match[str]) -> str | None:
    if match[0].isdigit() and _is_counted(match.string, match.end()):
        return None
    return _by_digit(match[0], "幺")


def read_foreign_telephone(match: re.Match[str]) -> str | None:
    if sum(map(str.isdigit, match[0])) < 8:
        return None
    return "加" + re.sub("，+", "，", _by_digit(match[0][1:], "幺"))


def read_plain_number(match: re.Match[str]) -> str:
    """Read a number that is none of the other classes."""
    text, written, start, end = match.string, match[0], match.start(), match.end()
    digits = written.replace(",", "")
    follows = text[end : end + 8]
    previous = text[max(0, start - 2) : start]
    is_serial = bool(re.search("[A-Za-z]-?\\Z", previous))
    if is_serial and digits.isdigit() and len(digits) > 2:
        return _by_digit(written, "幺")
    if digits.isdigit() and not _is_counted(text, end):
        if (len(digits) > 2 or is_serial or previous[-1:] in ("-", "*")) and _is_code(text, start):
            return _by_digit(written, "幺")
        if re.search(r"0\d{2,3}[)）]\s?\Z", text[max(0, start - 6) : start]):
            return _by_digit(written, "幺")
        if len(digits) >= _CODE_DIGITS and not digits.endswith("0000"):
            return _by_digit(digits)
    return _counted(digits, follows)


# -- dashes and other signs -------------------------------------------------------------------------------------------

_SIGN_WORDS = {**{sign: name for sign, name in _CURRENCIES.items() if len(sign) == 1}, **_TABLES["SIGNS"]}


def read_dash(match: re.Match[str]) -> str | None:
    """Read a dash before a number: a range, a difference, a score, or part of a code."""
    text, start, end = match.string, match.start(), match.end()
    dash, before = match[0], text[max(0, start - 26) : start]
    is_formula = re.search(r"(?:[²³)]\s?|\b[a-z]\s?|UTC|GMT)\Z", before)
    is_joined = dash in "-–" and re.search(r"[A-Za-z]-?\d{0,6}\Z", before)
    if is_joined and not is_formula and not _PATTERNS["unit before"].search(before):
        return "，" if _is_code(text, start) else "杠" if before[-1].isdigit() else ""
    if re.fullmatch(r"\s-", dash) or not (is_formula or _PATTERNS["after quantity"].search(before[-8:])):
        return None  # also "3 -5"
    if "-" not in dash and "–" not in dash:
        return "到"
    if _is_code(text, start):
        return "，"
    if is_formula or _PATTERNS["equation after"].match(text, end) or _PATTERNS["equation before"].search(before):
        return "减"
    after = re.sub(r"\A[\d.]+", "", text[end : end + 12])
    if _PATTERNS["score before"].search(before) or _PATTERNS["score after"].match(after):
        return "比"
    if re.search(r"\d-\d{1,8}\Z", before) or re.match(r"\d{1,8}-\d", text[end : end + 10]):
        return "杠"
    left, right = re.search(r"\d+\Z", before), re.match(r"\d+", text[end : end + 20])
    return "减" if dash == " - " and left and right and int(left[0]) > int(right[0]) else "到"


def power(written: str) -> str:
    digits = unicodedata.normalize("NFKC", written).lstrip("^ ").replace("−", "-")
    return ("负" if digits.startswith("-") else "") + _number(digits.lstrip("+- ") or "0")


def read_ordinal(match: re.Match[str]) -> str:
    return "第" + re.sub("^两", "二", _number(match["number"] or str(roman.value(match["roman"]))))


def read_slash(match: re.Match[str]) -> str:
    before, after = match.string[max(0, match.start() - 12) : match.start()], match.string[match.end() :][:2]
    if not (re.search(r"[\w%)]\Z", before) and re.match(r"[\w(]", after)):
        return ""
    of_unit = before[-1].isdigit() and re.match("[年月日天周次人斤个件]|小时|分钟", after)
    if of_unit or (not (after[0].isdigit() or before[-1].isdigit()) and _PATTERNS["after quantity"].search(before)):
        return "每"
    return "斜杠" if re.search(r"\.[A-Za-z]{2}[/.\w-]*\Z", before) else "、"


def _sign(char: str) -> str | None:
    """Return how a character is spoken to which no rule applies; None leaves it."""
    if char in _MARKS:
        return None
    value = unicodedata.numeric(char, None)
    plain = unicodedata.normalize("NFKC", char)
    if char in _SIGN_WORDS:
        return _SIGN_WORDS[char]
    if value is not None and value == int(value):
        return _number(str(int(value)))
    return plain if plain.isascii() and plain.isalpha() else ""


def read_vulgar_fraction(match: re.Match[str]) -> str:
    upper, _, lower = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    mixed = "又" if match.string[match.start() - 1 : match.start()].isdigit() else ""
    return f"{mixed}{_number(lower or '1')}分之{_number(upper)}"


def number(written: str) -> str:
    return _number(unicodedata.normalize("NFKC", written))


def comparison(written: str) -> str:
    return _TABLES["COMPARISONS"][written]


_FOLD = Fold(
    {
        **{code: sign for code, sign in WIDE.items() if sign in "#$%&*+-./<=>@\\^_`|~"},
        **dict.fromkeys(map(ord, "−﹣‐‑"), "-"),
        **{ord("〜"): "~", ord("¥"): "￥", ord("￡"): "£"},
    }
)


_READINGS = {**globals(), "digits": _by_digit, "square": _POWERS.__getitem__, "written": str}
_SCANNER = Scanner(_NAMED["START"], _TABLES["RULES"].items(), _NAMED, _READINGS)


def rewrites(text: str, first: int) -> list[Rewrite]:
    """Return the disjoint rewrites of ``text`` from ``first`` on, in order; the text before it is only looked at."""
    folded = text if text.isascii() else text.translate(_FOLD)
    found: list[Rewrite] = []
    for start, end, spoken in _SCANNER.tokens(folded, first):
        if spoken is None and (spoken := _sign(folded[start])) is None and folded[start] != text[start]:
            spoken = folded[start]
        if spoken is not None:
            found.append((start, end, spoken))
    return found
