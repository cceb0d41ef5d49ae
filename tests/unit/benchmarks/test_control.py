"""What the listener of the control benchmark, in the worker, makes of answers that it comes to read late."""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.conftest import until
from tts_worker.app import Worker
from tts_worker.benchmarks.control import SCRIPT, ControlTimes, _SpeakingSession
from tts_worker.types import ControlName, PcmFrame


class _Counting(_SpeakingSession):
    heard = 0  # frames

    def _on_frame(self, frame: PcmFrame, now_s: float) -> None:
        super()._on_frame(frame, now_s)
        self.heard += 1


async def listened(worker: Worker, commands: tuple[ControlName, ...], pauses: int) -> ControlTimes:
    """All ``commands`` are given before the first answer is read, as when the machine stood still."""
    times = ControlTimes()
    session = worker.hub.open()
    speaker = _Counting(session, random.Random(1), times)
    for command in commands:
        speaker.command(command, 0.0)
    listening = asyncio.create_task(speaker.listen())
    await until(lambda: listening.done() or (len(times.pause_s) == pauses and speaker.heard > 0))
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening
    session.close()
    return times


async def test_commands_that_were_all_given_before_the_first_answer_are_each_timed(worker: Worker) -> None:
    times = await listened(worker, (*SCRIPT, *SCRIPT), pauses=2)
    assert (len(times.pause_s), len(times.stop_s)) == (2, 1)  # the second round found nothing to stop
    assert (times.frames_after_stop, times.frames_in_pause) == (0, 0)


async def test_a_resume_that_resumed_nothing_is_not_timed(worker: Worker) -> None:
    times = await listened(worker, (ControlName.STOP, ControlName.RESUME), pauses=0)
    assert not times.resume_s
    assert not times.resume_to_first_audio_s
