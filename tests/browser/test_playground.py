"""The page as a playground: voice cards, settings of the chosen voice, examples, timeline, code, history, cloning."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from playwright.async_api import Browser, Page, Route, expect

from tests.browser.demo_page import DemoPage

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

PLAIN: dict[str, Any] = {
    "id": "plain",
    "name": "plain",
    "languages": ["en"],
    "description": "",
    "alignment": "measured",
    "speed_range": [0.5, 2.0],
    "default": True,
}
ABLE = PLAIN | {
    "id": "able",
    "name": "<b>able</b>",
    "languages": ["zh"],
    "default": False,
    "capabilities": ["instruct"],
    "styles": ["neutral", "happy"],
}


def offering(*voices: dict[str, Any]) -> Any:
    """The server lists these voices."""

    async def before(page: Page) -> None:
        async def answer(route: Route) -> None:
            await route.fulfill(json={"voices": voices})

        await page.route("**/v1/voices", answer)

    return before


async def test_fields_follow_what_the_voice_supports(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, before=offering(PLAIN, ABLE)) as demo:
        await expect(demo.page.locator(".voice-name")).to_have_text(["plain", "<b>able</b>"])
        assert await demo.at("style-field").is_hidden()
        assert await demo.at("instruct-field").is_hidden()
        english = await demo.at("examples").inner_text()
        await demo.page.locator("[name=voice]:checked").focus()
        await demo.page.keyboard.press("ArrowDown")
        await demo.at("style").select_option("happy")
        await demo.at("instruct").fill("Speak slowly.")
        assert await demo.at("examples").inner_text() != english, "in the language of the voice"
        await demo.at("speak").click()
        await demo.until("() => spy.problems.length > 0")
        (start,) = (message for message in demo.sent if message["type"] == "start")
        assert (start["voice"], start["instruct"]) == ("able@happy", "Speak slowly.")
        await demo.page.locator("[name=voice][value=plain]").check()
        await demo.at("speak").click()
        await demo.until("() => spy.problems.length > 1")
        again = [message for message in demo.sent if message["type"] == "start"][1]
        assert again["voice"] == "plain"
        assert "instruct" not in again


async def test_preview_plays_the_voice_and_stops(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address) as demo:
        await demo.until_state("Ready")
        preview = demo.page.get_by_role("button", name="Listen to tone-high")
        of_voice = lambda request: '"voice":"tone-high"' in (request.post_data or "")  # noqa: E731
        async with demo.page.expect_request(of_voice):
            await preview.click()
        await expect(preview).to_have_attribute("aria-pressed", "true")
        await demo.at("speak").click()
        await expect(preview).to_have_attribute("aria-pressed", "false")
        await demo.until_state("Speaking")
        await preview.click()
        await demo.until_state("Ready")
        await expect(preview).to_have_attribute("aria-pressed", "true")
        await expect(preview).to_have_attribute("aria-pressed", "false")  # it was played to its end


async def test_example_fills_the_field_and_is_spoken(demo: DemoPage) -> None:
    await demo.page.get_by_role("button", name="Greeting").click()
    text = await demo.at("text").input_value()
    assert text.startswith("Good morning")
    await demo.at("speak").click()
    await demo.until_state("Speaking")
    await demo.page.get_by_role("button", name="Numbers").evaluate("(it) => it.click()")  # although it is disabled
    assert await demo.at("text").input_value() == text, "not while it is spoken"
    await demo.at("stop").click()
    await demo.until_state("Ready")
    assert demo.sent_text() == text


# -- the timeline ------------------------------------------------------------------------------------------------------


async def test_timeline_knows_chunks_lead_and_envelope(modules: Page) -> None:
    assert await modules.evaluate(
        """async () => {
          const { TimelineModel } = await import("/static/timeline-model.js");
          const model = new TimelineModel();
          const before = model.leadMs;
          model.addAudio(Int16Array.from({ length: 480 }, () => -16384), 1000);
          model.addAudio(new Int16Array(480), 1001);
          model.addAudio(new Int16Array(480), 1030);
          model.hear(720);
          return { before, chunks: model.chunks, lead: model.leadMs, peaks: model.peaks };
        }"""
    ) == {"before": None, "chunks": [0, 960], "lead": 30, "peaks": [0.5, 0.5, 0, 0, 0, 0]}


async def test_parts_split_the_time_to_first_audio(modules: Page) -> None:
    parts = await modules.evaluate(
        """async () => {
          const { startParts } = await import("/static/latencies.js");
          return startParts({ askedMs: 100, sentMs: 110, acceptedMs: 90, firstFrameMs: null, heardMs: 200 });
        }"""
    )
    assert [part["ms"] for part in parts] == [10, 0, 0, 90], "a time that is missing or out of order adds nothing"


# -- code, history, downloads ------------------------------------------------------------------------------------------

SHELL_TEXT = 'It\'s "quoted" \\ $HOME `date` %s,\nand 你好.'


async def run_copied(command: list[str], folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_copied_code_speaks_what_the_page_speaks(browser: Browser, address: str, tmp_path: Path) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    async with DemoPage.open(browser, address, permissions=permissions) as demo:
        await demo.until_state("Ready")
        await demo.page.locator("[name=voice][value=tone-low]").check()
        await demo.at("speed").fill("1.5")
        await demo.speak(SHELL_TEXT)
        await demo.shows("status", "Finished.")
        await demo.page.get_by_text("Code for this").click()
        copied = {}
        for language in ("curl", "Python", "JavaScript", "LiveKit", "pipecat"):
            await demo.page.locator(f"[name=language][value={language}]").check(force=True)
            await demo.at("copy").click()
            copied[language] = await demo.page.evaluate("navigator.clipboard.readText()")
        samples = demo.utterances[0].samples
        await demo.page.get_by_text("History").click()
        assert "tone-low · WebSocket" in await demo.at("history").inner_text()
        async with demo.page.expect_download() as started:
            await demo.at("history").get_by_role("button", name="Download WAV").click()
        await (await started.value).save_as(tmp_path / "page.wav")
        assert (await started.value).suggested_filename == "it-s-quoted-home-date-s.wav"
        await demo.write("Other.")
        await demo.page.locator("[name=voice][value=tone]").check()
        await demo.at("history").get_by_role("button", name="Use again").click()
        assert await demo.at("text").input_value() == SHELL_TEXT
        assert await demo.page.locator("[name=voice]:checked").get_attribute("value") == "tone-low"
        received = await demo.page.evaluate(
            """(code) => new Function(code + `; return new Promise((resolve) => {
              socket.addEventListener("close", () => resolve(chunks.map((pcm) => pcm.byteLength)));
            })`)()""",
            copied["JavaScript"],
        )
    assert sum(received) == 2 * len(samples)
    assert len(sf.read(tmp_path / "page.wav", dtype="int16")[0]) == len(samples), "its header has its length"
    (tmp_path / "speak.py").write_text(copied["Python"], encoding="utf-8")
    for command in (["sh", "-c", copied["curl"]], [sys.executable, "speak.py"]):
        await run_copied(command, tmp_path)
        assert len(sf.read(tmp_path / "speech.wav", dtype="int16")[0]) == len(samples), command[0]
        (tmp_path / "speech.wav").unlink()
    for language in ("LiveKit", "pipecat"):
        compile(copied[language], language, "exec")
        assert 'voice="tone-low", speed=1.5' in copied[language]


async def test_code_reads_the_key_from_the_environment(modules: Page) -> None:
    codes = await modules.evaluate(
        """async () => {
          const { codeFor, LANGUAGES } = await import("/static/code-samples.js");
          const settings = { voice: "anna@happy", speed: 1, seed: 0, instruct: "Slowly." };
          const request = { origin: "https://host", text: "Hi.", settings, hasKey: true };
          return Object.keys(LANGUAGES).map((language) => codeFor(language, request));
        }"""
    )
    assert len(codes) == 5
    for code in codes:
        assert "TTS_WORKER_API_KEY" in code
        assert "Slowly." in code
        assert "wss://host" in code or "https://host" in code


# -- a voice from a recording ------------------------------------------------------------------------------------------


async def test_voice_is_made_of_an_uploaded_recording(browser: Browser, address: str, tmp_path: Path) -> None:
    listed = [PLAIN]
    bodies: list[bytes] = []

    async def before(page: Page) -> None:
        async def answer(route: Route) -> None:
            request = route.request
            if request.method == "GET":
                await route.fulfill(json={"voices": listed, "can_add": True})
            elif request.method == "DELETE":
                listed.pop()
                await route.fulfill(json={"deleted": True})
            elif not bodies:
                bodies.append(request.post_data_buffer or b"")
                await route.fulfill(
                    status=422, json={"error": {"code": "invalid_request", "message": "1.2 s of speech"}}
                )
            else:
                bodies.append(request.post_data_buffer or b"")
                listed.append(ABLE | {"id": "anna", "name": "anna", "stored": {"notes": []}})
                await route.fulfill(status=201, json={"id": "anna", "name": "anna", "stored": {"notes": ["Noisy."]}})

        await page.route(re.compile("/v1/voices"), answer)

    sf.write(tmp_path / "anna.wav", np.zeros(24_000), 24_000)
    async with DemoPage.open(browser, address, before=before) as demo:
        await demo.page.get_by_text("Add your voice").click()
        await demo.at("clone-name").fill("anna")
        await demo.at("clone-transcript").fill("What is said.")
        await demo.at("clone-consent").check()
        await demo.at("clone-submit").click()
        await demo.shows("clone-problem", "There is no recording yet: choose a file or record one.")
        await demo.at("clone-file").set_input_files(tmp_path / "anna.wav")
        await demo.at("clone-submit").click()
        await demo.shows("clone-problem", "The server refused: 1.2 s of speech")
        await demo.at("clone-submit").click()
        await demo.shows("clone-status", "The voice anna is ready. Noisy.")
        for part in (b'name="audio"; filename="anna.wav"', b"What is said.", b'name="consent"\r\n\r\ntrue'):
            assert part in bodies[-1]
        await expect(demo.page.locator("[name=voice]:checked")).to_have_value("anna")
        assert await demo.at("clone-audio").is_visible(), "the recording, to compare it"
        await expect(demo.at("clone-listen")).to_have_text("Listen to anna")
        await demo.at("delete-voice").click()
        assert len(listed) == 2, "the first click only asks"
        await demo.page.get_by_role("button", name="Really delete anna?").click()
        await expect(demo.page.locator(".voice")).to_have_count(1)
