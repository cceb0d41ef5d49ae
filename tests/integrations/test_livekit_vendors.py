"""LiveKit's own plugins for vendors, pointed at a worker, in a real offline ``AgentSession``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")

import aiohttp
import httpx
from livekit.agents import APIConnectOptions, APIError

from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.fakes.livekit_agent import run_agent
from tests.integration.test_websocket import until_live_sessions

openai = LateModule("openai", "needs the package openai")
livekit_openai = LateModule("livekit.plugins.openai", "needs livekit-plugins-openai")
livekit_cartesia = LateModule("livekit.plugins.cartesia", "needs livekit-plugins-cartesia")
livekit_elevenlabs = LateModule("livekit.plugins.elevenlabs", "needs livekit-plugins-elevenlabs")
livekit_deepgram = LateModule("livekit.plugins.deepgram", "needs livekit-plugins-deepgram")

KEY = "any key"
REPLY = "Hello there, my friend."
LONG = "This is a rather long story, and it goes on and on. " * 40
QUIET = ["...", "—", "🎉", "..."]
"""Turns with nothing to say. LiveKit ends a session after the errors of a few."""

OpenPlugin = Callable[..., AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def openai_plugin(address: str, voice: str = "tone") -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(api_key=KEY, base_url=f"http://{address}/v1", max_retries=0) as client:
        yield livekit_openai.TTS(client=client, voice=voice, response_format="pcm")


@asynccontextmanager
async def cartesia_plugin(address: str, voice: str = "tone", lexicon: str | None = None) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession() as http:
        yield livekit_cartesia.TTS(
            api_key=KEY,
            base_url=f"http://{address}",
            voice=voice,
            http_session=http,
            pronunciation_dict_id=lexicon,
        )


@asynccontextmanager
async def elevenlabs_plugin(address: str, voice: str = "tone", lexicon: str | None = None) -> AsyncIterator[Any]:
    options: dict[str, Any] = {}
    if lexicon is not None:
        locator = livekit_elevenlabs.PronunciationDictionaryLocator(lexicon, "1")
        options["pronunciation_dictionary_locators"] = [locator]
    async with aiohttp.ClientSession() as http:
        yield livekit_elevenlabs.TTS(
            api_key=KEY,
            base_url=f"http://{address}/v1",
            voice_id=voice,
            http_session=http,
            encoding="pcm_24000",
            **options,
        )


@asynccontextmanager
async def deepgram_plugin(address: str, voice: str = "tone") -> AsyncIterator[Any]:
    url = f"http://{address}/v1/speak"
    async with aiohttp.ClientSession() as http:
        yield livekit_deepgram.TTS(api_key=KEY, base_url=url, model=voice, http_session=http)


@asynccontextmanager
async def deepgram_flux_plugin(address: str, voice: str = "tone") -> AsyncIterator[Any]:
    url = f"http://{address}/v2/speak"
    async with aiohttp.ClientSession() as http:
        yield livekit_deepgram.TTSv2(api_key=KEY, base_url=url, model=voice, http_session=http)


every_plugin = pytest.mark.parametrize(
    "open_plugin",
    [openai_plugin, cartesia_plugin, elevenlabs_plugin, deepgram_plugin, deepgram_flux_plugin],
    ids=lambda plugin: plugin.__name__,
)


@every_plugin
async def test_session_outlives_turns_with_nothing_to_say(open_plugin: OpenPlugin) -> None:
    async with serving() as address:
        async with open_plugin(address) as voice, run_agent(voice, [*QUIET, REPLY]) as harness:
            for _ in range(len(QUIET) + 1):
                await harness.session.generate_reply(user_input="Well?")
            assert harness.errors == []
            text, was_interrupted = harness.turns[-1]
            assert (text.strip(), was_interrupted) == (REPLY, False)
            assert len(harness.speaker.played[-1]) > 48_000
            await voice.aclose()
        await until_live_sessions(address, 0)


@every_plugin
async def test_interruption_frees_the_session(open_plugin: OpenPlugin) -> None:
    async with serving() as address, open_plugin(address) as voice:
        streams = voice.capabilities.streaming
        stream = voice.stream() if streams else voice.synthesize(LONG)
        if streams:
            stream.push_text(LONG)
            stream.flush()
        await stream.__anext__()
        await stream.aclose()
        assert await _spoken_samples(voice, streams=streams) > 24_000  # may close the interrupted socket only now
        await until_live_sessions(address, 0)
        await voice.aclose()


@every_plugin
async def test_unknown_voice_is_the_error_of_the_framework(open_plugin: OpenPlugin) -> None:
    once = APIConnectOptions(max_retry=0)
    async with serving() as address, open_plugin(address, voice="unknown") as voice:
        with pytest.raises(APIError):
            await voice.synthesize(REPLY, conn_options=once).collect()
        if voice.capabilities.streaming:
            with pytest.raises(APIError):
                await _spoken_samples(voice, streams=True, conn_options=once)
        await voice.aclose()


@pytest.mark.parametrize(
    ("open_plugin", "streams"),
    [(cartesia_plugin, True), (cartesia_plugin, False), (elevenlabs_plugin, True)],  # its requests name no dictionary
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_plugin_uses_a_pronunciation_dictionary(tmp_path: Path, open_plugin: Any, streams: bool) -> None:
    lengths, expected = [], []
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as http,
    ):
        await http.post("/v1/lexicons", json={"name": "greetings", "entries": {"Hello": "good evening to you"}})
        for lexicon in (None, "greetings"):
            async with open_plugin(address, lexicon=lexicon) as voice:
                lengths.append(await _spoken_samples(voice, streams=streams))
                await voice.aclose()
            body = {"input": REPLY, "voice": "tone", "response_format": "pcm", "lexicon": lexicon}
            expected.append(len((await http.post("/v1/audio/speech", json=body)).content) // 2)
    assert lengths == pytest.approx(expected, abs=2_400)
    assert lengths[1] - lengths[0] > 12_000


async def _spoken_samples(voice: Any, *, streams: bool, **options: Any) -> int:
    """Return the length of a reply at 24 kHz."""
    if not streams:
        return sum([event.frame.samples_per_channel async for event in voice.synthesize(REPLY, **options)])
    async with voice.stream(**options) as stream:
        stream.push_text(REPLY)
        stream.end_input()
        return sum([event.frame.samples_per_channel async for event in stream])
