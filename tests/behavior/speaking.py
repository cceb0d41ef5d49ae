"""Behaviors of text input and of audio, word and terminal events."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tests.behavior.table import CHAR_SAMPLES, FAST, TEXT, BehaviorContext, behavior, has_audio
from tts_worker.client import SessionOptions
from tts_worker.errors import (
    IllegalCommand,
)
from tts_worker.types import Outcome, PcmFrame, Started, State, SynthesisParams, Words


@behavior()
async def utterance_starts_and_ends(context: BehaviorContext) -> None:
    recorder = await context.open()
    assert recorder.session.state is State.IDLE
    ended = await recorder.synthesize(TEXT)
    assert (ended.outcome, ended.error) == (Outcome.DONE, None)
    assert isinstance(recorder.log[0], Started)
    assert recorder.log[-1] is ended
    assert ended.receipt.samples_sent > 20_000
    assert (ended.receipt.text_spoken, ended.receipt.text_remaining) == (TEXT, "")
    assert recorder.session.state is State.IDLE


@behavior("chunks")
async def raw_chunks_hold_the_audio_of_frames(context: BehaviorContext) -> None:
    framed = await context.open()
    whole = await framed.synthesize(TEXT)
    raw = await context.open(replace(FAST, raw_chunks=True))
    ended = await raw.synthesize(TEXT)
    assert raw.pcm[ended.key] == framed.pcm[whole.key]
    counts = [sum(isinstance(item, PcmFrame) for item in recorder.log) for recorder in (raw, framed)]
    assert counts[0] < counts[1]


@behavior("spans")
async def words_have_source_offsets_and_are_in_order(context: BehaviorContext) -> None:
    recorder = await context.open()
    text = "  **Twenty** dollars,\tor $20 – *very* fine."
    ended = await recorder.synthesize(text)
    words = recorder.words[ended.key]
    assert all(text[w.start_char : w.end_char] == w.text for w in words)
    assert [w.text for w in words][:2] == ["Twenty", "dollars,"]
    assert [w.start_sample for w in words] == sorted(w.start_sample for w in words)
    assert list(ended.receipt.words) == words


@behavior()
async def audio_is_independent_of_text_deltas(context: BehaviorContext) -> None:
    recorder = await context.open()
    text = "Naïve café – 🎉 **bold** 3.14, 你好. Done ok."
    whole = await recorder.synthesize(text)
    cuts = random.Random(1)
    for _ in range(3):
        rest = text
        while rest:
            size = cuts.randint(1, 5)
            key = recorder.session.speak(rest[:size])
            rest = rest[size:]
        recorder.session.end_text()
        cut = await recorder.wait_ended(key)
        context.assert_same_audio(recorder.pcm[key], recorder.pcm[whole.key])
        assert cut.receipt.text_spoken == text


@behavior(session={"flush_after_ms": 50})
async def unpunctuated_words_are_spoken(context: BehaviorContext) -> None:
    recorder = await context.open()
    text = "I would like to book a table for two "
    key = recorder.session.speak(text)
    await recorder.receive_samples(1, key)
    recorder.session.end_text()
    assert (await recorder.wait_ended(key)).receipt.text_spoken == text


@behavior()
async def session_option_sets_flush_after_ms(context: BehaviorContext) -> None:
    recorder = await context.open(replace(FAST, flush_after_ms=50))
    key = recorder.session.speak("I would like to book a table for two ")
    await recorder.receive_samples(1, key)
    recorder.session.stop()
    await recorder.wait_ended(key)


@behavior("spans", session={"flush_after_ms": 1_000})
async def pause_inside_a_word_does_not_split_it(context: BehaviorContext) -> None:
    # A last word without a space is spoken after five times as long: the first audio has 4 s to arrive before that.
    recorder = await context.open()
    key = recorder.session.speak("They say hel")
    await recorder.receive_samples(1, key)
    recorder.session.speak("lo there")
    recorder.session.end_text()
    ended = await recorder.wait_ended(key)
    assert [word.text for word in ended.receipt.words] == ["They", "say", "hello", "there"]


@behavior()
async def bytes_may_split_a_character(context: BehaviorContext) -> None:
    recorder = await context.open()
    text = "Grüße an 你好 und 🎉 alle."
    whole = await recorder.synthesize(text)
    for byte in text.encode():
        key = recorder.session.speak(bytes([byte]))
    recorder.session.end_text()
    ended = await recorder.wait_ended(key)
    assert ended.receipt.text_spoken == text
    context.assert_same_audio(recorder.pcm[key], recorder.pcm[whole.key])


@behavior()
async def ten_thousand_one_character_deltas(context: BehaviorContext) -> None:
    recorder = await context.open()
    text = ("word " * 2_000)[:10_000]
    for character in text:
        key = recorder.session.speak(character)
    await recorder.receive_samples(1, key)
    recorder.session.stop()
    ended = await recorder.wait_ended(key)
    assert ended.receipt.text_spoken + ended.receipt.text_remaining == text
    assert (await recorder.synthesize("Still here.")).outcome is Outcome.DONE


@behavior("surrogates")
async def lone_surrogate_counts_as_one_character(context: BehaviorContext) -> None:
    recorder = await context.open()
    ended = await recorder.synthesize("a \ud800 lone \udfff one \ud83d")
    assert ended.outcome is Outcome.DONE
    assert ended.receipt.text_spoken == "a \ufffd lone \ufffd one \ufffd"


@behavior()
async def queued_utterances_run_in_order(context: BehaviorContext) -> None:
    recorder = await context.open()
    keys = []
    for text in ("First.", "Second one.", "Third."):
        keys.append(recorder.session.speak(text))
        recorder.session.end_text()
    await recorder.wait_ended(keys[-1])
    assert list(recorder.ends) == keys
    assert [item.key for item in recorder.log if isinstance(item, Started)] == keys
    assert [recorder.ends[key].receipt.text_spoken for key in keys] == ["First.", "Second one.", "Third."]


@behavior()
async def session_speaks_repeatedly(context: BehaviorContext) -> None:
    recorder = await context.open()
    pcms = [recorder.pcm[(await recorder.synthesize("Again.")).key] for _ in range(5)]
    for pcm in pcms:
        context.assert_same_audio(pcm, pcms[0])
    assert [key.generation for key in recorder.ends] == [1, 2, 3, 4, 5]


@behavior()
async def empty_text_ends_without_audio(context: BehaviorContext) -> None:
    recorder = await context.open()
    for text in ("", "   \n ", "🎉🎉"):
        ended = await recorder.synthesize(text)
        assert ended.outcome in (Outcome.DONE, Outcome.ERROR)
        assert ended.receipt.samples_sent == 0
        assert ended.receipt.text_spoken + ended.receipt.text_remaining == text
    assert (await recorder.synthesize("Ok.")).outcome is Outcome.DONE


@behavior()
async def end_text_without_text_is_illegal(context: BehaviorContext) -> None:
    recorder = await context.open()
    with pytest.raises(IllegalCommand):
        recorder.session.end_text()
    await recorder.synthesize("Once.")
    with pytest.raises(IllegalCommand):
        recorder.session.end_text()
    assert (await recorder.synthesize("Twice.")).outcome is Outcome.DONE


@behavior("flush")
async def flush_speaks_pending_text(context: BehaviorContext) -> None:
    recorder = await context.open()
    recorder.session.flush()
    key = recorder.session.speak("an unfinished sent")
    recorder.session.flush()
    await recorder.receive_samples(CHAR_SAMPLES, key)
    recorder.session.speak(" ence.")
    recorder.session.end_text()
    assert (await recorder.wait_ended(key)).receipt.text_spoken == "an unfinished sent ence."


@behavior("flush")
async def late_text_continues_the_utterance(context: BehaviorContext) -> None:
    recorder = await context.open()
    key = recorder.session.speak("The first sentence is here. ")
    recorder.session.flush()
    await recorder.receive_samples(15 * CHAR_SAMPLES, key)
    await asyncio.sleep(0.3)  # longer than any buffering on the transport, shorter than any time limit
    recorder.session.speak("And then it goes on.")
    recorder.session.end_text()
    ended = await recorder.wait_ended(key)
    assert ended.outcome is Outcome.DONE
    assert ended.receipt.text_remaining == ""


@behavior()
async def same_request_gives_same_audio(context: BehaviorContext) -> None:
    first = await context.open(replace(FAST, seed=7))
    second = await context.open(replace(FAST, seed=7))
    one = await first.synthesize(TEXT)
    two = await second.synthesize(TEXT)
    context.assert_same_audio(first.pcm[one.key], second.pcm[two.key])


@behavior("spans", "tone")
async def session_options_take_effect(context: BehaviorContext) -> None:
    recorder = await context.open(replace(FAST, speed=2.0, voice="tone-low", lexicon={"hi": "hello hello"}))
    ended = await recorder.synthesize("hi")
    started = next(item for item in recorder.log if isinstance(item, Started))
    assert (started.params.voice, started.params.speed) == ("tone-low", 2.0)
    assert ended.receipt.samples_sent == pytest.approx(10 * CHAR_SAMPLES // 2, abs=0 if context.is_lossless else 2_000)
    assert [word.text for word in ended.receipt.words] == ["hi"]


@behavior("tone")
async def new_params_apply_to_the_next_utterance(context: BehaviorContext) -> None:
    recorder = await context.open()
    first = recorder.session.speak("The old ")
    recorder.session.configure(SynthesisParams("tone-high"))
    recorder.session.speak("voice.")
    recorder.session.end_text()
    second = recorder.session.speak("The new voice.")
    recorder.session.end_text()
    await recorder.wait_ended(second)
    started = {item.key: item.params.voice for item in recorder.log if isinstance(item, Started)}
    assert started == {first: "tone", second: "tone-high"}


@behavior()
async def audio_is_paced_to_playback(context: BehaviorContext) -> None:
    recorder = await context.open(SessionOptions(lead_ms=60))
    clock = asyncio.get_running_loop().time
    requested_s = clock()
    key = recorder.session.speak("A little more than a second.")
    recorder.session.end_text()
    while key not in recorder.ends:
        await recorder.next()
        # Playback cannot begin before the request. A busy machine only lowers the lead, so 20 ms cover the rounding
        # of clocks and frames; unpaced, all 1.4 s would arrive at once.
        lead_s = len(recorder.pcm[key]) / 48_000 - (clock() - requested_s)
        assert lead_s <= 0.060 + 0.020, "playout lead exceeds lead_ms"


@behavior()
async def frames_contain_audio(context: BehaviorContext) -> None:
    recorder = await context.open()
    ended = await recorder.synthesize(TEXT)
    assert has_audio(recorder.pcm[ended.key])
    assert recorder.session.sample_rate_hz == 24_000
    frames = [item for item in recorder.log if isinstance(item, PcmFrame)]
    if context.is_lossless:
        assert {frame.samples for frame in frames[:-1]} == {480}
        assert [frame.index for frame in frames] == list(range(len(frames)))
    assert any(isinstance(item, Words) for item in recorder.log)
