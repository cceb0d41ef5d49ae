"""Numbers, measures, money and ordinals of eight languages in words.

num2words gives the words of whole numbers, CLDR (Babel) the names of units, currencies and months in the right plural.
A number agrees in gender with its noun where the form of the noun tells it.
"""

from __future__ import annotations

import re
from decimal import Decimal

from tts_worker.features.languages import russian
from tts_worker.features.languages.tables import load
from tts_worker.text.reading.digit_groups import groups_of

_COMMON = load("worldwide")
_LABEL = re.compile(rf"\b(?:{'|'.join(_COMMON['LABELS'])}) \Z", re.IGNORECASE)
_DATIVE = re.compile(r"\b(?:aus|bei|in|mit|nach|seit|von|vor|zu) \Z", re.IGNORECASE)
_NO_DATIVE = frozenset(("Uhr", "Prozent", "Grad"))
_OF = {"es": "de ", "pt": "de ", "it": "di ", "fr": "de "}
_MILLIONS = re.compile(r"(?:ill[oó]n(?:es)?|ilh(?:ão|ões)|ilion[ei]|iliard[oi]|illi(?:on|ard)s?)\Z")
_FORMATTED = re.compile(r"\s?\d(?:[\d.,\s’]*\d)?\s?")
_LONGEST = 15
"""Digits of the longest number that is not read digit by digit."""
_MENDED = {
    **{"décimoprimero": "undécimo", "décimosegundo": "duodécimo", "quadra": "cuadra"},
    **{"vingtsième": "vingtième", "centsième": "centième"},
    "dicotto": "diciotto",
}
"""Faults of num2words 0.5.14."""
_ES_ONE = {"veintiuno": "veintiún", "uno": "un"}


class Words:
    """The words of one language; a number is given by its digits and, with decimals, its decimal mark."""

    def __init__(self, language: str) -> None:
        from babel.dates import get_month_names

        self.language = language
        self.gap = "" if language == "ja" else " "
        """Stands between words."""
        self.tables = load(language)
        self.patterns = self.tables["PATTERNS"]
        self.signs = self.tables["SIGNS"]
        self.months = list(get_month_names("wide", locale=language).values())
        self.units = self._symbols()
        self._feminine_nouns = re.compile(self.patterns.get("feminine", "(?!)"), re.IGNORECASE)

    def _symbols(self) -> dict[str, str]:
        """Return CLDR's names of the units by symbol."""
        from babel.units import format_unit

        symbols = dict(_COMMON["MORE_SYMBOLS"])
        for name in _COMMON["UNITS"]:
            locales = ("en", self.language)
            written = [format_unit(5, name, "short", locale=locale) for locale in locales]
            for symbol in (*written, format_unit(5, name, "narrow", locale=self.language)):
                symbol = re.sub(r"[\d\s.⋅]", "", symbol)
                if re.fullmatch(r"[A-Za-zА-я/°%‰μ²³]+", symbol) and symbol not in _COMMON["NO_SYMBOLS"]:
                    for alias in (symbol, symbol.replace("μ", "µ"), symbol.replace("²", "2").replace("³", "3")):
                        symbols.setdefault(alias, name)
        return symbols

    def by_form(self, table: str) -> dict[str, str]:
        """Return a table of forms the other way round: the form of each of its words."""
        return {word: form for form, words in self.tables.get(table, {}).items() for word in words.split()}

    def is_feminine(self, noun: str) -> bool:
        """Return whether the form of a noun tells that it is feminine."""
        return self._feminine_nouns.fullmatch(noun) is not None

    # -- numbers ------------------------------------------------------------------------------------------------------

    def library(self, number: int, kind: str = "cardinal", **form: str | bool) -> str:
        """Return the words of num2words, mended."""
        from num2words import num2words

        words: str = num2words(number, lang="pt_BR" if self.language == "pt" else self.language, to=kind, **form)
        if self.language == "es":
            words = re.sub(r"\b(?:veinti)?uno(?= mil)", lambda one: _ES_ONE[one[0]], words)
        for wrong, right in _MENDED.items():
            words = words.replace(wrong, right)
        return words.replace(",", "")

    def spell(self, digits: str) -> str:
        """Return digits one by one; other characters and every three or four digits make a pause."""
        groups = []
        for group in re.findall(r"\d+|[^\W\d_]+", digits):
            parts = groups_of(group) if group.isdecimal() else [group]
            groups += [self.gap.join(map(self._digit, part)) for part in parts]
        return ("、" if self.language == "ja" else ", ").join(groups)

    def _digit(self, char: str) -> str:
        if char == "0" and self.language in ("ja", "ko"):
            return {"ja": "ゼロ", "ko": "공"}[self.language]
        return self.library(int(char)) if char.isdecimal() else char

    def cardinal(self, digits: str, noun: str = "", before: str = "") -> str:
        """Return a whole number in words.

        Args:
            digits: The digits.
            noun: The word after the number.
            before: The text before it.
        """
        if len(digits) > _LONGEST:
            return self.spell(digits)
        number = int(digits)
        case = russian.case_of_number(number, before, noun) if self.language == "ru" else "n"
        if case != "n" and not _LABEL.search(before):
            return self.library(number, case=case, gender=russian.gender_of_noun(noun, case))
        words = self.library(number)
        if not noun or noun.lower() in _COMMON["NO_NOUN"] or _LABEL.search(before):
            return words
        feminine = self.is_feminine(noun)
        if feminine and "FEMININE" in self.tables:
            for form, of_noun in self.tables["FEMININE"].items():
                words = re.sub(form, of_noun, words)
        elif self.language == "es" and (number == 1 or noun[-1] == "s"):
            words = re.sub(r"\b(?:veinti)?uno$", lambda one: _ES_ONE[one[0]], words)
        elif self.language == "it" and number == 1:
            one = "un'" if re.match("[aeiou]", noun) else "una"
            words = one if feminine else "uno" if re.match("[sS][^aeiouhAEIOUH]|[zZ]", noun) else "un"
        elif self.language == "de" and number == 1 and noun[0].isupper():
            endings = ("er", "em") if _DATIVE.search(before) and noun not in _NO_DATIVE else ("e", "")
            words = "ein" + endings[not feminine]
        elif self.language == "ru":
            words = self._russian_gender(words, noun, feminine)
        elif self.language == "ko":
            words = _korean(number, words, noun)
        return words

    @staticmethod
    def _russian_gender(words: str, noun: str, feminine: bool) -> str:
        if feminine:
            one, two = (r"один$", "одна"), (r"\bдва$", "две")
            return re.sub(*(one if noun[-1] in "ая" else two), words)
        return re.sub("один$", "одно", words) if noun[-1] in "оеё" and len(noun) > 2 else words

    def number(self, digits: str, mark: str = "", decimals: str = "", noun: str = "", before: str = "") -> str:
        """Return a number in words; every decimal is spoken, zeros too."""
        if not decimals:
            return self.cardinal(digits, noun, before)
        if self.language == "ru" and mark == "," and len(digits) < 6 and len(decimals) < 4:
            from num2words import num2words

            return str(num2words(Decimal(f"{digits}.{decimals}"), lang="ru"))
        as_number = len(decimals) == 2 and decimals[0] != "0" and self.language in _OF
        spoken = self.cardinal(decimals) if as_number else self.gap.join(map(self.library, map(int, decimals)))
        return self.gap.join((self.cardinal(digits), self.signs[mark], spoken))

    def ordinal(self, number: int, ending: str = "") -> str:
        """Return an ordinal: feminine with the ending "a" (Spanish, Italian, Portuguese), "e" (French)."""
        words = self.library(number, "ordinal")
        if ending == "a":
            return re.sub(r"o\b", "a", words)
        return "première" if words == "premier" and ending == "e" else words

    # -- what is counted ----------------------------------------------------------------------------------------------

    def measure(self, symbol: str, digits: str, mark: str = "", decimals: str = "", before: str = "") -> str:
        """Return a number with the name of its unit."""
        formatted = self._formatted(symbol, self._count(digits, decimals, before))
        prefix = _FORMATTED.split(formatted, maxsplit=1)[0]  # 時速
        if prefix and before.rstrip().endswith(prefix):
            formatted = formatted[len(prefix) :]
        noun = re.search(r"\d\s?([^\W\d_]+)", formatted)
        words = self.number(digits, mark, decimals, noun[1] if noun else "", before)
        if self.language == "ja":
            return _FORMATTED.sub(words, formatted, count=1)
        return _FORMATTED.sub(f" {words.strip()} ", formatted, count=1).strip()

    def _count(self, digits: str, decimals: str, before: str) -> Decimal:
        """Return the number whose plural form a unit takes: "до двадцати одного метра", as two of them."""
        if self.language != "ru" or decimals or russian.case_of_number(int(digits), before) != "g":
            return _decimal(digits, decimals)
        return Decimal(2 if int(digits) % 10 == 1 and int(digits) % 100 != 11 else 5)

    def unit_name(self, symbol: str, count: Decimal = Decimal(1)) -> str:
        """Return the name of a unit as it stands with a number, without that."""
        return _FORMATTED.sub("", self._formatted(symbol, count), count=1)

    def _formatted(self, symbol: str, value: Decimal) -> str:
        from babel.units import format_unit

        formatted = format_unit(value, self.units[symbol], "long", "#,##0.###", locale=self.language)
        for written, spoken in {"%": "퍼센트", "‰": "퍼밀", "percento": "per cento", "\xa0": " "}.items():
            formatted = formatted.replace(written, spoken)
        return formatted

    def money(
        self, symbol: str, digits: str, mark: str = "", decimals: str = "", big: str = "", before: str = ""
    ) -> str:
        """Return an amount of money, with its minor unit if that has two decimals."""
        code = _COMMON["CURRENCIES"][symbol]
        if big:
            return self.join(self.magnitude(big, digits, mark, decimals, before), self.currency(symbol, Decimal(5)))
        link, minor = self.patterns.get("link", ""), self.tables["MINOR_UNITS"]
        if len(decimals) != 2 or code not in minor:
            name = self.currency(symbol, self._count(digits, decimals, before))
            return self.join(self.number(digits, mark, decimals, name.split()[0], before), name)
        name = self.currency(symbol, self._count(digits, "", before))
        whole = self.join(self.cardinal(digits, name.split()[0], before), name)
        if decimals == "00":
            return whole
        minor_name = self._plural(minor[code].split(), self._count(decimals, "", before))
        cents = self.cardinal(decimals, minor_name, before).strip()
        if decimals[0] == "0" or int(digits) == 0 or self.language not in (*_OF, "de"):
            cents += self.gap + minor_name
        return cents if int(digits) == 0 else self.gap.join(filter(None, (whole, link, cents)))

    def magnitude(self, big: str, digits: str, mark: str = "", decimals: str = "", before: str = "") -> str:
        """Return a number of thousands, millions or the like, as they are abbreviated or written."""
        names = self.tables["MAGNITUDES"]
        forms = names.get(big) or names.get(f"{big}.")
        name = self._plural(forms.split(), self._count(digits, decimals, before)) if forms else big
        return self.number(digits, mark, decimals, name, before) + self.gap * (self.language != "ko") + name

    def _plural(self, forms: list[str], count: Decimal) -> str:
        """Return the form for a number of: one, (few,) other."""
        from babel import Locale

        category = Locale(self.language).plural_form(count)
        is_few = category in ("few", "other") and len(forms) > 2
        return forms[0] if category == "one" else forms[1] if is_few else forms[-1]

    def currency(self, symbol: str, count: Decimal) -> str:
        """Return the name of a currency in the plural for ``count``; without its country if a sign stands for it."""
        from babel.numbers import get_currency_name

        name: str = get_currency_name(_COMMON["CURRENCIES"][symbol], count, locale=self.language)
        if symbol == _COMMON["CURRENCIES"][symbol]:
            return name
        words = re.split("[ -]", name)
        if self.language == "ru":
            return words[re.search("(?:ий|ая|их|ие|о[йг]о?)$", words[0]) is not None]
        return words[0].lower() if self.language in _OF else re.sub("^[米英国中人民韓]+", "", words[-1])

    def join(self, words: str, noun: str) -> str:
        """Return a number before its noun: "cinco millones de euros"."""
        of = _OF.get(self.language, "") if _MILLIONS.search(words) else ""
        of = "d'" if of and self.language == "fr" and noun[0].lower() in "aeéiou" else of
        return words.rstrip() + (self.gap + of) + noun


def _decimal(digits: str, decimals: str) -> Decimal:
    return Decimal(f"{digits}.{decimals}" if decimals else digits)


def _korean(number: int, words: str, noun: str) -> str:
    """Return the native number before a counter, and a space before what is counted."""
    native = re.match(load("ko")["PATTERNS"]["native counters"], noun)
    if native and 0 < number < (13 if native[0] == "시" else 100):
        tens, ones = divmod(number, 10)
        words = load("ko")["NATIVE_TENS"].get(str(tens), "") + load("ko")["NATIVE_ONES"].get(str(ones), "")
        words = "스무" if number == 20 else "첫" if native[0] == "번째" and number == 1 else words
    elif noun[0] == "월":
        return {6: "유", 10: "시"}.get(number, words)
    return words + " " * (native is not None or re.match(load("ko")["PATTERNS"]["spaced counters"], noun) is not None)
