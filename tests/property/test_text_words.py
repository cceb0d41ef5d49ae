"""Properties of word alignment and of the split for any text."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.text.characters import cluster_end, is_spoken
from tts_worker.text.spoken_words import cut_at, split_spoken, spoken_words
from tts_worker.types import Boundary, Receipt, Segment, Span, Word, WordTiming

FRAGMENTS = st.one_of(
    st.sampled_from(
        ["$100", "one", "hundred", "Dr.", "doctor", "3.14", "—", "你好", "。", "a", "b", "e\u0301", "🇩🇪", "ก็"]
    ),
    st.text(max_size=6),
)
TEXTS = st.lists(FRAGMENTS, max_size=25).map(" ".join)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    spans: list[Span] = []
    place = draw(st.integers(0, 3))
    first = place
    for _ in range(draw(st.integers(1, 6))):
        text = draw(TEXTS)
        if draw(st.booleans()):
            spans.append(Span(text, place, place + len(text)))
        else:
            spans.append(Span(text, place, place + draw(st.integers(0, 9))))
        place = spans[-1].end + draw(st.sampled_from([0, 0, 2]))
    return Segment(0, tuple(spans), first, place, Boundary.END)


@settings(deadline=None, max_examples=150)
@given(segments())
def test_words_are_disjoint_and_inside_the_segment(segment: Segment) -> None:
    words = spoken_words(segment)
    covered = [(span.start, span.end) for span in segment.spans]
    for word in words:
        assert segment.start <= word.start_char < word.end_char <= segment.end
        assert 0 <= word.spoken_start < word.spoken_end <= len(segment.text)
        assert word.text == segment.text[word.spoken_start : word.spoken_end]
        assert any(map(is_spoken, word.text))
        assert all(
            any(a <= place < b for a, b in covered) for place in range(word.start_char, word.end_char)
        )  # no filtered character
    for one, two in pairwise(words):
        assert one.end_char <= two.start_char
        assert one.spoken_end <= two.spoken_start


@settings(deadline=None, max_examples=100)
@given(TEXTS, st.integers(-10, 40_000), st.booleans())
def test_split_keeps_clusters_and_grows_with_position(text: str, position: int, fully_played: bool) -> None:
    spoken_text = spoken_words(Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END))
    edges = [30_000 * number // max(1, len(spoken_text)) for number in range(len(spoken_text) + 1)]
    words = [
        WordTiming(word.start_char, word.end_char, start, end)
        for word, (start, end) in zip(spoken_text, pairwise(edges), strict=True)
    ]
    cut = split_spoken(text, words, position, fully_played)
    assert 0 <= cut <= len(text)
    assert cut == cluster_end(text, cut)
    assert cut == len(text) if fully_played else cut <= split_spoken(text, words, position + 1000, False)
    if not fully_played:
        spoken = [word for word in words if word.end_char <= cut]
        remaining = [word for word in words if word.end_char > cut]
        assert all(2 * position >= w.start_sample + w.end_sample for w in spoken)
        assert all(2 * max(position, 0) <= w.start_sample + w.end_sample for w in remaining)


@settings(deadline=None, max_examples=100)
@given(TEXTS, st.integers(-10, 40_000), st.integers(-10, 40_000))
def test_report_cut_twice_is_cut_at_the_earlier_position(text: str, first: int, second: int) -> None:
    words = []
    for number, word in enumerate(spoken_words(Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END))):
        start = 1_500 * number
        words.append(Word(text[word.start_char : word.end_char], word.start_char, word.end_char, start, start + 1_500))
    whole = Receipt("completed", 40_000, 40_000, None, text, "", tuple(words))
    twice = cut_at(cut_at(whole, first), second)
    assert twice == cut_at(whole, min(first, second))
    assert twice.text_spoken + twice.text_remaining == text


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 99), st.integers(0, 99)), max_size=5))
def test_any_word_timings_give_a_split(raw: list[tuple[int, int, int, int]]) -> None:
    text = "some text of 24 letters."
    assert 0 <= split_spoken(text, [WordTiming(*numbers) for numbers in raw], 50, False) <= len(text)
