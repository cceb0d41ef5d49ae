"""What the listener of the control benchmark makes of answers that come late, all at once."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from websockets.asyncio.client import ClientConnection

from tts_worker.benchmarks.control import ControlTimes
from tts_worker.benchmarks.control_websocket import _Listener
from tts_worker.types import ControlName

SOUND = bytes(960)


class _Socket:
    """Says what it was given, and takes whatever is sent."""

    def __init__(self, messages: Sequence[bytes | dict[str, Any]]) -> None:
        self._messages = messages

    async def send(self, message: str) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        for message in self._messages:
            yield message if isinstance(message, bytes) else json.dumps(message)


async def heard(commands: Sequence[ControlName], *messages: bytes | dict[str, Any]) -> ControlTimes:
    """Every command has left before the first message is read, as when this process stood still."""
    times = ControlTimes()
    listener = _Listener(cast(ClientConnection, _Socket(messages)), random.Random(1), times)
    for command in commands:
        listener.command(command, 0.0)
    await listener.listen()
    await asyncio.sleep(0)  # what it sent has left
    return times


def told(kind: str, *, applied: bool = True) -> dict[str, Any]:
    return {"type": kind, "applied": applied}


async def test_sound_after_a_resume_is_not_sound_in_a_pause_however_late_the_pause_was_acknowledged() -> None:
    both = (ControlName.PAUSE, ControlName.RESUME)
    times = await heard(both, told("started"), SOUND, told("paused"), told("resumed"), SOUND, SOUND)
    assert times.frames_in_pause == 0
    assert len(times.resume_s) == 1


async def test_sound_between_a_pause_and_its_end_is_counted() -> None:
    both = (ControlName.PAUSE, ControlName.RESUME)
    times = await heard(both, told("started"), SOUND, told("paused"), SOUND, told("resumed"), SOUND)
    assert times.frames_in_pause == 1
    assert len(times.resume_s) == 1


async def test_a_resume_that_resumed_nothing_is_not_timed() -> None:
    times = await heard((ControlName.RESUME,), told("started"), told("resumed", applied=False), SOUND)
    assert not times.resume_s
    assert not times.resume_to_first_audio_s


async def test_commands_that_were_all_given_before_the_first_answer_are_each_timed() -> None:
    commands = (ControlName.PAUSE, ControlName.RESUME, ControlName.STOP, ControlName.PAUSE, ControlName.STOP)
    answers = [told("paused"), told("resumed"), told("stopped"), told("paused", applied=False)]
    times = await heard(commands, told("started"), SOUND, *answers, told("stopped", applied=False))
    assert (len(times.pause_s), len(times.stop_s)) == (2, 1)
    assert times.frames_after_stop == 0
