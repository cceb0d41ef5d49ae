"""English reading: tables of cases, source ranges, any split of the stream, hostile text."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from tests.cases import each_case

from tools.reading_score import read_cases
from tools.reading_table import class_cases, table
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.english import RULES, rewrites
from tts_worker.text.reading.english.words import cardinal, number, ordinal, year
from tts_worker.text.reading.rules import Rule, features
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.spoken_words import spoken_words

DATA = Path(__file__).parents[2] / "data" / "reading"
DOCS = Path(__file__).parents[3] / "docs" / "text.md"
LONG = TextOptions(first_clause_chars=180, clause_chars=180, first_max_chars=180)


def cases() -> list[tuple[str, str]]:
    lines = (DATA / "english_cases.tsv").read_text("utf-8").splitlines()
    return [(written, spoken) for written, spoken in (line.split("\t") for line in lines if line[0] != "#")]


def spoken(text: str) -> str:
    pipeline = TextPipeline(LONG, None, Verbalizer())
    return " ".join(segment.text for segment in pipeline.feed(text) + pipeline.end())


@each_case(("name", "written", "words"), class_cases())
def test_class_is_read_as_documented(name: str, written: str, words: str) -> None:
    assert spoken(written) == words


@each_case(("written", "words"), cases())
def test_written_text_is_read_in_words(written: str, words: str) -> None:
    assert spoken(written) == words


def test_documented_table_is_that_of_the_cases() -> None:
    assert table() in DOCS.read_text("utf-8")


def texts_with_rules() -> list[str]:
    sentences = [case.text for name in ("agent", "blind") for case in read_cases(DATA / f"{name}_sentences.tsv")]
    return [written for written, _ in cases()] + [written for _, written, _ in class_cases()] + sentences


def test_every_rule_has_a_case() -> None:
    texts = texts_with_rules()
    unused = [rule.pattern.pattern for rule in RULES.rules if not any(map(rule.pattern.search, texts))]
    assert not unused, "\n".join(unused)


def test_every_text_that_a_rule_finds_has_what_the_rule_needs() -> None:
    """A rule is searched for only if the text has one of its words or signs."""
    texts = texts_with_rules()
    for rule in RULES.rules:
        missed = [text for text in texts if rule.pattern.search(text) and not has_what_it_needs(text, rule)]
        assert not missed, rule.pattern.pattern


def has_what_it_needs(text: str, rule: Rule) -> bool:
    return not rule.needs.isdisjoint(features(text)) and (not rule.has_digit or any(map(str.isdecimal, text)))


FOLDED = st.characters(exclude_characters="\u017f\u0130\u212a", exclude_categories=("Cs",))
"""Characters but those whose small letters are others: long s, dotted I, the Kelvin sign."""


def test_every_match_has_what_its_rule_needs() -> None:
    """The requirements hold for any text that a pattern finds, not only for those of the cases."""

    @settings(
        max_examples=5,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        text = data.draw(st.from_regex(rule.pattern, alphabet=FOLDED))
        assert has_what_it_needs(text, rule), rule.pattern.pattern

    every_nth = max(1, 400 // settings().max_examples)  # the profile thorough tries them all
    for rule in RULES.rules[::every_nth]:  # noqa: B007
        with suppress(Unsatisfiable):  # hypothesis finds no text for some patterns that look around
            check()


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("2005", "two thousand five"),
        ("1905", "nineteen oh five"),
        ("1900", "nineteen hundred"),
        ("2026", "twenty twenty-six"),
    ],
)
def test_year(digits: str, words: str) -> None:
    assert year(digits) == words


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        (1, "first"),
        (12, "twelfth"),
        (14, "fourteenth"),
        (22, "twenty-second"),
        (30, "thirtieth"),
        (100, "one hundredth"),
    ],
)
def test_ordinal(digits: int, words: str) -> None:
    assert ordinal(digits) == words


@pytest.mark.parametrize(
    ("digits", "words"), [("0", "zero"), ("19", "nineteen"), ("40", "forty"), ("2019", "two thousand nineteen")]
)
def test_cardinal(digits: str, words: str) -> None:
    assert cardinal(digits) == words


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("1,234.50", "one thousand two hundred thirty-four point five zero"),
        ("1.234,5", "one thousand two hundred thirty-four point five"),
        ("1,50,000", "one hundred fifty thousand"),
        ("0,125", "zero point one two five"),
        (".5", "point five"),
        ("007", "zero zero seven"),
    ],
)
def test_marks_of_a_number(written: str, words: str) -> None:
    assert number(written) == words


def test_words_keep_their_source_range() -> None:
    text = "Pay to **DE89 3704** 0044 0532 0130 00 by Tue."
    pipeline = TextPipeline(verbalizer=Verbalizer())
    (segment,) = pipeline.feed(text) + pipeline.end()
    assert segment.text.startswith("Pay to D E eight nine, three seven zero four, zero zero")
    words = [text[word.start_char : word.end_char] for word in spoken_words(segment)]
    assert words == ["Pay", "to", "DE89", "3704", "0044", "0532", "0130", "00", "by", "Tue."]


def test_code_is_recognized_by_an_earlier_segment() -> None:
    pipeline = TextPipeline(verbalizer=Verbalizer())
    segments = pipeline.feed("Here is your verification code: 482913.") + pipeline.end()
    assert [segment.text for segment in segments][1:] == ["four eight two, nine one three."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**Tue** at <b>apt. 4</b>, please.", "Tuesday at apartment four, please."),
        (
            "My r\u00e9sum\u00e9 and re\u0301sume\u0301 for Zo\u00eb.",
            "My r\u00e9sum\u00e9 and re\u0301sume\u0301 for Zo\u00eb.",
        ),
        ("The code is `482913`.", "The code is four eight two, nine one three."),
        ("Visit [us](https://x.com) at *acme.io*.", "Visit us at acme dot IO."),
        ("- v2.10.3, rated **98/100**", "version two point ten point three, rated ninety-eight out of one hundred"),
        ("Spell <spell>AB12</spell> on Fri.", "Spell A, B one two on Friday."),
        (
            'Call <say-as interpret-as="telephone">(415) 555-2671</say-as>.',
            "Call (four one five) five five five, two six seven one.",
        ),
    ],
)
def test_reading_in_markup_and_small_deltas(text: str, expected: str) -> None:
    pipeline = TextPipeline(TextOptions(clause_chars=90, first_clause_chars=90), verbalizer=Verbalizer())
    segments = [s for place in range(0, len(text), 4) for s in pipeline.feed(text[place : place + 4])] + pipeline.end()
    assert " ".join(segment.text for segment in segments) == expected


def test_lexicon_wins_over_reading() -> None:
    pipeline = TextPipeline(lexicon=Lexicon.from_mapping({"tsp": "pinch"}), verbalizer=Verbalizer())
    assert [segment.text for segment in pipeline.feed("2 tsp on Tue") + pipeline.end()] == ["two pinch on Tuesday"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([text for text, _ in cases()]), min_size=1, max_size=4), st.integers(1, 7))
def test_reading_does_not_depend_on_the_split(texts: list[str], size: int) -> None:
    text = ", ".join(texts)
    whole = TextPipeline(verbalizer=Verbalizer())
    pipeline = TextPipeline(verbalizer=Verbalizer())
    deltas = [text[place : place + size] for place in range(0, len(text), size)]
    assert [s for delta in deltas for s in pipeline.feed(delta)] + pipeline.end() == whole.feed(text) + whole.end()


HOSTILE = [
    *("a.", "1-", "A1 ", "@a", "Tue, ", "v1", "/a", "+1 ", "https://a.", "code 1", "1h"),
    *("$1-", "1/1 ", "1-", "H2", "1x", "1 km ", "5 N Aa ", "A, TX", "1:1 ", "Henry II ", "in 1", "Apt. ", "12/24-"),
    *(
        "A1",
        "press ",
        "1.5-7B",
        "on Sun ",
        "1,",
        "1.",
        "1 ",
        "x^2",
        "10^",
        "1'",
        "call 9",
        "Is 1 ",
        "no. ",
        "May 1 ",
        "1 ",
    ),
]


@each_case("mark", HOSTILE)
def test_hostile_segment_takes_bounded_time(mark: str) -> None:
    text = "1" + (mark * 250)[:250]
    began = time.process_time()
    for _ in range(20):
        rewrites(text, 0)
    assert (time.process_time() - began) / 20 < 0.05  # of a segment, which lasts seconds


@pytest.mark.parametrize("written", ["a 5 k\u2126 resistor.", "a 5 \u2126 resistor.", "the \u2126 sign."])
def test_ohm_sign_is_read_like_the_letter(written: str) -> None:
    assert spoken(written) == spoken(written.replace("\u2126", "\u03a9"))


def test_every_character_can_be_read() -> None:
    chars = [chr(code) for code in range(0x21, 0x3000) if not 0xD800 <= code < 0xE000]
    for at in range(0, len(chars), 32):
        for before, after in (("5 ", " a "), ("5", "5 "), ("A", ". "), ("x ", " y ")):
            spoken("".join(f"{before}{char}{after}" for char in chars[at : at + 32]))
