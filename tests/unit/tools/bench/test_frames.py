"""The frame benchmark against real servers."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import tts_worker
from tools.bench.__main__ import main
from tools.bench.commands.frames import server_settings
from tools.bench.frames import compare_frames, measure_frames
from tts_worker.errors import UnknownVoice


async def test_version_is_compared_with_a_baseline() -> None:
    arguments = ["--engine", "tone", "--set", "log_level=warning"]
    source = str(Path(tts_worker.__file__).parents[1])
    figures = await compare_frames(arguments, 2, 1.0, 1, lead_s=0.02, baseline=source, start_over_s=0.1)
    assert isinstance(figures["frames"], int)
    assert 50 < figures["frames"] < 150  # two calls of 50 frames/s; the machine may stall
    for name in ("frame_us", "baseline_frame_us", "frame_ratio"):
        value = figures[name]
        assert isinstance(value, float)
        assert value > 0


async def test_listeners_do_not_pause_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of the client's process would count as an underrun of every call."""
    collecting = []

    class Listener:
        def __init__(self, *_: object) -> None:
            pass

        async def run(self) -> None:
            collecting.append(gc.isenabled())

    monkeypatch.setattr("tools.bench.frames.SpeakingCall", Listener)
    monkeypatch.setattr("tools.bench.frames.SETTLE_S", 0.1)
    arguments = ["--engine", "tone", "--set", "log_level=warning"]
    await measure_frames(arguments, 2, 0.1, lead_s=0.02, start_over_s=0.1)
    assert collecting == [False, False]
    assert gc.isenabled()


async def test_calls_take_turns_with_the_voices() -> None:
    arguments = ["--engine", "tone", "--set", "log_level=warning"]
    cost = await measure_frames(arguments, 3, 0.2, lead_s=0.02, start_over_s=0.1, voices=["tone-low", "tone-high"])
    assert cost.calls.frames
    with pytest.raises(UnknownVoice):
        await measure_frames(arguments, 1, 0.2, lead_s=0.02, start_over_s=0.1, voices=["unknown"])


def test_calls_cannot_begin_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frames", "--start-over", "-1"]) == 2
    assert "--start-over at least 0" in capsys.readouterr().err


def test_a_baseline_gets_no_settings_of_other_protocols() -> None:
    shared = server_settings("tone", "tone", 8, "websocket")
    assert {setting.partition(".")[0].partition("=")[0] for setting in shared} == {"engines", "session", "log_level"}
    assert set(server_settings("tone", "tone", 8, "twilio")) - set(shared) == {"telephony.max_calls=8"}
