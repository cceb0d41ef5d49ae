"""A WebRTC client based on aiortc that records audio and events and can impair its network."""

from __future__ import annotations

import asyncio
import heapq
import itertools
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


class AiortcClient:
    """A WebRTC peer with a data channel and a received audio track.

    Attributes:
        log: Messages of the data channel.
        frames: Decoded frames of the track, mono at 48 kHz.
        timestamps: Timestamps of the frames.
        arrived_packets: RTP packets received so far. Without packet loss each becomes a frame, in order, so
            ``frames[arrived_packets:]`` are the frames of later packets.
        on_message: Called with each raw message.
        on_frame: Called with each frame.
    """

    def __init__(self) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel("tts")
        self.log: list[dict[str, Any]] = []
        self.frames: list[np.ndarray[Any, Any]] = []
        self.timestamps: list[int] = []
        self.arrived_packets = 0
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
        (receiver,) = self.connection.getReceivers()
        handle_packet = receiver._handle_rtp_packet

        async def count_packet(packet: Any, arrival_time_ms: int) -> None:
            self.arrived_packets += 1
            await handle_packet(packet, arrival_time_ms=arrival_time_ms)

        receiver._handle_rtp_packet = count_packet
        self._tasks.append(asyncio.create_task(self._receive(track)))

    async def _receive(self, track: Any) -> None:
        try:
            while True:
                frame = await track.recv()
                self.frames.append(frame.to_ndarray().reshape(-1, 2)[:, 0])
                self.timestamps.append(frame.pts)
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
        with anyio.fail_after(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_message(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for the ``count``-th message of a type."""
        await self.until(lambda: len(self.messages(kind)) >= count)
        return self.messages(kind)[count - 1]

    def messages(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.log if message["type"] == kind]

    @property
    def audio(self) -> np.ndarray[Any, Any]:
        return np.concatenate(self.frames) if self.frames else np.zeros(0, np.int16)

    @property
    def audible(self) -> list[bool]:
        """Whether each frame is audible."""
        return [bool(np.abs(frame).max() > 200) for frame in self.frames]

    async def close(self) -> None:
        try:
            await self.connection.close()
        finally:
            for task in self._tasks:
                task.cancel()


async def post_offer(address: str, sdp: str, **session: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        return await http.post("/webrtc/offer", json={"sdp": sdp, "type": "offer", "session": session})


@asynccontextmanager
async def unconnected_client() -> AsyncIterator[AiortcClient]:
    """A client without a connection; closed at the end."""
    client = AiortcClient()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def connected_client(address: str, **session: Any) -> AsyncIterator[AiortcClient]:
    """A connected client with a ready session."""
    async with unconnected_client() as client:
        answer = await post_offer(address, await client.offer(), **session)
        assert answer.status_code == 200, answer.text
        await client.accept(answer.json()["sdp"])
        await client.until_message("ready")
        yield client


def impair_network(client: AiortcClient, *, loss: float, late_packets: int, seed: int) -> None:
    """Drop, delay and reorder the packets to this client.

    Delays are counted in packets (one is sent every 20 ms) instead of time, so machine load does not change the result.
    """
    rng = random.Random(seed)
    transport = client.connection.getReceivers()[0].transport
    deliver = transport._handle_rtp_data
    numbers = itertools.count()
    in_flight: list[tuple[int, int, bytes]] = []  # number of the packet with which it arrives, own number, data

    async def handle(data: bytes, arrival_time_ms: int) -> None:
        number = next(numbers)
        if rng.random() >= loss:
            heapq.heappush(in_flight, (number + rng.randint(0, late_packets), number, data))
        while in_flight and in_flight[0][0] <= number:
            await deliver(heapq.heappop(in_flight)[2], arrival_time_ms=arrival_time_ms)

    transport._handle_rtp_data = handle
