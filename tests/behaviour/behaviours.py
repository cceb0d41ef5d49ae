"""What every session does, whatever carries it: the one table. Each behaviour is a coroutine over a ``Room``.

``@behaviour()`` puts it into the table; its arguments say what worker it needs. Nothing here knows a transport.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import anyio
import numpy as np
import pytest

from tests.behaviour.ear import Ear
from tests.behaviour.ways import Setup
from tts_worker.client import Client, ClientSettings, SessionOptions
from tts_worker.engine.tone import Fault, ToneSettings
from tts_worker.errors import (
    ErrorCode,
    IllegalCommand,
    InvalidRequest,
    OverCapacity,
    SessionClosed,
    TextTooLong,
    UnknownVoice,
)
from tts_worker.session.machine import State
from tts_worker.types import ControlName, Ended, Outcome, PcmFrame, Started, SynthesisParams, UtteranceKey, Words

TEXT = "Hello there, my friend. How are you today?"
LONG = "This is a rather long story, and it goes on and on. " * 8
FAST = SessionOptions(realtime=False)
CHAR_SAMPLES = 60 * 24  # of the tone engine


@dataclass
class Room:
    """One worker and its client, and what the way to it can do."""

    client: Client
    exact: bool
    slow: bool = False
    crowd: int = 50

    async def open(self, options: SessionOptions = FAST) -> Ear:
        return Ear((await self.client.open(options)).session, exact=self.exact)

    async def refused(self, options: SessionOptions) -> BaseException:
        with pytest.raises(Exception) as refusal:  # noqa: PT011  (the caller looks at the type)
            await self.client.open(options)
        return refusal.value

    def same(self, heard: bytes, expected: bytes) -> None:
        """The same sound, as exactly as the way carries it."""
        if self.exact:
            assert heard == expected
        else:
            assert len(heard) == pytest.approx(len(expected), abs=2 * 24 * 60)


Behave = Callable[[Room], Awaitable[None]]


@dataclass(frozen=True)
class Behaviour:
    """``needs``: what a way must be able to say for it, beyond text, sound, words, PAUSE, RESUME, STOP and an end."""

    behave: Behave
    setup: Setup
    needs: frozenset[str]


BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(
    *needs: str, client: ClientSettings | None = None, engine: ToneSettings | None = None, **sections: Any
) -> Callable[[Behave], Behave]:
    def register(function: Behave) -> Behave:
        setup = Setup(sections, engine, client or ClientSettings())
        BEHAVIOURS[function.__name__] = Behaviour(function, setup, frozenset(needs))
        return function

    return register


# -- speaking ---------------------------------------------------------------------------------------------------------


@behaviour()
async def a_turn_starts_sounds_and_ends(room: Room) -> None:
    ear = await room.open()
    assert ear.session.state is State.IDLE
    ended = await ear.say(TEXT)
    assert (ended.outcome, ended.error) == (Outcome.DONE, None)
    assert isinstance(ear.log[0], Started)
    assert ear.log[-1] is ended
    assert ended.receipt.samples_sent > 20_000
    assert (ended.receipt.text_spoken, ended.receipt.text_remaining) == (TEXT, "")
    assert ear.session.state is State.IDLE


@behaviour("spans")
async def words_are_those_of_the_text_and_never_late(room: Room) -> None:
    ear = await room.open()
    text = "  **Twenty** dollars,\tor $20 – *very* fine."
    ended = await ear.say(text)
    words = ear.words[ended.key]
    assert all(text[w.start_char : w.end_char] == w.text for w in words)
    assert [w.text for w in words][:2] == ["Twenty", "dollars,"]
    assert [w.start_sample for w in words] == sorted(w.start_sample for w in words)
    assert list(ended.receipt.words) == words


@behaviour()
async def text_sounds_the_same_however_it_is_cut(room: Room) -> None:
    ear = await room.open()
    text = "Naïve café – 🎉 **bold** 3.14, 你好. Done ok."
    whole = await ear.say(text)
    cuts = random.Random(1)
    for _ in range(3):
        rest = text
        while rest:
            size = cuts.randint(1, 5)
            key = ear.session.speak(rest[:size])
            rest = rest[size:]
        ear.session.end_text()
        cut = await ear.end(key)
        room.same(ear.sound[key], ear.sound[whole.key])
        assert cut.receipt.text_spoken == text


@behaviour()
async def bytes_may_be_cut_inside_a_character(room: Room) -> None:
    ear = await room.open()
    text = "Grüße an 你好 und 🎉 alle."
    whole = await ear.say(text)
    for byte in text.encode():
        key = ear.session.speak(bytes([byte]))
    ear.session.end_text()
    ended = await ear.end(key)
    assert ended.receipt.text_spoken == text
    room.same(ear.sound[key], ear.sound[whole.key])


@behaviour()
async def ten_thousand_deltas_of_one_character(room: Room) -> None:
    ear = await room.open()
    text = ("word " * 2_000)[:10_000]
    for character in text:
        key = ear.session.speak(character)
    await ear.hear(1, key)
    ear.session.stop()
    ended = await ear.end(key)
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == text
    assert (await ear.say("Still here.")).outcome is Outcome.DONE


@behaviour("surrogates")
async def lone_surrogates_are_counted_as_one_character(room: Room) -> None:
    ear = await room.open()
    ended = await ear.say("a \ud800 lone \udfff one \ud83d")
    assert ended.outcome is Outcome.DONE
    assert ended.receipt.text_spoken == "a \ufffd lone \ufffd one \ufffd"


@behaviour()
async def queued_utterances_follow_in_order(room: Room) -> None:
    ear = await room.open()
    keys = []
    for text in ("First.", "Second one.", "Third."):
        keys.append(ear.session.speak(text))
        ear.session.end_text()
    await ear.end(keys[-1])
    assert list(ear.ends) == keys
    assert [item.key for item in ear.log if isinstance(item, Started)] == keys
    assert [ear.ends[key].receipt.text_spoken for key in keys] == ["First.", "Second one.", "Third."]


@behaviour()
async def a_session_speaks_many_times(room: Room) -> None:
    ear = await room.open()
    sounds = [ear.sound[(await ear.say("Again.")).key] for _ in range(5)]
    for sound in sounds:
        room.same(sound, sounds[0])
    assert [key.generation for key in ear.ends] == [1, 2, 3, 4, 5]


@behaviour()
async def empty_text_ends_without_a_sound(room: Room) -> None:
    ear = await room.open()
    for text in ("", "   \n ", "🎉🎉"):
        ended = await ear.say(text)
        assert ended.outcome in (Outcome.DONE, Outcome.ERROR)
        assert ended.receipt.samples_sent == 0
        assert ended.receipt.text_spoken + ended.receipt.text_remaining == text
    assert (await ear.say("Ok.")).outcome is Outcome.DONE


@behaviour()
async def ending_what_was_never_begun_is_illegal(room: Room) -> None:
    ear = await room.open()
    with pytest.raises(IllegalCommand):
        ear.session.end_text()
    await ear.say("Once.")
    with pytest.raises(IllegalCommand):
        ear.session.end_text()
    assert (await ear.say("Twice.")).outcome is Outcome.DONE


@behaviour("flush")
async def flush_speaks_what_is_there(room: Room) -> None:
    ear = await room.open()
    ear.session.flush()
    key = ear.session.speak("an unfinished sent")
    ear.session.flush()
    await ear.hear(CHAR_SAMPLES, key)
    ear.session.speak(" ence.")
    ear.session.end_text()
    assert (await ear.end(key)).receipt.text_spoken == "an unfinished sent ence."


@behaviour("flush")
async def a_writer_may_fall_silent_inside_a_turn(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak("The first sentence is here. ")
    ear.session.flush()
    await ear.hear(15 * CHAR_SAMPLES, key)
    await asyncio.sleep(0.3)  # longer than anything on the way waits, shorter than any time limit
    ear.session.speak("And then it goes on.")
    ear.session.end_text()
    ended = await ear.end(key)
    assert ended.outcome is Outcome.DONE
    assert ended.receipt.text_remaining == ""


@behaviour()
async def the_same_request_gives_the_same_sound(room: Room) -> None:
    first, second = await room.open(replace(FAST, seed=7)), await room.open(replace(FAST, seed=7))
    one, two = await first.say(TEXT), await second.say(TEXT)
    room.same(first.sound[one.key], second.sound[two.key])


@behaviour("spans", "tone")
async def options_are_honoured(room: Room) -> None:
    ear = await room.open(replace(FAST, speed=2.0, voice="tone-low", lexicon={"hi": "hello hello"}))
    ended = await ear.say("hi")
    started = next(item for item in ear.log if isinstance(item, Started))
    assert (started.params.voice, started.params.speed) == ("tone-low", 2.0)
    assert ended.receipt.samples_sent == pytest.approx(10 * CHAR_SAMPLES // 2, abs=0 if room.exact else 2_000)
    assert [word.text for word in ended.receipt.words] == ["hi"]


@behaviour("tone")
async def new_params_take_effect_with_the_next_utterance(room: Room) -> None:
    ear = await room.open()
    first = ear.session.speak("The old ")
    ear.session.configure(SynthesisParams("tone-high"))
    ear.session.speak("voice.")
    ear.session.end_text()
    second = ear.session.speak("The new voice.")
    ear.session.end_text()
    await ear.end(second)
    started = {item.key: item.params.voice for item in ear.log if isinstance(item, Started)}
    assert started == {first: "tone", second: "tone-high"}


@behaviour()
async def sound_comes_at_the_pace_of_playback(room: Room) -> None:
    ear = await room.open(SessionOptions(lead_ms=60))
    clock = asyncio.get_running_loop().time
    key = ear.session.speak("A little more than a second.")
    ear.session.end_text()
    await ear.hear(1, key)
    began_s = clock()
    while key not in ear.ends:
        await ear.next()
        lead_s = len(ear.sound[key]) / 48_000 - (clock() - began_s)
        assert lead_s <= 0.060 + 0.080, "ahead of the listener by more than was asked for, and what a way may hold"


# -- pause and resume -------------------------------------------------------------------------------------------------


@behaviour()
async def a_pause_changes_no_sample(room: Room) -> None:
    ear = await room.open()
    whole = await ear.say(TEXT)
    for place in (1, 5_000, 17_001):
        key = ear.session.speak(TEXT)
        ear.session.end_text()
        await ear.hear(place, key)
        ear.session.pause()
        assert ear.session.state is State.PAUSED
        heard = len(ear.sound[key])
        acknowledged = await ear.acknowledged(ControlName.PAUSE)
        assert acknowledged.applied
        assert acknowledged.position_samples * 2 == heard
        assert ear.session.poll() is None
        ear.session.resume()
        assert (await ear.acknowledged(ControlName.RESUME)).applied
        await ear.end(key)
        room.same(ear.sound[key], ear.sound[whole.key])


@behaviour()
async def no_sound_comes_while_paused(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(LONG)
    await ear.hear(1, key)
    ear.session.pause()
    await ear.acknowledged(ControlName.PAUSE)
    with anyio.move_on_after(0.2) as patience:
        await ear.session.next()
    assert patience.cancelled_caught
    ear.session.resume()
    await ear.hear(48_000, key)
    ear.session.close()


@behaviour()
async def pausing_before_the_first_sound_holds_it(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(TEXT)
    ear.session.end_text()
    ear.session.pause()
    await ear.acknowledged(ControlName.PAUSE)
    assert not ear.sound[key]
    ear.session.resume()
    ended = await ear.end(key)
    assert (ended.outcome, ended.error) == (Outcome.DONE, None)


@behaviour()
async def commands_that_change_nothing_say_so(room: Room) -> None:
    ear = await room.open()
    for command, act in (
        (ControlName.PAUSE, ear.session.pause),
        (ControlName.RESUME, ear.session.resume),
        (ControlName.STOP, ear.session.stop),
    ):
        act()
        answer = await ear.acknowledged(command)
        assert (answer.applied, answer.key) == (False, None)
    key = ear.session.speak(TEXT)
    await ear.hear(1, key)
    ear.session.resume()
    assert not (await ear.acknowledged(ControlName.RESUME)).applied
    ear.session.pause()
    assert (await ear.acknowledged(ControlName.PAUSE)).applied
    ear.session.pause()
    assert not (await ear.acknowledged(ControlName.PAUSE)).applied
    ear.session.stop()
    await ear.end(key)


@behaviour(session={"pause_timeout_s": 0.2})
async def a_pause_that_nobody_resumes_ends(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(LONG)
    await ear.hear(1, key)
    ear.session.pause()
    ended = await ear.end(key)
    assert (ended.outcome, ended.receipt.reason) == (Outcome.STOPPED, "pause_timeout")
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
    assert ear.session.state is State.IDLE
    assert (await ear.say("After that.")).outcome is Outcome.DONE


@behaviour(session={"text_idle_timeout_s": 0.2})
async def a_writer_that_never_comes_back_is_not_waited_for(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak("Only this and then")
    assert (await ear.end(key)).receipt.text_spoken == "Only this and then"
    assert (await ear.say("Next.")).receipt.text_spoken == "Next."


# -- stop -------------------------------------------------------------------------------------------------------------


@behaviour()
async def stop_before_the_first_sound(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(TEXT)
    ear.session.stop("changed_my_mind")
    ended = await ear.end(key)
    assert (ended.outcome, ended.receipt.reason) == (Outcome.STOPPED, "changed_my_mind")
    assert (ended.receipt.samples_sent, ended.receipt.text_spoken, ended.receipt.text_remaining) == (0, "", TEXT)


@behaviour()
async def stop_in_the_middle_of_a_word_splits_the_text(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(LONG)
    ear.session.end_text()
    await ear.hear(40_000, key)
    ear.session.stop("barge_in")
    ended = await ear.end(key)
    receipt = ended.receipt
    assert (ended.outcome, receipt.reason) == (Outcome.STOPPED, "barge_in")
    assert receipt.text_spoken + receipt.text_remaining == LONG
    spoken = [word for word in ear.words[key] if word.start_sample + word.end_sample <= 2 * receipt.samples_sent]
    assert len(spoken) > 3
    said = receipt.text_spoken.split()
    assert said == LONG.split()[: len(said)]
    assert len(said) == len(spoken) if room.exact else len(said) >= len(spoken) - 1


@behaviour("played")
async def stop_says_what_was_played_if_told(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(LONG)
    await ear.hear(40_000, key)
    ear.session.stop("barge_in", 10_000)
    receipt = (await ear.end(key)).receipt
    assert receipt.samples_played == 10_000
    assert len(receipt.text_spoken.split()) == sum(w.start_sample + w.end_sample <= 20_000 for w in ear.words[key])
    key = ear.session.speak(LONG)
    await ear.hear(20_000, key)
    ear.session.played(5_000)
    ear.session.played(4_000)
    ear.session.stop()
    assert (await ear.end(key)).receipt.samples_played == 5_000


@behaviour()
async def stopping_twice_ends_once(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(LONG)
    await ear.hear(1, key)
    ear.session.stop("first")
    ear.session.stop("second")
    assert not (await ear.acknowledged(ControlName.STOP)).applied
    assert (await ear.end(key)).receipt.reason == "first"
    await ear.say("Next.")


@behaviour()
async def a_turn_right_after_stop_is_only_itself(room: Room) -> None:
    ear = await room.open()
    alone = await ear.say("New turn.")
    old = ear.session.speak(LONG)
    await ear.hear(1, old)
    ear.session.stop()
    heard = len(ear.sound[old])
    new = await ear.say("New turn.")
    assert len(ear.sound[old]) == heard, "old sound after the stop"
    assert ear.ends[old].outcome is Outcome.STOPPED
    room.same(ear.sound[new.key], ear.sound[alone.key])


@behaviour()
async def stop_while_paused(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak(LONG)
    await ear.hear(1, key)
    ear.session.pause()
    ear.session.stop()
    assert (await ear.end(key)).outcome is Outcome.STOPPED
    assert ear.session.state is State.IDLE
    assert (await ear.say("Not paused any more.")).outcome is Outcome.DONE


@behaviour()
async def stop_ends_everything_that_waits(room: Room) -> None:
    ear = await room.open()
    keys = []
    for _ in range(4):
        keys.append(ear.session.speak(LONG))
        ear.session.end_text()
    await ear.hear(1, keys[0])
    ear.session.stop()
    for key in keys:
        receipt = (await ear.end(key)).receipt
        assert receipt.text_spoken + receipt.text_remaining == LONG
    assert [ear.ends[key].outcome for key in keys] == [Outcome.STOPPED] * 4


@behaviour()
async def what_was_heard_to_the_end_was_spoken(room: Room) -> None:
    """A STOP that comes when the worker is done long since, and the listener is not."""
    ear = await room.open()
    key = ear.session.speak("Short.")
    ear.session.end_text()
    await ear.hear(960, key)
    for _ in range(50):
        await asyncio.sleep(0.001)  # whatever is on the way arrives
    ear.session.stop()
    receipt = (await ear.end(key)).receipt
    assert receipt.text_spoken + receipt.text_remaining == "Short."
    assert not room.exact or receipt.samples_sent * 2 == len(ear.sound[key])


# -- the session ------------------------------------------------------------------------------------------------------


@behaviour()
async def close_in_the_middle_ends_what_is_said(room: Room) -> None:
    ear = await room.open()
    first, second = ear.session.speak(LONG), None
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
    with anyio.fail_after(5.0):
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
    with anyio.fail_after(5.0):
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


@behaviour("admission", session={"max_sessions": 1}, client=ClientSettings(idle_connections=0))
async def a_full_worker_refuses_at_once_and_takes_the_next(room: Room) -> None:
    ear = await room.open()
    refusal = await room.refused(FAST)
    assert isinstance(refusal, OverCapacity)
    assert (refusal.retryable, refusal.retry_after_s) == (True, 1.0)
    assert (await ear.say("Undisturbed.")).outcome is Outcome.DONE
    ear.session.close()
    for _ in range(1_000):
        try:
            ear = await room.open()
            break
        except OverCapacity:
            await asyncio.sleep(0.001)
    assert (await ear.say("My turn.")).outcome is Outcome.DONE


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


# -- the worker fails -------------------------------------------------------------------------------------------------


def _fault(fault: Fault, chunk: int, generation: int = 2) -> ToneSettings:
    """Every session's second utterance meets a fault. Twenty chunks are more than the worker makes ahead."""

    def decide(key: UtteranceKey, at: int) -> Fault | None:
        return fault if key.generation == generation and at >= chunk else None

    return ToneSettings(fault=decide)


async def _second_turn(room: Room) -> tuple[Ear, Ended]:
    ear = await room.open()
    await ear.say("The first is fine.")
    return ear, await ear.say(LONG)


@behaviour("retryable", engine=_fault(Fault.FAIL, chunk=20))
async def a_failure_in_the_middle_is_told_after_the_sound(room: Room) -> None:
    ear, ended = await _second_turn(room)
    assert ended.outcome is Outcome.ERROR
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.SYNTHESIS_FAILED, True)
    assert ended.receipt.samples_sent > 0
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == LONG
    assert (await ear.say("The third is fine.")).outcome is Outcome.DONE


@behaviour(engine=_fault(Fault.OUT_OF_MEMORY, chunk=0))
async def a_failure_before_the_first_sound_is_told_at_once(room: Room) -> None:
    ear, ended = await _second_turn(room)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.OUT_OF_MEMORY, True)
    assert ended.receipt.samples_sent == 0
    assert (await ear.say("The third is fine.")).outcome is Outcome.DONE


@behaviour("retryable", engine=_fault(Fault.RAISE, chunk=2))
async def an_engine_that_breaks_is_a_retryable_error(room: Room) -> None:
    _, ended = await _second_turn(room)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.ENGINE_FAULT, True)


@behaviour("hang", engine=_fault(Fault.HANG, chunk=0), client=ClientSettings(audio_timeout_s=0.3))
async def sound_that_does_not_come_has_a_deadline(room: Room) -> None:
    _, ended = await _second_turn(room)
    assert ended.error is not None
    assert (ended.error.code, ended.error.retryable) == (ErrorCode.DEADLINE_EXCEEDED, True)
    assert ended.receipt.samples_sent == 0
    assert ended.receipt.text_remaining == LONG


@behaviour("hang", engine=_fault(Fault.HANG, chunk=20), client=ClientSettings(audio_timeout_s=0.3))
async def sound_that_stalls_has_a_deadline(room: Room) -> None:
    ear, ended = await _second_turn(room)
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


def loud(pcm: bytes) -> bool:
    """Whether there is sound in it."""
    return bool(np.abs(np.frombuffer(pcm, "<i2")).max(initial=0) > 500)


@behaviour()
async def sound_is_sound(room: Room) -> None:
    ear = await room.open()
    ended = await ear.say(TEXT)
    assert loud(ear.sound[ended.key])
    assert ear.session.sample_rate_hz == 24_000
    frames = [item for item in ear.log if isinstance(item, PcmFrame)]
    if room.exact:
        assert {frame.samples for frame in frames[:-1]} == {480}
        assert [frame.index for frame in frames] == list(range(len(frames)))
    assert any(isinstance(item, Words) for item in ear.log)
