from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.engine.hibari_model import HibariModel
from tts_worker.engine.hibari_text import MAX_PHONEMES, MAX_READ_CHARS, Phrase, Reader
from tts_worker.types import Boundary, Segment, Span


def segment(*spans: Span, boundary: Boundary = Boundary.SENTENCE) -> Segment:
    return Segment(0, spans, spans[0].start, spans[-1].end, boundary)


def plain(text: str) -> Segment:
    return segment(Span(text, 0, len(text)))


@pytest.fixture(scope="session")
def reader(hibari_model: HibariModel) -> Reader:
    return hibari_model.reader


class Reading:
    """A segment as it was read, in letters."""

    def __init__(self, model: HibariModel, said: Segment) -> None:
        letters = {number: char for char, number in model.reader.vocabulary.items()} | {0: ""}
        self.items = list(model.reader.read(said))
        self.phrases = [item for item in self.items if item is not None]
        self.lines = ["".join(letters[number] for number in phrase.ids) for phrase in self.phrases]
        self.marks = [
            (mark.start_char, mark.end_char, "".join(letters[n] for n in phrase.ids[mark.first : mark.last]))
            for phrase in self.phrases
            for mark in phrase.marks
        ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello there.", {"Hello": "həlˈO", "there.": "ðˈɛɹ"}),
        ("It costs $100.", {"It": "ˌɪt", "costs": "kˈɔsts", "$100.": "wˈʌn hˈʌndɹəd dˈɑləɹz"}),
        ("Dr. Smith is in", {"Dr.": "dˈɑktəɹ", "Smith": "smˈɪθ", "is": "ɪz", "in": "ˈɪn"}),
        ("at 7:30 pm", {"at": "æt", "7:30": "sˈɛvən θˈɜɹTi", "pm": "pˌiˈɛm"}),
        ("on 3/4/2024.", {"on": "ˌɔn", "3/4/2024.": "mˈɑɹʧ fˈɔɹθ, twˈɛnti twˈɛnti fˈɔɹ"}),
        ("don't stop", {"don't": "dˈOnt", "stop": "stˈɑp"}),
        ("Now (she) – said", {"Now": "nˈW", "(she)": "ʃi", "said": "sˈɛd"}),
        ("Hello 你好 world", {"Hello": "həlˈO", "world": "wˈɜɹld"}),
    ],
)
def test_original_words_get_their_phonemes(text: str, words: dict[str, str], hibari_model: HibariModel) -> None:
    reading = Reading(hibari_model, plain(text))
    assert {text[a:b]: said for a, b, said in reading.marks} == words


def test_words_refer_to_the_original_not_to_what_a_lexicon_made_of_it(hibari_model: HibariModel) -> None:
    said = segment(Span("I like ", 10, 17), Span("structured query language", 17, 20), Span(" a lot.", 20, 27))
    marks = {(a, b) for a, b, _ in Reading(hibari_model, said).marks}
    assert marks == {(10, 11), (12, 16), (17, 20), (21, 22), (23, 27)}


def test_given_phonemes_are_said_as_they_are(hibari_model: HibariModel) -> None:
    said = segment(Span("We use ", 0, 7), Span("Nginx", 7, 12, "ˈɛnʤɪnˈɛks"), Span(", really.", 12, 21))
    reading = Reading(hibari_model, said)
    assert reading.lines == ["wˌi jˈuz ˈɛnʤɪnˈɛks, ɹˈiᵊli."]
    assert reading.marks[2] == (7, 13, "ˈɛnʤɪnˈɛks")


@pytest.mark.parametrize(
    ("spans", "line"),
    [
        ([Span("a", 0, 1, "ˈA"), Span("b", 1, 2, "bˈi")], "ˈAbˈi"),
        ([Span("a", 0, 1, "ˈA"), Span(" ", 1, 2), Span("b", 2, 3, "bˈi")], "ˈA bˈi"),
        ([Span("a", 0, 1, "ˈA"), Span(" b", 1, 3)], "ˈA bˈi"),
        ([Span("to ", 0, 3), Span("x", 3, 4, "ɡˈO")], "tə ɡˈO"),
        ([Span("(", 0, 1), Span("x", 1, 2, "ɡˈO"), Span(")", 2, 3)], "(ɡˈO)"),
        ([Span("x", 0, 1, "☃ɡ7ˈO")], "ɡˈO"),
        ([Span("x", 0, 1, ""), Span(" yes", 1, 5)], "jˈɛs"),
    ],
)
def test_spaces_around_given_phonemes_are_those_of_the_text(
    spans: list[Span], line: str, hibari_model: HibariModel
) -> None:
    assert Reading(hibari_model, segment(*spans)).lines == [line]


@pytest.mark.parametrize(
    "text",
    [
        "[dog](/zˈɪpɪ/) barks",
        "[dog]( /zˈɪpɪ/) barks",
        "[[dog](/zˈɪpɪ/)](/zˈɪpɪ/)",
        "[dog](zˈɪpɪ)",
        "[dog]\u200b(/zˈɪpɪ/)",
    ],
)
def test_a_text_cannot_bring_its_own_phonemes(text: str, hibari_model: HibariModel) -> None:
    """The library's inline markup is for programs that know it, not for what users say."""
    assert "zˈɪpɪ" in hibari_model.reader.g2p("[dog](/zˈɪpɪ/) barks"), "the library's own entry would take it"
    (line,) = Reading(hibari_model, plain(text)).lines
    assert line.startswith("dˈɑɡ")
    assert "zˈɪpɪ" not in line


@pytest.mark.parametrize(
    "text", ["", "   ", "...", "😀", "你好世界", "“”", "—", "\x00\x07", "\u202e\u202c", "\ud800", "!?"]
)
def test_what_has_no_sound_is_no_phrase(text: str, hibari_model: HibariModel) -> None:
    assert not Reading(hibari_model, plain(text)).phrases


def test_long_text_becomes_phrases_at_punctuation(hibari_model: HibariModel) -> None:
    clause = "the committee will publish its report, "
    text = (clause * 12).strip()
    reading = Reading(hibari_model, plain(text))
    assert 1 < len(reading.phrases) < 5
    assert all(line.endswith(",") for line in reading.lines)
    *inner, last = [phrase.boundary for phrase in reading.phrases]
    assert set(inner) == {Boundary.CLAUSE}
    assert last is Boundary.SENTENCE
    assert [text[a:b] for a, b, _ in reading.marks] == text.split()


def test_without_punctuation_it_is_cut_between_words_without_a_pause(hibari_model: HibariModel) -> None:
    text = "the committee will publish its report and " * 10
    reading = Reading(hibari_model, plain(text))
    assert {phrase.boundary for phrase in reading.phrases[:-1]} == {Boundary.FORCED}
    assert [text[a:b] for a, b, _ in reading.marks] == text.split()


def check(phrases: list[Phrase], said: Segment) -> None:
    """What must hold for any text."""
    for phrase in phrases:
        assert 3 <= len(phrase.ids) <= MAX_PHONEMES + 2
        assert phrase.ids[0] == phrase.ids[-1] == 0
        assert 0 not in phrase.ids[1:-1]
        for mark in phrase.marks:
            assert said.start <= mark.start_char < mark.end_char <= said.end
            assert 1 <= mark.first <= mark.last <= len(phrase.ids) - 1
        for before, after in pairwise(phrase.marks):
            assert before.end_char <= after.start_char
            assert before.last <= after.first


WILD = st.text(max_size=120) | st.lists(
    st.sampled_from(
        [
            "Hello",
            " ",
            ", ",
            "$5",
            "3.14",
            "7:30",
            "\n",
            "[x](/y/)",
            "<b>",
            "😀",
            "你好",
            "a1" * 20,
            "9" * 40,
            "'",
            "-",
            "_",
            "/",
            "é",
            "ß",
            "\u200d",
            "\x00",
            "\ud83d",
            "مرحبا",
            "...",
            "“",
            "1,000,000",
            "-5°C",
            "#1",
            "%",
            "e.g.",
            "XIV",
            "Mr.",
            "http://x.y/z?q=1",
            "A" * 70,
            "x" * 300,
        ]
    ),
    max_size=25,
).map("".join)


@settings(deadline=None, max_examples=150)
@given(WILD)
def test_any_text_is_read_without_complaint(hibari_model: HibariModel, text: str) -> None:
    said = plain(text)
    check(Reading(hibari_model, said).phrases, said)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(WILD, st.none() | st.text(max_size=20)), min_size=1, max_size=4))
def test_any_spans_are_read_without_complaint(hibari_model: HibariModel, parts: list[tuple[str, str | None]]) -> None:
    spans = []
    place = 0
    for text, phonemes in parts:
        spans.append(Span(text, place, place + len(text), phonemes))
        place += len(text)
    said = segment(*spans)
    check(Reading(hibari_model, said).phrases, said)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 20_000,
        "x" * 100_000,
        "1" * 100_000,
        "a1" * 50_000,
        "[(" * 50_000,
        "😀" * 100_000,
        "a-" * 50_000,
        "'" * 100_000,
    ],
)
def test_the_work_between_two_phrases_is_bounded(text: str, hibari_model: HibariModel) -> None:
    """Whatever the length: the G2P never sees more than a piece, and no word that its time explodes with."""
    read: list[str] = []
    reader = hibari_model.reader

    def normalise(piece: str) -> str:
        read.append(piece)
        return piece

    watched = Reader(reader.g2p, normalise, reader.make_token, reader.vocabulary)
    phrases = watched.read(plain(text))
    for _ in range(5):
        read.clear()
        next(phrases, None)
        assert len(read) <= 2
        for piece in read:
            assert len(piece) <= 2 * MAX_READ_CHARS
            assert max(map(len, piece.split()), default=0) <= 30


def test_a_word_of_a_hundred_digits_is_spelled_out(hibari_model: HibariModel) -> None:
    assert "".join(Reading(hibari_model, plain("1" * 100)).lines).count("wˈʌn") == 100


def test_a_word_that_the_g2p_trips_over_does_not_silence_the_others(hibari_model: HibariModel) -> None:
    reader = hibari_model.reader

    def normalise(text: str) -> str:
        if "trap" in text:
            raise IndexError("somewhere deep in the rules")
        return text

    fragile = Reader(reader.g2p, normalise, reader.make_token, reader.vocabulary)
    text = "mind the trap here"
    (phrase,) = (item for item in fragile.read(plain(text)) if item is not None)
    assert [text[mark.start_char : mark.end_char] for mark in phrase.marks] == ["mind", "the", "here"]


@pytest.mark.parametrize("text", ["¹A", "٣ apples", "x₂", "İstanbul", "①", "４２"])
def test_letters_and_digits_of_other_scripts_are_read_like_ours(text: str, hibari_model: HibariModel) -> None:
    assert Reading(hibari_model, plain(text)).phrases


def test_no_phrase_is_too_long_after_a_cut_at_punctuation(hibari_model: HibariModel) -> None:
    """What is left after the comma and the long number do not fit together either."""
    words = "the committee will publish its report on the new bridges and the old roads before the end"
    said = plain(f"{words}, {words} 777777777777777")
    phrases = Reading(hibari_model, said).phrases
    check(phrases, said)
    assert len(phrases) >= 2


@pytest.mark.parametrize("most", [20, 100])
def test_the_longest_phrase_is_the_callers_choice(most: int, hibari_model: HibariModel) -> None:
    said = plain("the committee will publish its report, and then the mayor will read it aloud to all " * 3)
    phrases = [phrase for phrase in hibari_model.reader.read(said, most) if phrase is not None]
    assert max(len(phrase.ids) for phrase in phrases) <= most + 2
    assert sum(len(phrase.marks) for phrase in phrases) == len(said.text.split())
