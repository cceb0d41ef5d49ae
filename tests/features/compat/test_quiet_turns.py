"""Turns of a language model with nothing to say: silence for the clients of vendors, which give up after errors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.conftest import serving
from tests.integration.test_websocket import until_live_sessions

QUIET = ["...", "🎉", "—", "…\n", "*"]
PCM_BYTES = 2 * 2_400  # 100 ms at 24 kHz

Speak = Callable[[str, str], Awaitable[bytes]]


async def openai(address: str, text: str) -> bytes:
    return await post(address, "/v1/audio/speech", {"input": text, "voice": "tone", "response_format": "pcm"})


async def cartesia_bytes(address: str, text: str) -> bytes:
    return await post(address, "/tts/bytes", cartesia_request(text))


async def cartesia_events(address: str, text: str) -> bytes:
    body = await post(address, "/tts/sse", cartesia_request(text))
    messages = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    assert messages[-1]["type"] == "done"
    return b"".join(base64.b64decode(message["data"]) for message in messages[:-1])


async def cartesia_socket(address: str, text: str) -> bytes:
    async with connect(f"ws://{address}/tts/websocket") as socket:
        await socket.send(json.dumps({**cartesia_request(text), "context_id": "turn"}))
        audio = b""
        while (message := json.loads(await socket.recv()))["type"] != "done":
            assert message["type"] == "chunk", message
            audio += base64.b64decode(message["data"])
        return audio


async def elevenlabs(address: str, text: str) -> bytes:
    return await post(address, "/v1/text-to-speech/tone?output_format=pcm_24000", {"text": text})


async def elevenlabs_times(address: str, text: str) -> bytes:
    path = "/v1/text-to-speech/tone/with-timestamps?output_format=pcm_24000"
    return base64.b64decode(json.loads(await post(address, path, {"text": text}))["audio_base64"])


async def elevenlabs_socket(address: str, text: str) -> bytes:
    path = "/v1/text-to-speech/tone/multi-stream-input?output_format=pcm_24000"
    async with connect(f"ws://{address}{path}") as socket:
        for message in ({"text": text, "context_id": "turn"}, {"context_id": "turn", "close_context": True}):
            await socket.send(json.dumps(message))
        audio = b""
        while not (answer := json.loads(await socket.recv())).get("isFinal"):
            assert "audio" in answer, answer
            audio += base64.b64decode(answer["audio"])
        return audio


def cartesia_request(text: str) -> dict[str, Any]:
    output_format = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
    voice = {"mode": "id", "id": "tone"}
    return {"model_id": "sonic-3", "transcript": text, "voice": voice, "output_format": output_format}


async def post(address: str, path: str, body: dict[str, Any]) -> bytes:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        answer = await http.post(path, json=body)
    answer.raise_for_status()
    return answer.content


@pytest.mark.parametrize(
    "speak",
    [openai, cartesia_bytes, cartesia_events, cartesia_socket, elevenlabs, elevenlabs_times, elevenlabs_socket],
    ids=lambda speak: speak.__name__,
)
async def test_quiet_turn_is_silence(speak: Speak) -> None:
    async with serving() as address:
        assert await asyncio.gather(*(speak(address, text) for text in QUIET)) == [bytes(PCM_BYTES)] * len(QUIET)
        assert len(await speak(address, "Hello.")) > PCM_BYTES
        await until_live_sessions(address, 0)


@pytest.mark.parametrize("text", ["", " \n"])
async def test_blank_text_is_an_error(text: str) -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        answer = await http.post("/v1/audio/speech", json={"input": text, "voice": "tone"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unspeakable_text")


async def test_text_in_a_script_of_no_voice_is_an_error() -> None:
    """The voice cannot say it: silence would hide that."""
    async with (
        serving(engines={"cpu": {"kind": "hibari"}}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http,
    ):
        answer = await http.post("/v1/audio/speech", json={"input": "你好", "voice": "heart"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unspeakable_text")
