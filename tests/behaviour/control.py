"""Behaviours: PAUSE, RESUME and STOP."""

from __future__ import annotations

import asyncio

import anyio

from tests.behaviour.table import LONG, TEXT, Room, behaviour
from tts_worker.session.machine import State
from tts_worker.types import ControlName, Outcome

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
    # Nor does this one end its text: between two messages a busy machine may take longer than such a worker waits.
    assert (await ear.end(ear.session.speak("Next."))).receipt.text_spoken == "Next."


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
