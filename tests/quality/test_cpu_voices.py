"""The voices of packages/tts-worker-voices: what they say is understood, and their recorded figures are theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.quality.judge import Judge
from tools.train.fast.evaluate import file_hash, predict_with, speak
from tools.train.text import held_out
from tts_worker.engine.cpu.hibari.model import HibariModel, VoiceModel
from tts_worker.voices.installed import CPU_FAMILY, CPU_MODEL, FOLDER
from tts_worker.voices.packs import read_voicepack

pytestmark = [pytest.mark.quality, pytest.mark.timeout(600)]

PACKAGE = Path(__file__).parents[2] / "packages" / "tts-worker-voices"
PACKS = sorted((PACKAGE / "tts_worker_voices" / FOLDER / CPU_FAMILY).glob("*/metadata.yaml"))
MAX_WER = 0.015
MIN_MOS = 4.0
SENTENCES = held_out()[20:28]
MAX_WER_OF_FEW = 0.05
MIN_MOS_OF_FEW = 3.8


@pytest.fixture(params=PACKS, ids=[file.parent.name for file in PACKS])
def folder(request: pytest.FixtureRequest) -> Path:
    file: Path = request.param
    return file.parent


def test_words_of_the_voice_are_understood(folder: Path, judge: Judge) -> None:
    voice = VoiceModel(folder.name, folder / CPU_MODEL, file_hash(folder / CPU_MODEL))
    model = HibariModel(voices=[voice])
    said = speak(model.phonemizer, predict_with(model, voice.name), SENTENCES)
    heard = judge.transcribe_all([utterance.pcm for utterance in said])
    assert judge.wer([" ".join(SENTENCES)], [heard]) <= MAX_WER_OF_FEW
    assert sum(judge.mos(utterance.pcm) for utterance in said) / len(said) >= MIN_MOS_OF_FEW


def test_recorded_figures_are_those_of_the_weights(folder: Path) -> None:
    scores = json.loads((PACKAGE / "scores" / f"{folder.name}.json").read_text("utf-8"))
    assert scores["model_sha256"] == file_hash(folder / CPU_MODEL) == read_voicepack(folder).pack.model_sha256
    assert scores["figures"][folder.name]["wer"] <= MAX_WER
    assert scores["figures"][folder.name]["mos"] >= MIN_MOS
