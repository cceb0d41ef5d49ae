"""The value that is spoken in eight languages is the value that is written."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.number_words import read_number
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer

LANGUAGES = ("es", "fr", "de", "it", "pt", "ja", "ko", "ru")
# Language -> thousands mark, decimal mark, minus, point, currency sign and its names, link of cents, names of cents.
STYLES = {
    "es": (".", ",", "menos", "coma", "€", "euros?", "con", "céntimos?"),
    "fr": ("\u202f", ",", "moins", "virgule", "€", "euros?", "", "centimes?"),
    "de": (".", ",", "minus", "Komma", "€", "Euro", "", "Cent"),
    "it": (".", ",", "meno", "virgola", "€", "euro", "e", "centesim[oi]"),
    "pt": (".", ",", "menos", "vírgula", "R$", "rea(?:l|is)", "e", "centavos?"),
    "ja": (",", ".", "マイナス", "点", "$", "ドル", "", "セント"),
    "ko": (",", ".", "마이너스", "점", "$", "달러", "", "센트"),
    "ru": ("\xa0", ",", "минус", "запятая", "₽", "рубл(?:ь|я|ей)", "", "копе(?:йка|йки|ек)"),
}
FRAMES = {
    "es": "El valor es {} y ya.",
    "fr": "La valeur est {} et voilà.",
    "de": "Der Wert ist {} und fertig.",
    "it": "Il valore vale {} e basta.",
    "pt": "O valor fica {} e pronto.",
    "ja": "値は{}です。",
    "ko": "값은 {}입니다.",
    "ru": "Значение равно {} и всё.",
}
NUMBERS = st.one_of(st.integers(0, 3000), st.integers(0, 10**6), st.integers(0, 10**9 - 1))
SIGNS = re.compile(r"[\d%‰°€$£¥₽₩+=<>×÷−&@#/]")


def spoken_part(language: str, written: str) -> str:
    """Return what is spoken for ``written`` in a sentence."""
    before, after = FRAMES[language].split("{}")
    pipeline = TextPipeline(TextOptions(language=language), verbalizer=Verbalizer((language,)))
    text = "".join(part.text for part in [*pipeline.feed(before + written + after), *pipeline.end()])
    assert not SIGNS.search(text)
    assert text.startswith(before)
    assert text.endswith(after)
    return text[len(before) : -len(after)].strip()


def grouped(number: int, mark: str) -> str:
    return f"{number:,}".replace(",", mark)


def read_decimals(language: str, words: str) -> str:
    """Return decimals that are spoken one by one, or as a number of two digits."""
    parts = list(words) if language == "ja" else words.split()
    try:
        digits = [read_number(language, part) for part in parts]
    except ValueError:  # "treinta y uno"
        return str(read_number(language, words))
    return str(read_number(language, words)) if max(digits) > 9 else "".join(map(str, digits))


def read_value(language: str, words: str) -> tuple[int, str]:
    """Return the whole part and the decimals of a spoken number."""
    if language == "ru" and (found := re.fullmatch(r"(.+) цел(?:ая|ых) (.+?) (дес|сот|тыс)[а-я]+", words)):
        size = {"дес": 1, "сот": 2, "тыс": 3}[found[3]]
        return read_number("ru", found[1]), str(read_number("ru", found[2])).zfill(size)
    whole, _, decimals = words.partition(STYLES[language][3])
    return read_number(language, whole), read_decimals(language, decimals.strip()) if decimals else ""


@pytest.mark.parametrize("language", LANGUAGES)
@settings(deadline=None, max_examples=150)
@given(number=NUMBERS, negative=st.booleans(), groups=st.booleans(), decimals=st.text("0123456789", max_size=5))
def test_number_is_spoken_with_its_value(
    language: str, number: int, negative: bool, groups: bool, decimals: str
) -> None:
    thousands, mark, minus = STYLES[language][:3]
    written = grouped(number, thousands) if groups else str(number)
    spoken = spoken_part(language, "-" * negative + written + (mark + decimals if decimals else ""))
    assert spoken.startswith(minus) == negative
    assert read_value(language, spoken.removeprefix(minus).strip()) == (number, decimals)


@pytest.mark.parametrize("language", LANGUAGES)
@settings(deadline=None, max_examples=150)
@given(
    number=st.one_of(st.integers(0, 300), st.integers(0, 10**7)),
    cents=st.none() | st.integers(0, 99),
    first=st.booleans(),
)
def test_money_is_spoken_with_its_value(language: str, number: int, cents: int | None, first: bool) -> None:
    thousands, mark, _, _, sign, name, link, minor = STYLES[language]
    written = grouped(number, thousands) + (f"{mark}{cents:02}" if cents is not None else "")
    spoken = spoken_part(language, sign + written if first else f"{written} {sign}")
    if number == 0 and cents:
        amount, rest = "", spoken
    else:
        found = re.fullmatch(rf"(.+?) ?(?:d['’e]i? ?)?{name}(.*)", spoken)
        assert found, spoken
        amount, rest = found[1], found[2].strip().removeprefix(link).strip()
    rest = re.sub(rf" ?{minor}$", "", rest)
    assert (read_number(language, amount) if amount else 0) == number
    assert (read_number(language, rest) if rest else 0) == (cents or 0)


@pytest.mark.parametrize("language", LANGUAGES)
@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet="0123456789.,:/-+ %€$°x aкあ한²½()#", max_size=30))
def test_any_text_leaves_no_digit(language: str, text: str) -> None:
    pipeline = TextPipeline(TextOptions(language=language), verbalizer=Verbalizer((language,)))
    parts = [*pipeline.feed(text), *pipeline.end()]
    assert not any(re.search(r"[\d²½%€$°+]", part.text) for part in parts)


@pytest.mark.parametrize("language", LANGUAGES)
@settings(deadline=None, max_examples=40)
@given(text=st.text(alphabet="0123456789., :/-€ aб한", max_size=40), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_result_does_not_depend_on_the_split(language: str, text: str, cuts: list[int]) -> None:
    whole = TextPipeline(verbalizer=Verbalizer((language,)))
    pieces = TextPipeline(verbalizer=Verbalizer((language,)))
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    deltas = [text[start:end] for start, end in pairwise(places)]
    assert [part for delta in deltas for part in pieces.feed(delta)] + pieces.end() == [*whole.feed(text), *whole.end()]
