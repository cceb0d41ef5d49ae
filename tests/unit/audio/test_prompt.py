"""Whether a transcript fits its recording, in scripts of different density."""

from __future__ import annotations

import pytest

from tests.fakes.recordings import speech
from tts_worker.audio.prompt import judge, measure
from tts_worker.errors import InvalidRequest

ENGLISH = "The morning train was late again, so we walked along the river. "
CHINESE = "早上的火车又晚点了，所以我们沿着河边走了一会儿。"
KOREAN = "아침 기차가 또 늦어서 우리는 강을 따라 걸었습니다. "
JAPANESE = "あさのでんしゃがまたおくれたので、かわにそってあるきました。"


TEXTS = pytest.mark.parametrize("text", [ENGLISH, CHINESE, KOREAN, JAPANESE], ids=["en", "zh", "ko", "ja"])
SECONDS = {ENGLISH: 4.0, CHINESE: 5.0, KOREAN: 4.5, JAPANESE: 4.5}


def notes_of(transcript: str, seconds: float) -> list[str]:
    return [note for note in judge(measure(speech(seconds), transcript)) if "transcript" in note]


@TEXTS
@pytest.mark.parametrize("rate", [0.7, 1.0, 1.5])
def test_transcript_at_usual_rates_fits(text: str, rate: float) -> None:
    assert notes_of(text * 3, 3 * SECONDS[text] / rate) == []


@TEXTS
def test_transcript_with_too_many_words_gets_a_note(text: str) -> None:
    [note] = notes_of(text * 5, 2 * SECONDS[text])
    assert "too long for the audio" in note


@TEXTS
def test_transcript_of_a_part_gets_a_note(text: str) -> None:
    [note] = notes_of(text, 4 * SECONDS[text])
    assert "too short for the audio" in note


@TEXTS
def test_transcript_of_another_recording_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="characters per second of speech, at most"):
        notes_of(text * 5, SECONDS[text])


def test_chinese_beyond_any_speaker_is_refused() -> None:
    """Twenty-six characters per second are plausible in English only."""
    with pytest.raises(InvalidRequest, match=r"26\.5 characters per second of speech, at most 11\.7 are plausible"):
        notes_of("字" * 114, 4.3)


def test_word_for_a_long_recording_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"at least 2\.2 are plausible"):
        notes_of("Hello there.", 10)
