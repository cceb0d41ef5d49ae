"""LiveKit's real room sink (its Rust audio source, the 200 ms queue) behind the plugin, without a room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

pytest.importorskip("livekit.agents", reason="needs the extra 'livekit'")

from livekit.agents.voice.room_io._output import _ParticipantAudioOutput

from livekit import rtc
from tests.conftest import until
from tests.fakes.clock import measure_stalls
from tests.fakes.livekit_agent import run_agent
from tests.integrations.test_livekit import serve_plugin

STORY = "This is the longest story that I know, and it goes on and on for quite a while. " * 4
"""Long enough to be interrupted on a busy machine."""


class _Publication:
    sid = "track"

    async def wait_for_subscription(self) -> None:
        return


class _FakeRoom:
    """The part of a LiveKit room that the sink uses; the track is not sent anywhere."""

    def __init__(self) -> None:
        self.local_participant = self
        self.track: rtc.LocalAudioTrack | None = None

    async def publish_track(self, track: rtc.LocalAudioTrack, options: Any) -> _Publication:
        self.track = track
        return _Publication()


class _Listener:
    """Measures the duration of audible audio on a track.

    Frames arrive at playback pace, so a delay of the test machine does not change the result.
    """

    def __init__(self) -> None:
        self.audible_s = 0.0
        self.changed = asyncio.Event()

    async def listen(self, track: rtc.LocalAudioTrack) -> None:
        stream = rtc.AudioStream.from_track(track=track, sample_rate=24_000, num_channels=1)
        try:
            async for event in stream:
                if np.abs(np.frombuffer(event.frame.data, np.int16)).max(initial=0) > 500:
                    self.audible_s += event.frame.duration
                    self.changed.set()
        finally:
            await stream.aclose()

    async def wait_audible(self) -> None:
        self.changed.clear()
        await self.changed.wait()


@asynccontextmanager
async def room_sink() -> AsyncIterator[tuple[_ParticipantAudioOutput, _Listener]]:
    room = _FakeRoom()
    listener = _Listener()
    sink = _ParticipantAudioOutput(
        room,  # type: ignore[arg-type]
        sample_rate=24_000,
        num_channels=1,
        track_publish_options=rtc.TrackPublishOptions(),
    )
    await sink.start()
    assert room.track is not None
    listening = asyncio.create_task(listener.listen(room.track))
    try:
        yield sink, listener
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        await sink.aclose()


async def test_pause_resume_and_interrupt_at_the_room_sink() -> None:
    async with (
        serve_plugin(max_ahead_s=0.5) as (voice, recorded),
        room_sink() as (sink, listener),
        run_agent(voice, [STORY], sink=sink) as harness,
    ):
        voice.attach(harness.session)
        finished: list[Any] = []
        sink.on("playback_finished", finished.append)
        turn = harness.session.generate_reply(user_input="Go on.")
        for _ in range(30):
            await listener.wait_audible()

        harness.vad.start_speech()
        await until(lambda: "listening" in harness.states)
        async with measure_stalls() as stalled_s:
            audible_s = listener.audible_s
            await asyncio.sleep(0.6)
            assert voice.counters.paused == 1
            assert listener.audible_s - audible_s < 0.4 + stalled_s(), "playback continued after the pause"

        harness.vad.end_speech()  # a false interruption
        resumed = listener.wait_audible()
        with anyio.fail_after(60.0):
            await resumed
        await until(lambda: harness.false_interruptions)
        assert harness.false_interruptions == [True]

        turn.interrupt(force=True)
        async with measure_stalls() as stalled_s:
            audible_s = listener.audible_s
            await turn
            await asyncio.sleep(0.6)
            assert listener.audible_s - audible_s < 0.4 + stalled_s()
        [event] = finished
        assert event.interrupted
        assert 0.3 < event.playback_position < listener.audible_s + 1.0
        assert harness.turns[0][1]
        assert [receipt.reason for receipt in recorded.receipts] == ["interrupted"]
