"""Rules for names and abbreviations: days, months, streets, states, formulas, Roman numerals."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text import english_tables as tables
from tts_worker.text.english_numbers import number_words, ordinal_words
from tts_worker.text.english_rules import (
    STATE_CODES,
    Rule,
    alternatives,
    cased,
    first_words,
    looks_up,
    reads,
    spoken_number,
)
from tts_worker.text.markup import letter_name
from tts_worker.text.span_rewriting import Rewrite


def _place(match: re.Match[str]) -> Iterator[Rewrite]:
    written = match.group().rstrip(".")
    name = tables.PLACES[written.lower()]
    yield match.start(), match.end(), name.capitalize() if written[0].isupper() else name


_AFTER_DAY = (
    r"\.?(?:[,;:!?)]|$| ?[-–/] ?[A-Z]| (?:\d|after|and|at|before|between|for|from|if|in|morning|afternoon|evening|night"
    r"|or|the|through|to|until|we|when|with|you)(?!\w))"
)
DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun|MON|TUES?|WED|THU(?:RS?)?|FRI|SAT|SUN)\b"
MONTH = r"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|JAN|FEB|MAR|APR|MAY|JUNE?|JULY?|AUG|SEPT?|OCT|NOV|DEC)\b"


def _names(match: re.Match[str]) -> Iterator[Rewrite]:
    for name in re.finditer(rf"(?:{DAY}|{MONTH})\.?| ?[-–] ?", match.group()):
        written = name.group().rstrip(".").lower()
        spoken = tables.DAYS.get(written) or tables.MONTHS.get(written[:3], " to ")
        yield match.start() + name.start(), match.start() + name.end(), spoken


def _month(match: re.Match[str]) -> Iterator[Rewrite]:
    yield match.start(), match.end(), tables.MONTHS[match.group().rstrip(".").lower()[:3]]


_STREET = alternatives([*tables.STREETS, *tables.STREETS.values()])
_ELEMENT = r"(?:Na|Cl|Ca|Mg|Fe|Cu|Zn|Al|Si|Ag|Li|Mn|Ti|Pb|Br|Ba|[HCNOSPKFI])"
_ELEMENTS = re.compile(rf"({_ELEMENT})(\d*)")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def _formula(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "H2SO4" as "H two S O four"; a long word of capitals with one number is no formula."""
    parts = _ELEMENTS.findall(match.group().translate(_SUBSCRIPTS))
    if len(parts) <= 3 or sum(count != "" for _, count in parts) > 1 or not match.group().isupper():
        counts = ([spoken_number(count)] if count else [] for _, count in parts)
        names = (
            " ".join([*map(letter_name, element), *count]) for (element, _), count in zip(parts, counts, strict=True)
        )
        yield match.start(), match.end(), " ".join(names).rstrip(",")


def _model(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Llama-3.1-8B" as "Llama 3.1 8B"."""
    yield match.start("part"), match.end("part"), f" {match['name']} {match['size']}"


_ROMAN = r"(?P<part>(?P<name>X{0,3}(?:IX|IV|V?I{0,3})))(?<=[IVX])"
_ROMAN_DIGITS = {"X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}


def _roman(written: str) -> int:
    return sum(_ROMAN_DIGITS[digit] for digit in re.findall("IX|IV|[XVI]", written))


def _roman_number(match: re.Match[str]) -> Iterator[Rewrite]:
    yield match.start("part"), match.end("part"), number_words(str(_roman(match["part"])))


def _ruler(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "Henry VIII" as "Henry the eighth"."""
    yield match.start("part"), match.end("part"), f"the {ordinal_words(_roman(match['part']))}"


_DAY_NAMES = " ".join(tables.DAYS)
_MONTH_NAMES = " ".join(tables.MONTHS)

NAME_RULES: tuple[Rule, ...] = (
    (
        rf"\b{cased('press hit then dial enter')}(?: the)? (?P<part>(?P<name>[#*]))(?![\w*])",
        looks_up({"#": "pound", "*": "star"}),
        "# *",
    ),
    (
        r"(?<=[a-z])(?P<part>-?(?P<name>\d{1,2}\.\d{1,2})-(?P<size>\d{1,4}(?:\.\d)?[BM]))\b",
        _model,
        "b m",
    ),
    (r"\b(?:[Aa]pt|[Ss]te|[Rr]m|[Ee]xt|[Bb]ldg|[Ff]l)\.(?= ?(?:#?\d|[A-Z]\b))", _place, " ".join(tables.PLACES)),
    (r"\b(?:[Aa]pt|[Ee]xt|Ste|Bldg|Rm|Fl)(?= #?\d)|\b(?:Apt|Bldg)(?= [A-HJ-Z]\b)", _place, " ".join(tables.PLACES)),
    (
        rf"\b{DAY}\.?(?:(?:, (?:and |or )?|,? (?:and|or|to|through|&) | ?[-–/] ?){DAY}(?:\.(?=\W*\w))?)+",
        _names,
        _DAY_NAMES,
    ),
    (
        r"(?<![\w/])(?P<part>(?P<name>M/W/F|Tu?/Th))(?![\w/])",
        looks_up({"M/W/F": "Monday, Wednesday, Friday", **dict.fromkeys(("T/Th", "Tu/Th"), "Tuesday, Thursday")}),
        "/",
    ),
    (r"\bM[-–]F\b(?=[,:]? \d)", reads("Monday to Friday"), "-–"),
    (r"\b(?:Tues?|Thu(?:rs?)?|Fri|Wed|TUES?|THU(?:RS?)?|FRI|WED)\b(?:\.(?=\W*\w))?", _names, _DAY_NAMES),
    (
        r"\b(?:on|next|last|this|every|until|till|by|from|since|before|after) "
        rf"(?!(?:SAT|SUN|MON|Sat|Sun)\b(?!{_AFTER_DAY})){DAY}(?:\.(?=\W*\w))?",
        _names,
        _DAY_NAMES,
    ),
    (rf"\b{DAY}\.?(?=[,:]? (?:at \d|\d{{1,2}}(?!\d)|{MONTH}|morning|afternoon|evening|night))", _names, _DAY_NAMES),
    (rf"\b{MONTH}\.?(?= \d)|(?<=\d ){MONTH}", _month, _MONTH_NAMES),
    (rf"\b{MONTH}\.? ?[-–] ?{MONTH}(?:\.(?=\W*\w))?", _names, "- –"),
    (
        r"\b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Ee]arly|[Ll]ate|[Mm]id)"
        r" (?P<part>(?P<name>Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec)\b(?:\.(?=,| [a-z\d]))?)(?! [A-Z])",
        looks_up({name.capitalize(): month for name, month in tables.MONTHS.items()}),
        _MONTH_NAMES,
    ),
    (rf"\b{MONTH}\.? \d{{1,2}}(?P<part> ?[-–] ?)(?=\d{{1,2}}\b(?!-))", reads(" to "), "-–"),
    (
        rf"\b(?<!-)(?=[A-Z][A-Za-z]{{0,11}}[\d₀-₉])(?!COP|([A-Z])2\1\b)"
        rf"(?:{_ELEMENT}(?:[12]?\d|[₀-₉]{{1,2}})?){{2,8}}(?![\w-])",
        _formula,
        "1+ ₀ ₁ ₂ ₃ ₄ ₅ ₆ ₇ ₈ ₉",
    ),
    (
        rf"(?<![\w.,-])\d{{1,6}} (?P<part>(?P<name>{alternatives(tables.DIRECTIONS)}\.?))"
        rf"(?= (?:\d{{1,3}}(?:st|nd|rd|th)|[A-Z][a-z]+)(?: [A-Z][a-z]+)? {_STREET}\b)",
        looks_up(tables.DIRECTIONS),
        "n s e w ne nw se sw",
    ),
    (
        rf"(?<![\w.,-])\d{{1,6}}(?: (?:[NS][EW]|[NSEW])\.?)?(?: (?:\d{{1,3}}(?:st|nd|rd|th)|[A-Z][a-z]+\.?)){{1,4}}? "
        rf"(?P<part>(?P<name>{alternatives(tables.STREETS)})\b(?:\.(?=,| [a-z\d#]))?)(?!(?<=Dr)\.? [A-Z])",
        looks_up(tables.STREETS),
        " ".join(tables.STREETS).lower(),
    ),
    (
        r"(?:[A-Z][a-z]+|\d(?:st|nd|rd|th)) (?P<part>(?P<name>Ave|Blvd|Hwy|Pkwy|Rd)\b(?:\.(?=,| [a-z\d#]))?)",
        looks_up(tables.STREETS),
        "ave blvd hwy pkwy rd",
    ),
    (
        r"(?:\b(?:on|at|to|near|of|off|down|along|and|from|onto) (?:[NSEW]\.? )?[A-Z][a-z]+|\d(?:st|nd|rd|th)) "
        r"(?P<part>(?P<name>St)\b(?:\.(?=,| [a-z\d#]))?)(?! [A-Z])",
        looks_up(tables.STREETS),
        "st",
    ),
    (
        rf"\b{_STREET}\.? (?P<part>(?P<name>[NS][EW]|[NSEW]))\b(?!['’.]\w)",
        looks_up(tables.DIRECTIONS),
        "n s e w ne nw se sw",
    ),
    (
        rf"\b[A-Z][a-z]+, (?P<part>(?P<name>{alternatives(tables.STATES)}))(?=[,;.!?]? |[,;.!?]?$)",
        looks_up(tables.STATES),
        " ".join(tables.STATES).lower(),
    ),
    (
        rf"(?<=[a-z.,] )(?P<part>(?P<name>{STATE_CODES}))(?= \d{{5}}\b)",
        looks_up({**tables.STATES, **tables.OTHER_STATES}),
        "5+",
    ),
    (
        rf"(?<![\w.])(?P<part>(?P<name>{alternatives(tables.BEFORE_NUMBER)}) ?)(?=#?\d)",
        looks_up(tables.BEFORE_NUMBER, "{} "),
        first_words(tables.BEFORE_NUMBER),
    ),
    (
        rf"(?<![\w.@/-])(?P<part>(?P<name>{alternatives(tables.WORDS)}))(?!\w|\.\w|/)",
        looks_up(tables.WORDS),
        first_words(tables.WORDS),
    ),
    (r"\b[A-Z]\w+ (?P<part>v\.)(?= [A-Z])", reads("versus"), "v"),
    (
        rf"\b{alternatives(tables.NUMBERED_IN_ROMAN)} {_ROMAN}\b(?!['’.]\w)",
        _roman_number,
        first_words(tables.NUMBERED_IN_ROMAN),
    ),
    (
        rf"\b(?:{alternatives(tables.RULERS)}|(?:King|Queen|Pope|Tsar|Emperor) [A-Z][a-z]+) (?=[IVX]{{2}}){_ROMAN}\b",
        _ruler,
        first_words([*tables.RULERS, "king", "queen", "pope", "tsar", "emperor"]),
    ),
)
