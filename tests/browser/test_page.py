"""The web page against a real server with the tone engine: what is written is heard, and what is heard is shown."""

from __future__ import annotations

import numpy as np
import pytest

from tests.browser.studio import RATE_HZ, Sound, Studio

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

TEXT = "Hello there, my friend."
FADE_SAMPLES = 120
PLAUSIBLE_MS = range(1, 5_000)
"""What a noisy machine may take; the figures themselves are the benchmarks' business."""


def same(a: Sound, b: Sound) -> Sound:
    return np.abs(a - b) < 0.01


async def test_what_is_written_is_heard_and_every_word_lights_up_in_its_time(studio: Studio) -> None:
    await studio.speak(TEXT)
    await studio.shows("status", "Finished.")
    (turn,) = studio.turns
    heard = await studio.heard()
    sounding = np.flatnonzero(turn.sound)
    assert len(turn.sound) > RATE_HZ
    assert len(heard.trimmed) == sounding[-1] - sounding[0] + 1
    assert same(heard.trimmed, turn.sound[sounding[0] : sounding[-1] + 1]).all(), "sample for sample what was sent"

    lit = await studio.lit()
    assert [word["text"] for word in lit] == ["Hello", "there,", "my", "friend."]
    begin = np.flatnonzero(heard.sound)[0] - sounding[0]
    for word, shown in zip(turn.words, lit, strict=True):
        rendered_ms = heard.at_ms[begin + word["start_sample"]]
        assert rendered_ms <= shown["atMs"] + 1, "no word lights up before it is heard"
        assert shown["atMs"] <= rendered_ms + 1_000
    assert await studio.at("first-audio").inner_text() != "–"
    assert await studio.shown_ms("first-audio") in PLAUSIBLE_MS
    await studio.shows("spoken", f"{len(turn.sound) / RATE_HZ:.1f} s")
    await studio.shows("gaps", "0")
