"""The in-process control benchmark with acknowledgements that are read late."""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.conftest import until
from tools.bench.control import SCRIPT, ControlTimes, SpeakingSession, outside_stalls
from tools.bench.stall_monitor import Stall
from tts_worker.types import ControlName, PcmFrame
from tts_worker.worker import Worker


class _CountingSession(SpeakingSession):
    received_frames = 0

    def _on_frame(self, frame: PcmFrame, now_s: float) -> None:
        super()._on_frame(frame, now_s)
        self.received_frames += 1


async def run_commands(worker: Worker, commands: tuple[ControlName, ...], pauses: int) -> ControlTimes:
    """Send all ``commands`` before the first acknowledgement is read, as after a stall of the machine."""
    times = ControlTimes()
    session = worker.hub.open()
    speaker = _CountingSession(session, random.Random(1), times)
    for command in commands:
        speaker.command(command, 0.0)
    listening = asyncio.create_task(speaker.listen())
    await until(lambda: listening.done() or (len(times.pause_s) == pauses and speaker.received_frames > 0))
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening
    session.close()
    return times


async def test_commands_sent_before_any_acknowledgement_are_timed(worker: Worker) -> None:
    times = await run_commands(worker, (*SCRIPT, *SCRIPT), pauses=2)
    assert (len(times.pause_s), len(times.stop_s)) == (2, 1)  # the second round has nothing to stop
    assert (times.frames_after_stop, times.frames_in_pause) == (0, 0)


async def test_resume_without_effect_is_not_timed(worker: Worker) -> None:
    times = await run_commands(worker, (ControlName.STOP, ControlName.RESUME), pauses=0)
    assert not times.resume_s
    assert not times.resume_to_first_audio_s


def test_stop_during_a_stall_is_left_out() -> None:
    times = ControlTimes(stop_s=[0.001, 0.010, 0.002], stopped_at_s=[1.0, 2.0, 3.0])
    assert outside_stalls(times, [Stall(1.995, 2.1), Stall(2.5, 2.9)]) == [0.001, 0.002]
