"""pipecat's own services for OpenAI, Cartesia, ElevenLabs and Deepgram, unmodified, against a real worker."""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import pytest

if sys.version_info < (3, 11):
    pytest.skip("pipecat needs Python 3.11", allow_module_level=True)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="'audioop' is deprecated", category=DeprecationWarning)
    pytest.importorskip("pipecat.services.tts_service", reason="needs the extra 'pipecat'")

from pipecat.frames.frames import ErrorFrame, InterruptionFrame, TTSTextFrame

from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.integration.test_websocket import until_live_sessions
from tests.integrations.test_pipecat import run_pipeline

openai = LateModule("openai", "needs the package openai")
pipecat_openai = LateModule("pipecat.services.openai.tts", "needs the package openai")
pipecat_cartesia = LateModule("pipecat.services.cartesia.tts")
pipecat_elevenlabs = LateModule("pipecat.services.elevenlabs.tts")
pipecat_deepgram = LateModule("pipecat.services.deepgram.tts", "needs the package deepgram-sdk")
pipecat_flux = LateModule("pipecat.services.deepgram.flux.tts", "needs the package deepgram-sdk")

REPLY = "Hello there, my friend. How are you today?"
SAMPLES = 24 * 60 * sum(map(str.isalpha, REPLY))  # the tone engine takes 60 ms per character
KEY = "any key"
ServiceFactory = Callable[[str], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def openai_service(address: str) -> AsyncIterator[Any]:
    service = pipecat_openai.OpenAITTSService
    async with openai.DefaultAsyncHttpxClient() as http:  # the service does not close a client that it creates
        settings = service.Settings(voice="nova")
        yield service(api_key=KEY, base_url=f"http://{address}/v1", http_client=http, settings=settings)


@asynccontextmanager
async def cartesia_socket(address: str) -> AsyncIterator[Any]:
    service = pipecat_cartesia.CartesiaTTSService
    yield service(api_key=KEY, url=f"ws://{address}/tts/websocket", settings=service.Settings(voice="tone"))


@asynccontextmanager
async def cartesia_http(address: str) -> AsyncIterator[Any]:
    service = pipecat_cartesia.CartesiaHttpTTSService
    yield service(api_key=KEY, base_url=f"http://{address}", settings=service.Settings(voice="tone"))


@asynccontextmanager
async def elevenlabs_socket(address: str) -> AsyncIterator[Any]:
    service = pipecat_elevenlabs.ElevenLabsTTSService
    yield service(api_key=KEY, url=f"ws://{address}", settings=service.Settings(voice="tone"))


@asynccontextmanager
async def elevenlabs_http(address: str) -> AsyncIterator[Any]:
    service = pipecat_elevenlabs.ElevenLabsHttpTTSService
    async with aiohttp.ClientSession() as http:
        settings = service.Settings(voice="tone")
        yield service(api_key=KEY, base_url=f"http://{address}", aiohttp_session=http, settings=settings)


@asynccontextmanager
async def deepgram_socket(address: str) -> AsyncIterator[Any]:
    yield pipecat_deepgram.DeepgramTTSService(api_key=KEY, base_url=f"ws://{address}")


@asynccontextmanager
async def deepgram_http(address: str) -> AsyncIterator[Any]:
    service = pipecat_deepgram.DeepgramHttpTTSService
    async with aiohttp.ClientSession() as http:
        yield service(api_key=KEY, base_url=f"http://{address}", aiohttp_session=http)


@asynccontextmanager
async def deepgram_flux(address: str) -> AsyncIterator[Any]:
    yield pipecat_flux.DeepgramFluxTTSService(api_key=KEY, url=f"ws://{address}/v2/speak")


SERVICES: tuple[ServiceFactory, ...] = (
    openai_service,
    cartesia_socket,
    cartesia_http,
    elevenlabs_socket,
    elevenlabs_http,
    deepgram_socket,
    deepgram_http,
    deepgram_flux,
)
WITH_WORD_TIMESTAMPS = (cartesia_socket, elevenlabs_socket, elevenlabs_http)


@pytest.mark.parametrize("open_service", SERVICES, ids=lambda open_service: open_service.__name__)
async def test_service_plays_every_turn(open_service: ServiceFactory) -> None:
    async with serving() as address, open_service(address) as service, run_pipeline(service) as bot:
        for turn in range(1, 5):  # pipecat drops a service after three silent turns
            await bot.write(*(REPLY[i : i + 3] for i in range(0, len(REPLY), 3)))
            await bot.wait_stopped(turn)
            assert len(bot.down.pcm) // 2 >= SAMPLES * turn
        assert bot.up.of(ErrorFrame) == []
        assert bot.down.of(ErrorFrame) == []
        await until_live_sessions(address, 0)


@pytest.mark.parametrize("open_service", SERVICES, ids=lambda open_service: open_service.__name__)
async def test_service_outlives_turns_with_nothing_to_say(open_service: ServiceFactory) -> None:
    """pipecat mutes a service for the rest of the call after three turns without audio."""
    async with serving() as address, open_service(address) as service, run_pipeline(service) as bot:
        for text in ("...", "—", "🎉", "..."):
            before = len(bot.down.pcm)
            await bot.write(text)
            await bot.wait_samples(before // 2 + 1)
        before = len(bot.down.pcm)
        await bot.write(REPLY)
        await bot.wait_samples(before // 2 + SAMPLES)
        assert bot.up.of(ErrorFrame) == []


@pytest.mark.parametrize("open_service", WITH_WORD_TIMESTAMPS, ids=lambda open_service: open_service.__name__)
async def test_service_emits_word_timestamps(open_service: ServiceFactory) -> None:
    async with serving() as address, open_service(address) as service, run_pipeline(service) as bot:
        await bot.write(REPLY)
        await bot.wait_stopped()
        words = bot.down.of(TTSTextFrame)
        assert [word.text for word in words] == REPLY.split()
        times_ns = [word.pts for word in words]
        assert times_ns == sorted(times_ns)
        word_how = next(word for word in words if word.text == "How")
        assert word_how.pts - times_ns[0] >= 18 * 60_000_000


@pytest.mark.parametrize("open_service", SERVICES, ids=lambda open_service: open_service.__name__)
async def test_interruption_frees_the_session(open_service: ServiceFactory) -> None:
    story = "This is a long story that goes on and on. " * 20
    async with serving() as address, open_service(address) as service, run_pipeline(service) as bot:
        await bot.write(story, end=False)
        await bot.wait_samples(10_000)
        await bot.worker.queue_frame(InterruptionFrame())
        await bot.down.until(lambda: bot.down.of(InterruptionFrame))
        await until_live_sessions(address, 0)
        before = len(bot.down.pcm) // 2
        await bot.write(REPLY)
        await bot.wait_samples(before + SAMPLES)
        assert bot.up.of(ErrorFrame) == []
