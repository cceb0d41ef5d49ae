"""Read the values back from spoken English: numbers with their sign, unit and currency.

It knows nothing of written text, so that it can judge what the reading rules make of it. Words that are no part of a
number are skipped. Punctuation ends a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction


class Form(Enum):
    """How an integer is said: "one hundred five", "nineteen oh five", "one oh five" or "hundred fifth"."""

    CARDINAL = "cardinal"
    PAIR = "pair"
    DIGITS = "digits"
    ORDINAL = "ordinal"


@dataclass(frozen=True, slots=True)
class Value:
    """A number that is heard.

    Attributes:
        number: The exact value.
        units: What its unit may be; "" is none. "Cents" may be dollars or euros, "pounds" money or weight.
        form: How it is said; decimals and fractions are cardinal.
        is_tolerance: Whether "plus or minus" stands before it.
    """

    number: Fraction
    units: frozenset[str] = frozenset({""})
    form: Form = Form.CARDINAL
    is_tolerance: bool = False

    def __str__(self) -> str:
        sign = "±" if self.is_tolerance else ""
        form = "" if self.form is Form.CARDINAL else f" ({self.form.value})"
        return f"{sign}{self.number} {'/'.join(sorted(self.units))}".strip() + form


_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ROUND = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBERS = {name: number for number, name in enumerate(_SMALL.split())}
_ONES = {name: number for name, number in _NUMBERS.items() if 1 <= number <= 9}
_TEENS = {name: number for name, number in _NUMBERS.items() if number >= 10}
_TENS = {name: 10 * number for number, name in enumerate(_ROUND.split(), 2)}
_SCALES = {
    "k": 10**3,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "quadrillion": 10**15,
}
_DIGITS = {"zero": 0, "oh": 0, "o": 0, **_ONES}
_IRREGULAR = {
    "first": "one",
    "second": "two",
    "third": "three",
    "fifth": "five",
    "eighth": "eight",
    "ninth": "nine",
    "twelfth": "twelve",
}
_CARDINAL_OF = {
    **{(name[:-1] + "ieth" if name.endswith("y") else name + "th"): name for name in (*_ONES, *_TEENS, *_TENS)},
    **{name + "th": name for name in ("hundred", *_SCALES)},
    **_IRREGULAR,
}
_HALVES = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}

_CURRENCIES = {
    "dollar": ("USD",),
    "euro": ("EUR",),
    "pound": ("GBP", "pound"),
    "yen": ("JPY",),
    "yuan": ("JPY",),  # the sign is the same
    "rupee": ("INR",),
    "franc": ("CHF",),
}
_CENTS = {
    "cent": ("USD", "EUR"),
    "penny": ("GBP",),
    "pence": ("GBP",),
    "paisa": ("INR",),
    "paise": ("INR",),
    "rappen": ("CHF",),
    "centime": ("CHF",),
}
_COUNTRIES = ("us", "u", "s", "american", "swiss", "indian", "japanese", "british")

_NOUNS = (
    "gram kilogram milligram microgram ton ounce liter milliliter deciliter meter kilometer centimeter millimeter "
    "micrometer mile foot inch yard acre hectare cup teaspoon tablespoon gallon hour minute second millisecond day "
    "week month year watt kilowatt megawatt volt millivolt ampere milliampere ohm hertz kilohertz megahertz gigahertz "
    "pascal kilopascal hectopascal megapascal joule kilojoule newton calorie kilocalorie decibel lumen knot "
    "bit kilobit megabit gigabit byte kilobyte megabyte gigabyte terabyte gibibyte kelvin degree percent mole "
    "millimole"
)
_SAME_NOUN = {
    "feet": "foot",
    "inches": "inch",
    "kilo": "kilogram",
    "kilos": "kilogram",
    "amp": "ampere",
    "amps": "ampere",
    "milliamp": "milliampere",
    "milliamps": "milliampere",
    "tonne": "ton",
    "tonnes": "ton",
    "sec": "second",
    "secs": "second",
}
_SINGULAR = {
    **{name: name for name in _NOUNS.split()},
    **{name + "s": name for name in _NOUNS.split()},
    **_SAME_NOUN,
}
_SPELLED = {("d", "b"): "decibel", ("r", "p", "m"): "revolution per minute", ("rpm",): "revolution per minute"}

_TOKEN = re.compile(r"[a-z]+(?:['’][a-z]+)*|[^\sa-z]")
_PUNCTUATION = frozenset(".,;:!?…—–-\"'“”‘’()")


def heard_values(spoken: str) -> list[Value]:
    """Return the values that a listener hears, in order.

    Raises:
        ValueError: A digit or a sign is left.
    """
    words = _TOKEN.findall(re.sub(r"(?<=[a-z])-(?=[a-z])", " ", spoken.lower()))
    for word in words:
        if not (word[0].isalpha() and word[0].isascii()) and word not in _PUNCTUATION:
            raise ValueError(f"not words: {word!r} is left")
    reader = _Reader(words)
    values = []
    while reader.place < len(words):
        found = reader.value()
        if found is None:
            reader.place += 1
        else:
            values.append(found)
    return values


class _Reader:
    """Recursive descent over words. A method returns None, and takes nothing, where what it looks for is absent."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.place = 0

    def word(self, ahead: int = 0) -> str:
        index = self.place + ahead
        return self.words[index] if index < len(self.words) else ""

    def take(self, *words: str) -> bool:
        if all(self.word(ahead) == word for ahead, word in enumerate(words)):
            self.place += len(words)
            return True
        return False

    def value(self) -> Value | None:
        start = self.place
        is_tolerance = self.take("plus", "or", "minus") or self.take("plus", "minus")
        sign = 1
        if not is_tolerance:
            sign = -1 if self.take("minus") or self.take("negative") else 1
            if sign == 1:
                self.take("plus")
        ordinal = self.ordinal()
        if ordinal is not None:
            return Value(Fraction(sign * ordinal), form=Form.ORDINAL, is_tolerance=is_tolerance)
        number = self.number()
        if number is None:
            self.place = start
            return None
        found, form = number
        return replace(self.with_unit(found, form, sign), is_tolerance=is_tolerance)

    # -- numbers -------------------------------------------------------------------------------------------------------

    def number(self) -> tuple[Fraction, Form] | None:
        digits = self.digits()
        if digits is not None:
            return Fraction(digits), Form.DIGITS
        fraction = self.fraction()
        if fraction is not None:
            return fraction, Form.CARDINAL
        start = self.place
        whole = 0 if self.word() == "point" or self.take("zero") else self.cardinal()
        if whole is None:
            return None
        rest = self.second_half() if 10 <= whole <= 99 and self.place - start <= 2 else None
        if rest is not None:
            return Fraction(100 * whole + rest), Form.PAIR
        decimals = self.decimals()
        if decimals is not None:
            return self.power(self.scaled(whole + decimals)), Form.CARDINAL
        if self.place == start:  # "point" without digits
            return None
        return self.power((whole + self.and_fraction()) / self.divisor()), Form.CARDINAL

    def digits(self) -> int | None:
        """Two or more single digits."""
        count = 0
        while self.word(count) in _DIGITS:
            count += 1
        if count < 2 or self.word(count) in ("point", "hundred", *_SCALES):
            return None
        text = "".join(str(_DIGITS[self.word(ahead)]) for ahead in range(count))
        self.place += count
        return int(text)

    def decimals(self) -> Fraction | None:
        """ "Point" and digits."""
        if self.word() != "point" or self.word(1) not in _DIGITS:
            return None
        self.place += 1
        text = ""
        while self.word() in _DIGITS:
            text += str(_DIGITS[self.word()])
            self.place += 1
        return Fraction(int(text), 10 ** len(text))

    def scaled(self, value: Fraction) -> Fraction:
        while self.word() in _SCALES:
            value *= _SCALES[self.word()]
            self.place += 1
        return value

    def below_hundred(self) -> int | None:
        tens = _TENS.get(self.word())
        if tens is not None:
            self.place += 1
            ones = _ONES.get(self.word(), 0)
            self.place += ones > 0
            return tens + ones
        found = _ONES.get(self.word()) or _TEENS.get(self.word())
        self.place += found is not None
        return found

    def group(self) -> int | None:
        """What stands before a scale word."""
        if self.word() == "a" and self.word(1) in ("hundred", *_SCALES):
            self.place += 1
            found: int | None = 1
        else:
            found = self.below_hundred()
        if found is not None and self.take("hundred"):
            found = 100 * found + (self.rest() or 0)
        return found

    def rest(self) -> int | None:
        """A number below 100 after "hundred" or a scale, with or without "and"."""
        start = self.place
        self.take("and")
        after = self.place
        if self.fraction() is not None:  # one hundred and three quarters
            self.place = start
            return None
        self.place = after
        found = self.below_hundred()
        if found is None:
            self.place = start
        return found

    def cardinal(self) -> int | None:
        total = 0
        smallest = 10**18
        while True:
            start = self.place
            if total:
                self.take("and")
                after = self.place
                if self.fraction() is not None:
                    self.place = start
                    return total
                self.place = after
            found = self.group()
            scale = _SCALES.get(self.word(), 1)
            if found is None or (total and (scale >= smallest or found * scale >= smallest)):
                self.place = start
                return total or None
            total += found * scale
            if scale == 1:
                return total
            self.place += 1
            smallest = scale

    def second_half(self) -> int | None:
        """The last two digits of a year."""
        if self.word() in ("oh", "o") and self.word(1) in _ONES:
            self.place += 2
            return _ONES[self.word(-1)]
        start = self.place
        found = self.below_hundred()
        if found is not None and found >= 10 and self.word() != "hundred":
            return found
        self.place = start
        return None

    def ordinal(self) -> int | None:
        """The longest run of words that is a cardinal if its last word becomes one: "one hundred and second"."""
        count = 0
        names = {*_ONES, *_TEENS, *_TENS, "hundred", *_SCALES, "and", "a"}
        while self.word(count) in names:
            count += 1
        last = _CARDINAL_OF.get(self.word(count))
        if last is None or (count == 0 and last in ("hundred", *_SCALES)):
            return None
        reader = _Reader([*self.words[self.place : self.place + count], last])
        found = reader.cardinal()
        if found is None or reader.place <= count:
            return None
        self.place += count + 1
        return found

    def fraction(self) -> Fraction | None:
        """ "Two thirds", "a half", "half a", "eleven sixty-fourths"."""
        start = self.place
        if self.take("half"):
            return Fraction(1, 2)
        if self.take("a") or self.take("an"):
            top: int | None = 1
        else:
            top = self.top_of_fraction()
        if top is not None:
            bottom = self.bottom_of_fraction()
            if bottom is not None:
                return Fraction(top, bottom)
        self.place = start
        return None

    def top_of_fraction(self) -> int | None:
        found = self.below_hundred()
        if found is not None and self.take("hundred"):
            return 100 * found
        return found

    def bottom_of_fraction(self) -> int | None:
        word = self.word()
        if word in _HALVES:
            self.place += 1
            return _HALVES[word]
        tens = _TENS.get(word, 0)
        last = self.word(1 if tens else 0)
        name = _CARDINAL_OF.get(last) or _CARDINAL_OF.get(last.removesuffix("s"))
        if name is None or name == "two" or name in _SCALES or (tens and name not in _ONES):
            return None
        if not tens and name == "one":
            return None
        self.place += 2 if tens else 1
        return tens + ({**_ONES, **_TEENS, **_TENS, "hundred": 100}[name])

    def and_fraction(self) -> Fraction:
        """ "And a half"; 0 if it is absent."""
        start = self.place
        fraction = self.fraction() if self.take("and") else None
        if fraction is None or fraction >= 1:
            self.place = start
            return Fraction(0)
        return fraction

    def divisor(self) -> int:
        """ "Over seven" or "out of seven"; 1 if it is absent."""
        start = self.place
        found = self.cardinal() if self.take("over") or self.take("out", "of") else None
        if found is None:
            self.place = start
        return found or 1

    def power(self, value: Fraction) -> Fraction:
        """A power of the number, or a power of ten that multiplies it."""
        if self.take("squared"):
            return value**2
        if self.take("cubed"):
            return value**3
        start = self.place
        base = value
        factor = Fraction(1)
        if self.take("times"):
            whole = self.cardinal()
            if whole is None:
                self.place = start
                return value
            base, factor = Fraction(whole), value
        if not self.take("to", "the"):
            self.place = start
            return value
        self.take("power", "of") or self.take("power")
        sign = -1 if self.take("minus") or self.take("negative") else 1
        exponent = 0 if self.take("zero") else self.ordinal() or self.cardinal()
        if exponent is None:
            self.place = start
            return value
        self.take("power")
        return factor * base ** (sign * exponent)

    # -- units ---------------------------------------------------------------------------------------------------------

    def with_unit(self, number: Fraction, form: Form, sign: int) -> Value:
        start = self.place
        self.take("of", "a") or self.take("of", "an") or self.take("a") or self.take("an")
        money = self.money()
        if money:
            units, is_cents = money
            if is_cents:
                return Value(sign * number / 100, frozenset(units), form)
            return Value(sign * (number + self.cents(units)), frozenset(units), form)
        unit = self.unit()
        if unit:
            return Value(sign * number, frozenset({unit}), form)
        self.place = start
        return Value(sign * number, form=form)

    def money(self) -> tuple[tuple[str, ...], bool] | None:
        start = self.place
        while self.word() in _COUNTRIES:
            self.place += 1
        word = self.word().removesuffix("s") if self.word() not in _CENTS else self.word()
        word = "penny" if word == "pennie" else word
        if word in _CENTS:
            self.place += 1
            return _CENTS[word], True
        if word in _CURRENCIES:
            self.place += 1
            return _CURRENCIES[word], False
        self.place = start
        return None

    def cents(self, units: tuple[str, ...]) -> Fraction:
        """ "And seven cents", or only "fifty" or "oh seven"."""
        start = self.place
        has_and = self.take("and")
        number = self.number()
        if number is not None:
            money = self.money()
            if money and money[1] and set(money[0]) & set(units):
                return number[0] / 100
        self.place = start
        if has_and:
            return Fraction(0)
        if self.word() in ("oh", "o") and self.word(1) in _ONES:
            self.place += 2
            return Fraction(_ONES[self.word(-1)], 100)
        found = self.below_hundred()
        if found is not None and found >= 10:
            return Fraction(found, 100)
        self.place = start
        return Fraction(0)

    def unit(self) -> str | None:
        start = self.place
        for letters, spelled in _SPELLED.items():
            if self.take(*letters):
                return spelled
        name = self.noun()
        if name is None:
            self.place = start
            return None
        if self.take("per", "cent"):
            return "percent"
        per = self.place
        if self.take("per") or (name != "cup" and (self.take("a") or self.take("an"))):
            below = self.noun()
            if below:
                return f"{name} per {below}"
            self.place = per
        return name

    def noun(self) -> str | None:
        start = self.place
        if self.take("per", "cent"):
            return "percent"
        power = self.word() if self.word() in ("square", "cubic") else ""
        self.place += bool(power)
        name = _SINGULAR.get(self.word())
        if name is None:
            self.place = start
            return None
        self.place += 1
        if name == "degree":
            for scale in ("celsius", "fahrenheit"):
                if self.take(scale):
                    return f"degree {scale}"
        if name in ("watt", "kilowatt") and (self.take("hour") or self.take("hours")):
            return f"{name} hour"
        if name == "newton" and (self.take("meter") or self.take("meters")):
            return "newton meter"
        if not power and (self.take("squared") or self.take("cubed")):
            power = "square" if self.words[self.place - 1] == "squared" else "cubic"
        return f"{power} {name}".strip()
