"""Text normalization keeps the source range of every word."""

from __future__ import annotations

import sys

import pytest
from tests.cases import each_case

from tts_worker.errors import MissingExtra
from tts_worker.front_end.normalizer import Normalize, load_normalizer, needs_rewriting, normalize_segment
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Boundary, Segment, Span


def replacing(table: dict[str, str]) -> Normalize:
    def normalize(text: str, language: str | None) -> str:
        for source, rewritten in table.items():
            text = text.replace(source, rewritten)
        return text

    return normalize


def plain(text: str) -> Segment:
    return Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)


def test_spans_range_over_their_source() -> None:
    rules = replacing({"$100": "one hundred dollars", "Dr.": "doctor", "&": "and"})
    segment = normalize_segment(plain("Dr. No paid $100, & left"), rules, "en")
    assert segment.text == "doctor No paid one hundred dollars, and left"
    assert segment.spans == (
        Span("doctor", 0, 3),
        Span(" No paid ", 3, 12),
        Span("one hundred dollars,", 12, 17),
        Span(" ", 17, 18),
        Span("and", 18, 19),
        Span(" left", 19, 24),
    )
    words = spoken_words(segment)
    assert [(word.start_char, word.end_char) for word in words] == [
        (0, 3),
        (4, 6),
        (7, 11),
        (12, 17),
        (18, 19),
        (20, 24),
    ]


def test_inserted_words_belong_to_a_neighbor() -> None:
    original = "on 3 May"
    segment = normalize_segment(plain(original), replacing({"3 May": "the third of May"}), "en")
    assert segment.text == "on the third of May"
    assert all(span.start < span.end for span in segment.spans)
    assert [original[word.start_char : word.end_char] for word in spoken_words(segment)] == ["on", "3", "May"]


def test_unspaced_scripts_keep_offsets_per_character() -> None:
    original = "我有100元。"
    segment = normalize_segment(plain(original), replacing({"100": "一百"}), "zh")
    assert segment.text == "我有一百元。"
    assert [original[word.start_char : word.end_char] for word in spoken_words(segment)] == ["我", "有", "100", "元。"]


def test_lexicon_replacements_are_not_normalized() -> None:
    segment = Segment(0, (Span("5 ", 0, 2), Span("5", 2, 3, phonemes="faɪv"), Span(" 5", 3, 5)), 0, 5, Boundary.END)
    result = normalize_segment(segment, replacing({"5": "five"}), "en")
    assert [span.text for span in result.spans] == ["five", " ", "5", " ", "five"]


@pytest.mark.parametrize("rewritten", ["", "  ", "!!", "x y z a b c"])
def test_nonsense_from_the_rules_keeps_speech(rewritten: str) -> None:
    segment = normalize_segment(plain("a 1 b"), lambda text, language: rewritten, "en")
    assert segment.text == (rewritten if rewritten.strip(" !") else "a 1 b")
    assert [span.start for span in segment.spans] == sorted(span.start for span in segment.spans)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)
    with pytest.raises(MissingExtra, match=r"\.\[normalize\]"):
        load_normalizer()


def test_package_loads_with_the_first_text(monkeypatch: pytest.MonkeyPatch, wetext: Normalize) -> None:
    """A worker whose engines read numbers themselves starts without it: its import alone takes 0.3 s."""
    monkeypatch.delitem(sys.modules, "wetext", raising=False)
    load_normalizer()
    assert "wetext" not in sys.modules


@pytest.fixture(scope="module")
def wetext() -> Normalize:
    pytest.importorskip("wetext", reason='needs the extra "normalize"')
    return load_normalizer()


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en-US", "I paid $100 at 10:30.", "I paid one hundred dollars at ten thirty."),
        ("zh", "我有100元", "我有一百元"),
        ("zh", "“３元”", "“三元”"),
        ("en", 'He said "Stop at 5!"', 'He said "Stop at five!"'),
        ("de", "Für 5 Öfen", "Für 5 Öfen"),
        (None, "5 apples", "5 apples"),
        ("en", "Hello   world!  ok", "Hello   world!  ok"),
    ],
)
def test_wetext_rules(wetext: Normalize, language: str | None, text: str, expected: str) -> None:
    assert wetext(text, language) == expected


@pytest.mark.parametrize("text", ["", " ", "!", "\\", '"{', "a" * 500, "\x00", '{ } name: "x"', "&<>|~^"])
def test_unusual_text_is_accepted(wetext: Normalize, text: str) -> None:
    assert isinstance(wetext(text, "en"), str)
    assert isinstance(wetext(text, "zh"), str)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Well, it is a plain sentence - isn't it?"),
        ("en", "Half past ten, please; thank you!"),
        ("en", "“Naïve” cafés… (maybe)"),
        ("zh", "他说：“你好。”二零二四年，一百元；百分之五。"),
        ("zh", "呵呵……哈哈——啊！"),
    ],
)
def test_skipped_text_is_unchanged_by_the_rules(wetext: Normalize, language: str, text: str) -> None:
    assert not needs_rewriting(text, language)
    assert wetext(text, language) == text


@each_case(
    "text",
    [
        "at 10:30",
        "5€",
        "A & B",
        "World War II",
        "Dr Smith",
        "the U.S. Navy",
        "½ cup",
        "x²",
        "a_b",
        "50%",
        "a/b",
    ],
)
def test_text_that_the_rules_may_change_is_not_skipped(text: str) -> None:
    assert needs_rewriting(text, "en")
    assert needs_rewriting(text, "zh") == any(map(str.isdecimal, text))
