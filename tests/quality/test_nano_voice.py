"""The demonstration voice: a recognizer understands most of its words, and calls behave as with any other voice.

The limits are the first goals of the voice (docs/benchmarks.md), measured here on held-out sentences. How fast
it speaks is recorded on a quiet machine, in the package's ``scores.json``, which must belong to its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.quality.judge import Judge
from tools.speech_study.calls import Said, Worker
from tools.train.evaluate import Evaluation, Score, weights_hash
from tools.train.text import held_out
from tts_worker.engine.cosyvoice.bundle.config import DEFAULT_TOKENS_PER_WEIGHT
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.tokens.alignment import text_weight
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.voices.installed import FOLDER, installed_voices

pytestmark = [pytest.mark.quality, pytest.mark.timeout(600)]

VOICE = "nano"
PACKAGE = Path(__file__).parents[2] / "packages" / "tts-worker-voice-nano" / "tts_worker_voice_nano"
SENTENCES = held_out()[4:6]
MAX_WER = 0.15  # of forty 0.08
MIN_MOS = 3.0
MAX_REAL_TIME_FACTOR = 0.5
MAX_FIRST_AUDIO_MS = 300


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    folder = installed_voices().get(VOICE, PACKAGE / FOLDER / VOICE)
    if not folder.is_dir():
        pytest.skip("the package tts-worker-voice-nano is not installed")
    return Bundle.open(folder)


@pytest.fixture(scope="module")
def score(judge: Judge, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Score:
    return Evaluation(bundle, SENTENCES, tmp_path_factory.mktemp("graph") / "teacher.onnx", judge).score("text")


def test_most_words_are_understood(score: Score) -> None:
    assert score.wer <= MAX_WER, score
    assert score.mos >= MIN_MOS, score


def test_recorded_scores_reach_the_first_goals_and_are_those_of_the_weights() -> None:
    folder = PACKAGE / FOLDER / VOICE
    if not folder.is_dir():
        pytest.skip("the package's sources are not here")
    record = json.loads((PACKAGE.parent / "scores.json").read_text("utf-8"))
    assert record["weights"] == weights_hash(folder)
    text = record["stages"]["text"]
    assert text["wer"] <= MAX_WER
    assert text["mos"] >= MIN_MOS
    assert text["real_time_factor"] <= MAX_REAL_TIME_FACTOR
    assert text["first_audio_ms"] <= MAX_FIRST_AUDIO_MS


def test_demonstration_voice_is_complete_and_says_what_it_is(bundle: Bundle) -> None:
    bundle.validate().raise_if_bad()
    assert not bundle.has_random_weights
    assert bundle.config.languages == ("en",)
    assert "demonstration" in (bundle.path / "cosyvoice2.yaml").read_text("utf-8").splitlines()[0]
    assert sum(file.stat().st_size for file in bundle.path.rglob("*")) <= 40e6


# -- calls ------------------------------------------------------------------------------------------------------------

SHORT = ("Please call me back.", "Yes, of course.")


@pytest.fixture(scope="module")
def worker(bundle: Bundle) -> Iterator[Worker]:
    with Worker(bundle.path, threads=1) as worker:
        yield worker


@pytest.fixture(scope="module")
def alone(worker: Worker) -> Said:
    return worker.run(lambda calls: calls.speak(SHORT[0]))


def test_call_says_the_same_beside_another_one(worker: Worker, alone: Said) -> None:
    first, second = worker.run(lambda calls: calls.speak_all(SHORT))
    assert first.pcm == alone.pcm
    assert second.pcm != first.pcm[: len(second.pcm)]


def test_pause_between_two_chunks_is_inaudible(worker: Worker, alone: Said) -> None:
    at = alone.chunk_starts[1]
    paused, came_early = worker.run(lambda calls: calls.speak_with_pause(SHORT[0], at, SHORT[1]))
    assert paused.pcm == alone.pcm
    assert not came_early


def test_stop_reports_the_words_before_its_position(worker: Worker, alone: Said) -> None:
    """Those that the whole utterance announces there, and no other ones."""
    stopped = worker.run(lambda calls: calls.speak_until(SHORT[0], alone.samples // 2))
    assert alone.pcm.startswith(stopped.pcm)
    said = [word.text for word in alone.words if word.start_sample + word.end_sample <= 2 * stopped.samples]
    assert 0 < len(said) < len(alone.words)
    assert stopped.receipt.text_spoken.split() == said


def test_pace_of_the_voice_fits_its_speech(bundle: Bundle, alone: Said) -> None:
    """Its word times follow from it; the default for unknown voices is a quarter too slow."""
    if bundle.config.pace == DEFAULT_TOKENS_PER_WEIGHT:
        pytest.skip("the bundle does not say its pace")
    tokens = alone.samples / bundle.config.sample_rate_hz * bundle.config.token_rate_hz
    spelled = TextTokenizer.from_bundle(bundle).spell(alone.text)
    assert 0.67 <= tokens / (bundle.config.pace * text_weight(spelled)) <= 1.5
