"""Words of a segment, their estimated times, and the split of a playback report, by example."""

from __future__ import annotations

from tests.cases import each_case

from tts_worker.text.spoken_words import split_spoken, spoken_words
from tts_worker.types import Boundary, Segment, Span, WordTiming


def segment_of(*spans: Span) -> Segment:
    return Segment(0, spans, spans[0].start, spans[-1].end, Boundary.SENTENCE)


def plain(text: str) -> Segment:
    return segment_of(Span(text, 0, len(text)))


# -- words of a segment -----------------------------------------------------------------------------------------------


def words_of(segment: Segment, original: str) -> list[tuple[str, str]]:
    return [(original[word.start_char : word.end_char], word.text) for word in spoken_words(segment)]


def test_words_keep_their_punctuation() -> None:
    text = 'Well, he said "no (really)."'
    assert words_of(plain(text), text) == [(word, word) for word in text.split()]


def test_rewritten_word_stays_one_original_word() -> None:
    original = "I paid $100, thanks"
    segment = segment_of(Span("I paid ", 0, 7), Span("one hundred dollars", 7, 11), Span(", thanks", 11, 19))
    assert words_of(segment, original) == [
        ("I", "I"),
        ("paid", "paid"),
        ("$100,", "one hundred dollars,"),
        ("thanks", "thanks"),
    ]


def test_filtered_characters_belong_to_no_word() -> None:
    original = "see **this**, ok"
    segment = segment_of(Span("see ", 0, 4), Span("this", 6, 10), Span(", ok", 12, 16))
    assert words_of(segment, original) == [("see", "see"), ("this", "this,"), ("ok", "ok")]


def test_inserted_words_belong_to_the_previous_word() -> None:
    original = "on 3 May"
    segment = segment_of(Span("on ", 0, 3), Span("the ", 3, 3), Span("third of", 3, 4), Span(" May", 4, 8))
    assert words_of(segment, original) == [("on", "on"), ("3", "the third of"), ("May", "May")]


def test_punctuation_alone_is_no_word() -> None:
    original = "- one — two ..."
    assert words_of(plain(original), original) == [("one", "- one —"), ("two", "two ...")]


def test_unspaced_scripts_have_a_word_per_character() -> None:
    original = "他说：「你好」，ok吗"
    assert words_of(plain(original), original) == [
        ("他", "他"),
        ("说：", "说："),
        ("「你", "「你"),
        ("好」，", "好」，"),
        ("ok", "ok"),
        ("吗", "吗"),
    ]


def test_combining_mark_stays_with_its_character() -> None:
    original = "กำลัง が"  # Thai with a vowel sign, kana with a combining voicing mark
    assert [word for word, _ in words_of(plain(original), original)] == ["กำ", "ลั", "ง", "が"]


def test_span_with_phonemes_is_one_word() -> None:
    original = "New York, yes"
    segment = segment_of(Span("New York", 0, 8, phonemes="nuː jɔːk"), Span(", yes", 8, 13))
    assert words_of(segment, original) == [("New York,", "New York,"), ("yes", "yes")]


# -- split -------------------------------------------------------------------------------------------------------------

TEXT = 'He said "**stop**" — 你好'
WORDS = (
    WordTiming(0, 2, 0, 1000),
    WordTiming(3, 7, 1000, 2000),
    WordTiming(11, 15, 2500, 3500),
    WordTiming(21, 22, 4000, 5000),
    WordTiming(22, 23, 5000, 6000),
)


@each_case(
    ("position", "fully_played", "spoken"),
    [
        (0, False, ""),
        (499, False, ""),
        (500, False, "He"),
        (1499, False, "He"),
        (1500, False, "He said"),
        (2400, False, "He said"),
        (3000, False, 'He said "**stop**"'),
        (4500, False, 'He said "**stop**" — 你'),
        (9999, False, TEXT),
        (10, True, TEXT),
        (-5, False, ""),
    ],
)
def test_word_counts_as_spoken_from_half_of_it(position: int, fully_played: bool, spoken: str) -> None:
    assert TEXT[: split_spoken(TEXT, WORDS, position, fully_played)] == spoken


def test_word_without_length_counts_from_its_start() -> None:
    words = (WordTiming(0, 1, 0, 0), WordTiming(2, 3, 700, 700))
    assert [split_spoken("a b", words, position, False) for position in (0, 1, 699, 700)] == [0, 1, 1, 3]


def test_split_keeps_grapheme_clusters() -> None:
    family = "👨‍👩‍👧"
    text = "a" + family + "e\u0301🇩🇪🇫🇷각"
    allowed = {0, 1, 1 + len(family), 3 + len(family), 5 + len(family), 7 + len(family), len(text)}
    for end in range(len(text) + 1):
        words = (WordTiming(0, end, 0, 100), WordTiming(end, len(text), 100, 200))
        assert split_spoken(text, words, 100, False) in allowed


def test_words_beyond_the_text_do_not_move_the_split() -> None:
    assert split_spoken("ab", (WordTiming(0, 9, 0, 10), WordTiming(11, 19, 10, 20)), 10, False) == 2
