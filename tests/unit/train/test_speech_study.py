"""The measures of the study of real speech find what was put into invented speech."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from tests.unit.streaming.engines import KEY, PROMPTED, bundle, engine, settings, tokenizer
from tools.speech_study.guard import lost_bundle, watched_guard
from tools.speech_study.measures import (
    Floats,
    compared,
    heard_words,
    joins_of,
    level_step_lu,
    pitch_step,
    pitches_hz,
    time_errors_s,
)
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.token_generator import EngineSpec, TokenGenerator
from tts_worker.engine.cosyvoice.tokens.guard import TokenGuard
from tts_worker.types import SAMPLE_RATE_HZ, Segment, Word

WORDS = ["Our", "flight", "to", "San", "Francisco", "has", "been", "delayed"]


@given(st.integers(0, len(WORDS)))
def test_heard_words_are_those_recognized(count: int) -> None:
    assert heard_words(WORDS, " ".join(WORDS[:count]).upper()) == count


def test_misunderstood_word_counts_as_heard() -> None:
    assert heard_words(WORDS, "our fight to sand fran sis go") == 5
    assert heard_words(WORDS, "") == 0


def test_time_errors_are_those_of_recognized_words() -> None:
    said = [("the", 0.0), ("old", 0.2), ("clock", 0.5), ("strikes", 1.0)]
    recognized = [("the", 0.1), ("cold", 0.2), ("clock", 0.4), ("strikes", 1.0)]
    assert time_errors_s(said, recognized) == pytest.approx([0.1, -0.1, 0.0])


def tone(pitch_hz: float, seconds: float, level: float = 0.1) -> Floats:
    """A tone with harmonics, like a vowel."""
    at = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    return level * sum((np.sin(2 * math.pi * pitch_hz * n * at) / n for n in range(1, 6)), np.zeros(len(at)))


@settings_of(max_examples=20, deadline=None)
@given(st.floats(80, 350), st.floats(-6, 6), st.floats(-9, 9))
def test_steps_of_level_and_pitch_are_found(pitch_hz: float, semitones: float, level_db: float) -> None:
    after_hz = min(380.0, max(75.0, pitch_hz * 2 ** (semitones / 12)))
    audio = np.concatenate([tone(pitch_hz, 1.2), tone(after_hz, 1.2, 0.1 * 10 ** (level_db / 20))])
    at = round(1.2 * SAMPLE_RATE_HZ)
    assert pitch_step(pitches_hz(audio), at) == pytest.approx(12 * math.log2(after_hz / pitch_hz), abs=1.0)
    # The weighting of the loudness raises higher voices by at most 2 dB.
    assert level_step_lu(audio, at) == pytest.approx(level_db, abs=2.0)


def test_steps_at_the_ends_and_in_silence_are_not_counted() -> None:
    audio = np.concatenate([tone(150, 1.5), np.zeros(2 * SAMPLE_RATE_HZ)])
    at = round(1.5 * SAMPLE_RATE_HZ)
    steps = [pitch_step(pitches_hz(audio), at), level_step_lu(audio, at), level_step_lu(audio, 100), 2.0]
    assert [math.isnan(step) for step in steps] == [True, True, True, False]
    assert compared(steps, [1.0, -1.0]) == {"count": 1, "median": 2.0, "elsewhere": 1.0, "usual": [1.0, 1.0]}
    assert compared([math.nan], [1.0]) == {"count": 0}


def test_joins_are_where_clauses_and_sentences_begin() -> None:
    text = "When it was late, they all went home to sleep. Nothing was left behind in the old barn."
    words, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        words.append(Word(word, start, at, start * 1000, at * 1000))
    joins = joins_of(text, words)
    assert [text[join // 1000 :].split()[0] for join in joins.clauses] == ["they"]
    assert [text[join // 1000 :].split()[0] for join in joins.sentences] == ["Nothing"]
    assert not {*joins.clauses, *joins.sentences} & set(joins.elsewhere)
    assert joins.elsewhere
    assert (
        min(abs(at - join) for at in joins.elsewhere for join in (*joins.clauses, *joins.sentences)) >= SAMPLE_RATE_HZ
    )


def test_lost_bundle_has_noise_in_its_language_model(tmp_path: Path) -> None:
    source = bundle("cosyvoice2")
    lost = Bundle.open(lost_bundle(source, tmp_path, 0.5))
    for name, before in source.load_weights("llm").items():
        added = lost.load_weights("llm")[name] - before
        assert torch.equal(added, torch.zeros_like(added)) == (before.dim() == 1 or not before.std())
    assert (tmp_path / "flow.pt").samefile(source.path / "flow.pt")


@pytest.mark.parametrize(("enabled", "reason"), [(True, "token_loop"), (False, "no_end_of_speech")])
def test_watched_guard_counts_what_ends_speech(enabled: bool, reason: str) -> None:
    check = TokenGuard.check
    components = engine("cosyvoice2").components
    generator = TokenGenerator(
        KEY, PROMPTED, EngineSpec(bundle("cosyvoice2").config, tokenizer("cosyvoice2"), settings())
    )
    voice = components.voice_cache.acquire(PROMPTED.voice)
    generator.set_voice(voice, voice.request(None))
    generator.add_text(Segment.whole("Hello world and you"))
    generator.end_text()
    with watched_guard(enabled=enabled) as counts:
        generator.begin_run()
        generator.process_ids([11, 12, 13] * 500)
    assert counts == {"cut": 1, f"cut_{reason}": 1}
    assert TokenGuard.check is check
