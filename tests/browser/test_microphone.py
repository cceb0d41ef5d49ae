"""Interruption by voice: the voice activity detector, and the page with a recorded microphone input."""

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
from tests.browser.demo_page import DemoPage, all_played, without_end

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

FRAME_MS = 10
BEGIN_MS = 150
"""Speech is detected within this time."""
CALIBRATED_MS = 1_000
"""The noise floor is known after this time."""


async def detect(modules: Page, levels_db: list[float]) -> list[tuple[int, str]]:
    """Begins and ends of speech in frames of these levels, with times in ms."""
    changes = await modules.evaluate("levels => detectSpeech(levels)", levels_db)
    return [(index * FRAME_MS, change) for index, change in changes]


def noise(duration_ms: int, level_db: float, wobble_db: float = 2.0, seed: int = 0) -> list[float]:
    """Background noise: frames of 10 ms whose level varies by a few dB."""
    wobble = np.random.default_rng(seed).normal(0.0, wobble_db, duration_ms // FRAME_MS)
    return [float(level_db + w) for w in wobble]


def speech(duration_ms: int, level_db: float, seed: int = 0) -> list[float]:
    """Syllables: 150 ms loud, 50 ms nearly silent."""
    frames = range(duration_ms // FRAME_MS)
    rough = np.random.default_rng(seed).normal(0.0, 3.0, len(frames))
    return [float(level_db + r - (15 if i % 20 >= 15 else 0)) for i, r in zip(frames, rough, strict=True)]


@settings(deadline=None, max_examples=15)
@given(
    level_db=st.floats(-95, -25), wobble_db=st.floats(0, 2.5), drift_db=st.floats(-20, 20), seed=st.integers(0, 10**6)
)
async def test_slowly_changing_noise_is_not_speech(
    modules: Page, level_db: float, wobble_db: float, drift_db: float, seed: int
) -> None:
    background = noise(20_000, level_db, wobble_db, seed)
    changing = [level + drift_db * i / len(background) for i, level in enumerate(background)]
    assert await detect(modules, changing) == []


@settings(deadline=None, max_examples=15)
@given(level_db=st.floats(-90, -45), above_db=st.floats(22, 40), seed=st.integers(0, 10**6))
async def test_speech_above_the_noise_is_detected_once(
    modules: Page, level_db: float, above_db: float, seed: int
) -> None:
    speech_db = max(level_db + above_db, -40.0)
    frames = (
        noise(CALIBRATED_MS, level_db, 1.5, seed) + speech(2_000, speech_db, seed) + noise(1_500, level_db, 1.5, seed)
    )
    (begin, _), (end, _) = changes = await detect(modules, frames)
    assert [change for _, change in changes] == ["begin", "end"], "pauses between syllables do not end it"
    assert CALIBRATED_MS < begin <= CALIBRATED_MS + BEGIN_MS
    assert CALIBRATED_MS + 2_000 < end <= CALIBRATED_MS + 2_800


@pytest.mark.parametrize("level_db", [-80, -50, -35])
async def test_click_is_not_speech(modules: Page, level_db: float) -> None:
    for length in (10, 30, 60):
        assert (
            await detect(
                modules, noise(CALIBRATED_MS, level_db) + [-5.0] * (length // FRAME_MS) + noise(1_000, level_db)
            )
            == []
        )


async def test_digital_silence_before_noise_is_not_speech(modules: Page) -> None:
    assert await detect(modules, [-100.0] * 8 + noise(2_000, -45)) == []


async def test_faint_input_in_silence_is_not_speech(modules: Page) -> None:
    assert await detect(modules, noise(CALIBRATED_MS, -98) + speech(2_000, -65)) == []


async def test_constant_noise_becomes_background(modules: Page) -> None:
    frames = noise(CALIBRATED_MS, -70) + noise(20_000, -45) + speech(1_000, -20)
    changes = await detect(modules, frames)
    assert [change for _, change in changes] == ["begin", "end", "begin"]
    assert changes[1][0] < CALIBRATED_MS + 10_000
    assert changes[2][0] > CALIBRATED_MS + 20_000


async def test_speech_during_calibration_is_detected_after_a_pause(modules: Page) -> None:
    changes = await detect(modules, speech(1_000, -25) + noise(800, -70) + speech(500, -25))
    assert changes[-1][1] == "begin"
    assert 1_800 < changes[-1][0] <= 1_800 + BEGIN_MS


# -- in the browser, with a file as the microphone --------------------------------------------------------------------


def record(path: Path) -> None:
    """1.5 s of faint noise, then 1 s of speech: a sawtooth at 140 Hz, modulated at 4 Hz."""
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
    """A browser whose microphone is permitted and repeats the recording."""
    recording = tmp_path_factory.mktemp("microphone") / "voice.wav"
    record(recording)
    flags = (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={recording}",
    )
    async with launch(playwright, *flags) as launched:
        yield launched


async def test_voice_interrupts_like_a_stop(listening: Browser, address: str) -> None:
    text = "This goes on for long enough to be interrupted at any time. " * 10
    async with DemoPage.open(listening, address, before=without_end("utterance-1")) as demo:
        await demo.until_state("Ready")
        await demo.speak(text)
        await demo.until_played(2_400)
        await demo.at(
            "microphone"
        ).check()  # not before: on a busy machine the recording could speak before there is audio
        await demo.until_state("Ready")
        report = demo.utterances[-1].ended
        assert report is not None
        assert (report["type"], report["reason"]) == ("stopped", "barge_in")
        assert report["text_spoken"] + report["text_remaining"] == text
        characters = f"{len(report['text_spoken'])} of {len(text)} characters"
        await demo.shows("status", f"Interrupted by you. {characters} were heard.")
        assert await demo.shown_ms("stop-silent") in range(50, 60_000), "detection takes time"
        assert all_played(
            (await demo.recorded_audio()).samples, demo.utterances[-1].samples[: report["samples_played"]]
        )
        await demo.at("microphone").uncheck()
        await demo.speak("Now it is not heard.")
        await demo.shows("status", "Finished.")


async def test_missing_microphone_is_shown_and_page_keeps_working(demo: DemoPage) -> None:
    await demo.at("microphone").click()
    await demo.until("() => document.getElementById('problem').textContent")
    assert await demo.at("problem").inner_text() in (
        "There is no microphone.",
        "The browser does not allow the microphone: permit it for this page and switch it on again.",
    )
    assert not await demo.at("microphone").is_checked()
    assert await demo.at("microphone-level").is_hidden()
    await demo.speak("Ok.")
    await demo.shows("status", "Finished.")


async def test_recording_for_a_voice_is_a_wav_file(listening: Browser, address: str) -> None:
    async def before(page: Page) -> None:
        await page.route("**/v1/voices", lambda route: route.fulfill(json={"voices": [], "can_add": True}))

    async with DemoPage.open(listening, address, before=before) as demo:
        await demo.page.get_by_text("Add your voice").click()
        await demo.at("clone-record").click()
        await demo.shows("clone-record", "Stop recording (1 s)")
        await demo.at("clone-record").click()
        await demo.shows("clone-record", "Record again")
        header = bytes(
            await demo.page.evaluate(
                """async () => {
                  const file = await (await fetch(document.getElementById("clone-audio").src)).arrayBuffer();
                  return [...new Uint8Array(file, 0, 44), ...new Uint8Array(Uint32Array.of(file.byteLength).buffer)];
                }"""
            )
        )
        rate_hz, data_bytes, file_bytes = (int.from_bytes(header[at : at + 4], "little") for at in (24, 40, 44))
        assert (header[:4], data_bytes) == (b"RIFF", file_bytes - 44)
        assert data_bytes >= 0.5 * 2 * rate_hz, "what was recorded until the button said so"
