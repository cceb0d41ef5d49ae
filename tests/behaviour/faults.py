"""Behaviours: a worker that fails, and any commands in any order."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from tests.behaviour.ear import Ear
from tests.behaviour.table import LONG, Room, behaviour, loud
from tests.behaviour.ways import PATIENT
from tts_worker.engine.tone import Fault, ToneSettings
from tts_worker.errors import (
    ErrorCode,
    IllegalCommand,
)
from tts_worker.types import Ended, Outcome, UtteranceKey


def fault_at(fault: Fault, chunk: int, generation: int = 2) -> ToneSettings:
    """Every session's second utterance (or that ``generation``) meets a fault. Twenty chunks are more than the worker
    makes ahead."""

    def decide(key: UtteranceKey, at: int) -> Fault | None:
        return fault if key.generation == generation and at >= chunk else None

    return ToneSettings(fault=decide)


async def _second_turn(room: Room) -> tuple[Ear, Ended]:
    ear = await room.open()
    await ear.say("The first is fine.")
    return ear, await ear.say(LONG)


@behaviour("retryable", engine=fault_at(Fault.FAIL, chunk=20))
async def a_failure_in_the_middle_is_told_after_the_sound(room: Room) -> None:
    ear, ended = await _second_turn(room)
    assert ended.outcome is Outcome.ERROR
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.SYNTHESIS_FAILED, True)
    assert ended.receipt.samples_sent > 0
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
    assert (await ear.say("The third is fine.")).outcome is Outcome.DONE


@behaviour(engine=fault_at(Fault.OUT_OF_MEMORY, chunk=0))
async def a_failure_before_the_first_sound_is_told_at_once(room: Room) -> None:
    ear, ended = await _second_turn(room)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.OUT_OF_MEMORY, True)
    assert ended.receipt.samples_sent == 0
    assert (await ear.say("The third is fine.")).outcome is Outcome.DONE


@behaviour("retryable", engine=fault_at(Fault.RAISE, chunk=2))
async def an_engine_that_breaks_is_a_retryable_error(room: Room) -> None:
    _, ended = await _second_turn(room)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.ENGINE_FAULT, True)


IMPATIENT = replace(PATIENT, audio_timeout_s=0.3)
"""A busy machine may be late by more: nothing that is owed may have to come with these."""


@behaviour("hang", engine=fault_at(Fault.HANG, chunk=0, generation=1), client=IMPATIENT)
async def sound_that_does_not_come_has_a_deadline(room: Room) -> None:
    ended = await (await room.open()).say(LONG)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.DEADLINE_EXCEEDED, True)
    assert ended.receipt.samples_sent == 0
    assert ended.receipt.text_remaining == LONG


@behaviour("hang", engine=fault_at(Fault.HANG, chunk=20, generation=1), client=IMPATIENT)
async def sound_that_stalls_has_a_deadline(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(LONG)
    await ear.hear(1, key)  # before any of it is owed
    ear.session.end_text()
    ended = await ear.end(key)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.DEADLINE_EXCEEDED
    assert ended.receipt.samples_sent > 0
    assert loud(ear.sound[ended.key])
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG


# -- everything at once -----------------------------------------------------------------------------------------------


@behaviour("flush")
async def any_commands_in_any_order_keep_every_promise(room: Room) -> None:
    """The ear checks: no hole, no old sound, one end each, receipts that add up."""
    dice = random.Random(20_260)
    ear = await room.open()
    texts: dict[UtteranceKey, str] = {}
    session = ear.session
    commands = {"pause": session.pause, "resume": session.resume, "stop": session.stop, "flush": session.flush}
    for _ in range(150):
        act = dice.choice(
            ["speak", "speak", "hear", "hear", "hear", "pause", "resume", "end", "stop", "flush", "yield"]
        )
        if act == "speak":
            piece = dice.choice(["Hello, ", "a rather longer piece of text. ", "x", "", "你好。"])
            key = ear.session.speak(piece)
            texts[key] = texts.get(key, "") + piece
        elif act == "end":
            try:
                ear.session.end_text()
            except IllegalCommand:
                pass
        elif act == "hear":
            for _ in range(dice.randint(1, 40)):
                item = ear.session.poll()
                if item is not None:
                    ear._take(item)
        elif act == "yield":
            await asyncio.sleep(0)
        else:
            commands[act]()
    ear.session.stop("over")
    ear.session.close()
    await ear.silence()
    assert set(ear.ends) == set(texts)
    for key, ended in ear.ends.items():
        assert ended.receipt.text_spoken + ended.receipt.text_remaining == texts[key]
