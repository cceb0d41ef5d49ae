"""A header of the vendors' HTTP APIs tells how much of the text the voice cannot speak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.conftest import serving

HEART: dict[str, Any] = {"engines": {"hibari": {"kind": "hibari"}}}
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}
CARTESIA = {"model_id": "sonic-2", "voice": {"mode": "id", "id": "heart"}, "output_format": RAW}
REQUESTS = [
    ("/v1/audio/speech", "input", {"response_format": "pcm"}),
    ("/v1/audio/speech", "input", {"response_format": "pcm", "stream_format": "sse"}),
    ("/v1/text-to-speech/heart", "text", {}),
    ("/v1/text-to-speech/heart/with-timestamps", "text", {}),
    ("/v1/text-to-speech/heart/stream/with-timestamps", "text", {}),
    ("/tts/bytes", "transcript", CARTESIA),
    ("/tts/sse", "transcript", CARTESIA),
    ("/inference_sft", "tts_text", {"spk_id": "heart"}),
]
PADDING = "This is a sentence of the middle. " * 200

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(**HEART) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        yield client


async def header_of(client: httpx.AsyncClient, path: str, name: str, text: str, fields: dict[str, Any]) -> str | None:
    """Return the header of a response, whose audio is not awaited."""
    body = {"data": {name: text, **fields}} if path.startswith("/inference") else {"json": {name: text, **fields}}
    async with client.stream("POST", path, **body) as response:
        if response.status_code != 200:
            pytest.fail((await response.aread()).decode())
        return response.headers.get("x-skipped-characters")


@pytest.mark.parametrize(("path", "name", "fields"), REQUESTS)
async def test_header_counts_skipped_characters(
    client: httpx.AsyncClient, path: str, name: str, fields: dict[str, Any]
) -> None:
    assert await header_of(client, path, name, "Hello \u4f60\u597d world.", fields) == "2"
    assert await header_of(client, path, name, "Hello \u0298\u0298 world.", fields) == "2"
    assert await header_of(client, path, name, "Hello world.", fields) is None


async def test_header_counts_to_the_end_of_a_long_text(client: httpx.AsyncClient) -> None:
    path, name, fields = REQUESTS[0]
    assert await header_of(client, path, name, f"Hi. {PADDING}\u4f60\u597d, \u4f60.", fields) == "3"
