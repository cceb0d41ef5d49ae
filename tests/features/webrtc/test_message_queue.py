"""Messages of a data channel: one in each turn of the event loop, in order."""

from __future__ import annotations

import asyncio
import json

from tts_worker.features.webrtc.message_queue import MessageQueue


class Receiver:
    """Notes what is handled; a voice is found when ``found`` is set."""

    def __init__(self) -> None:
        self.handled: list[str | bytes] = []
        self.found = asyncio.Event()
        self.is_full = False
        self.queue = MessageQueue(self.handled.append, self.look_up, self.on_full)

    async def look_up(self, voice: str) -> None:
        await self.found.wait()

    def on_full(self) -> None:
        self.is_full = True


async def test_a_turn_of_the_event_loop_handles_one_message() -> None:
    receiver = Receiver()
    for number in "123":
        receiver.queue.put(number)
    assert receiver.handled == ["1"]
    await asyncio.sleep(0)
    assert receiver.handled == ["1", "2"]
    await asyncio.sleep(0)
    assert receiver.handled == ["1", "2", "3"]


async def test_messages_wait_for_the_voice_of_the_first() -> None:
    receiver = Receiver()
    start = json.dumps({"type": "start", "voice": "tone"})
    receiver.queue.put(start)
    receiver.queue.put("2")
    for _ in range(3):
        await asyncio.sleep(0)
    assert receiver.handled == []
    receiver.found.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert receiver.handled == [start, "2"]


async def test_messages_of_a_closed_queue_are_dropped() -> None:
    receiver = Receiver()
    for number in "123":
        receiver.queue.put(number)
    receiver.queue.close()
    receiver.queue.put("4")
    for _ in range(3):
        await asyncio.sleep(0)
    assert receiver.handled == ["1"]


async def test_voice_that_is_found_after_the_end_starts_nothing() -> None:
    receiver = Receiver()
    receiver.queue.put(json.dumps({"type": "start", "voice": "tone"}))
    await asyncio.sleep(0)
    receiver.queue.close()
    receiver.found.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert receiver.handled == []


async def test_flood_of_messages_is_told() -> None:
    receiver = Receiver()
    for number in range(1_025):
        receiver.queue.put(str(number))
    assert receiver.is_full
