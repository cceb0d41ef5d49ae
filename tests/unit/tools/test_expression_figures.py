"""The figures of docs/text.md: an utterance changes its rate, loudness and pitch in the middle."""

from __future__ import annotations

import numpy as np
import pytest

from tools.expression import draw, measure, speak, utterance
from tts_worker.engine.cpu.hibari.model import HibariModel


def test_rate_loudness_and_pitch_change_as_asked() -> None:
    model = HibariModel()
    text = utterance()
    samples, words = speak(model, text)
    spans = measure(samples, words, text)
    plain_samples, plain_words = speak(model, utterance(plain=True))
    plain = measure(plain_samples, plain_words, utterance(plain=True))
    lengths = [span.seconds / before.seconds for span, before in zip(spans, plain, strict=True)]
    # The network has durations in steps of 25 ms, at least one of them: fast speech is slower than asked.
    assert lengths == pytest.approx([1, 1 / 0.75, 1 / 1.25], rel=0.13)
    loudness = [span.lufs - before.lufs for span, before in zip(spans, plain, strict=True)]
    assert loudness == pytest.approx([0, -6, 4], abs=1)
    semitones = [12 * np.log2(span.pitch_hz / before.pitch_hz) for span, before in zip(spans, plain, strict=True)]
    assert semitones == pytest.approx([0, -2, 3], abs=1.2)
    assert len(words) == len(plain_words)
    assert draw(samples, spans, plain).startswith("<svg")
