"""The page at /docs: every route and every message, and the key if one is needed."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]


async def test_docs_list_routes_and_messages(browser: Browser, address: str) -> None:
    async with await browser.new_context() as context:
        page = await context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(f"http://{address}/docs")
        await expect(page.locator("#messages summary", has_text="truncated")).to_have_count(1)
        speech = page.locator("#routes details", has_text="POST /v1/audio/speech")
        await speech.locator("summary").click()
        await expect(speech.locator("pre")).to_contain_text("response_format")
        cartesia = page.locator("#routes section", has=page.get_by_role("heading", name="Cartesia"))
        await expect(cartesia.locator("summary", has_text="POST /tts/bytes")).to_be_visible()
        await expect(cartesia.locator("p")).to_contain_text("WebSocket /tts/websocket")
        assert not errors


async def test_docs_say_that_a_key_is_needed(browser: Browser) -> None:
    async with (
        serving(server={"api_keys": ["a-key-of-some-length"]}) as address,
        await browser.new_context() as context,
    ):
        page = await context.new_page()
        await page.goto(f"http://{address}/docs")
        await expect(page.locator("#problem")).to_have_text("This server needs an API key.")
