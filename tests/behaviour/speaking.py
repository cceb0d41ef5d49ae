"""Behaviours: text that comes in, sound, words and ends that come out."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tests.behaviour.table import CHAR_SAMPLES, FAST, TEXT, Room, behaviour, loud
from tts_worker.client import SessionOptions
from tts_worker.errors import (
    IllegalCommand,
)
from tts_worker.session.machine import State
from tts_worker.types import Outcome, PcmFrame, Started, SynthesisParams, Words


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


@behaviour(session={"flush_after_ms": 50})
async def words_without_punctuation_are_spoken(room: Room) -> None:
    ear = await room.open()
    text = "I would like to book a table for two "
    key = ear.session.speak(text)
    await ear.hear(1, key)
    ear.session.end_text()
    assert (await ear.end(key)).receipt.text_spoken == text


@behaviour()
async def a_session_chooses_when_words_are_spoken(room: Room) -> None:
    ear = await room.open(replace(FAST, flush_after_ms=50))
    key = ear.session.speak("I would like to book a table for two ")
    await ear.hear(1, key)
    ear.session.stop()
    await ear.end(key)


@behaviour("spans", session={"flush_after_ms": 50})
async def silence_within_a_word_does_not_part_it(room: Room) -> None:
    ear = await room.open()
    key = ear.session.speak("They say hel")
    await ear.hear(1, key)
    ear.session.speak("lo there")
    ear.session.end_text()
    ended = await ear.end(key)
    assert [word.text for word in ended.receipt.words] == ["They", "say", "hello", "there"]


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
    first = await room.open(replace(FAST, seed=7))
    second = await room.open(replace(FAST, seed=7))
    one = await first.say(TEXT)
    two = await second.say(TEXT)
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
    asked_s = clock()
    key = ear.session.speak("A little more than a second.")
    ear.session.end_text()
    while key not in ear.ends:
        await ear.next()
        # Nobody can have begun to listen before it was asked for. A busy machine only makes this less, so 20 ms are
        # enough for all that clocks and frames round; unpaced all 1.4 s come at once.
        lead_s = len(ear.sound[key]) / 48_000 - (clock() - asked_s)
        assert lead_s <= 0.060 + 0.020, "ahead of the listener by more than was asked for"


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
