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
from tests.fakes.livekit_agent import on_stage
from tests.integrations.test_livekit import plugin

STORY = "This is the longest story that I know, and it goes on and on for quite a while. " * 4
"""Still going on when a busy machine gets round to interrupting it."""


class _Publication:
    sid = "track"

    async def wait_for_subscription(self) -> None:
        return


class _Room:
    """As much of a room as the sink needs: it publishes its track to nobody."""

    def __init__(self) -> None:
        self.local_participant = self
        self.track: rtc.LocalAudioTrack | None = None

    async def publish_track(self, track: rtc.LocalAudioTrack, options: Any) -> _Publication:
        self.track = track
        return _Publication()


class _Listener:
    """Who hears the track: for how long there was sound. It comes at the pace of playback; however late a busy machine
    lets it be counted, it is as much."""

    def __init__(self) -> None:
        self.loud_s = 0.0
        self.changed = asyncio.Event()

    async def listen(self, track: rtc.LocalAudioTrack) -> None:
        stream = rtc.AudioStream.from_track(track=track, sample_rate=24_000, num_channels=1)
        try:
            async for event in stream:
                if np.abs(np.frombuffer(event.frame.data, np.int16)).max(initial=0) > 500:
                    self.loud_s += event.frame.duration
                    self.changed.set()
        finally:
            await stream.aclose()

    async def sound(self) -> None:
        self.changed.clear()
        await self.changed.wait()


@asynccontextmanager
async def room_sink() -> AsyncIterator[tuple[_ParticipantAudioOutput, _Listener]]:
    room = _Room()
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


async def test_pause_resume_and_interruption_at_the_real_sink() -> None:
    async with (
        plugin(max_ahead_s=0.5) as (voice, watch),
        room_sink() as (sink, listener),
        on_stage(voice, [STORY], sink=sink) as stage,
    ):
        voice.attach(stage.session)
        finished: list[Any] = []
        sink.on("playback_finished", finished.append)
        turn = stage.session.generate_reply(user_input="Go on.")
        for _ in range(30):
            await listener.sound()

        stage.ears.voice()
        await until(lambda: "listening" in stage.states)
        heard_s = listener.loud_s
        await asyncio.sleep(0.6)
        assert voice.counters.paused == 1
        assert listener.loud_s - heard_s < 0.4, "it went on talking"

        stage.ears.silence()  # a false interruption
        resumed = listener.sound()
        with anyio.fail_after(60.0):
            await resumed
        await until(lambda: stage.false_interruptions)
        assert stage.false_interruptions == [True]

        turn.interrupt(force=True)
        heard_s = listener.loud_s
        await turn
        await asyncio.sleep(0.6)
        assert listener.loud_s - heard_s < 0.4
        [event] = finished
        assert event.interrupted
        assert 0.3 < event.playback_position < listener.loud_s + 1.0
        assert stage.said[0][1]
        assert [receipt.reason for receipt in watch.receipts] == ["interrupted"]
