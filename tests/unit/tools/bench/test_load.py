"""The load benchmark counts utterances with audio, and refused sessions separately."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import tone_settings
from tools.bench import load
from tools.bench.load import measure_load
from tts_worker.session.session import LocalSession

TWO_SLOTS: dict[str, dict[str, Any]] = {
    "engine": {"engines": {"tone": {"kind": "tone", "max_utterances": 2}}},
    "hub": {"session": {"max_sessions": 2}},
}


@pytest.mark.parametrize("limit", TWO_SLOTS)
async def test_refused_sessions_do_not_count_as_utterances(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STAGGER_S", 0.0)
    figures = await measure_load(tone_settings(**TWO_SLOTS[limit]), sessions=6, seconds=1.0)
    # A paragraph is 15 s long, so both admitted sessions stay in their first utterance.
    assert (figures["utterances"], figures["sessions_refused"], figures["utterances_failed"]) == (2, 4, 0)


async def test_load_without_audio_has_no_continuity() -> None:
    figures = await measure_load(tone_settings(), sessions=1, seconds=1e-6)
    assert (figures["utterances"], figures["continuity_c50"], figures["sessions_refused"]) == (0, None, 0)


async def test_first_audio_does_not_wait_for_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one plays what was sent ahead, the next first frame is held back: that is no latency."""
    heard_out: list[bool] = []
    speak = LocalSession.speak

    def note(session: LocalSession, text: str) -> None:
        resolution_s = 0.001  # of the event loop's timers
        heard_out.append(session.pacer.lead_at_s(asyncio.get_running_loop().time()) <= resolution_s)
        speak(session, text)

    monkeypatch.setattr(LocalSession, "speak", note)
    monkeypatch.setattr(load, "paragraph", lambda rng, sentences: "Hi.")
    await measure_load(tone_settings(), sessions=1, seconds=1.0)
    assert len(heard_out) > 1
    assert all(heard_out)
