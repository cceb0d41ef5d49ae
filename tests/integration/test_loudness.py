"""Voices through the session: -16 LUFS by pyloudnorm, no true peak over -1 dBTP, streamed as offline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.unit.audio.test_loudness import limited, true_peak_dbtp
from tests.unit.cosyvoice.bundles import tiny
from tts_worker.audio.limiter import CEILING_DBTP
from tts_worker.audio.pcm import to_float
from tts_worker.errors import ConfigError
from tts_worker.settings import load_settings
from tts_worker.types import Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker

TEXT = "Please hold the line while I look up your account. This may take a moment."
COSYVOICE = {"cosy": {"kind": "cosyvoice", "bundle": str(tiny("cosyvoice3")), "threads": 1}}


async def spoken(worker: Worker, texts: Iterable[str] = (TEXT,), **options: Any) -> bytes:
    """The audio of one utterance, whose text comes in these deltas."""
    session = await worker.hub.admit(SessionOptions(realtime=False, **options))
    for text in texts:
        session.speak(text)
    session.end_text()
    frames = []
    while not isinstance(item := await session.next(), Ended):
        if isinstance(item, PcmFrame):
            frames.append(item)
    session.close()
    assert [frame.start_sample for frame in frames] == list(np.cumsum([0, *(frame.samples for frame in frames[:-1])]))
    assert item.receipt.samples_sent == sum(frame.samples for frame in frames)
    return b"".join(frame.pcm for frame in frames)


def lufs(pcm: bytes, rate_hz: int = 24_000) -> float:
    import pyloudnorm  # with SciPy, which takes a second: not for every process that collects the tests

    return pyloudnorm.Meter(rate_hz).integrated_loudness(to_float(pcm))


async def test_streamed_levels_equal_the_offline_ones() -> None:
    async with running_worker(load_settings(flags={"session": {"loudness": "off"}})) as worker:
        plain = await spoken(worker, raw_chunks=True)
    async with running_worker(load_settings()) as worker:
        streamed = await spoken(worker, TEXT)  # character by character
        own_lufs = worker.hub.voices.get(None).loudness_lufs
    assert own_lufs is not None
    assert streamed == limited(plain, 10 ** ((-16 - own_lufs) / 20), 24_000)


async def test_every_listed_voice_has_the_common_loudness() -> None:
    async with running_worker(load_settings()) as worker:
        for voice in worker.hub.voices:
            for rate_hz in (8_000, 24_000, 48_000):
                pcm = await spoken(worker, voice=voice.name, sample_rate=rate_hz)
                assert true_peak_dbtp(to_float(pcm)) <= CEILING_DBTP
                # At 8 kHz what a voice has above 4 kHz is missing, not its gain.
                assert lufs(pcm, rate_hz) == pytest.approx(-16, abs=1.5 if rate_hz == 8_000 else 1)


async def test_cosyvoice_is_measured_before_its_first_utterance(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr("tts_worker.session.loudness.SENTENCE", "One two.")
    # Random weights reach full scale at -23 LUFS, so the limiter would hold them below -16.
    async with running_worker(load_settings(flags={"engines": COSYVOICE, "session": {"loudness": -30}})) as worker:
        assert lufs(await spoken(worker, ["One two."])) == pytest.approx(-30, abs=1)


def test_a_level_out_of_range_is_refused() -> None:
    for off in (False, "off", None):  # YAML reads off as false
        assert load_settings(flags={"session": {"loudness": off}}).session.loudness is None
    for wrong in (0, -99, "loud", True):
        with pytest.raises(ConfigError, match=r"session\.loudness"):
            load_settings(flags={"session": {"loudness": wrong}})
