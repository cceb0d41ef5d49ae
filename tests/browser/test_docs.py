"""The page at /docs: our routes first, the vendors' folded, every one to try, and the key if one is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.test_page_accessibility import AXE, RULES, VIOLATIONS
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]


@asynccontextmanager
async def docs(browser: Browser, address: str, fragment: str = "", **options: object) -> AsyncIterator[Page]:
    """Open the page, which must have no error."""
    async with await browser.new_context(**options) as context:  # type: ignore[arg-type]
        page = await context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.add_init_script(AXE)
        await page.goto(f"http://{address}/docs{fragment}")
        await expect(page.locator("#messages summary", has_text="truncated")).to_have_count(1)
        yield page
        assert not errors


async def test_own_routes_come_first_and_vendors_are_folded(browser: Browser, address: str) -> None:
    async with docs(browser, address) as page:
        first = page.locator("#routes > :first-child")
        await expect(first.locator("h2")).to_have_text("tts-worker")
        titles = await first.locator("summary .path").all_inner_texts()
        assert titles[:3] == ["/v1/stream", "/v1/audio/speech", "/v1/audio/conversions"]
        assert "/health/live" in titles[-6:]
        assert 20 <= len(titles) <= 35
        cartesia = page.locator("#routes > details", has_text="Cartesia")
        route = cartesia.locator("summary", has_text="POST /tts/bytes")
        await expect(route).to_be_hidden()
        await cartesia.locator("summary").first.click()
        await expect(route).to_be_visible()
        await expect(cartesia.locator("summary", has_text="WS /tts/websocket")).to_be_visible()


async def test_speech_is_tried_and_heard(browser: Browser, address: str) -> None:
    async with docs(browser, address, "#post-/v1/audio/speech") as page:
        speech = page.locator("#routes details[open]", has_text="POST /v1/audio/speech").last
        await expect(speech.locator(".fields")).to_contain_text("response_format")
        await speech.get_by_label("Body").fill('{"input": "Hello.", "response_format": "wav"}')
        await expect(speech.locator(".curl")).to_contain_text(f"http://{address}/v1/audio/speech")
        await speech.get_by_role("button", name="Try it").click()
        await expect(speech.locator(".status")).to_contain_text("200")
        await expect(speech.locator("audio")).to_have_count(1)
        await speech.get_by_label("Body").fill('{"input": ""}')
        await speech.get_by_role("button", name="Try it").click()
        await expect(speech.locator(".status")).to_contain_text("400")
        await expect(speech.locator(".answer")).to_contain_text("invalid_request")


async def test_names_are_asked_for_and_sent(browser: Browser, address: str) -> None:
    async with docs(browser, address, "#get-/v1/voices/{name}") as page:
        voice = page.locator("#routes details[open]", has_text="GET /v1/voices/{name}").last
        await voice.get_by_role("button", name="Try it").click()
        assert await voice.locator("input:invalid").count() == 1, "a name is required"
        await voice.get_by_label("name").fill("tone-low")
        await expect(voice.locator(".curl")).to_have_text(f"curl http://{address}/v1/voices/tone-low")
        await voice.get_by_label("name").press("Enter")
        await expect(voice.locator(".answer")).to_contain_text('"id": "tone-low"')


async def test_recordings_are_sent_as_a_form(browser: Browser, address: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    async with docs(browser, address, "#post-/v1/voices") as page:
        voices = page.locator("#routes details[open]", has_text="POST /v1/voices").last
        await voices.get_by_label("audio").set_input_files(tmp_path / "a.wav")
        await voices.get_by_label("name", exact=True).fill("it's")
        await expect(voices.locator(".curl")).to_contain_text("-F audio=@a.wav -F 'name=it'\\''s'")
        async with page.expect_request("**/v1/voices") as sent:
            await voices.get_by_role("button", name="Try it").click()
        assert (await (await sent.value).header_value("content-type") or "").startswith("multipart/form-data")
        await expect(voices.locator(".status")).to_contain_text("400")


async def test_key_that_is_needed_is_asked_for_and_used(browser: Browser) -> None:
    async with (
        serving(server={"api_keys": ["a-key-of-some-length"]}) as address,
        await browser.new_context() as context,
    ):
        page = await context.new_page()
        await page.goto(f"http://{address}/docs")
        await expect(page.locator("#problem")).to_have_text("This server needs an API key.")
        await page.get_by_label("API key").fill("a-key-of-some-length")
        await page.keyboard.press("Enter")
        await expect(page.locator("#problem")).to_be_empty()
        usage = page.locator("#routes details", has_text="GET /v1/usage").last
        await usage.locator("summary").click()
        await expect(usage.locator(".curl")).to_contain_text('-H "Authorization: Bearer $KEY"')
        assert "a-key-of-some-length" not in await page.content()
        await usage.get_by_role("button", name="Try it").click()
        await expect(usage.locator(".status")).to_contain_text("200")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_docs_are_accessible_and_narrow(browser: Browser, address: str, scheme: str) -> None:
    size = {"width": 320, "height": 700}
    async with docs(browser, address, color_scheme=scheme, viewport=size) as page:
        await page.evaluate("document.querySelectorAll('#routes > details').forEach((it) => { it.open = true; })")
        for path in ("/v1/audio/speech", "/v1/voices", "/v1/batch/{name}/results"):
            await (
                page.locator("#routes details", has=page.locator(".path", has_text=path))
                .last.locator("summary")
                .first.click()
            )
        assert await page.evaluate(VIOLATIONS, RULES[scheme]) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
