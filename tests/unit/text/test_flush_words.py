"""``flush_words`` emits complete words when the text pauses, and keeps a word that may still grow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import Boundary, Segment

CASES = [
    ("I would like to book a table", "I would like to book a"),
    ("I would like to book a table ", "I would like to book a table"),
    ("hel", ""),
    ("hello ", "hello"),
    ("Hello there.", "Hello there."),
    ("Hello there!", "Hello there!"),
    ("Really?!", "Really?!"),
    ('He said "no."', 'He said "no."'),
    ("Well,", "Well,"),
    ("It costs 3.", "It costs"),
    ("It costs $", "It costs"),
    ("at 10:", "at"),
    ("about 1,", "about"),
    ("It is well-", "It is"),
    ("He lives in the U.", "He lives in the"),
    ("Ask Dr. ", "Ask Dr."),
    ("don't", ""),
    ("Let me see...", "Let me see..."),
    ("我想订一张票", "我想订一张票"),
    ("我喜欢Pyth", "我喜欢"),
    ("สวัสดีครับ", ""),
    ("see [the do", "see"),
    ("this is **bol", "this is"),
    ("...", ""),
    ("", ""),
]


@each_case(("text", "spoken"), CASES)
def test_complete_words_are_spoken(text: str, spoken: str) -> None:
    pipeline = TextPipeline()
    assert " ".join(segment.text for segment in pipeline.feed(text) + pipeline.flush_words()) == spoken


def test_incomplete_word_stays_pending() -> None:
    pipeline = TextPipeline()
    pipeline.feed("I say hel")
    pipeline.flush_words()
    rest = pipeline.feed("lo there") + pipeline.end()
    assert [segment.text for segment in rest] == ["hello there"]


@pytest.mark.parametrize(
    ("text", "boundary"),
    [("Yes it is", Boundary.FLUSH), ("Yes it is.", Boundary.SENTENCE), ("Yes it is,", Boundary.FLUSH)],
)
def test_flush_keeps_the_sentence_boundary(text: str, boundary: Boundary) -> None:
    pipeline = TextPipeline()
    assert [segment.boundary for segment in pipeline.feed(text) + pipeline.flush_words()] == [boundary]


def test_second_flush_words_emits_nothing() -> None:
    pipeline = TextPipeline()
    pipeline.feed("some words and")
    assert pipeline.flush_words()
    assert pipeline.flush_words() == []


def test_flush_words_waits_for_an_entry_of_several_words() -> None:
    pipeline = TextPipeline(lexicon=Lexicon.from_mapping({"New York": "noo york"}))
    spoken = [*pipeline.feed("I live in New "), *pipeline.flush_words()]
    assert [segment.text for segment in spoken] == ["I live in"]
    assert [segment.text for segment in pipeline.feed("York") + pipeline.end()] == ["noo york"]


WORDS = st.lists(st.sampled_from(("word", "two", "3.14", "1,000", "it's", "Dr.", "10:30", "e.g.", "你好", "**so**")))


@given(
    WORDS,
    st.lists(st.integers(0, 60), max_size=6),
    st.sampled_from((TextOptions(), TextOptions(by_word=True))),
)
def test_flush_words_never_splits_a_word(words: list[str], pauses: list[int], options: TextOptions) -> None:
    """Numbers and words are spoken the same, wherever the text pauses within them."""
    text = " ".join(words)
    whole = TextPipeline(options)
    expected = " ".join(segment.text.strip() for segment in whole.feed(text) + whole.end())
    pipeline = TextPipeline(options)
    edges = [0, *sorted(min(place, len(text)) for place in pauses), len(text)]
    segments = []
    for start, end in pairwise(edges):
        segments += pipeline.feed(text[start:end])
        segments += pipeline.flush_words()
    segments += pipeline.end()
    spoken = " ".join(segment.text.strip() for segment in segments if segment.spans)
    if "你" in text:  # words of such scripts are single characters
        spoken = spoken.replace(" ", "")
        expected = expected.replace(" ", "")
    assert spoken == expected
    assert [segment.start for segment in segments] == [0, *(segment.end for segment in segments)][: len(segments)]


@pytest.mark.parametrize("flush", [TextPipeline.flush_words, TextPipeline.flush])
def test_by_word_marks_a_flush_once(flush: Callable[[TextPipeline], list[Segment]]) -> None:
    pipeline = TextPipeline(TextOptions(by_word=True))
    pipeline.feed("Hello you ")
    assert flush(pipeline) == [Segment(2, (), 9, 9, Boundary.FLUSH)]
    assert flush(pipeline) == []
    assert [segment.text.strip() for segment in pipeline.feed("and me ")] == ["and", "me"]


def test_by_word_marks_a_flush_before_half_a_word() -> None:
    pipeline = TextPipeline(TextOptions(by_word=True))
    pipeline.feed("Hello yo")
    assert [segment.spans for segment in pipeline.flush_words()] == [()]
    assert [segment.text for segment in pipeline.feed("u ")] == [" you"]


def test_by_word_flush_of_half_a_word_needs_no_mark() -> None:
    pipeline = TextPipeline(TextOptions(by_word=True))
    pipeline.feed("Hello yo")
    assert [(segment.text, segment.boundary) for segment in pipeline.flush()] == [(" yo", Boundary.FLUSH)]
