"""Interrupting by voice: what counts as speech, by numbers, and a user who speaks into a real (if fake) microphone."""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser, Page, Playwright

from tests.browser.conftest import launch
from tests.browser.studio import Studio, all_sounded, without_end

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

FRAME_MS = 10
BEGIN_MS = 150
"""Within this, speech is noticed."""
CALM_MS = 1_000
"""After this, the room is known."""


async def listen(lab: Page, levels_db: list[float]) -> list[tuple[int, str]]:
    """Beginnings and ends of speech in frames of these levels, with the time in ms."""
    changes = await lab.evaluate("levels => hearLevels(levels)", levels_db)
    return [(index * FRAME_MS, change) for index, change in changes]


def room(duration_ms: int, level_db: float, wobble_db: float = 2.0, seed: int = 0) -> list[float]:
    """Noise: frames of 10 ms wobble by a few dB."""
    wobble = np.random.default_rng(seed).normal(0.0, wobble_db, duration_ms // FRAME_MS)
    return [float(level_db + w) for w in wobble]


def talk(duration_ms: int, level_db: float, seed: int = 0) -> list[float]:
    """Syllables: 150 ms of sound, 50 ms of nearly none."""
    frames = range(duration_ms // FRAME_MS)
    rough = np.random.default_rng(seed).normal(0.0, 3.0, len(frames))
    return [float(level_db + r - (15 if i % 20 >= 15 else 0)) for i, r in zip(frames, rough, strict=True)]


@settings(deadline=None, max_examples=15)
@given(
    level_db=st.floats(-95, -25), wobble_db=st.floats(0, 2.5), drift_db=st.floats(-20, 20), seed=st.integers(0, 10**6)
)
async def test_a_room_is_no_speech_however_loud_and_however_it_changes_slowly(
    lab: Page, level_db: float, wobble_db: float, drift_db: float, seed: int
) -> None:
    noise = room(20_000, level_db, wobble_db, seed)
    changing = [level + drift_db * i / len(noise) for i, level in enumerate(noise)]
    assert await listen(lab, changing) == []


@settings(deadline=None, max_examples=15)
@given(level_db=st.floats(-90, -45), above_db=st.floats(22, 40), seed=st.integers(0, 10**6))
async def test_speech_above_the_room_is_heard_in_time_once_and_to_its_end(
    lab: Page, level_db: float, above_db: float, seed: int
) -> None:
    speech_db = max(level_db + above_db, -40.0)
    frames = room(CALM_MS, level_db, 1.5, seed) + talk(2_000, speech_db, seed) + room(1_500, level_db, 1.5, seed)
    (begin, _), (end, _) = changes = await listen(lab, frames)
    assert [change for _, change in changes] == ["begin", "end"], "pauses between syllables do not end it"
    assert CALM_MS < begin <= CALM_MS + BEGIN_MS
    assert CALM_MS + 2_000 < end <= CALM_MS + 2_800


@pytest.mark.parametrize("level_db", [-80, -50, -35])
async def test_a_click_is_no_speech(lab: Page, level_db: float) -> None:
    for length in (10, 30, 60):
        assert await listen(lab, room(CALM_MS, level_db) + [-5.0] * (length // FRAME_MS) + room(1_000, level_db)) == []


async def test_a_microphone_that_begins_with_nothing_at_all_is_no_speech(lab: Page) -> None:
    assert await listen(lab, [-100.0] * 8 + room(2_000, -45)) == []


async def test_what_is_too_faint_is_no_speech_in_the_quietest_room(lab: Page) -> None:
    assert await listen(lab, room(CALM_MS, -98) + talk(2_000, -65)) == []


async def test_a_fan_that_starts_becomes_part_of_the_room(lab: Page) -> None:
    frames = room(CALM_MS, -70) + room(20_000, -45) + talk(1_000, -20)
    changes = await listen(lab, frames)
    assert [change for _, change in changes] == ["begin", "end", "begin"]
    assert changes[1][0] < CALM_MS + 10_000
    assert changes[2][0] > CALM_MS + 20_000


async def test_who_speaks_when_the_microphone_comes_on_is_heard_again_after_a_pause(lab: Page) -> None:
    changes = await listen(lab, talk(1_000, -25) + room(800, -70) + talk(500, -25))
    assert changes[-1][1] == "begin"
    assert 1_800 < changes[-1][0] <= 1_800 + BEGIN_MS


# -- in the browser, with a file for a microphone ---------------------------------------------------------------------


def record(path: Path) -> None:
    """1.5 s of a quiet room, then 1 s of a voice: a buzz at 140 Hz, opened and closed four times a second."""
    rate_hz = 48_000
    t = np.arange(rate_hz) / rate_hz
    buzz = 2 * (140 * t % 1) - 1
    voice = 0.4 * buzz * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t)) ** 2
    noise = np.random.default_rng(1).normal(0, 0.0005, rate_hz * 3 // 2)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes((np.concatenate([noise, voice]) * 32_767).astype("<i2").tobytes())


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def listening(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A browser whose microphone plays the recording again and again, and is allowed."""
    recording = tmp_path_factory.mktemp("ear") / "voice.wav"
    record(recording)
    flags = (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={recording}",
    )
    async with launch(playwright, *flags) as launched:
        yield launched


async def test_a_voice_interrupts_like_a_stop(listening: Browser, address: str) -> None:
    text = "This goes on for long enough to be interrupted by whoever wants to. " * 10
    async with Studio.open(listening, address, before=without_end("turn-1")) as studio:
        await studio.until_state("Ready")
        await studio.speak(text)
        await studio.until_heard(2_400)
        await studio.at("ear").check()  # now: on a busy machine somebody could speak before there is anything to hear
        await studio.until_state("Ready")
        receipt = studio.turns[-1].ended
        assert receipt is not None
        assert (receipt["type"], receipt["reason"]) == ("stopped", "barge_in")
        assert receipt["text_spoken"] + receipt["text_remaining"] == text
        characters = f"{len(receipt['text_spoken'])} of {len(text)} characters"
        await studio.shows("status", f"Interrupted by you. {characters} were heard.")
        assert await studio.shown_ms("stop-silent") in range(50, 60_000), "it takes a while to be sure"
        assert all_sounded((await studio.heard()).sound, studio.turns[-1].sound[: receipt["samples_played"]])
        await studio.at("ear").uncheck()
        await studio.speak("Now it is not heard.")
        await studio.shows("status", "Finished.")


async def test_without_a_microphone_the_page_says_so_and_goes_on(studio: Studio) -> None:
    await studio.at("ear").click()
    await studio.until("() => document.getElementById('problem').textContent")
    assert await studio.at("problem").inner_text() in (
        "There is no microphone.",
        "The browser does not allow the microphone: permit it for this page and switch it on again.",
    )
    assert not await studio.at("ear").is_checked()
    assert await studio.at("ear-level").is_hidden()
    await studio.speak("Ok.")
    await studio.shows("status", "Finished.")
