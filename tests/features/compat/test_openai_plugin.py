"""LiveKit's OpenAI plugin against the real server: every format, as a body and as events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.integration.test_websocket import until_live_sessions

openai = LateModule("openai", "needs the package openai")
livekit_openai = LateModule("livekit.plugins.openai", "needs livekit-plugins-openai")

TEXT = "Hello there, my friend. How are you today?"
SAMPLES = 24 * 60 * len("".join(TEXT.split()))  # the tone engine: 60 ms a character


@asynccontextmanager
async def plugin(address: str, **options: Any) -> AsyncIterator[Any]:
    client = openai.AsyncOpenAI(api_key="any key", base_url=f"http://{address}/v1", max_retries=0)
    async with client:
        tts = livekit_openai.TTS(client=client, voice="tone", **options)
        try:
            yield tts
        finally:
            await tts.aclose()


@pytest.mark.parametrize("model", ["tts-1", "gpt-4o-mini-tts"])  # a plain body, and server-sent events
@pytest.mark.parametrize("response_format", ["mp3", "pcm", "wav", "opus"])
async def test_plugin_decodes_every_format(model: str, response_format: str) -> None:
    async with serving() as address, plugin(address, model=model, response_format=response_format) as tts:
        frame = await tts.synthesize(TEXT).collect()
        assert frame.samples_per_channel / frame.sample_rate == pytest.approx(SAMPLES / 24_000, abs=0.3)
        await until_live_sessions(address, 0)
