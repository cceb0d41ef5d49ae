"""The flags that select settings."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.unit.cosyvoice.bundles import tiny
from tts_worker.commands.common import add_settings_arguments, settings_from
from tts_worker.errors import InvalidRequest
from tts_worker.settings import Settings


def settings_of(*words: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_settings_arguments(parser, bundle=True)
    return settings_from(parser.parse_args(words))


@pytest.mark.parametrize("engine", [[], ["--engine", "cosyvoice"]])
def test_bundle_selects_a_model_directory(engine: list[str]) -> None:
    bundle = tiny("cosyvoice2")
    settings = settings_of(*engine, "--bundle", str(bundle), "--set", "engines.cosyvoice.rl=true")
    assert settings.model_dump()["engines"].keys() == {"cosyvoice"}
    assert Path(settings.engines["cosyvoice"].bundle) == bundle  # type: ignore[union-attr]
    assert settings.engines["cosyvoice"].rl  # type: ignore[union-attr]


def test_bundle_of_another_engine_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--bundle is a model directory of CosyVoice"):
        settings_of("--engine", "tone", "--bundle", "models")


def test_setting_of_an_engine_leaves_later_runs_alone() -> None:
    settings_of("--engine", "tone", "--set", "engines.tone.cost_per_audio_s=0.5")
    assert settings_of("--engine", "tone").engines["tone"].cost_per_audio_s == 0  # type: ignore[union-attr]
