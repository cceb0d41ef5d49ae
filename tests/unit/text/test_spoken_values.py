"""The reader of spoken words: which numbers a listener hears, with unit, currency and sign."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from tools.reading_values import KINDS, Written, make_example
from tools.spoken_values import Form, Value, heard_values


def value(number: str, *units: str, form: Form = Form.CARDINAL, is_tolerance: bool = False) -> Value:
    return Value(Fraction(number), frozenset(units or ("",)), form, is_tolerance)


@each_case(
    ("words", "values"),
    [
        ("Nothing here, and no number.", []),
        ("It is five, or forty-two.", [value("5"), value("42")]),
        ("two thousand three hundred and forty-five apples", [value("2345")]),
        ("twenty-three hundred forty-five apples", [value("2345")]),
        ("twenty-three forty-five apples", [value("2345", form=Form.PAIR)]),
        ("since nineteen oh five, or nineteen hundred", [value("1905", form=Form.PAIR), value("1900")]),
        ("a million, one hundred thousand and two", [value("1000000"), value("100002")]),
        ("four one one", [value("411", form=Form.DIGITS)]),
        ("minus five to negative three", [value("-5"), value("-3")]),
        ("plus or minus two percent", [value("2", "percent", is_tolerance=True)]),
        ("plus minus half a mile", [value("1/2", "mile", is_tolerance=True)]),
        ("Take point five or zero point oh five.", [value("0.5"), value("0.05")]),
        ("three point four zero billion dollars", [value("3400000000", "USD")]),
        ("sixty k people", [value("60000")]),
        ("two thirds of a mile, half a cup", [value("2/3", "mile"), value("1/2", "cup")]),
        ("two and a half, one hundred and three quarters", [value("5/2"), value("403/4")]),
        ("eleven sixty-fourths of an inch", [value("11/64", "inch")]),
        ("seven over nine", [value("7/9")]),
        (
            "the twenty-first, the one hundred and second",
            [value("21", form=Form.ORDINAL), value("102", form=Form.ORDINAL)],
        ),
        ("eighteen dollars and seven cents", [value("18.07", "USD")]),
        ("twelve euros fifty", [value("12.5", "EUR")]),
        ("ninety-nine cents", [value("0.99", "USD", "EUR")]),
        ("one cent, one penny", [value("0.01", "USD", "EUR"), value("0.01", "GBP")]),
        ("minus two pounds ten", [value("-2.1", "GBP", "pound")]),
        ("five dollars and ten people", [value("5", "USD"), value("10")]),
        ("twenty US dollars, four Swiss francs", [value("20", "USD"), value("4", "CHF")]),
        ("sixty kilometers an hour", [value("60", "kilometer per hour")]),
        ("nine meters squared or three square meters", [value("9", "square meter"), value("3", "square meter")]),
        ("ten squared", [value("100")]),
        ("three point two times ten to the eighth meters", [value("320000000", "meter")]),
        ("ten to the power of minus three", [value("0.001")]),
        ("ten to the negative third power", [value("0.001")]),
    ],
)
def test_words_are_heard_as_values(words: str, values: list[Value]) -> None:
    assert heard_values(words) == values


@pytest.mark.parametrize("text", ["It is 5.", "five %", "two × three", "$ five"])
def test_digit_or_sign_is_not_words(text: str) -> None:
    with pytest.raises(ValueError, match="not words"):
        heard_values(text)


@given(st.sampled_from(list(KINDS)), st.randoms(use_true_random=False))
def test_every_kind_is_heard_in_plain_words(kind: str, rng: Random) -> None:
    example = make_example(rng, kind)
    [written] = example.values
    spoken = example.text.replace(written.text, plain_words(written), 1).replace(" = ", " is ")
    heard = heard_values(spoken)
    assert len(heard) == 1, spoken
    assert written.is_heard_as(heard[0]), (spoken, str(heard[0]))


SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ONES = SMALL.split()
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
MONEY = {"USD": "dollars", "EUR": "euros", "GBP": "pounds", "JPY": "yen", "INR": "rupees", "CHF": "francs"}
LAST = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}


def plain_words(written: Written) -> str:
    """Say a value in the simplest way."""
    number = abs(written.number)
    words = cardinal(int(number))
    decimals = f"{float(number % 1):.12f}".rstrip("0").partition(".")[2]
    if Fraction(f"0.{decimals}0") != number % 1:
        words = f"{cardinal(number.numerator)} over {cardinal(number.denominator)}"
    elif decimals:
        words += " point " + " ".join(ONES[int(digit)] for digit in decimals)
    if written.form is Form.ORDINAL:
        start, last = words[: words.rfind(" ") + 1], words.split()[-1]
        start, last = (start + last.split("-")[0] + "-", last.split("-")[1]) if "-" in last else (start, last)
        words = start + LAST.get(last, last.replace("ty", "tie").replace("twelve", "twelf") + "th")
    sign = "plus or minus " if written.is_tolerance else "minus " if written.number < 0 else ""
    unit = written.units[0] if written.units else ""
    return f"{sign}{words} {MONEY.get(unit, unit)}".strip()


def cardinal(number: int) -> str:
    for size, name in (
        (10**12, "trillion"),
        (10**9, "billion"),
        (10**6, "million"),
        (1000, "thousand"),
        (100, "hundred"),
    ):
        if number >= size:
            rest = number % size
            return f"{cardinal(number // size)} {name} {cardinal(rest) if rest else ''}".strip()
    if number < 20:
        return ONES[number]
    return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")
