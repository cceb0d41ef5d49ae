"""The figures of docs/text.md: an utterance changes its mood, rate, loudness and pitch in the middle."""

from __future__ import annotations

import numpy as np
import pytest

from tools.expression import draw, figures, load, measure, speak, utterance
from tts_worker.engine.cpu.hibari.moods import MOODS, Mood


@pytest.mark.parametrize("voice", ["heart", pytest.param("nano", marks=pytest.mark.long)])
def test_rate_loudness_and_pitch_change_as_asked(voice: str) -> None:
    engine = load(voice)
    samples, words = speak(engine, utterance())
    spans = measure(samples, words, utterance())
    plain_samples, plain_words = speak(engine, utterance(plain=True))
    plain = measure(plain_samples, plain_words, utterance(plain=True))
    has_moods = bool(engine.info.moods)
    sad, happy = (MOODS[name] if has_moods else Mood() for name in ("sad", "happy"))
    lengths = [span.seconds / before.seconds for span, before in zip(spans, plain, strict=True)]
    # The network of heart has durations in steps of 25 ms, at least one of them: fast speech is slower than asked.
    assert lengths == pytest.approx([1, 1 / (0.8 * sad.rate), 1 / (1.25 * happy.rate)], rel=0.2 if has_moods else 0.05)
    loudness = [span.lufs - before.lufs for span, before in zip(spans, plain, strict=True)]
    assert loudness == pytest.approx([0, -4 + sad.volume_db, 3 + happy.volume_db], abs=1.6)
    semitones = [12 * np.log2(span.pitch_hz / before.pitch_hz) for span, before in zip(spans, plain, strict=True)]
    assert semitones == pytest.approx([0, -1 + sad.pitch_semitones, 2 + happy.pitch_semitones], abs=1.2)
    assert len(words) == len(plain_words)
    assert draw(samples, spans, plain).startswith("<svg")
    assert [each["semitones"] for each in figures(spans, plain)] == pytest.approx(semitones, abs=0.05)
