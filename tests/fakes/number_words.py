"""Reads the words of numbers back, independently of the library that wrote them."""

from __future__ import annotations

import re

_ONES = {
    "es": "cero un dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis "
    "diecisiete dieciocho diecinueve veinte veintiún veintidós veintitrés veinticuatro veinticinco veintiséis "
    "veintisiete veintiocho veintinueve",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize",
    "de": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn",
    "it": "zero un due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove",
    "pt": "zero um dois três quatro cinco seis sete oito nove dez onze doze treze quatorze quinze dezesseis dezessete "
    "dezoito dezenove",
    "ru": "ноль один два три четыре пять шесть семь восемь девять десять одиннадцать двенадцать тринадцать "
    "четырнадцать пятнадцать шестнадцать семнадцать восемнадцать девятнадцать",
    "ja": "零 一 二 三 四 五 六 七 八 九",
    "ko": "영 일 이 삼 사 오 육 칠 팔 구",
}
_TENS = {
    "es": "30 treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    "fr": "20 vingt trente quarante cinquante soixante",
    "de": "20 zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "it": "20 vent trent quarant cinquant sessant settant ottant novant",
    "pt": "20 vinte trinta quarenta cinquenta sessenta setenta oitenta noventa",
    "ru": "20 двадцать тридцать сорок пятьдесят шестьдесят семьдесят восемьдесят девяносто",
}
_MORE = {
    "es": {"uno": 1, "una": 1, "veintiuno": 21, "veintiuna": 21, "cien": 100, "ciento": 100},
    "fr": {"une": 1, "vingts": 20, "quatre-vingts": 80, "quatre-vingt": 80},
    "de": {"eins": 1, "eine": 1},
    "it": {
        **{"uno": 1, "una": 1, "tré": 3, "venti": 20},
        **{f"{stem}a": ten for ten, stem in zip(range(30, 91, 10), _TENS["it"].split()[2:], strict=True)},
    },
    "pt": {"uma": 1, "duas": 2, "catorze": 14, "cem": 100, "cento": 100},
    "ru": {"одна": 1, "одно": 1, "две": 2},
}
_HUNDREDS = {
    "es": "doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos novecientos",
    "pt": "duzentos trezentos quatrocentos quinhentos seiscentos setecentos oitocentos novecentos",
    "ru": "сто двести триста четыреста пятьсот шестьсот семьсот восемьсот девятьсот",
}
_POWERS = {
    "es": {"mil": 10**3, "millón": 10**6, "millones": 10**6},
    "fr": {"cent": 100, "cents": 100, "mille": 10**3, "million": 10**6, "millions": 10**6, "milliard": 10**9}
    | {"milliards": 10**9},
    "de": {"hundert": 100, "tausend": 10**3, "million": 10**6, "millionen": 10**6, "milliarde": 10**9}
    | {"milliarden": 10**9},
    "it": {"cento": 100, "cent": 100, "mille": 10**3, "mila": 10**3, "milione": 10**6, "milioni": 10**6}
    | {"miliardo": 10**9, "miliardi": 10**9},
    "pt": {"mil": 10**3, "milhão": 10**6, "milhões": 10**6, "bilhão": 10**9, "bilhões": 10**9},
    "ru": {"тысяча": 10**3, "тысячи": 10**3, "тысяч": 10**3, "миллион": 10**6, "миллиона": 10**6, "миллионов": 10**6}
    | {"миллиард": 10**9, "миллиарда": 10**9, "миллиардов": 10**9},
    "ja": {"十": 10, "百": 100, "千": 10**3, "万": 10**4, "億": 10**8, "兆": 10**12},
    "ko": {"십": 10, "백": 100, "천": 10**3, "만": 10**4, "억": 10**8, "조": 10**12},
}
_AND = {"es": "y", "fr": "et", "de": "und", "it": "e", "pt": "e"}


def _words(language: str) -> dict[str, int]:
    values = {word: number for number, word in enumerate(_ONES[language].split())} | _MORE.get(language, {})
    if language in _TENS:
        first, *tens = _TENS[language].split()
        values |= {word: int(first) + 10 * number for number, word in enumerate(tens)}
    hundreds = _HUNDREDS.get(language, "").split()
    start = 200 if len(hundreds) == 8 else 100
    values |= {word: start + 100 * number for number, word in enumerate(hundreds)}
    if language in ("es", "pt"):
        values |= {f"{word[:-2]}as": start + 100 * number for number, word in enumerate(hundreds)}
    return values


_WORDS = {language: _words(language) for language in _ONES}
_TOKENS = {
    # "centotto" is "cent" and "otto".
    language: re.compile(
        "|".join(sorted({*words, *_POWERS[language]}, key=len, reverse=True)).replace("cento", "cento(?!tt)")
    )
    for language, words in _WORDS.items()
}


def read_number(language: str, words: str) -> int:
    """Return the whole number that ``words`` say.

    Raises:
        ValueError: Something in them belongs to no number.
    """
    linked = rf"(?<![^\W\d_]){_AND.get(language, '(?!)')}(?![^\W\d_])"
    text = re.sub(linked, " ", words.lower())
    if language == "de":
        text = re.sub("(?<!h)und(?!ert)", " ", text)
    total = thousands = value = 0
    place = 0
    for token in _TOKENS[language].finditer(text):
        if text[place : token.start()].strip(" -"):
            raise ValueError(words)
        place = token.end()
        power = _POWERS[language].get(token[0], 0)
        if not power:
            value += _WORDS[language][token[0]]
        elif power < (10**4 if language in ("ja", "ko") else 1000):
            thousands, value = thousands + power * (value or 1), 0
        elif power == 1000 and language == "es":
            thousands, value = (thousands + value or 1) * 1000, 0
        else:
            total, thousands, value = total + power * (thousands + value or 1), 0, 0
    if not place or text[place:].strip(" -"):
        raise ValueError(words)
    return total + thousands + value
