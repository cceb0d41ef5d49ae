"""Reads Spanish, French, German, Italian, Portuguese, Japanese, Korean and Russian, with the extra ``languages``.

At each digit or sign the first rule that matches decides: dates, times, telephone numbers, codes, ordinals, amounts,
then single signs. No digit is left, and no sign that has a name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal

from tts_worker.features.languages import russian
from tts_worker.features.languages.scanner import Scanner
from tts_worker.features.languages.tables import load
from tts_worker.features.languages.words import Words
from tts_worker.text.reading import roman
from tts_worker.text.reading.folding import WIDE, Fold
from tts_worker.text.span_rewriting import Rewrite

_COMMON = load("worldwide")
_FOLD = Fold({**WIDE, ord("\u3000"): " ", ord("￥"): "¥", ord("￦"): "₩"})
_MARKS = re.compile(r"[.,'’ ]")
_AFTER = re.compile(r" ?([^\W\d_]+)")
_WORD_BEFORE = re.compile(r"(?:([^\W\d_]+) )?([^\W\d_]+) \Z")
_GERMAN_LIST = re.compile(r"(?:\d{1,2}\. ?(?:und|oder|bis|,) )+\Z")  # am 1. und 2.
_SIMPLE_FRACTIONS = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾"}


def _one_of(words: Iterable[str]) -> str:
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


def _branches(beginnings: Mapping[str, dict[str, str]]) -> str:
    """Return a pattern of what begins with one of some letters: few branches are tried at each letter of a text.

    Args:
        beginnings: First letters, rest of what is written, its pattern. The longest is tried first.
    """
    longest_first = {
        first: [rests[rest] for rest in sorted(rests, key=len, reverse=True)] for first, rests in beginnings.items()
    }
    return "|".join(f"[{first}](?:{'|'.join(rests)})" for first, rests in longest_first.items()) or "(?!)"


class Reader:
    """Reads one language; a method ``read_x`` returns what is spoken for a match, or None if it is something else."""

    def __init__(self, language: str) -> None:
        self._language = language
        self._words = words = Words(language)
        self._signs, self._patterns = words.signs, words.patterns
        self._endings = words.by_form("ORDINAL_ENDINGS")
        self._rulers = words.by_form("RULERS") if language == "ru" else words.tables.get("RULERS", {})
        self._ends = {word.replace(" ", "") for word in words.tables.get("ENDINGS", ())}
        self._abbreviated, abbreviation = self._abbreviations()
        self._wide = language in ("ja", "ko")
        self._decimal_mark = "." if self._wide else ","
        currency, magnitudes = _one_of(_COMMON["CURRENCIES"]), words.tables["MAGNITUDES"]
        big = _one_of({*magnitudes, *" ".join(magnitudes.values()).split(), *(name.rstrip(".") for name in magnitudes)})
        named = {
            **_COMMON["NAMED"],
            "ABBREVIATION": abbreviation,
            "MONTH": _one_of(words.months),
            "CURRENCY": currency,
            "UNIT": _one_of(words.units) + (r"(?![A-Za-z0-9])" if self._wide else r"(?!\w)"),
            "NO_LETTER": "(?![A-Za-z])" if self._wide else r"(?![^\W\d_])",
            # "5 M" alone may be a code.
            "BIG": rf"(?: ?(?P<big>{big})(?!(?!{currency})[^\W\d_])(?:(?<![A-Z])|(?= ?{currency})))?",
            "TIME_MARK": self._patterns["time mark"],
            "ROMAN_ENDING": self._patterns.get("roman ending", "[.]"),
            "ORDINAL_ENDING": _one_of(self._endings),
        }
        links = "|".join(_COMMON["CODE_LINKS"])
        self._code_before = re.compile(
            ("" if self._wide else r"(?<!\w)") + rf"(?:{self._patterns['code words']})(?: ?(?:{links})){{0,3}}"
            r"[.:#]{0,2} ?[\"“«„]?\Z",
            re.IGNORECASE,
        )
        own = words.tables.get("RULES", {})
        rules = [
            rule
            for common, reading in _COMMON["RULES"].items()
            for rule in (own.items() if common == "<LANGUAGE>" else [(common, reading)])
        ]
        readings = {name: getattr(self, name) for name in dir(self) if name.startswith("read_")}
        readings |= {"cardinal": words.cardinal, "spell": words.spell}
        self._scanner = Scanner(_COMMON["NAMED"]["START"], rules, named, readings)

    def rewrites(self, text: str, first: int) -> list[Rewrite]:
        """Return the disjoint rewrites of ``text`` from ``first`` on, in order."""
        found: list[Rewrite] = []
        text = text if text.isascii() else text.translate(_FOLD)
        for start, end, spoken in self._scanner.tokens(text, first):
            if spoken is not None:
                found.append((start, end, self._set_apart(text, start, end, spoken, found)))
        return found

    def _set_apart(self, text: str, start: int, end: int, spoken: str, found: list[Rewrite]) -> str:
        """Put spaces between what is spoken and the letters next to it."""
        if self._language == "ja" or not spoken.strip():
            return spoken
        after_rewrite = bool(found) and found[-1][1] == start
        before = found[-1][2][-1:] if after_rewrite else text[max(0, start - 1) : start]
        after, first = text[end : end + 1], text[start]
        is_korean = self._language == "ko"
        if spoken == "—":
            return f" {spoken} "
        is_suffix = before.isalpha() and first.isalpha() and not first.isupper()
        if spoken[0].isalnum() and spoken != "에서" and not is_suffix and (before.isalnum() or before in ("%", ")")):
            spoken = " " * (after_rewrite or not is_korean or before.isascii()) + spoken
        return spoken + " " * (after.isalpha() and spoken[-1].isalnum() and (not is_korean or after.isascii()))

    # -- abbreviations and Roman numerals -----------------------------------------------------------------------------

    def _abbreviations(self) -> tuple[dict[str, str], str]:
        """Return what abbreviations stand for, in small letters without spaces, and the pattern of all of them."""
        spoken: dict[str, str] = {}
        words, suffixes = defaultdict[str, dict[str, str]](dict), defaultdict[str, dict[str, str]](dict)
        for table, after in _COMMON["AFTER_ABBREVIATION"].items():
            for written, meant in self._words.tables.get(table, {}).items():
                name = written.lstrip("-")
                spoken[name.replace(" ", "").lower()] = meant
                small = "" if table == "BEFORE_NAME" and name[-1] != "." else name[0].lower()
                rests = (words if name == written else suffixes)[name[0].upper() + small]
                rests[f"{name[1:]}\t{table}"] = re.escape(name[1:]).replace(r"\ ", " ?") + after
        return spoken, rf"(?:(?<![\w.])(?:{_branches(words)})|(?<=[^\W\d_])(?:{_branches(suffixes)}))"

    def read_abbreviation(self, match: re.Match[str]) -> str:
        key = match[0].replace(" ", "").lower()
        words = self._abbreviated[key]
        if re.search(r"(?:^|[.!?…]\s+)\Z", match.string[: match.start()]):
            words = words[0].upper() + words[1:]
        is_last = re.fullmatch(r"[\s\"”»)]*", match.string[match.end() :])
        return words + "." * bool(is_last and match[0].replace(" ", "").lower() in self._ends)

    def read_roman(self, match: re.Match[str]) -> str | None:
        """Read the numeral of a ruler, a century, a chapter, or what stands before its noun."""
        words, patterns, end = self._words, self._patterns, match["end"] or ""
        number = roman.value(match["roman"])
        before = match.string[max(0, match.start() - 40) : match.start()]
        if not number or (end.isalpha() and not set(match["roman"]) <= set("IVX")):  # "Le" is a word
            return None
        if end.strip("."):  # "XXIe siècle"
            return words.ordinal(number, "e" if end in ("re", "ère") else "")
        noun = _AFTER.match(match.string, match.end())
        if noun and re.fullmatch(patterns.get("ordinal nouns", "(?!)"), noun[1]):
            return words.ordinal(number, "a" * words.is_feminine(noun[1]))
        if re.search(rf"\b{patterns.get('numbered', '(?!)')} \Z", before, re.IGNORECASE):
            return words.cardinal(str(number)) + end
        name = _WORD_BEFORE.search(before)
        form = self._rulers.get(name[2], self._rulers.get(name[2].removesuffix("s"))) if name else None
        if form is None and re.search(rf"\b{patterns.get('ordinal before', '(?!)')} \Z", before, re.IGNORECASE):
            form = ""
        if form is not None:
            return self._regnal(number, form, before, end)
        if self._language == "de" and end:
            return self._german_ordinal(number, match)
        is_title = name is not None and name[2][0].isupper() and len(match["roman"]) > 1
        return words.cardinal(str(number)) + end if is_title and set(match["roman"]) <= set("IVX") else None

    def _regnal(self, number: int, form: str, before: str, end: str) -> str:
        """Return the number of a ruler or a century; ``form`` is its gender, in Russian its case and gender."""
        words = self._words
        if self._language == "ru":
            case, gender = form.split("/")
            return words.library(number, "ordinal", case=case, gender=gender) + end
        if self._language == "de":
            ordinal = words.ordinal(number).capitalize()
            if re.search(r"\b(?:bei|mit|nach|seit|unter|von|vor|zu) (?:\w+ ){1,3}\Z", before, re.IGNORECASE):
                return f"{'der' if form else 'dem'} {ordinal}n"
            if before.endswith("s ") and before.rstrip() not in self._rulers:
                return f"des {ordinal}n"
            return f"{'die' if form else 'der'} {ordinal}"
        is_ordinal = number <= int(self._patterns.get("ordinal up to", 0))
        return (words.ordinal(number, "a" if form else "") if is_ordinal else words.cardinal(str(number))) + end

    # -- dates and times ----------------------------------------------------------------------------------------------

    def read_date(self, match: re.Match[str]) -> str | None:
        groups = match.groupdict()
        day, name, year = int(match["d"]), groups.get("name"), groups.get("y")
        month = self._words.months.index(name) + 1 if name else int(match["m"])
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        if year and len(year) == 2:
            year = ("20" if year < "50" else "19") + year
        return self._date_words(day, month, year, match)

    def _date_words(self, day: int, month: int, year: str | None, match: re.Match[str]) -> str:
        words, name = self._words, self._words.months[month - 1]
        if self._language == "ja":
            return f"{words.cardinal(year or '')}年{words.cardinal(str(month))}月{words.cardinal(str(day))}日"
        if self._language == "ko":
            return f"{words.cardinal(year or '')} 년 {words.cardinal(str(month), '월')}월 {words.cardinal(str(day))} 일"
        if self._language == "ru":
            case = russian.case_of_date(match.string[: match.start()], match.string[match.end() :])
            spoken = f"{words.library(day, 'ordinal', case=case, gender='n')} {name}"
            return f"{spoken} {words.library(int(year), 'ordinal', case='g')} года" if year else spoken
        if self._language == "de":
            spoken = f"{self._german_ordinal(day, match, 'r')} {name}"
            return f"{spoken} {words.library(int(year), 'year')}" if year else spoken
        first = words.ordinal(1) if day == 1 else words.cardinal(str(day))
        of = " de " if self._language in ("es", "pt") else " "
        return of.join(filter(None, (first, name, year and words.cardinal(year))))

    def read_time(self, match: re.Match[str]) -> str:
        words, language = self._words, self._language
        hour, minute, second = (part and str(int(part)) for part in (match["h"], match["m"], match["s"]))
        noun = {"es": "hora", "pt": "hora", "fr": "heure", "it": "ora", "de": "Uhr", "ko": "시"}.get(language, "")
        spoken_hour = words.cardinal(hour, noun if int(hour) < 20 or language != "es" else "horas").strip()
        spoken_minute = words.cardinal(minute, "분" if language == "ko" else "")
        if language == "ru":
            zeros = {"0": "ноль ", "00": "ноль ноль"}
            parts = [
                words.cardinal(hour),
                zeros["00"] if minute == "0" else "ноль " * (int(minute) < 10) + spoken_minute,
            ]
        else:
            pattern = self._patterns["full hour" if minute == "0" else "time"]
            plural = "s" * (int(hour) > 1)
            parts = [pattern.format(h=spoken_hour, m=spoken_minute.strip(), s=plural)]
        if second:
            parts.append(words.measure("s", second))
        return words.gap.join(parts)

    # -- telephone numbers and codes ----------------------------------------------------------------------------------

    def read_phone(self, match: re.Match[str]) -> str | None:
        if not 7 <= sum(map(str.isdecimal, match[0])) <= 19:
            return None
        return (f"{self._signs['+']} " if match[0][0] == "+" else "") + self._words.spell(match[0])

    def read_code(self, match: re.Match[str]) -> str | None:
        before = match.string[max(0, match.start() - 60) : match.start()]
        is_part = before[-1:].isascii() and (before[-1:].isalpha() or re.search(r"[A-Z]-\Z", before))
        return self._words.spell(match[0]) if is_part or self._code_before.search(before) else None

    # -- ordinals -----------------------------------------------------------------------------------------------------

    def read_ordinal(self, match: re.Match[str]) -> str | None:
        number, end = int(match["n"]), match["end"] or ""
        if number == 0:
            return None
        feminine = "a" if end == "ª" or (end[-1:] == "a" and self._language == "es") else ""
        words = self._words.ordinal(number, "e" if end in ("re", "ère", "res", "ères") else feminine)
        noun = _AFTER.match(match.string, match.end())
        is_short = end == "er" or (end == "º" and noun and noun[1].lower() not in _COMMON["NO_NOUN"])
        if self._language == "es" and is_short and words.endswith(("primero", "tercero")):
            words = words[:-1]
        return words

    def read_german_ordinal(self, match: re.Match[str]) -> str | None:
        return self._german_ordinal(int(match["n"]), match)

    def _german_ordinal(self, number: int, match: re.Match[str], bare: str = "") -> str | None:
        """Read "3." as "dritte", "am 3." as "dritten"; without such a word before it is an ordinal only in a date."""
        at_end = match.end() == len(match.string)
        ending = self._german_ending(match)
        if not number or (ending is None and not bare) or (at_end and not bare and ending != "n"):
            return None
        return self._words.ordinal(number) + (bare if ending is None else ending) + "." * (at_end and not bare)

    def _german_ending(self, match: re.Match[str]) -> str | None:
        """Return the ending of an ordinal by the article before it: "am" n, "die" none, "ein" r; None without one."""
        before = _WORD_BEFORE.search(_GERMAN_LIST.sub("", match.string[max(0, match.start() - 40) : match.start()]))
        article = before[2].lower() if before else ""
        noun = _AFTER.match(match.string, match.end())
        if before and article == "der":
            is_oblique = re.fullmatch(self._patterns["prepositions"], before[1] or "", re.IGNORECASE)
            return "n" if is_oblique or (noun and self._words.is_feminine(noun[1])) else ""
        patterns = self._patterns
        endings = {"n": "ordinal n", "": "ordinal e", "r": "ordinal r"}
        return next((ending for ending, name in endings.items() if re.fullmatch(patterns[name], article)), None)

    def read_german_year(self, match: re.Match[str]) -> str | None:
        before = match.string[max(0, match.start() - 40) : match.start()]
        is_year = re.search(rf"\b{self._patterns['before year']} \Z", before, re.IGNORECASE)
        return self._words.library(int(match[0]), "year") if is_year else None

    def read_russian_day(self, match: re.Match[str]) -> str:
        case = russian.case_of_date(match.string[: match.start()], match.string[match.end() :])
        return self._words.library(int(match["d"]), "ordinal", case=case, gender="n")

    def read_russian_year(self, match: re.Match[str]) -> str | None:
        name = match["name"]
        at_end = "." * (name == "г." and match.end() == len(match.string))
        if name.rstrip(".") == "г":
            before = russian.word_before(match.string[: match.start()])
            name = self._words.tables["YEAR_AFTER"].get(before, "год")
        case = self._words.tables["YEARS"].get(name)
        number = int(match["y"]) if match["y"].isdecimal() else roman.value(match["y"])
        return f"{self._words.library(number, 'ordinal', case=case)} {name}{at_end}" if case and number else None

    def read_russian_ordinal(self, match: re.Match[str]) -> str:
        case, gender = self._endings[match["end"]].split("/")
        form: dict[str, str | bool] = {"plural": True} if gender == "p" else {"gender": gender}
        return self._words.library(int(match["n"]), "ordinal", case=case, **form)

    # -- amounts ------------------------------------------------------------------------------------------------------

    def _parse(self, written: str) -> tuple[str, str, str] | None:
        """Return the digits, the decimal mark and the decimals of a number; None if it is a list or a version."""
        marks = _MARKS.findall(written)
        groups = _MARKS.split(written)
        if not marks:
            return written, "", ""
        grouped = len(groups[0]) <= 3 and groups[0][0] != "0" and all(len(group) == 3 for group in groups[1:-1])
        last, thousands = marks[-1], "," if self._decimal_mark == "." else "."
        if len(set(marks)) == 1:
            is_mark = last in "'’ " or (last == thousands and self._language not in ("fr", "ru")) or len(marks) > 1
            if grouped and len(groups[-1]) == 3 and is_mark:
                return "".join(groups), "", ""
            return (groups[0], last, groups[1]) if len(marks) == 1 and last in {self._decimal_mark, "."} else None
        if grouped and len(set(marks[:-1])) == 1 and last in ",.":
            return "".join(groups[:-1]), self._decimal_mark, groups[-1]
        return None

    def read_amount(self, match: re.Match[str]) -> str | None:
        parsed = self._parse(match["n"])
        if parsed is None:
            return None
        words, text = self._words, match.string
        before = text[max(0, match.start() - 20) : match.start()]
        symbol, groups = match["pre"] or match["post"], match.groupdict()
        minus = f"{self._signs['-']}{words.gap}" if match["minus"] else ""
        if symbol:
            return minus + words.money(symbol, *parsed, big=match["big"] or "", before=before)
        if match["big"]:
            return words.magnitude(match["big"], *parsed, before=before)
        if groups["unit"]:
            return words.measure(groups["unit"], *parsed, before=before)
        noun = _AFTER.match(text, match.end())
        return words.number(*parsed, noun=noun[1] if noun else "", before=before)

    def read_digits(self, match: re.Match[str]) -> str:
        """Read the digits of a version, a list, or another form that is no number."""
        digits = match[0].rstrip(".,")
        mark = match["mark"]
        after = f" {self._signs['.']}" if mark == "." else ", " if mark else ""
        return (self._words.spell(digits) if digits[0] == "0" else self._words.cardinal(digits)) + after

    def read_fraction(self, match: re.Match[str]) -> str:
        words, signs = self._words, self._signs
        top, bottom, whole = match["top"], match["bottom"], match["whole"]
        sign = match["sign"] or _SIMPLE_FRACTIONS.get(f"{top}/{bottom}")
        if sign:
            spoken = signs[sign]
        elif self._wide:
            spoken = f"{words.cardinal(bottom)}{signs['⁄']}{words.gap}{words.cardinal(top)}"
        else:
            spoken = f"{words.cardinal(top)} {signs['⁄']} {words.cardinal(bottom)}"
        parts = [words.cardinal(whole), signs["_"], spoken] if whole else [spoken]
        if match["unit"]:
            parts.append(words.unit_name(match["unit"], Decimal(whole or 1)))
        return words.gap.join(parts)

    # -- signs --------------------------------------------------------------------------------------------------------

    def read_sign(self, match: re.Match[str]) -> str | None:
        """Read what stands alone: "/km", "€", "°", and the signs."""
        sign, words = match[0], self._words
        if match["unit"]:
            name, per = words.unit_name(match["unit"]), self._signs["/"]
            return name + per if self._wide else f" {per} {name}"
        if sign.isascii() and sign.isalpha() and sign != "x":
            return None
        if sign in _COMMON["CURRENCIES"]:
            return None if sign.isalpha() else words.currency(sign, Decimal(1))
        if sign in words.units:
            return words.unit_name(sign)
        start, end = match.span()
        before, after = match.string[max(0, start - 2) : start], match.string[end : end + 24]
        return self._dash(sign, before, after) if sign in "-–−~〜" else self._operator(sign, before, after)

    def _operator(self, sign: str, before: str, after: str) -> str | None:
        number_before, number_after = before.rstrip()[-1:].isdecimal(), after.lstrip()[:1].isdecimal()
        if sign in "x*" and not (number_before and number_after):
            return None if sign == "x" else ""
        if sign in "/:":
            if before[-1:].isdecimal() and after[:1].isdecimal():
                return self._signs["⁄" if sign == "/" else ":"]
            if sign == "/" and before[-1:] in tuple("€$£¥₽₩%"):
                return f" {self._signs['/']} " * (not self._wide)
            return " " if sign == "/" and before[-1:].isalnum() else None  # no closing tag
        if sign in "<>#" and not (number_after and (sign == "#" or not before[-1:].isalnum())):
            return "" if sign == "#" else None  # may be a tag
        sign = "#" if len(sign) > 1 or sign == "№" else "×" if sign in "x*" else sign
        plain = unicodedata.normalize("NFKC", sign)
        return self._signs.get(sign) or (self._words.cardinal(plain) if plain.isdecimal() else "")

    def _dash(self, sign: str, before: str, after: str) -> str | None:
        """Tell a minus from a range: "-5", "3 - 2 = 1", "3-5"; other dashes stay."""
        follows = re.match(r" ?(?:[$€£¥₽₩]|US\$|R\$)?\d", after)
        if follows is None:
            return None
        if sign in "~〜" and not before.rstrip()[-1:].isalnum():
            return self._signs["≈"]
        is_spaced = before[-1:] in ("", " ") or (self._wide and not re.search(r"[\d%℃]|\d.\Z", before))
        if sign == "−" or (is_spaced and after[0] != " ") or before[-1:] in tuple("(=+*×/:<>≈~"):
            return self._signs["-"]
        if is_spaced and not before.rstrip()[-1:].isdecimal():
            return None
        if is_spaced and re.match(r" [\d.,]{1,15} ?=", after):
            return self._signs["-"]
        is_amount = before[-1:].isdecimal() or is_spaced or before[-1:] in "%°€$£¥₽₩"
        return self._signs["–"] if is_amount or (len(before) > 1 and before[-2].isdecimal()) else None
