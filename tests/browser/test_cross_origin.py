"""Pages of another origin in Chromium: an allowed one fetches from every API, another one reads nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from tests.browser.demo_page import PATIENCE_MS
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

KEY = "a-key-of-some-length"
TEXT = "Hello there, my friend."
FETCH = """async ([url, method, headers, body]) => {
  try {
    const answer = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
    const data = new Uint8Array(await answer.arrayBuffer());
    const text = new TextDecoder().decode(data.slice(0, 100000));
    return { status: answer.status, bytes: data.length, text, headers: Object.fromEntries(answer.headers) };
  } catch (error) {
    return { failed: error.name };
  }
}"""

BEARER = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
OPENAI = {**BEARER, "x-stainless-lang": "js", "x-stainless-retry-count": "0", "openai-organization": "any"}
CARTESIA = {**BEARER, "cartesia-version": "2025-04-16"}
ELEVENLABS = {"xi-api-key": KEY, "content-type": "application/json", "x-fern-language": "JavaScript"}
SPEECH = {"model": "tts-1", "voice": "tone", "input": TEXT, "response_format": "pcm"}
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
EVENTS = {"model_id": "sonic-3", "transcript": TEXT, "voice": {"mode": "id", "id": "tone"}, "output_format": RAW}


@asynccontextmanager
async def page_of(browser: Browser, origin: str) -> AsyncIterator[Page]:
    async with await browser.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        await page.goto(f"{origin}/health/live")
        yield page


@asynccontextmanager
async def worker_for(origin: str) -> AsyncIterator[str]:
    async with serving(server={"api_keys": [KEY], "allowed_origins": [origin]}) as listening:
        yield f"http://{listening}"


async def fetched(page: Page, url: str, headers: dict[str, str], body: Any = None) -> dict[str, Any]:
    method = "GET" if body is None else "POST"
    answer: dict[str, Any] = await page.evaluate(FETCH, [url, method, headers, body])
    return answer


async def test_an_allowed_page_fetches_from_every_api(browser: Browser, address: str) -> None:
    origin = f"http://{address}"
    async with worker_for(origin) as worker, page_of(browser, origin) as page:
        speech = await fetched(page, f"{worker}/v1/audio/speech", OPENAI, SPEECH)
        assert speech["status"] == 200, speech
        assert speech["bytes"] > 24_000
        assert speech["headers"]["x-sample-rate"] == "24000"
        assert speech["headers"]["x-request-id"]
        events = await fetched(page, f"{worker}/tts/sse", CARTESIA, EVENTS)
        assert '"type":"chunk"' in events["text"]
        timed = await fetched(
            page, f"{worker}/v1/text-to-speech/tone/stream/with-timestamps", ELEVENLABS, {"text": TEXT}
        )
        assert '"character_start_times_seconds"' in timed["text"]
        assert '"tone-low"' in (await fetched(page, f"{worker}/v1/voices", ELEVENLABS))["text"]


async def test_an_allowed_page_reads_why_it_is_refused(browser: Browser, address: str) -> None:
    origin = f"http://{address}"
    async with worker_for(origin) as worker, page_of(browser, origin) as page:
        refused = await fetched(page, f"{worker}/v1/audio/speech", {**BEARER, "authorization": "Bearer no"}, SPEECH)
        assert refused["status"] == 401
        assert "the API key is not valid" in refused["text"]
        unknown = await fetched(page, f"{worker}/v1/audio/speech", BEARER, {**SPEECH, "voice": "unknown"})
        assert unknown["status"] == 404


async def test_a_page_that_is_not_listed_reads_nothing(browser: Browser, address: str) -> None:
    async with worker_for("https://app.example") as worker, page_of(browser, f"http://{address}") as page:
        assert await fetched(page, f"{worker}/v1/voices", {}) == {"failed": "TypeError"}
        assert await fetched(page, f"{worker}/v1/audio/speech", BEARER, SPEECH) == {"failed": "TypeError"}


async def test_a_header_that_is_not_allowed_is_not_sent(browser: Browser, address: str) -> None:
    origin = f"http://{address}"
    async with worker_for(origin) as worker, page_of(browser, origin) as page:
        headers = {**BEARER, "x-other": "1"}
        assert await fetched(page, f"{worker}/v1/voices", headers) == {"failed": "TypeError"}
