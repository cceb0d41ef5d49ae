"""Spoken forms of English: a table, source ranges, and any split of the stream."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.text.english_numbers import number_words
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.pipeline import TextOptions, TextPipeline
from tts_worker.text.spoken_forms import SpokenForms, rewrites, spoken_forms
from tts_worker.text.spoken_words import spoken_words

CASES = [
    # days and months
    ("See you on Tue at 5.", "See you on Tuesday at 5."),
    ("Tue., May 3", "Tuesday, May 3"),
    ("Open Mon-Fri; Sat and Sun closed", "Open Monday to Friday; Saturday and Sunday closed"),
    ("The Sun is hot. He Sat down.", "The Sun is hot. He Sat down."),
    ("Jan. 5 or 5 Feb, in Mar", "January 5 or 5 February, in Mar"),
    ("Jan 5–7, 2027", "January 5 to 7, 2027"),
    ("Mon: 9am-5pm, M-F 10:00-11:30", "Monday: 9 AM to 5 PM, Monday to Friday 10:00 to 11:30"),
    # places and units
    ("Bldg. C, Fl. 2, apt. #7", "Building C, Floor 2, apartment #7"),
    ("1 1/2 tsp, 1½ tsp, 11 tsp, ⅓ cup", "1 and 1/2 teaspoons, 1 and a half teaspoons, 11 teaspoons, one third cup"),
    ("3d 4h or 1.5h", "three days four hours or 1.5 hours"),
    ("10 MB/s, 3x/week, $5/user/mo", "10 MB per second, 3 times per week, $5 per user per month"),
    ("1,50€ or 1 €", "1.50 euros or 1 euro"),
    ("€1.234,56, €5,50 or €1,234.56", "€1,234.56, €5.50 or €1,234.56"),
    ("6'2\" or ~50, >10, x->3", '6 foot 2" or about 50, more than 10, x->3'),
    ("24 hour/day and day/night", "24 hour/day and day/night"),
    ("at 12 Main St, apt. 4", "at 12 Main St, apartment 4"),
    ("That is apt. Yes.", "That is apt. Yes."),
    ("add 1 tsp salt and 2 tbsp. oil", "add 1 teaspoon salt and 2 tablespoons oil"),
    ("1/2 tsp sugar", "1/2 teaspoon sugar"),
    ("it takes 2h 15m", "it takes two hours fifteen minutes"),
    ("1h or 2h15 or 5m 30s", "one hour or two hours fifteen minutes or five minutes thirty seconds"),
    ("$20/yr or 120k/year", "$20 per year or 120k per year"),
    ("5 EUR/month or 9 €/mo", "5 EUR per month or 9 euros per month"),
    ("60 km/h and/or 5 m", "60 km/h and/or 5 m"),
    # codes and numbers
    ("Your code is 482913.", "Your code is four eight two, nine one three."),
    ("Enter 482 913 to verify.", "Enter four eight two, nine one three to verify."),
    ("password is 48-29-13", "password is four eight, two nine, one three"),
    ("booking reference K3X9QZ, code SAVE20", "booking reference K three X nine Q Z, code SAVE20"),
    ("ZIP 94107-1234", "ZIP nine four one zero seven, one two three four"),
    (
        "ISBN 3-16-148410-0, acct. no. 123456",
        "ISBN three, one six, one four eight four one zero, zero, acct. no. one two three, four five six",
    ),
    ("Order ID: 83-44821", "Order ID: eight three, four four eight two one"),
    ("card ending in 4242", "card ending in four two four two"),
    ("serial number is SN123456", "serial number is S N one two three four five six"),
    (
        "order number 112-3456789-1234567",
        "order number one one two, three four five six seven eight nine, one two three four five six seven",
    ),
    ("Austin, TX 78701", "Austin, TX seven eight seven zero one"),
    ("123-45-6789", "one two three, four five, six seven eight nine"),
    ("4242 4242 4242 4242", "four two four two, four two four two, four two four two, four two four two"),
    ("Dial 911, or text HELP to 12345.", "Dial nine one one, or text HELP to one two three four five."),
    ("call 211 people", "call 211 people"),
    ("+14155552671", "plus one, four one five, five five five, two six seven one"),
    ("020 7946 0958", "zero two zero, seven nine four six, zero nine five eight"),
    ("Use PIN 0042 now", "Use PIN zero zero four two now"),
    ("482913 is your login code", "four eight two, nine one three is your login code"),
    ("Order 12345678 shipped", "Order one two three four, five six seven eight shipped"),
    ("order #A12-3456", "order A, one two, three four five six"),
    ("order 2 pizzas, 12,345 units", "order 2 pizzas, 12,345 units"),
    ("Call 555-123-4567 now", "Call five five five, one two three, four five six seven now"),
    ("+1 (415) 555-2671", "plus one, four one five, five five five, two six seven one"),
    ("+49 30 1234567", "plus four nine, three zero, one two three, four five six seven"),
    ("dial 555-1234", "dial five five five, one two three four"),
    ("from 100-2000 on 2024-05-12", "from 100-2000 on 2024-05-12"),
    (
        "DE89 3704 0044 0532 0130 00",
        "D E eight nine, three seven zero four, zero zero four four, zero five three two, zero one three zero, "
        "zero zero",
    ),
    (
        "GB29NWBK60161331926819",
        "G B two nine, N W B K, six zero one six, one three three one, nine two six eight, one nine",
    ),
    # scores and versions
    ("you scored 98/100", "you scored 98 out of 100"),
    ("rated 4/5, 1/2 cup, 12/05/2024", "rated 4 out of 5, 1/2 cup, 12/05/2024"),
    ("4.5/5 stars, 50/50, page 3/10", "4.5 out of 5 stars, fifty-fifty, page 3 of 10"),
    ("24/7 support", "twenty-four seven support"),
    ("update to v2.10.3.", "update to version two point ten point three."),
    ("Pi is 3.14, node 10.0.0.1", "Pi is 3.14, node one zero dot zero dot zero dot one"),
    # addresses
    ("visit acme.io/pricing.", "visit acme dot io slash pricing."),
    ("ACME.IO:8080 or bit.ly/a, main.py", "ACME dot IO colon 8080 or bit dot ly slash a, main dot py"),
    ("mail joe.doe@example.com", "mail joe dot doe at example dot com"),
    ("a_b@mail.example.me.", "a underscore b at mail dot example dot me."),
    ("e.g. the U.S. market.Then", "e.g. the U.S. market.Then"),
]


def spoken(text: str) -> str:
    pieces = []
    done = 0
    for start, end, words in rewrites(text):
        pieces += [text[done:start], words]
        done = end
    return "".join([*pieces, text[done:]])


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_english_is_read_as_people_read_it(text: str, expected: str) -> None:
    assert spoken(text) == expected


@pytest.mark.parametrize(
    ("number", "words"), [(0, "zero"), (19, "nineteen"), (40, "forty"), (2019, "two thousand nineteen")]
)
def test_number_words(number: int, words: str) -> None:
    assert number_words(str(number)) == words


def test_words_keep_their_source_range() -> None:
    text = "Pay to **DE89 3704** 0044 0532 0130 00 by Tue."
    pipeline = TextPipeline(spoken_forms=SpokenForms())
    (segment,) = pipeline.feed(text) + pipeline.end()
    assert segment.text.startswith("Pay to D E eight nine, three seven zero four, zero zero")
    words = [text[word.start_char : word.end_char] for word in spoken_words(segment)]
    assert words == ["Pay", "to", "DE89", "3704", "0044", "0532", "0130", "00", "by", "Tue."]


def test_code_is_recognized_by_an_earlier_segment() -> None:
    pipeline = TextPipeline(spoken_forms=SpokenForms())
    segments = pipeline.feed("Here is your verification code: 482913.") + pipeline.end()
    assert [segment.text for segment in segments][1:] == ["four eight two, nine one three."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**Tue** at <b>apt. 4</b>, please.", "Tuesday at apartment 4, please."),
        (
            "My r\u00e9sum\u00e9 and re\u0301sume\u0301 for Zo\u00eb.",
            "My r\u00e9sum\u00e9 and re\u0301sume\u0301 for Zo\u00eb.",
        ),
        ("The code is `482913`.", "The code is four eight two, nine one three."),
        ("Visit [us](https://x.com) at *acme.io*.", "Visit us at acme dot io."),
        ("- v2.10.3, rated **98/100**", "version two point ten point three, rated 98 out of 100"),
        ("Spell <spell>AB12</spell> on Fri.", "Spell A, B 1 2 on Friday."),
    ],
)
def test_spoken_english_in_markup_and_small_deltas(text: str, expected: str) -> None:
    pipeline = TextPipeline(TextOptions(clause_chars=90, first_clause_chars=90), spoken_forms=SpokenForms())
    segments = [s for place in range(0, len(text), 4) for s in pipeline.feed(text[place : place + 4])] + pipeline.end()
    assert " ".join(segment.text for segment in segments) == expected


def test_lexicon_wins_over_spoken_forms() -> None:
    pipeline = TextPipeline(lexicon=Lexicon.from_mapping({"tsp": "pinch"}), spoken_forms=SpokenForms())
    assert [segment.text for segment in pipeline.feed("2 tsp on Tue") + pipeline.end()] == ["2 pinch on Tuesday"]


def test_only_english_is_rewritten() -> None:
    assert spoken_forms(("de",), None) is None
    assert spoken_forms(("en", "de"), "de") is None
    forms = spoken_forms(("mul",), None)
    pipeline = TextPipeline(spoken_forms=forms)
    segments = pipeline.feed("Wir sind am Tue nicht da. This is on Tue. ") + pipeline.end()
    assert [segment.text for segment in segments] == ["Wir sind am Tue nicht da.", "This is on Tuesday."]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([text for text, _ in CASES]), min_size=1, max_size=4), st.integers(1, 7))
def test_spoken_forms_do_not_depend_on_the_split(texts: list[str], size: int) -> None:
    text = ", ".join(texts)
    whole = TextPipeline(spoken_forms=SpokenForms())
    pipeline = TextPipeline(spoken_forms=SpokenForms())
    deltas = [text[place : place + size] for place in range(0, len(text), size)]
    assert [s for delta in deltas for s in pipeline.feed(delta)] + pipeline.end() == whole.feed(text) + whole.end()


@pytest.mark.parametrize("mark", ["a.", "1-", "A1 ", "@a", "Tue, ", "v1", "/a", "+1 ", "https://a.", "code 1", "1h"])
def test_hostile_segment_takes_bounded_time(mark: str) -> None:
    text = "1" + (mark * 250)[:250]
    began = time.process_time()
    for _ in range(20):
        rewrites(text)
    assert (time.process_time() - began) / 20 < 0.05  # of a segment, which lasts seconds
