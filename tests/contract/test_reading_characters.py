"""What reaches an engine in English is words: no digit and no sign is left for a voice to guess or to skip."""

from __future__ import annotations

import re
import string
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.reading_score import Case, phonemizer, read_cases, spoken_segments
from tts_worker.text.control_tags import ControlTags
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer
from tts_worker.text.spoken_words import spoken_words
from tts_worker.types import Segment, UrlMode

SENTENCES = Path(__file__).parents[1] / "data" / "reading" / "agent_sentences.tsv"

LETTERS = r"A-Za-zÀ-ÖØ-öø-ɏ"
WORDS = re.compile(rf"(?:[{LETTERS}'’ .,;:!?—…\"“”()]|(?<=[{LETTERS}])-(?=[{LETTERS}]))*")
"""Letters, apostrophes, spaces, punctuation, and hyphens within words."""

SIGNS = string.punctuation + "€£¥₹₩₽¢±×÷−–—≤≥≠≈√∞∑∂πΩµ°℃℉§¶†•©®™№‰→←↔½¼¾⅓⅔⅛¹²³⁴⁻₂·′″"
FRAGMENTS = st.one_of(
    st.text(alphabet=SIGNS + string.digits + " ", max_size=4),
    st.text(alphabet=string.digits, min_size=1, max_size=6),
    st.sampled_from(
        (
            *("no", "Add", "x", "a", "I", "kg", "km/h", "GB", "am", "p.m.", "v1", "A4", "H2O", "st", "nd", "th", "e6"),
            *("1,000", "1,5", ".5", "$5", "5%", "1/2", "3-4", "7/9", "10:30", "1.2.3", "+1 415", "#5", "&", "w/", "°C"),
            *(" ", ". ", ", ", "\n", " - ", "=", "@", "a_b", "x.com", "me@x.com", "C:\\x", "/home/x", "<", ">", "**"),
        )
    ),
)
TEXTS = st.lists(FRAGMENTS, max_size=10).map("".join)


@cache
def sentences() -> tuple[Case, ...]:
    return tuple(read_cases(SENTENCES))


def signs_left(segments: list[Segment]) -> str:
    """Return the characters that are no words; a control tag is none of the text."""
    texts = ["".join(span.text for span in segment.spans if span.phonemes is None) for segment in segments]
    return "".join(text[place] for text in texts if (place := WORDS.match(text).end()) < len(text))


def test_engine_gets_words_for_the_sentences_of_agents() -> None:
    left = {case.id: signs for case in sentences() if (signs := signs_left(spoken_segments(case.text)))}
    assert left == {}


@pytest.mark.parametrize("markdown", [True, False])
@settings(max_examples=300)
@given(text=TEXTS)
def test_engine_gets_words_for_any_signs(text: str, markdown: bool) -> None:
    pipeline = TextPipeline(TextOptions(markdown=markdown, urls=UrlMode.KEEP), None, Verbalizer(("en",)))
    segments = pipeline.feed(text) + pipeline.end()
    assert signs_left(segments) == "", [segment.text for segment in segments]


def test_control_tag_stays_beside_words() -> None:
    options = TextOptions(control_tags=ControlTags(["[laughter]"]))
    pipeline = TextPipeline(options, None, Verbalizer(("en",)))
    segments = pipeline.feed("It costs $5 [laughter] or 7%.") + pipeline.end()
    assert signs_left(segments) == ""
    assert [span.text for segment in segments for span in segment.spans if span.phonemes] == ["[laughter]"]


def test_every_word_of_the_sentences_has_phonemes() -> None:
    words = {
        spoken.strip("'’-")
        for case in sentences()
        for segment in spoken_segments(case.text)
        for spoken in re.findall(rf"[{LETTERS}'’-]+", segment.text)
    } - {""}
    silent = {word for word in words if not any(phonemizer().phonemize(Segment.whole(word)))}
    assert silent == set()


def test_every_written_word_of_the_sentences_is_heard() -> None:
    silent = {}
    for case in sentences():
        for segment in spoken_segments(case.text):
            phrases = [phrase for phrase in phonemizer().phonemize(segment) if phrase]
            heard = {word.start_char for phrase in phrases for word in phrase.words}
            missing = [word.text for word in spoken_words(segment) if word.start_char not in heard]
            if missing:
                silent[case.id] = missing
    assert silent == {}
