"""Every word of a rewritten text is aligned with the words that it comes from."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case

from tts_worker.front_end.alignment import align_words


def source_ranges(source: str, target: str) -> list[tuple[int, int]]:
    """Return the range of ``source`` of each whitespace-separated word of ``target``."""
    result: list[tuple[int, int]] = []
    last_end = -1
    for target_start, target_end, start, end in align_words(source, target):
        if target_start == last_end:  # the same word continues (script without spaces)
            before, until = result[-1]
            result[-1] = (start if before == until else before, max(until, end))
        else:
            result.append((start, end))
        last_end = target_end
    return result


def source_words(source: str, target: str) -> list[tuple[str, str]]:
    return [(word, source[a:b]) for word, (a, b) in zip(target.split(), source_ranges(source, target), strict=True)]


@each_case(
    ("source", "target", "expected"),
    [
        ("hello world", "hello world", ["hello", "world"]),
        ("it costs $100 now", "it costs one hundred dollars now", ["it", "costs", "$100", "$100", "$100", "now"]),
        ("Dr. Smith", "doctor Smith", ["Dr.", "Smith"]),
        ("at 10:30 sharp", "at ten thirty sharp", ["at", "10:30", "10:30", "sharp"]),
        ("you & me", "you and me", ["you", "&", "me"]),
        ("Call 911, 112", "Call nine one one, one one two", ["Call", "911,", "911,", "911,", "112", "112", "112"]),
        ("Über 5 Öfen", "über fünf öfen", ["Über", "5", "Öfen"]),
        ("one two three", "one three", ["one", "three"]),
        ("one three", "one two three", ["one", "", "three"]),
        ("we met. Then we left", "we met then we left", ["we", "met.", "Then", "we", "left"]),
        ("我有100元 ok", "我有一百元 ok", ["我有100元", "ok"]),
        ("", "a b", ["", ""]),
        ("a b", "", []),
        ("12 34", "x", ["12 34"]),
    ],
)
def test_rewritten_words_map_to_their_source(source: str, target: str, expected: list[str]) -> None:
    assert source_words(source, target) == list(zip(target.split(), expected, strict=True))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a " * 5000, "b " * 5000),
        ("a " * 5000, "a b " * 2500),
        ("x" * 10_000, "y" * 10_000),
        ("你" * 10_000, "我 你" * 5000),
        (" ".join(map(str, range(3000))), " ".join(map(str, reversed(range(3000))))),
    ],
)
def test_long_hostile_texts_are_aligned_in_linear_time(source: str, target: str) -> None:
    began = time.process_time()
    assert len(source_ranges(source, target)) == len(target.split())
    assert time.process_time() - began < 2.0


FRAGMENTS = st.one_of(
    st.sampled_from(
        ["$100", "one", "hundred", "Dr.", "doctor", "3.14", "—", "你好", "。", "a", "b", "e\u0301", "🇩🇪", "ก็"]
    ),
    st.text(max_size=6),
)
TEXTS = st.lists(FRAGMENTS, max_size=25).map(" ".join)


@settings(deadline=None, max_examples=150)
@given(TEXTS, TEXTS)
def test_source_ranges_are_monotonic_and_inside_the_source(source: str, target: str) -> None:
    ranges = source_ranges(source, target)
    assert len(ranges) == len(target.split())
    assert all(0 <= start <= end <= len(source) for start, end in ranges)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(ranges))


@settings(deadline=None, max_examples=50)
@given(TEXTS)
def test_source_ranges_of_identical_text_are_its_words(text: str) -> None:
    assert [text[start:end] for start, end in source_ranges(text, text)] == text.split()
