"""Speech quality: twenty sentences are intelligible, have a good MOS and start immediately.

The same limits reject reversed speech and speech with gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pytest

from tests.quality.conftest import Speak, Speech
from tests.quality.judge import Judge, joined, plain_word, reversed_clip, stalled_clip, starts_s
from tests.quality.sentences import SENTENCES
from tts_worker.audio.pcm import to_float
from tts_worker.audio.trim import TrimOptions, speech_range
from tts_worker.types import SAMPLE_RATE_HZ

pytestmark = [pytest.mark.quality, pytest.mark.timeout(1200)]

MAX_WER = 0.06
MIN_MOS = 4.2
MAX_STREAMING_LOSS = 0.25
MAX_LEADING_SILENCE_S = 0.08
MAX_DURATION_ERROR = 0.15
MAX_WORD_ERROR_S = 0.12  # median; half of it is the recognizer's error


@dataclass(frozen=True)
class Verdict:
    wer: float
    mos: float

    @property
    def passes(self) -> bool:
        return self.wer <= MAX_WER and self.mos >= MIN_MOS


def mean_mos(judge: Judge, clips: Sequence[bytes]) -> float:
    """Return the mean MOS of every fourth clip; it differs less by sentence than the word error rate."""
    return float(np.mean([judge.mos(clip) for clip in clips[::4]]))


def verdict(judge: Judge, texts: Sequence[str], clips: Sequence[bytes]) -> Verdict:
    """Return the word error rate of all clips and the mean MOS."""
    return Verdict(judge.wer([" ".join(texts)], [judge.transcribe_all(clips)]), mean_mos(judge, clips))


@pytest.fixture(scope="module")
def spoken(judge: Judge, speak: Speak) -> list[Speech]:
    """All sentences. Depends on the judge, so that nothing is synthesized if the tools are missing."""
    return [speak(text) for text in SENTENCES]


@pytest.fixture(scope="module")
def streamed(judge: Judge, spoken: list[Speech]) -> Verdict:
    return verdict(judge, SENTENCES, [clip.pcm for clip in spoken])


def test_streamed_speech_passes_wer_and_mos(streamed: Verdict) -> None:
    assert streamed.passes, streamed


def test_streamed_mos_is_close_to_whole_text_mos(judge: Judge, streamed: Verdict, speak_whole: Speak) -> None:
    whole_mos = float(np.mean([judge.mos(speak_whole(text).pcm) for text in SENTENCES[::4]]))
    assert whole_mos - streamed.mos <= MAX_STREAMING_LOSS


def test_speech_starts_without_leading_silence(spoken: list[Speech]) -> None:
    loud = TrimOptions(threshold_dbfs=-45, pre_roll_ms=0)
    for text, clip in zip(SENTENCES, spoken, strict=True):
        found = speech_range(to_float(clip.pcm), loud)
        assert found is not None
        assert found[0] <= MAX_LEADING_SILENCE_S * SAMPLE_RATE_HZ, text


def test_duration_matches_the_voice_library(spoken: list[Speech]) -> None:
    """Compared with whole sentences of the library without their silence: nothing is lost or stretched."""
    from hibari import Hibari

    voice = Hibari(threads=1)
    ours = theirs = 0
    for text, clip in zip(SENTENCES, spoken, strict=True):
        found = speech_range(voice(text, seed=0))
        assert found is not None
        ours += len(clip.pcm) // 2
        theirs += found[1] - found[0]
    assert abs(ours / theirs - 1) <= MAX_DURATION_ERROR


def test_reversed_speech_fails_the_gate(judge: Judge, spoken: list[Speech]) -> None:
    result = verdict(judge, SENTENCES[:2], [reversed_clip(clip.pcm) for clip in spoken[:2]])
    assert result.wer > 0.8
    assert not result.passes


def test_stalling_speech_fails_the_gate(judge: Judge, spoken: list[Speech]) -> None:
    assert mean_mos(judge, [stalled_clip(clip.pcm) for clip in spoken[:8]]) < 3.5 < MIN_MOS


def test_word_times_match_the_recognizer(judge: Judge, spoken: list[Speech]) -> None:
    clips = [clip.pcm for clip in spoken[:6]]
    ours = [
        (plain_word(text[word.start_char : word.end_char]), start_s + word.start_sample / SAMPLE_RATE_HZ)
        for text, clip, start_s in zip(SENTENCES, spoken, starts_s(clips), strict=False)
        for word in clip.words
    ]
    recognized = judge.word_times(joined(clips))
    matcher = SequenceMatcher(None, [word for word, _ in ours], [word.text for word in recognized], autojunk=False)
    errors_s = [
        abs(ours[block.a + place][1] - recognized[block.b + place].start_s)
        for block in matcher.get_matching_blocks()
        for place in range(block.size)
    ]
    assert len(errors_s) >= 0.8 * len(ours), "too few words were recognized to measure their times"
    assert float(np.median(errors_s)) <= MAX_WORD_ERROR_S
    assert float(np.percentile(errors_s, 95)) <= 3 * MAX_WORD_ERROR_S
