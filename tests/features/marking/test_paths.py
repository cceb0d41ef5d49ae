"""The watermark on every path out of a worker: each transport, each vendor's API, each format.

gRPC, ``say`` and the worker's Python interface are in ``test_stream``. There is no path with AIFF or CAF.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import cache
from importlib.util import find_spec

import httpx
import numpy as np
from websockets.asyncio.client import connect

from tests.conftest import serving
from tests.fakes.media_stream import TelnyxMessages, TwilioMessages, calling
from tests.features.compat.vendors import DOWNLOADS, SOCKETS, Download, Socket
from tests.features.marking.conftest import DEPLOYMENT_ID
from tests.integration.test_websocket import dial
from tests.quality.sentences import SENTENCES
from tts_worker.audio.decode import read_recording
from tts_worker.audio.encoders import WavData, wav_header
from tts_worker.features.marking.detector import THRESHOLD, detect

MARKING = {"marker": "watermark", "deployment_id": DEPLOYMENT_ID}
VOICE = {"engines": {"hibari": {"kind": "hibari"}}, "models": {}}
TEXT = SENTENCES[-7]
"""About 6 s: a long turn of a conversation."""

Clip = tuple[bytes, str, int]
"""Data; ``file``, or the encoding of bare samples; their rate in Hz."""
Path = Callable[[str], Awaitable[Clip]]
"""Has the worker at an address speak ``TEXT``."""


@cache
def score(clip: Clip) -> float:
    """Return the score of the watermark."""
    data, kind, rate_hz = clip
    if kind in ("s16", "f32"):
        samples = np.frombuffer(data, {"s16": "<i2", "f32": "<f4"}[kind])
    else:
        data = data if kind == "file" else wav_header(rate_hz, len(data), WavData[kind.upper()]) + data
        samples, rate_hz = (recording := read_recording(data)).samples, recording.rate_hz
    return detect(samples, rate_hz).score


async def test_every_path_is_marked() -> None:
    slots = asyncio.Semaphore(8)  # more at once only wait for each other

    async def take(path: Path, address: str) -> Clip:
        async with slots:
            return await path(address)

    async with serving(marking=MARKING, **VOICE) as address:
        clips = await asyncio.gather(*(take(path, address) for path in PATHS.values()))
    scores = {name: score(clip) for name, clip in zip(PATHS, clips, strict=True)}
    missed = {name: found for name, found in scores.items() if found < THRESHOLD}
    assert not missed


# -- paths -------------------------------------------------------------------------------------------------------------


async def fetch(address: str, path: str, body: dict[str, object]) -> bytes:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.content


def download(audio_format: str, *, stream: bool = True) -> Path:
    async def run(address: str) -> Clip:
        body = {"input": TEXT, "response_format": audio_format, "stream": stream}
        data = await fetch(address, "/v1/audio/speech", body)
        return {"pcm": (data, "s16", 24_000), "mulaw": (data, "mulaw", 8_000), "alaw": (data, "alaw", 8_000)}.get(
            audio_format, (data, "file", 0)
        )

    return run


def cartesia(kind: str, **output: object) -> Path:
    async def run(address: str) -> Clip:
        body = {"transcript": TEXT, "voice": {"mode": "id", "id": "heart"}, "output_format": output}
        return await fetch(address, "/tts/bytes", body), kind, int(str(output["sample_rate"]))

    return run


def elevenlabs(name: str, kind: str, rate_hz: int) -> Path:
    async def run(address: str) -> Clip:
        return await fetch(address, f"/v1/text-to-speech/heart?output_format={name}", {"text": TEXT}), kind, rate_hz

    return run


def deepgram(query: str, kind: str = "file", rate_hz: int = 0) -> Path:
    async def run(address: str) -> Clip:
        return await fetch(address, f"/v1/speak?model=heart&{query}", {"text": TEXT}), kind, rate_hz

    return run


def vendor_api(vendor: Download | Socket) -> Path:
    async def run(address: str) -> Clip:
        data = b""
        async with aclosing(vendor.speak(address, TEXT, voice="heart")) as parts:  # type: ignore[type-var]
            async for part in parts:
                data += part
        return data, "s16", 24_000

    return run


def stream(encoding: str, kind: str, rate_hz: int, *, realtime: bool = False) -> Path:
    """The native WebSocket."""

    async def run(address: str) -> Clip:
        parts: list[bytes] = []
        async with connect(f"ws://{address}/v1/stream") as socket:
            start = {"type": "start", "encoding": encoding, "sample_rate": rate_hz, "realtime": realtime}
            await socket.send(json.dumps(start))
            await socket.send(json.dumps({"type": "text", "text": TEXT, "end": True}))
            async for message in socket:
                if isinstance(message, bytes):
                    parts.append(message)
                elif json.loads(message)["type"] in ("done", "error"):
                    break
        return (b"".join(parts), kind, rate_hz) if kind != "opus" else (_decode(parts, rate_hz), "f32", 48_000)

    return run


def _decode(packets: list[bytes], rate_hz: int) -> bytes:
    import av

    decoder = av.CodecContext.create("opus", "r")
    decoder.sample_rate = rate_hz
    frames = [frame for packet in packets for frame in decoder.decode(av.Packet(packet))]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype("<f4").tobytes()


def call(messages: TwilioMessages) -> Path:
    async def run(address: str) -> Clip:
        async with calling(address, messages) as phone, dial(address, f"/v1/calls/{messages.call}") as agent:
            await agent.until("ready")
            await agent.send(type="text", text=TEXT, end=True)
            await agent.until("done")
            return phone.received, "mulaw", 8_000

    return run


async def webrtc(address: str) -> Clip:
    from tests.features.webrtc.webrtc_client import connected_client

    async with connected_client(address) as client:
        client.send(type="text", text=TEXT, end=True)
        await client.until_message("done")
        return client.audio.astype("<f4").tobytes(), "f32", 48_000


def batch(audio_format: str) -> Path:
    async def run(address: str) -> Clip:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
            body = {"items": [{"input": TEXT}], "response_format": audio_format}
            accepted = await client.post("/v1/batch", json=body)
            answer = await client.get(f"{accepted.headers['location']}/results")
        return base64.b64decode(json.loads(answer.text)["audio"]), "file", 0

    return run


VENDORS: tuple[Download | Socket, ...] = (*DOWNLOADS, *SOCKETS)
PATHS: dict[str, Path] = {
    **{f"download, {each}": download(each) for each in ("wav", "mp3", "opus", "flac", "pcm", "mulaw", "alaw")},
    "whole download, wav": download("wav", stream=False),
    **{f"batch, {each}": batch(each) for each in ("wav", "mp3")},
    **{vendor.name: vendor_api(vendor) for vendor in VENDORS if vendor.name != "jambonz-socket"},
    "cartesia, mp3": cartesia("file", container="mp3", sample_rate=44_100, bit_rate=128_000),
    "cartesia, float": cartesia("f32", container="raw", encoding="pcm_f32le", sample_rate=16_000),
    "cartesia, mulaw in wav": cartesia("file", container="wav", encoding="pcm_mulaw", sample_rate=8_000),
    "elevenlabs, mp3": elevenlabs("mp3_22050_32", "file", 0),
    "elevenlabs, opus": elevenlabs("opus_48000_32", "file", 0),
    "elevenlabs, ulaw": elevenlabs("ulaw_8000", "mulaw", 8_000),
    "deepgram, mp3": deepgram(""),
    "deepgram, opus": deepgram("encoding=opus"),
    "deepgram, flac": deepgram("encoding=flac"),
    "deepgram, alaw": deepgram("encoding=alaw&container=none", "alaw", 8_000),
    "stream, 8 kHz": stream("pcm_s16le", "s16", 8_000),
    "stream, paced": stream("pcm_s16le", "s16", 24_000, realtime=True),
    "stream, mulaw": stream("mulaw", "mulaw", 8_000),
    "stream, alaw": stream("alaw", "alaw", 8_000),
    "stream, wav": stream("wav", "file", 24_000),
    "twilio": call(TwilioMessages("CA1")),
    "telnyx": call(TelnyxMessages("CC1")),
}
"""``jambonz-socket`` does not tell when it ends; it is the WebSocket of the route ``jambonz``."""

if find_spec("av"):  # the extras media and webrtc
    PATHS |= {
        "download, aac": download("aac"),
        "deepgram, aac": deepgram("encoding=aac"),
        "stream, opus": stream("opus", "opus", 24_000),
        "stream, opus at 8 kHz": stream("opus", "opus", 8_000),
    }
if find_spec("aiortc"):
    PATHS["webrtc"] = webrtc
