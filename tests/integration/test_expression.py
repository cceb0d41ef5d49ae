"""An utterance changes its rate and level while it is spoken, over real sockets, with the CPU voice."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from tests.behavior.recording_client import RecordingClient
from tests.conftest import serving
from tests.integration.grpc_worker import running_grpc_worker
from tests.integration.test_websocket import dial
from tts_worker.client import connect
from tts_worker.engine.cpu.hibari.moods import MOODS
from tts_worker.errors import InvalidRequest
from tts_worker.types import ControlName, Ended, Expression, PcmFrame, SessionOptions

HEART: dict[str, Any] = {"engines": {"hibari": {"kind": "hibari"}}}
FIRST = "The river runs along the valley."
TEXT = f"{FIRST} And then it comes down to the sea."

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def address() -> AsyncIterator[str]:
    async with serving(**HEART) as served:
        yield served


async def test_ready_names_what_the_voice_does_not_perform(address: str) -> None:
    async with dial(address, "/v1/stream") as client:
        assert (await client.until("ready"))["unsupported_expressions"] == ["sound"]
    async with serving() as tone, dial(tone, "/v1/stream") as client:
        unsupported = (await client.until("ready"))["unsupported_expressions"]
        assert unsupported == ["rate", "volume", "pitch", "style", "sound"]


async def test_voices_name_their_moods(address: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        (heart,) = (each for each in (await client.get("/v1/voices")).json()["voices"] if each["id"] == "heart")
    assert {"happy", "sad", "angry", "calm", "excited", "serious"} == set(heart["moods"])


async def spoken(url: str, expression: Expression | None = None) -> tuple[Ended, bytes]:
    """Speak ``TEXT``; after the first sentence, if given, with ``expression``."""
    async with connect(url) as client:
        opened = await client.open(SessionOptions(realtime=False))
        session, pcm = opened.session, b""
        session.speak(FIRST + " ")
        session.flush()
        while len(pcm) < 24_000:
            item = await session.next()
            pcm += item.pcm if isinstance(item, PcmFrame) else b""
        if expression is not None:
            session.express(expression)
        session.speak(TEXT[len(FIRST) + 1 :])
        session.end_text()
        while not isinstance(item, Ended):
            item = await session.next()
            pcm += item.pcm if isinstance(item, PcmFrame) else b""
        return item, pcm


def level_db(pcm: bytes) -> float:
    return float(10 * np.log10(np.mean(np.frombuffer(pcm, "<i2").astype(np.float64) ** 2)))


@pytest.mark.parametrize("transport", ["ws", "grpc"])
async def test_session_changes_while_it_speaks(address: str, transport: str) -> None:
    async with running_grpc_worker(**HEART) as worker:
        url = f"grpc://{worker.member.address}" if transport == "grpc" else f"ws://{address}"
        plain, plain_pcm = await spoken(url)
        changed, pcm = await spoken(url, Expression(rate=0.7, volume_db=-10))
    assert changed.receipt.text_spoken == plain.receipt.text_spoken == TEXT
    start, plain_start = (
        next(word.start_sample for word in ended.receipt.words if word.start_char > len(FIRST))
        for ended in (changed, plain)
    )
    assert start >= 12_000
    length, plain_length = len(pcm) // 2 - start, len(plain_pcm) // 2 - plain_start
    assert length == pytest.approx(plain_length / 0.7, rel=0.1)
    assert level_db(pcm[2 * start :]) - level_db(plain_pcm[2 * plain_start :]) == pytest.approx(-10, abs=1)


async def test_pause_beside_a_change_loses_no_sample(address: str) -> None:
    """The client checks that the first sample after RESUME follows the last one before PAUSE."""
    _, plain = await spoken(f"ws://{address}")

    async def paused(first: str) -> tuple[bytes, Ended]:
        async with connect(f"ws://{address}") as client:
            recorder = RecordingClient((await client.open(SessionOptions())).session)
            key = recorder.session.speak(FIRST + " ")
            recorder.session.flush()
            await recorder.receive_samples(9_600, key)
            expression = Expression(rate=0.8, volume_db=-10, style="sad")
            if first == "express":
                recorder.session.express(expression)
            recorder.session.pause()
            if first == "pause":
                recorder.session.express(expression)
            received = len(recorder.pcm[key])
            assert (await recorder.wait_acknowledged(ControlName.PAUSE)).applied
            assert len(recorder.pcm[key]) == received
            recorder.session.resume()
            recorder.session.speak(TEXT[len(FIRST) + 1 :])
            recorder.session.end_text()
            ended = await recorder.wait_ended(key)
            assert recorder.pcm[key][:received] == plain[:received]
            return recorder.pcm[key], ended

    for pcm, ended in await asyncio.gather(*map(paused, ("express", "pause"))):
        assert ended.receipt.text_spoken == TEXT
        assert len(pcm) > 1.1 * len(plain)
        end = ended.receipt.words[-1].end_sample
        assert level_db(pcm[2 * (end - 24_000) : 2 * end]) < level_db(plain) - 6


async def test_value_out_of_range_is_named(address: str) -> None:
    async with dial(address, "/v1/stream") as client:
        await client.send(type="express", rate=9)
        rejected = await client.until("rejected")
        assert (rejected["command"], rejected["message"]) == ("express", "rate must be a number of at most 4")
    async with connect(f"ws://{address}") as connection:
        session = (await connection.open(SessionOptions())).session
        with pytest.raises(InvalidRequest, match="pitch_semitones must be"):
            session.express(Expression(pitch_semitones=40))


def cartesia_body(**more: Any) -> dict[str, Any]:
    return {
        "model_id": "sonic-3",
        "transcript": TEXT,
        "voice": {"mode": "id", "id": "heart"},
        "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
        **more,
    }


async def test_cartesia_clients_set_volume_and_tags(address: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        quiet = await client.post("/tts/bytes", json=cartesia_body(generation_config={"volume": 0.5, "emotion": "sad"}))
        plain = await client.post("/tts/bytes", json=cartesia_body())
        slow = await client.post("/tts/bytes", json=cartesia_body(transcript=f'<speed ratio="0.8"/>{TEXT}'))
    quieter_db = -6 + MOODS["sad"].volume_db
    assert level_db(quiet.content) - level_db(plain.content) == pytest.approx(quieter_db, abs=1)
    assert len(slow.content) == pytest.approx(len(plain.content) / 0.8, rel=0.08)
    async with dial(address, "/tts/websocket") as client:
        await client.send(**cartesia_body(context_id="c", generation_config={"volume": 0.5}))
        pcm = b""
        while (message := await client.until("chunk", "done"))["type"] == "chunk":
            pcm += base64.b64decode(message["data"])
    assert level_db(pcm) - level_db(plain.content) == pytest.approx(-6, abs=0.7)
