"""Properties of skipped text, for any mixture of scripts, any split of the stream and any stop."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tts_worker.session.utterance import AudioPhase, TextPhase, Utterance
from tts_worker.text.language import foreign_runs
from tts_worker.text.lexicon import Lexicon
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import (
    Audio,
    ChunkMeta,
    Outcome,
    Receipt,
    Segment,
    SynthesisParams,
    UtteranceKey,
    WordTiming,
    text_heard,
)

LATIN = ("Hello", "world", "naïve", "Zoë", "ắn", "12", "$5", "7:30", "2nd")
FOREIGN = (
    *("你好", "世界", "Привет", "мир", "приве́т", "Γειά", "σου", "がんば"),
    *("한국어", "مرحبا", "שָׁלוֹם", "नमस्ते", "สวัสดี", "தமிழ்"),
)
MARKS = (
    *(" ", " ", " ", ", ", ". ", "! ", "。", "，", "-", "(", ")"),
    *('"', "«", "»", "…", "\n", "**", "`", "👋", " 🎉 ", "[x](", "<b>"),
)
SYMBOLS = ("π", "Ω", "µ", "α ")
TEXTS = st.lists(st.sampled_from((*LATIN, *FOREIGN, *MARKS, *SYMBOLS)), max_size=16).map("".join)
SCRIPTS = ("CJK", "CYRILLIC", "GREEK", "HIRAGANA", "HANGUL", "ARABIC", "HEBREW", "DEVANAGARI", "THAI", "TAMIL")
LEXICON = Lexicon.from_mapping({"世界": "shijie", "Hello": "/həlˈO/"})
KEY = UtteranceKey("s", 1)
CHAR_SAMPLES = 100


@st.composite
def splits(draw: st.DrawFn, texts: st.SearchStrategy[str] = TEXTS) -> list[str]:
    text = draw(texts)
    places = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=6))})
    return [text[first:last] for first, last in pairwise(places)]


def pipeline(*, by_word: bool = False, lexicon: bool = False) -> TextPipeline:
    options = TextOptions(languages=("en",), by_word=by_word)
    return TextPipeline(options, LEXICON if lexicon else None, Verbalizer(("en",)))


def report(deltas: list[str], stop: float, text: TextPipeline) -> tuple[Receipt, list[Segment]]:
    """Speak the text with an engine that gives every character the same time, and stop at a fraction of the audio."""
    utterance = Utterance(KEY, SynthesisParams("voice"), text)
    segments: list[Segment] = []
    for delta in deltas:
        utterance.write(delta)
        segments += utterance.read(1_000)
    utterance.end_text()
    segments += utterance.read(1_000)
    assert utterance.text_phase is TextPhase.READ
    at = 0
    for segment in segments:
        words = []
        begin = at
        for word in spoken_words(segment):
            end = at + CHAR_SAMPLES * (word.spoken_end - word.spoken_start)
            words.append(WordTiming(word.start_char, word.end_char, at, end))
            at = end
        meta = ChunkMeta(segment.index, segment.start, segment.end, begin, 0.0)
        utterance.add(Audio(KEY, bytes(2 * (at - begin)), meta, tuple(words)))
    if at:
        utterance.take_frame(at)
    utterance.audio_phase = AudioPhase.GENERATED
    utterance.played(round(stop * at))
    return utterance.receipt("stop", Outcome.STOPPED), segments


def is_foreign(char: str) -> bool:
    return unicodedata.name(char, "").startswith(SCRIPTS)


@given(splits(), st.floats(0, 1), st.booleans(), st.booleans())
@example(["Hello 你好 世界"], 0.5, False, False)
@example(["你好 Hello"], 0.0, True, False)
def test_report_names_only_foreign_text_that_was_passed(
    deltas: list[str], stop: float, by_word: bool, lexicon: bool
) -> None:
    source = "".join(deltas)
    receipt, _ = report(deltas, stop, pipeline(by_word=by_word, lexicon=lexicon))
    assert receipt.text_spoken + receipt.text_remaining == source
    ends = [0, *(place for run in receipt.skipped for place in (run.start, run.end)), len(receipt.text_spoken)]
    assert ends == sorted(ends)
    for run in receipt.skipped:
        chars = source[run.start : run.end]
        assert chars
        assert all(is_foreign(c) or c.isspace() or unicodedata.combining(c) for c in chars), ascii(chars)


@given(splits(), st.floats(0, 1))
def test_heard_text_has_every_spoken_letter_and_no_other(deltas: list[str], stop: float) -> None:
    receipt, _ = report(deltas, stop, pipeline())
    dropped = {place for run in receipt.skipped for place in range(run.start, run.end)}
    spoken = [char for place, char in enumerate(receipt.text_spoken) if place not in dropped]
    assert [c for c in receipt.text_heard if c.isalnum()] == [c for c in spoken if c.isalnum()]
    for word in receipt.words:
        assert dropped.isdisjoint(range(word.start_char, word.end_char)), "a word was spoken and skipped"
    if not receipt.skipped:
        assert receipt.text_heard == receipt.text_spoken


@given(splits())
def test_engine_gets_no_foreign_letter(deltas: list[str]) -> None:
    _, segments = report(deltas, 1.0, pipeline())
    for segment in segments:
        assert foreign_runs(segment.text, ("en",)) == []


@given(splits(), st.booleans())
def test_every_foreign_run_is_named_once_all_was_played(deltas: list[str], by_word: bool) -> None:
    source = "".join(deltas)
    receipt, segments = report(deltas, 1.0, pipeline(by_word=by_word))
    if not any(segment.spans for segment in segments):
        return  # an error: nothing can be spoken
    named = {place for run in receipt.skipped for place in range(run.start, run.end)}
    spans = [span for segment in segments for span in segment.spans if not span.text.isspace()]
    read = {place for span in spans for place in range(span.start, span.end)}
    for start, end in foreign_runs(source, ("en",)):
        letters = {at for at in range(start, end) if source[at].isalnum() and source[at] not in "".join(SYMBOLS)}
        assert not letters & read
        dropped_by_the_filter = letters - named
        assert not dropped_by_the_filter or "[x](" in source or "`" in source


@given(splits(), st.booleans())
def test_split_of_the_stream_does_not_change_what_is_skipped(deltas: list[str], by_word: bool) -> None:
    whole, _ = report(["".join(deltas)], 1.0, pipeline(by_word=by_word))
    parts, _ = report(deltas, 1.0, pipeline(by_word=by_word))
    assert parts.skipped == whole.skipped


@given(TEXTS)
def test_voice_of_any_language_skips_nothing(text: str) -> None:
    for languages in ((), ("mul",)):
        reader = TextPipeline(TextOptions(languages=languages))
        assert not any(segment.skipped for segment in [*reader.feed(text), *reader.end()])


@pytest.mark.parametrize(
    ("text", "skipped", "heard"),
    [
        ("Hello 你好 world", "你好", "Hello world"),
        ("Hello你好world", "你好", "Hello world"),
        ("Hello 你好, world", "你好", "Hello, world"),
        ("Привет. Hello.", "Привет", "Hello."),
        ("Hello. Привет. Bye.", "Привет", "Hello. Bye."),
        ("Hello Привет", "Привет", "Hello"),
        ("(Привет) ok", "Привет", "() ok"),
        ("Привет", "Привет", ""),
    ],
)
def test_heard_text_reads_well(text: str, skipped: str, heard: str) -> None:
    receipt, _ = report([text], 1.0, pipeline())
    assert [text[run.start : run.end] for run in receipt.skipped] == [skipped]
    assert text_heard(text, receipt.skipped) == heard
