"""The page as a playground: voice cards with previews, settings that the chosen voice supports, and examples."""

from __future__ import annotations

from typing import Any

import pytest
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
        async with demo.page.expect_request("**/v1/audio/speech") as requested:
            await preview.click()
        assert (await requested.value).post_data_json["voice"] == "tone-high"
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
