"""Voices that stand in for a vendor's names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tts_worker.engine.tone import ToneEngine
from tts_worker.features.compat.openai import OPENAI_VOICES
from tts_worker.features.compat.voice_names import stand_in
from tts_worker.session.hub import SessionHub
from tts_worker.types import EngineInfo
from tts_worker.voices.catalog import VoiceCatalog
from tts_worker.voices.packs import read_voicepack
from tts_worker.voices.routing import VoiceRequest


def info(*voices: str, languages: tuple[str, ...] = ("en",)) -> EngineInfo:
    return replace(ToneEngine().info, voices=voices, languages=languages)


def hub_with(**engines: EngineInfo) -> SessionHub:
    voices = VoiceCatalog()
    for name, engine in engines.items():
        voices.add(name, "tone", engine)
    return cast(SessionHub, SimpleNamespace(voices=voices))


HEART = info("heart", "michael", "emma")
ANNA = info("anna")
KUMO = info("kumo", languages=("zh",))


@pytest.mark.parametrize(
    ("engines", "request_", "expected"),
    [
        ({"cpu": HEART}, VoiceRequest(), "emma"),
        ({"cpu": HEART, "other": ANNA}, VoiceRequest(), "emma"),
        ({"other": ANNA, "cpu": HEART}, VoiceRequest(), None),
        ({"other": ANNA, "cpu": HEART}, VoiceRequest(model="cpu"), "emma"),
        ({"cpu": HEART, "other": ANNA}, VoiceRequest(model="other"), None),
        ({"cpu": HEART, "mandarin": KUMO}, VoiceRequest(language="en"), "emma"),
        ({"cpu": HEART, "mandarin": KUMO}, VoiceRequest(language="zh"), None),
        ({"cpu": HEART}, VoiceRequest(language="zh"), None),
        ({"cpu": info("heart")}, VoiceRequest(), None),
        ({}, VoiceRequest(), None),
    ],
)
def test_stand_in_belongs_to_the_engine_that_would_speak(
    engines: dict[str, EngineInfo], request_: VoiceRequest, expected: str | None
) -> None:
    assert stand_in(hub_with(**engines), ("isabella", "emma", "michael"), request_) == expected


def test_openai_names_are_those_of_shipped_voices() -> None:
    package = Path(__file__).parents[3] / "packages" / "tts-worker-voices" / "tts_worker_voices"
    packs = [read_voicepack(file.parent).pack for file in package.rglob("metadata.yaml")]
    shipped = {"heart", *(pack.name for pack in packs)}
    assert {name for names in OPENAI_VOICES.values() for name in names} <= shipped
    assert {"alloy", "echo", "fable", "nova", "onyx"} <= {alias for pack in packs for alias in pack.aliases}
