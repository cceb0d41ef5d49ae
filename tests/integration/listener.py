"""A WebRTC client without a browser: aiortc on the other end, with an ear and a hand on the network."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError


class Listener:
    """``log``: what the data channel said. ``sound``: what the track played, mono at 48 kHz, and when each frame came.

    ``stamps``: the time stamps of the frames. ``on_message``, ``on_frame``: who is told as they come.
    """

    def __init__(self) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel("tts")
        self.log: list[dict[str, Any]] = []
        self.frames: list[np.ndarray[Any, Any]] = []
        self.stamps: list[int] = []
        self.heard_at_s: list[float] = []
        self.on_message: Callable[[str], None] = lambda raw: None
        self.on_frame: Callable[[np.ndarray[Any, Any]], None] = lambda frame: None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.connection.addTransceiver("audio", direction="recvonly")
        self.connection.on("track", self._on_track)
        self.channel.on("message", self._on_message)

    def _on_message(self, raw: str) -> None:
        self.log.append(json.loads(raw))
        self.on_message(raw)
        self._changed.set()

    def _on_track(self, track: Any) -> None:
        self._tasks.append(asyncio.create_task(self._listen(track)))

    async def _listen(self, track: Any) -> None:
        try:
            while True:
                frame = await track.recv()
                self.frames.append(frame.to_ndarray().reshape(-1, 2)[:, 0])
                self.stamps.append(frame.pts)
                self.heard_at_s.append(asyncio.get_running_loop().time())
                self.on_frame(self.frames[-1])
                self._changed.set()
        except MediaStreamError:
            return

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def accept(self, sdp: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp, "answer"))

    def send(self, **message: Any) -> None:
        self.channel.send(json.dumps(message))

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def told(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The ``count``-th message of that type."""
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.log if message["type"] == kind]

    @property
    def sound(self) -> np.ndarray[Any, Any]:
        return np.concatenate(self.frames) if self.frames else np.zeros(0, np.int16)

    @property
    def loud(self) -> list[bool]:
        """Whether each frame has sound."""
        return [bool(np.abs(frame).max() > 200) for frame in self.frames]

    async def close(self) -> None:
        await self.connection.close()
        for task in self._tasks:
            task.cancel()


async def offered(address: str, sdp: str, **session: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        return await http.post("/webrtc/offer", json={"sdp": sdp, "type": "offer", "session": session})


@asynccontextmanager
async def listening(address: str, **session: Any) -> AsyncIterator[Listener]:
    """A connected listener whose session is ready."""
    listener = Listener()
    try:
        answer = await offered(address, await listener.offer(), **session)
        assert answer.status_code == 200, answer.text
        await listener.accept(answer.json()["sdp"])
        await listener.told("ready")
        yield listener
    finally:
        await listener.close()


def bad_network(listener: Listener, *, loss: float, jitter_ms: float, seed: int) -> None:
    """From now on packets to this listener's ears are lost, late and out of order."""
    chance = random.Random(seed)
    loop = asyncio.get_running_loop()
    transport = listener.connection.getReceivers()[0].transport
    arrive = transport._handle_rtp_data

    async def handle(data: bytes, arrival_time_ms: int) -> None:
        if chance.random() >= loss:
            delay_s = chance.random() * jitter_ms / 1000
            loop.call_later(delay_s, lambda: asyncio.ensure_future(arrive(data, arrival_time_ms=arrival_time_ms)))

    transport._handle_rtp_data = handle
