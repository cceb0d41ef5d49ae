"""Behaviors of opening, closing, admission and concurrent sessions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import anyio
import pytest

from tests.behavior.recording_client import RecordingClient
from tests.behavior.table import FAST, LONG, TEXT, BehaviorContext, behavior
from tests.behavior.transports import LONG_TIMEOUTS
from tts_worker.client import SessionOptions
from tts_worker.errors import (
    InvalidRequest,
    OverCapacity,
    SessionClosed,
    TextTooLong,
    UnknownModel,
    UnknownVoice,
)
from tts_worker.types import ControlName, Outcome, State


@behavior()
async def close_stops_all_utterances(context: BehaviorContext) -> None:
    recorder = await context.open()
    first = recorder.session.speak(LONG)
    second = None
    recorder.session.end_text()
    second = recorder.session.speak("Waiting.")
    await recorder.receive_samples(1, first)
    recorder.session.close("leaving")
    recorder.session.close()
    assert recorder.session.state is State.CLOSED
    await recorder.drain()
    assert [(recorder.ends[key].outcome, recorder.ends[key].receipt.reason) for key in (first, second)] == [
        (Outcome.STOPPED, "leaving"),
        (Outcome.STOPPED, "leaving"),
    ]
    for command in (
        lambda: recorder.session.speak("x"),
        recorder.session.end_text,
        recorder.session.pause,
        recorder.session.stop,
    ):
        with pytest.raises(SessionClosed):
            command()
    assert await recorder.session.next() is None


@behavior()
async def close_wakes_a_waiting_reader(context: BehaviorContext) -> None:
    recorder = await context.open()
    waiting = asyncio.create_task(recorder.session.next())
    await asyncio.sleep(0)
    recorder.session.close()
    with anyio.fail_after(60):
        assert await waiting is None


@behavior()
async def slow_reader_receives_all_audio(context: BehaviorContext) -> None:
    recorder = await context.open()
    text = "A slow reader. " * (4 if context.is_slow else 12)
    whole = await recorder.synthesize(text)
    key = recorder.session.speak(text)
    recorder.session.end_text()
    await recorder.receive_samples(1, key)
    await asyncio.sleep(0.2)
    await recorder.wait_ended(key)
    context.assert_same_audio(recorder.pcm[key], recorder.pcm[whole.key])


@behavior()
async def sessions_are_isolated(context: BehaviorContext) -> None:
    reference = await context.open()
    expected = reference.pcm[(await reference.synthesize(TEXT)).key]
    recorders = [await context.open() for _ in range(4)]
    keys = [recorder.session.speak(TEXT) for recorder in recorders]
    for recorder in recorders:
        recorder.session.end_text()
    recorders[0].session.pause()
    recorders[1].session.stop()
    recorders[2].session.close()
    await recorders[3].wait_ended(keys[3])
    context.assert_same_audio(recorders[3].pcm[keys[3]], expected)
    assert recorders[0].session.state is State.PAUSED
    recorders[0].session.resume()
    await recorders[0].wait_ended(keys[0])
    context.assert_same_audio(recorders[0].pcm[keys[0]], expected)


@behavior("many_sessions")
async def control_works_beside_many_sessions(context: BehaviorContext) -> None:
    others = [await context.open(SessionOptions()) for _ in range(context.concurrent_sessions)]
    keys = [recorder.session.speak(LONG) for recorder in others]
    waiting = [asyncio.create_task(recorder.wait_ended(key)) for recorder, key in zip(others, keys, strict=True)]
    recorder = await context.open()
    key = recorder.session.speak(LONG)
    await recorder.receive_samples(4_800, key)
    with anyio.fail_after(60):
        recorder.session.pause()
        assert (await recorder.wait_acknowledged(ControlName.PAUSE)).applied
        recorder.session.resume()
        assert (await recorder.wait_acknowledged(ControlName.RESUME)).applied
        recorder.session.stop()
        assert (await recorder.wait_ended(key)).outcome is Outcome.STOPPED
    for other in others:
        other.session.stop()
    assert {ended.outcome for ended in await asyncio.gather(*waiting)} == {Outcome.STOPPED}


@behavior("admission")
async def unknown_voice_is_refused(context: BehaviorContext) -> None:
    assert isinstance(await context.open_error(replace(FAST, voice="unknown")), UnknownVoice)
    assert (await (await context.open()).synthesize("Ok.")).outcome is Outcome.DONE


@behavior("admission")
async def out_of_range_options_are_refused(context: BehaviorContext) -> None:
    for options in (replace(FAST, speed=99.0), replace(FAST, seed=-1)):
        assert isinstance(await context.open_error(options), InvalidRequest)
    assert (await (await context.open()).synthesize("Ok.")).outcome is Outcome.DONE


@behavior("admission", "lead")
async def negative_lead_is_refused(context: BehaviorContext) -> None:
    assert isinstance(await context.open_error(replace(FAST, lead_ms=-5.0)), InvalidRequest)


@behavior("admission")
async def unknown_model_or_capability_is_refused(context: BehaviorContext) -> None:
    for options in (replace(FAST, model="unknown"), replace(FAST, needs=("telepathy",))):
        error = await context.open_error(options)
        assert isinstance(error, UnknownModel | InvalidRequest)
        assert not error.retryable
    assert (await (await context.open()).synthesize("Ok.")).outcome is Outcome.DONE


async def _open_when_free(context: BehaviorContext) -> RecordingClient:
    """Open a session on a worker that is about to free a slot."""
    with anyio.fail_after(60):
        while True:
            try:
                return await context.open()
            except OverCapacity:
                await asyncio.sleep(0.001)


@behavior(
    "admission", session={"max_sessions": 1, "slot_idle_s": 600}, client=replace(LONG_TIMEOUTS, idle_connections=0)
)
async def full_worker_refuses_until_a_slot_is_free(context: BehaviorContext) -> None:
    recorder = await context.open()
    error = await context.open_error(FAST)
    assert isinstance(error, OverCapacity)
    assert (error.retryable, error.retry_after_s) == (True, 1.0)
    assert (await recorder.synthesize("Undisturbed.")).outcome is Outcome.DONE
    recorder.session.close()
    assert (await (await _open_when_free(context)).synthesize("My turn.")).outcome is Outcome.DONE


@behavior(session={"max_utterance_chars": 100})
async def too_much_text_is_refused(context: BehaviorContext) -> None:
    recorder = await context.open()
    try:
        code = (await recorder.synthesize("too long " * 20)).receipt.reason
    except TextTooLong as error:  # rejected before it is sent
        code = error.code.value
    assert code == "text_too_long"
    recorder.session.close()
    assert (await (await context.open()).synthesize("Short.")).outcome is Outcome.DONE
