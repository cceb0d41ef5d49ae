"""Behaviours: sessions that open, close, are refused, are many."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import anyio
import pytest

from tests.behaviour.ear import Ear
from tests.behaviour.table import FAST, LONG, TEXT, Room, behaviour
from tests.behaviour.ways import PATIENT
from tts_worker.client import SessionOptions
from tts_worker.errors import (
    InvalidRequest,
    OverCapacity,
    SessionClosed,
    TextTooLong,
    UnknownModel,
    UnknownVoice,
)
from tts_worker.session.machine import State
from tts_worker.types import ControlName, Outcome


@behaviour()
async def close_in_the_middle_ends_what_is_said(room: Room) -> None:
    ear = await room.open()
    first = ear.session.speak(LONG)
    second = None
    ear.session.end_text()
    second = ear.session.speak("Waiting.")
    await ear.hear(1, first)
    ear.session.close("leaving")
    ear.session.close()
    assert ear.session.state is State.CLOSED
    await ear.silence()
    assert [(ear.ends[key].outcome, ear.ends[key].receipt.reason) for key in (first, second)] == [
        (Outcome.STOPPED, "leaving"),
        (Outcome.STOPPED, "leaving"),
    ]
    for act in (lambda: ear.session.speak("x"), ear.session.end_text, ear.session.pause, ear.session.stop):
        with pytest.raises(SessionClosed):
            act()
    assert await ear.session.next() is None


@behaviour()
async def a_reader_that_waits_is_told_of_the_close(room: Room) -> None:
    ear = await room.open()
    waiting = asyncio.create_task(ear.session.next())
    await asyncio.sleep(0)
    ear.session.close()
    with anyio.fail_after(60):
        assert await waiting is None


@behaviour()
async def a_reader_that_comes_late_misses_nothing(room: Room) -> None:
    ear = await room.open()
    text = "A slow reader. " * (8 if room.slow else 30)
    whole = await ear.say(text)
    key = ear.session.speak(text)
    ear.session.end_text()
    await ear.hear(1, key)
    await asyncio.sleep(0.2)
    await ear.end(key)
    room.same(ear.sound[key], ear.sound[whole.key])


@behaviour()
async def sessions_do_not_hear_each_other(room: Room) -> None:
    alone = await room.open()
    expected = alone.sound[(await alone.say(TEXT)).key]
    ears = [await room.open() for _ in range(4)]
    keys = [ear.session.speak(TEXT) for ear in ears]
    for ear in ears:
        ear.session.end_text()
    ears[0].session.pause()
    ears[1].session.stop()
    ears[2].session.close()
    await ears[3].end(keys[3])
    room.same(ears[3].sound[keys[3]], expected)
    assert ears[0].session.state is State.PAUSED
    ears[0].session.resume()
    await ears[0].end(keys[0])
    room.same(ears[0].sound[keys[0]], expected)


@behaviour("crowd")
async def control_is_answered_while_many_others_speak(room: Room) -> None:
    crowd = [await room.open(SessionOptions()) for _ in range(room.crowd)]
    keys = [ear.session.speak(LONG) for ear in crowd]
    listening = [asyncio.create_task(ear.end(key)) for ear, key in zip(crowd, keys, strict=True)]
    ear = await room.open()
    key = ear.session.speak(LONG)
    await ear.hear(4_800, key)
    with anyio.fail_after(60):
        ear.session.pause()
        assert (await ear.acknowledged(ControlName.PAUSE)).applied
        ear.session.resume()
        assert (await ear.acknowledged(ControlName.RESUME)).applied
        ear.session.stop()
        assert (await ear.end(key)).outcome is Outcome.STOPPED
    for one in crowd:
        one.session.stop()
    assert {ended.outcome for ended in await asyncio.gather(*listening)} == {Outcome.STOPPED}


@behaviour("admission")
async def an_unknown_voice_is_refused(room: Room) -> None:
    assert isinstance(await room.refused(replace(FAST, voice="nobody")), UnknownVoice)
    assert (await (await room.open()).say("Ok.")).outcome is Outcome.DONE


@behaviour("admission")
async def values_out_of_range_are_refused(room: Room) -> None:
    for options in (replace(FAST, speed=99.0), replace(FAST, seed=-1)):
        assert isinstance(await room.refused(options), InvalidRequest)
    assert (await (await room.open()).say("Ok.")).outcome is Outcome.DONE


@behaviour("admission", "lead")
async def a_lead_that_makes_no_sense_is_refused(room: Room) -> None:
    assert isinstance(await room.refused(replace(FAST, lead_ms=-5.0)), InvalidRequest)


@behaviour("admission")
async def a_model_or_an_ability_that_is_not_there_is_refused(room: Room) -> None:
    for options in (replace(FAST, model="nobody"), replace(FAST, needs=("telepathy",))):
        refusal = await room.refused(options)
        assert isinstance(refusal, UnknownModel | InvalidRequest)
        assert not refusal.retryable
    assert (await (await room.open()).say("Ok.")).outcome is Outcome.DONE


async def _taken(room: Room) -> Ear:
    """A session of a worker that is about to have room again."""
    with anyio.fail_after(60):
        while True:
            try:
                return await room.open()
            except OverCapacity:
                await asyncio.sleep(0.001)


@behaviour("admission", session={"max_sessions": 1, "slot_idle_s": 600}, client=replace(PATIENT, idle_connections=0))
async def a_full_worker_refuses_at_once_and_takes_the_next(room: Room) -> None:
    ear = await room.open()
    refusal = await room.refused(FAST)
    assert isinstance(refusal, OverCapacity)
    assert (refusal.retryable, refusal.retry_after_s) == (True, 1.0)
    assert (await ear.say("Undisturbed.")).outcome is Outcome.DONE
    ear.session.close()
    assert (await (await _taken(room)).say("My turn.")).outcome is Outcome.DONE


@behaviour(session={"max_utterance_chars": 100})
async def too_much_text_is_an_error_that_says_so(room: Room) -> None:
    ear = await room.open()
    try:
        code = (await ear.say("too long " * 20)).receipt.reason
    except TextTooLong as refusal:  # where it is known at once
        code = refusal.code.value
    assert code == "text_too_long"
    ear.session.close()
    assert (await (await room.open()).say("Short.")).outcome is Outcome.DONE
