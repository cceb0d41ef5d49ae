"""It sounds right: twenty sentences through the voice are understood, sound well and begin at once; and the same gate
fails sound that is reversed or full of holes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pytest

from tests.quality.conftest import Speak, Spoken
from tests.quality.judge import Judge, plain_word, reversed_clip, stalled_clip
from tests.quality.sentences import SENTENCES
from tts_worker.audio.pcm import to_float
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.types import SAMPLE_RATE_HZ

pytestmark = [pytest.mark.quality, pytest.mark.timeout(1200)]

MOST_WER = 0.06
LEAST_MOS = 4.2
MOST_STREAMING_LOSS = 0.25
LONGEST_LEAD_S = 0.08
LARGEST_STRETCH = 0.15
LARGEST_WORD_ERROR_S = 0.12  # median; the recogniser's own error is half of it


@dataclass(frozen=True)
class Verdict:
    wer: float
    mos: float

    @property
    def passes(self) -> bool:
        return self.wer <= MOST_WER and self.mos >= LEAST_MOS


def verdict(judge: Judge, texts: Sequence[str], clips: Sequence[bytes]) -> Verdict:
    heard = [judge.transcribe(clip) for clip in clips]
    return Verdict(judge.wer(texts, heard), float(np.mean([judge.mos(clip) for clip in clips])))


@pytest.fixture(scope="module")
def spoken(judge: Judge, speak: Speak) -> list[Spoken]:
    """All sentences. (After the judge, so that nothing is spoken where nobody can listen.)"""
    return [speak(text) for text in SENTENCES]


@pytest.fixture(scope="module")
def streamed(judge: Judge, spoken: list[Spoken]) -> Verdict:
    return verdict(judge, SENTENCES, [clip.pcm for clip in spoken])


def test_it_is_understood_and_sounds_well(streamed: Verdict) -> None:
    assert streamed.passes, streamed


def test_clause_by_clause_sounds_nearly_as_well_as_in_one_piece(
    judge: Judge, streamed: Verdict, speak_whole: Speak
) -> None:
    whole_mos = float(np.mean([judge.mos(speak_whole(text).pcm) for text in SENTENCES]))
    assert whole_mos - streamed.mos <= MOST_STREAMING_LOSS


def test_it_begins_at_once(spoken: list[Spoken]) -> None:
    loud = TrimOptions(threshold_dbfs=-45, pre_roll_ms=0)
    for text, clip in zip(SENTENCES, spoken, strict=True):
        found = speech_range(to_float(clip.pcm), loud)
        assert found is not None
        assert found[0] <= LONGEST_LEAD_S * SAMPLE_RATE_HZ, text


def test_it_takes_the_time_that_the_voice_takes_alone(spoken: list[Spoken]) -> None:
    """Against the library's own whole sentences, their silence taken off: nothing is lost, nothing drags."""
    from hibari import Hibari

    voice = Hibari(threads=1)
    ours = theirs = 0
    for text, clip in zip(SENTENCES, spoken, strict=True):
        found = speech_range(voice(text, seed=0))
        assert found is not None
        ours += len(clip.pcm) // 2
        theirs += found[1] - found[0]
    assert abs(ours / theirs - 1) <= LARGEST_STRETCH


def test_reversed_speech_fails_the_gate(judge: Judge, spoken: list[Spoken]) -> None:
    some = verdict(judge, SENTENCES[:4], [reversed_clip(clip.pcm) for clip in spoken[:4]])
    assert some.wer > 0.8
    assert not some.passes


def test_stalling_speech_fails_the_gate(judge: Judge, spoken: list[Spoken]) -> None:
    some = verdict(judge, SENTENCES[:4], [stalled_clip(clip.pcm) for clip in spoken[:4]])
    assert some.mos < 3.5
    assert not some.passes


def test_words_are_where_a_listener_hears_them(judge: Judge, spoken: list[Spoken]) -> None:
    errors_s: list[float] = []
    told = 0
    for text, clip in list(zip(SENTENCES, spoken, strict=True))[:10]:
        ours = [(plain_word(text[word.start_char : word.end_char]), word) for word in clip.words]
        heard = judge.word_times(clip.pcm)
        told += len(ours)
        matcher = SequenceMatcher(None, [word for word, _ in ours], [word.text for word in heard], autojunk=False)
        for block in matcher.get_matching_blocks():
            for (_, word), other in zip(
                ours[block.a : block.a + block.size], heard[block.b : block.b + block.size], strict=True
            ):
                errors_s.append(abs(word.start_sample / SAMPLE_RATE_HZ - other.start_s))
    assert len(errors_s) >= 0.8 * told, "too few words were recognised to judge their times"
    assert float(np.median(errors_s)) <= LARGEST_WORD_ERROR_S
    assert float(np.percentile(errors_s, 95)) <= 3 * LARGEST_WORD_ERROR_S
