"""The WebSocket control benchmark with messages that arrive late and all at once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from websockets.asyncio.client import ClientConnection

from tools.bench.control import ControlTimes
from tools.bench.control_websocket import WebSocketClient
from tts_worker.types import ControlName

AUDIO = bytes(960)


class FakeSocket:
    """Yields the given messages and ignores what is sent."""

    def __init__(self, messages: Sequence[bytes | dict[str, Any]]) -> None:
        self._messages = messages

    async def send(self, message: str) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        for message in self._messages:
            yield message if isinstance(message, bytes) else json.dumps(message)


async def run_client(commands: Sequence[ControlName], *messages: bytes | dict[str, Any]) -> ControlTimes:
    """Send every command before the first message is read, as after a stall of this process."""
    times = ControlTimes()
    client = WebSocketClient(cast(ClientConnection, FakeSocket(messages)), random.Random(1), times)
    for command in commands:
        client.command(command, 0.0)
    await client.listen()
    await asyncio.sleep(0)  # lets its sends complete
    return times


def event(kind: str, *, applied: bool = True) -> dict[str, Any]:
    return {"type": kind, "applied": applied}


async def test_late_pause_acknowledgement_counts_no_resumed_audio() -> None:
    both = (ControlName.PAUSE, ControlName.RESUME)
    times = await run_client(both, event("started"), AUDIO, event("paused"), event("resumed"), AUDIO, AUDIO)
    assert times.frames_in_pause == 0
    assert len(times.resume_s) == 1


async def test_audio_during_a_pause_is_counted() -> None:
    both = (ControlName.PAUSE, ControlName.RESUME)
    times = await run_client(both, event("started"), AUDIO, event("paused"), AUDIO, event("resumed"), AUDIO)
    assert times.frames_in_pause == 1
    assert len(times.resume_s) == 1


async def test_resume_without_effect_is_not_timed() -> None:
    times = await run_client((ControlName.RESUME,), event("started"), event("resumed", applied=False), AUDIO)
    assert not times.resume_s
    assert not times.resume_to_first_audio_s


async def test_commands_sent_before_any_acknowledgement_are_timed() -> None:
    commands = (ControlName.PAUSE, ControlName.RESUME, ControlName.STOP, ControlName.PAUSE, ControlName.STOP)
    answers = [event("paused"), event("resumed"), event("stopped"), event("paused", applied=False)]
    times = await run_client(commands, event("started"), AUDIO, *answers, event("stopped", applied=False))
    assert (len(times.pause_s), len(times.stop_s)) == (2, 1)
    assert times.frames_after_stop == 0
