"""Check that the values that are heard are the values that are written, with random numbers in sentences.

    python -m tools.reading_values --examples 10000 [--seed 1] [--kinds money,percent] [--failures 5] [--json]

An example is a sentence with one or two random values: signs, thousands separators, decimal points and commas,
fractions, exponents, units, currencies, at every place of a sentence and before every punctuation mark. It is fed in
random deltas to a text pipeline, and ``tools.spoken_values`` reads the words that come out. Exit status 1 if a value,
sign, unit or currency is not the written one. What a person could read in two ways is not among the examples.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from random import Random

from tools.spoken_values import Form, Value, heard_values
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer

NBSP = "\u00a0"
NARROW_NBSP = "\u202f"

UNITS = {
    "kilogram": ("kg",),
    "gram": ("g",),
    "milligram": ("mg",),
    "microgram": ("µg", "mcg"),
    "pound": ("lb", "lbs"),
    "ounce": ("oz",),
    "kilometer": ("km",),
    "centimeter": ("cm",),
    "millimeter": ("mm",),
    "mile": ("mi",),
    "foot": ("ft",),
    "square meter": ("m²", "m2"),
    "square kilometer": ("km²",),
    "square foot": ("sq ft",),
    "liter": ("L",),
    "milliliter": ("mL", "ml"),
    "kilometer per hour": ("km/h",),
    "meter per second": ("m/s",),
    "mile per hour": ("mph",),
    "milligram per kilogram": ("mg/kg",),
    "milligram per deciliter": ("mg/dL",),
    "kilowatt": ("kW",),
    "kilowatt hour": ("kWh",),
    "volt": ("V",),
    "gigabyte": ("GB",),
    "megabyte": ("MB",),
    "terabyte": ("TB",),
    "megabit per second": ("Mbps", "Mb/s"),
    "gigahertz": ("GHz",),
    "megahertz": ("MHz",),
    "hertz": ("Hz",),
    "kilopascal": ("kPa",),
    "hectopascal": ("hPa",),
    "kilocalorie": ("kcal",),
    "decibel": ("dB",),
    "millisecond": ("ms",),
    "minute": ("mins",),
    "hour": ("hrs",),
    "degree celsius": ("°C", "℃"),
    "degree fahrenheit": ("°F",),
}
"""Canonical unit of ``tools.spoken_values``: how it is written."""

SIGNS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹"}
CODES = ("USD", "EUR", "GBP", "CHF")
HEARD_AS = {"GBP": ("GBP", "pound")}
MAGNITUDES = {
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "m": 10**6,
    "bn": 10**9,
    "B": 10**9,
    " million": 10**6,
    " billion": 10**9,
    " trillion": 10**12,
}
VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"}
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BOTTOMS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16)


@dataclass(frozen=True, slots=True)
class Written:
    """A value as it is written.

    Attributes:
        text: The characters.
        number: Its value.
        units: What its unit may be heard as; empty for none.
        form: How its words may be formed besides a cardinal.
        is_tolerance: Whether "±" stands before it.
    """

    text: str
    number: Fraction
    units: tuple[str, ...] = ()
    form: Form = Form.CARDINAL
    is_tolerance: bool = False

    def is_heard_as(self, value: Value) -> bool:
        """Return whether a listener understands what is written."""
        is_form = value.form is self.form or (value.form is Form.CARDINAL and self.form is Form.PAIR)
        has_unit = not value.units.isdisjoint(self.units or ("",))
        return value.number == self.number and has_unit and is_form and value.is_tolerance == self.is_tolerance

    def __str__(self) -> str:
        return str(Value(self.number, frozenset(self.units or ("",)), self.form, self.is_tolerance))


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence with the values that are written in it.

    Attributes:
        kind: The kind of its values.
        deltas: The sentence as it streams in.
        values: The written values, in order.
    """

    kind: str
    deltas: tuple[str, ...]
    values: tuple[Written, ...]

    @property
    def text(self) -> str:
        """The whole sentence."""
        return "".join(self.deltas)


@dataclass(frozen=True, slots=True)
class Failure:
    """An example that is not heard as written.

    Attributes:
        example: The example.
        spoken: The text of its segments.
        heard: What is heard, in words for a person.
    """

    example: Example
    spoken: str
    heard: str

    def __str__(self) -> str:
        written = ", ".join(map(str, self.example.values))
        return f"{self.example.text!r}\n  spoken:  {self.spoken}\n  written: {written}\n  heard:   {self.heard}"


# -- numbers -----------------------------------------------------------------------------------------------------------


def _digits(rng: Random, length: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(length))


def _below(rng: Random, limit: int) -> int:
    """A number below ``limit``; small ones, and round ones, are as frequent as large ones."""
    size = rng.choice((10, 100, 1000, 10**4, 10**6, limit))
    number = rng.randrange(min(size, limit))
    return number // 100 * 100 if number >= 1000 and rng.random() < 0.2 else number


def _grouped(number: int, separator: str = ",") -> str:
    return f"{number:,}".replace(",", separator)


def _whole(rng: Random, limit: int = 10**9) -> tuple[str, int]:
    number = _below(rng, limit)
    return _grouped(number), number


def _decimal(rng: Random) -> tuple[str, Fraction]:
    """A number with a decimal point: 0.50, .5, 1,234.5."""
    decimals = rng.choice((_digits(rng, rng.choice((1, 1, 2, 2, 3, 4))), str(rng.randrange(1, 10)) + "0"))
    whole = "" if rng.random() < 0.25 else _whole(rng, 10**5)[0]
    text = f"{whole}.{decimals}"
    return text, Fraction(Decimal(text.replace(",", "") if whole else "0" + text))


def _comma(rng: Random) -> tuple[str, Fraction]:
    """A number with a decimal comma, which no thousands separator can be: 1,5, 12,50, 0,125, 1.234,56."""
    if rng.random() < 0.2:
        decimals = _digits(rng, 2)
        number = rng.randrange(1000, 10**6)
        return f"{_grouped(number, '.')},{decimals}", Fraction(f"{number}.{decimals}")
    if rng.random() < 0.1:
        decimals = _digits(rng, 3)
        return f"0,{decimals}", Fraction(f"0.{decimals}")
    number = rng.randrange(rng.choice((10, 100, 1000)))
    decimals = _digits(rng, rng.choice((1, 2)))
    return f"{number},{decimals}", Fraction(f"{number}.{decimals}")


def _amount(rng: Random) -> tuple[str, Fraction]:
    if rng.random() < 0.5:
        text, number = _whole(rng)
        return text, Fraction(number)
    return _decimal(rng)


def _signed(rng: Random, text: str, number: Fraction) -> tuple[str, Fraction]:
    sign = rng.choice(("-", "−", "-", "+"))
    return sign + text, number if sign == "+" else -number


# -- kinds -------------------------------------------------------------------------------------------------------------


def integer(rng: Random) -> Written:
    text, number = _whole(rng)
    return Written(text, Fraction(number))


def negative(rng: Random) -> Written:
    return Written(*_signed(rng, *_amount(rng)))


def decimal(rng: Random) -> Written:
    return Written(*_decimal(rng))


def vulgar(rng: Random) -> Written:
    sign, value = rng.choice(list(VULGAR.items()))
    whole = rng.choice((0, 0, rng.randrange(1, 20)))
    return Written(f"{whole or ''}{sign}", whole + Fraction(value))


def mixed(rng: Random) -> Written:
    bottom = rng.choice(BOTTOMS)
    top = rng.randrange(1, bottom)
    whole = rng.randrange(1, rng.choice((10, 130)))
    return Written(f"{whole} {top}/{bottom}", whole + Fraction(top, bottom))


def exponent(rng: Random) -> Written:
    power = rng.choice((rng.randrange(2, 13), -rng.randrange(1, 10)))
    shape = rng.randrange(4)
    if shape == 0:
        return Written("10" + str(power).translate(SUPERSCRIPT), Fraction(10) ** power)
    text = str(rng.randrange(1, 10)) + rng.choice(("", f".{rng.randrange(1, 100)}"))
    if shape == 1:
        return Written(f"{text}{rng.choice('eE')}{power}", Fraction(text) * Fraction(10) ** power)
    sign = rng.choice(("×", " × ", "x", "·", " x "))
    raised = str(power).translate(SUPERSCRIPT) if shape == 2 else f"^{power}"
    return Written(f"{text}{sign}10{raised}", Fraction(text) * Fraction(10) ** power)


def ordinal(rng: Random) -> Written:
    number = 1 + _below(rng, 10**4)
    last = 0 if number // 10 % 10 == 1 else number % 10
    return Written(_grouped(number) + {1: "st", 2: "nd", 3: "rd"}.get(last, "th"), Fraction(number), (), Form.ORDINAL)


def year(rng: Random) -> Written:
    number = rng.randrange(1100, 2100)
    return Written(str(number), Fraction(number), (), Form.PAIR)


def count(rng: Random) -> Written:
    """A number of things without separators, or with a magnitude."""
    number = rng.choice((rng.randrange(2, 10_000), rng.randrange(1100, 2100), rng.randrange(10_000, 100_000)))
    if rng.random() < 0.3:
        magnitude = rng.choice([name for name in MAGNITUDES if name not in ("B", "m")])
        text = rng.choice((str(rng.randrange(2, 1000)), f"{rng.randrange(1, 100)}.{rng.randrange(1, 10)}"))
        return Written(text + magnitude, Fraction(text) * MAGNITUDES[magnitude])
    if number >= 10_000 and rng.random() < 0.5:
        return Written(_grouped(number, rng.choice((NBSP, NARROW_NBSP, " "))), Fraction(number))
    return Written(str(number), Fraction(number))


def measure(rng: Random) -> Written:
    unit = rng.choice(list(UNITS))
    symbol = rng.choice(UNITS[unit])
    text, number = rng.choice((_amount, _plain))(rng)
    if rng.random() < 0.2:
        text, number = _signed(rng, text, number)
    space = rng.choice((" ", "", NBSP)) if symbol != "sq ft" else " "
    return Written(text + space + symbol, number, (unit,))


def _plain(rng: Random) -> tuple[str, Fraction]:
    """Digits without separators."""
    number = rng.randrange(rng.choice((10, 100, 10_000, 10_000, 10**6)))
    return str(number), Fraction(number)


def measure_comma(rng: Random) -> Written:
    unit = rng.choice(list(UNITS))
    text, number = _comma(rng)
    return Written(f"{text}{rng.choice((' ', NBSP))}{rng.choice(UNITS[unit])}", number, (unit,))


def measure_fraction(rng: Random) -> Written:
    unit = rng.choice(("mile", "pound", "ounce", "kilogram", "liter"))
    written = rng.choice((vulgar, mixed, _fraction))(rng)
    return Written(f"{written.text} {rng.choice(UNITS[unit])}", written.number, (unit,))


def _fraction(rng: Random) -> Written:
    bottom = rng.choice(BOTTOMS)
    top = rng.randrange(1, bottom)
    return Written(f"{top}/{bottom}", Fraction(top, bottom))


def percent(rng: Random) -> Written:
    text, number = rng.choice((_amount, _comma))(rng)
    if rng.random() < 0.3:
        text, number = _signed(rng, text, number)
    return Written(text + rng.choice(("%", "%", " %", " percent")), number, ("percent",))


def money(rng: Random) -> Written:
    """A sign before an amount with any number of decimals."""
    currency = rng.choice(list(SIGNS))
    text, number = rng.choice((_amount, _price, _price))(rng)
    return Written(SIGNS[currency] + text, number, HEARD_AS.get(currency, (currency,)))


def _price(rng: Random) -> tuple[str, Fraction]:
    whole = _below(rng, 10**6)
    text = rng.choice((str(whole) if whole < 10_000 else _grouped(whole), _grouped(whole)))
    text += "." + rng.choice((_digits(rng, 2), "00", "05", "50"))
    return text, Fraction(text.replace(",", ""))


def money_negative(rng: Random) -> Written:
    currency = rng.choice(("USD", "EUR", "GBP"))
    text, number = rng.choice((_price, _amount))(rng)
    sign = rng.choice(("-", "−", "+"))
    written = f"{sign}{SIGNS[currency]}{text}"
    if sign != "+" and rng.random() < 0.5:
        written = f"{SIGNS[currency]}{sign}{text}"
    return Written(written, number if sign == "+" else -number, HEARD_AS.get(currency, (currency,)))


def money_magnitude(rng: Random) -> Written:
    currency = rng.choice(list(SIGNS))
    magnitude = rng.choice(list(MAGNITUDES))
    text = rng.choice((str(rng.randrange(1, 1000)), f"{rng.randrange(0, 100)}.{_digits(rng, rng.choice((1, 1, 2)))}"))
    number = Fraction(text) * MAGNITUDES[magnitude]
    return Written(SIGNS[currency] + text + magnitude, number, HEARD_AS.get(currency, (currency,)))


def money_code(rng: Random) -> Written:
    currency = rng.choice(CODES)
    text, number = rng.choice((_price, _amount))(rng)
    if currency == "CHF" and rng.random() < 0.3:
        whole = rng.randrange(1000, 10**6)
        text, number = _grouped(whole, "'"), Fraction(whole)
    if currency == "USD" and rng.random() < 0.3:
        return Written(f"US${text}", number, ("USD",))
    written = rng.choice((f"{currency} {text}", f"{text} {currency}"))
    return Written(written, number, HEARD_AS.get(currency, (currency,)))


def money_after(rng: Random) -> Written:
    """A decimal comma, or the sign after the amount."""
    text, number = rng.choice((_comma, _price))(rng)
    return Written(rng.choice((f"{text} €", f"{text}€", f"€{text}", f"€ {text}")), number, ("EUR",))


def money_indian(rng: Random) -> Written:
    number = rng.randrange(10**5, 10**8)
    head, tail = divmod(number, 1000)
    groups = []
    while head:
        head, group = divmod(head, 100)
        groups.append(f"{group:02}" if head else str(group))
    return Written(f"₹{','.join(reversed(groups))},{tail:03}", Fraction(number), ("INR",))


def cents(rng: Random) -> Written:
    number = rng.randrange(1, 100)
    return Written(f"{number}¢", Fraction(number, 100), ("USD",))


def tolerance(rng: Random) -> Written:
    written = rng.choice((percent, measure, decimal))(rng)
    text = written.text.lstrip("+-−")
    return Written(rng.choice(("±", "± ", "+/- ", "+/-")) + text, abs(written.number), written.units, is_tolerance=True)


# -- sentences ---------------------------------------------------------------------------------------------------------

_ANY = (
    "The result is {}.",
    "We got {}, as expected.",
    "They want {}; we agreed.",
    "It rose to {}: a record.",
    "It fell by {}!",
    "Hm, is it {}?",
    "It was about {}… I think.",
    "It was about {}... I think.",
    "The new value ({}) is right.",
    'She said "{}" and left.',
    "She said “{}” and left.",
    "Is it '{}'?",
    "The result, {} — as I said — is fine.",
    "The result is {}—fine.",
    "So y = {}, right?",
    "{} is what we have.",
    "{}: that is what we have.",
    "{}, they say.",
    "We have roughly {} left",
    "No, {} is too much.",
    "It's {} now.\nGood.",
    "Well, {} or more.",
    "Good. {} is enough. Thanks!",
)
_NOUN = (
    "There are {} people here.",
    "We counted {} apples, you know.",
    "About {} users are online!",
    "{} visitors came.",
    "Is it {} calls in all?",
    "The team made {} goals; good.",
    "It holds ({} seats) more.",
)
_ORDINAL = ("This is the {} time.", "She came in {}.", "Is it the {}?", 'The "{}" try failed.', "The {}, you said?")
_YEAR = ("It was built in {}.", "Since {}, we live here.", "Did it open in {}?", "The city burned in {}; sad.")
_FRACTION = ("The answer is {}.", "So y = {}.", "We used {} of the flour.", "{} of the users agree.", "Is y = {}?")
_TWO = (
    "It went from {} to {}.",
    "The prices are {}, {}.",
    "It costs {}. {} people can use it.",
    "The room is {}, {} beds included.",
    "You owe {}; {} payments are left.",
    "{} and {} nights, please.",
    "Is it {}? {} people asked.",
    "It was {} ({} times so far).",
)

Kind = Callable[[Random], Written]

KINDS: dict[str, tuple[Kind, Sequence[str]]] = {
    "integer": (integer, _ANY),
    "negative": (negative, _ANY),
    "decimal": (decimal, _ANY),
    "vulgar": (vulgar, _ANY),
    "fraction": (_fraction, _FRACTION),
    "mixed": (mixed, _ANY),
    "exponent": (exponent, _ANY),
    "ordinal": (ordinal, _ORDINAL),
    "year": (year, _YEAR),
    "count": (count, _NOUN),
    "measure": (measure, _ANY),
    "measure_comma": (measure_comma, _ANY),
    "measure_fraction": (measure_fraction, _ANY),
    "percent": (percent, _ANY),
    "money": (money, _ANY),
    "money_negative": (money_negative, _ANY),
    "money_magnitude": (money_magnitude, _ANY),
    "money_code": (money_code, _ANY),
    "money_after": (money_after, _ANY),
    "money_indian": (money_indian, _ANY),
    "cents": (cents, _ANY),
    "tolerance": (tolerance, _ANY),
}
"""What makes a value, and the sentences in which it can be read in one way only."""

_WITH_UNIT = ("measure", "percent", "money", "money_after", "money_code")
_FOLLOWED = ("integer", "negative", "decimal", *_WITH_UNIT)
PAIRS = ("two", "range", "list")
ALL_KINDS = (*KINDS, *PAIRS)


def make_example(rng: Random, kind: str) -> Example:
    """Make a random sentence of a kind, and how it streams in."""
    if kind == "two":
        text, values = _two(rng)
    elif kind == "range":
        text, values = _range(rng)
    elif kind == "list":
        text, values = _list(rng)
    else:
        make, carriers = KINDS[kind]
        written = make(rng)
        text, values = rng.choice(carriers).format(written.text), (written,)
    return Example(kind, _deltas(rng, text), values)


def _two(rng: Random) -> tuple[str, tuple[Written, ...]]:
    carrier = rng.choice(_TWO)
    # "One hundred and five nights" would be 105.
    first = KINDS[rng.choice(_WITH_UNIT if carrier.startswith("{} and") else _FOLLOWED)][0](rng)
    if carrier == _TWO[0]:
        second = KINDS[rng.choice(_FOLLOWED)][0](rng)
    elif carrier == _TWO[1]:
        second = measure(rng)
    else:
        number = rng.randrange(2, 100)
        second = Written(str(number), Fraction(number))
    return carrier.format(first.text, second.text), (first, second)


def _range(rng: Random) -> tuple[str, tuple[Written, ...]]:
    """Two numbers with one unit; the first may be heard with or without it."""
    low = rng.randrange(1, 90)
    high = low + rng.randrange(1, 100)
    dash = rng.choice("-–")
    shape = rng.randrange(4)
    if shape == 0:
        currency = rng.choice(("USD", "EUR", "GBP"))
        units = HEARD_AS.get(currency, (currency,))
        sign = SIGNS[currency]
        text = f"{sign}{low}{dash}{rng.choice((sign, ''))}{high}"
    elif shape == 1:
        units = ("percent",)
        text = f"{low}{rng.choice(('%', ''))}{dash}{high}%"
    elif shape == 2:
        unit = rng.choice(list(UNITS))
        units = (unit,)
        text = f"{low}{dash}{high} {rng.choice(UNITS[unit])}"
    else:
        units = ("day",)
        text = f"{low}{dash}{high} days"
    values = (Written(text, Fraction(low), ("", *units)), Written(text, Fraction(high), units))
    carrier = rng.choice(("It takes {}.", "Expect {}, I think.", "Is it {}?", "Roughly {} more!", "It is ({}) here."))
    return carrier.format(text), values


def _list(rng: Random) -> tuple[str, tuple[Written, ...]]:
    separator = rng.choice((",", ", "))
    numbers = [rng.randrange(1, rng.choice((10, 60))) for _ in range(rng.randrange(2, 5))]
    text = separator.join(map(str, numbers[:-1])) + f" {rng.choice(('or', 'and'))} {numbers[-1]}"
    carrier = rng.choice(("Choose options {}.", "We need rooms {}, please.", "Do you want items {}?"))
    return carrier.format(text), tuple(Written(str(number), Fraction(number)) for number in numbers)


def _deltas(rng: Random, text: str) -> tuple[str, ...]:
    deltas = []
    place = 0
    while place < len(text):
        size = rng.choice((1, 2, 3, 5, len(text)))
        deltas.append(text[place : place + size])
        place += size
    return tuple(deltas)


# -- check -------------------------------------------------------------------------------------------------------------


def speak(deltas: Sequence[str]) -> str:
    """Return what an engine gets to speak for an English utterance."""
    pipeline = TextPipeline(None, None, Verbalizer(("en",)))
    segments = [segment for delta in deltas for segment in pipeline.feed(delta)] + pipeline.end()
    return " ".join(segment.text for segment in segments)


def failure_of(example: Example) -> Failure | None:
    """Return how an example is misheard, None if it is heard as written."""
    try:
        spoken = speak(example.deltas)
    except Exception as error:  # a rule that fails is a wrong reading, and no end of the measure
        return Failure(example, "", repr(error))
    try:
        heard = heard_values(spoken)
    except ValueError as error:
        return Failure(example, spoken, str(error))
    is_right = len(heard) == len(example.values) and all(
        written.is_heard_as(value) for written, value in zip(example.values, heard, strict=True)
    )
    return None if is_right else Failure(example, spoken, ", ".join(map(str, heard)) or "no number")


def examples(number: int, seed: int, kinds: Sequence[str] = ALL_KINDS) -> Iterator[Example]:
    """Yield examples, the kinds in turn."""
    rng = Random(seed)
    for index in range(number):
        yield make_example(rng, kinds[index % len(kinds)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the failures of each kind; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--examples", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(ALL_KINDS), help="names with commas between (default: all)")
    parser.add_argument("--failures", type=int, default=5, metavar="N", help="print at most N of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args(arguments)
    kinds = args.kinds.split(",")
    if not set(kinds) <= set(ALL_KINDS):
        parser.error(f"kinds are {', '.join(ALL_KINDS)}")
    counts = dict.fromkeys(kinds, 0)
    failures: dict[str, list[Failure]] = {kind: [] for kind in kinds}
    for example in examples(args.examples, args.seed, kinds):
        counts[example.kind] += 1
        failure = failure_of(example)
        if failure:
            failures[example.kind].append(failure)
    wrong = sum(map(len, failures.values()))
    if args.json:
        rows = {kind: {"examples": counts[kind], "failures": len(failures[kind])} for kind in kinds}
        shown = [
            {"kind": kind, "text": failure.example.text, "spoken": failure.spoken, "heard": failure.heard}
            for kind in kinds
            for failure in failures[kind][: args.failures]
        ]
        figures = {"seed": args.seed, "examples": args.examples, "wrong": wrong, "kinds": rows, "failures": shown}
        print(json.dumps(figures, ensure_ascii=False, indent=1))
        return 1 if wrong else 0
    for kind in kinds:
        print(f"{kind:<17}{counts[kind] - len(failures[kind]):>6} of {counts[kind]:>5} heard as written")
        for failure in failures[kind][: args.failures]:
            print(f"  {str(failure).replace(chr(10), chr(10) + '  ')}")
    print(f"{'all':<17}{args.examples - wrong:>6} of {args.examples:>5} heard as written (seed {args.seed})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
