"""The web page against a real server with the tone engine: what is written is heard, and what is heard is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser

from tests.browser.studio import RATE_HZ, Sound, Studio, all_sounded
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

TEXT = "Hello there, my friend."
LONG = "Hello there, my friend. How are you, and how is all of the rest?"
"""So long that the worker has not sent all of it when the first of it is heard."""
FADE_SAMPLES = 120
PLAUSIBLE_MS = range(1, 5_000)
"""What a noisy machine may take; the figures themselves are the benchmarks' business."""


def same(a: Sound, b: Sound) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.abs(a - b) < 0.01


async def test_what_is_written_is_heard_and_every_word_lights_up_in_its_time(studio: Studio) -> None:
    await studio.speak(TEXT)
    await studio.shows("status", "Finished.")
    (turn,) = studio.turns
    heard = await studio.heard()
    sounding = np.flatnonzero(turn.sound)
    assert len(turn.sound) > RATE_HZ / 2
    assert len(heard.trimmed) == sounding[-1] - sounding[0] + 1
    assert same(heard.trimmed, turn.sound[sounding[0] : sounding[-1] + 1]).all(), "sample for sample what was sent"

    lit = await studio.lit()
    assert [word["text"] for word in lit] == ["Hello", "there,", "my", "friend."]
    begin = np.flatnonzero(heard.sound)[0] - sounding[0]
    for word, shown in zip(turn.words, lit, strict=True):
        rendered_ms = heard.at_ms[begin + word["start_sample"]]
        assert rendered_ms <= shown["atMs"] + 1, "no word lights up before it is heard"
        assert shown["atMs"] <= rendered_ms + 1_000
    assert await studio.at("first-audio").inner_text() != "–"
    assert await studio.shown_ms("first-audio") in PLAUSIBLE_MS
    await studio.shows("spoken", f"{len(turn.sound) / RATE_HZ:.1f} s")
    await studio.shows("gaps", "0")


async def test_pause_is_silence_and_resume_goes_on_without_losing_a_sample(studio: Studio) -> None:
    await studio.speak(f"{TEXT} And then I go.")
    await studio.until_heard(4_800)
    await studio.at("pause").click()
    await studio.until_state("Paused")
    await studio.shows("pause", "Resume")
    await studio.until_silent(seconds=0.2)
    spoken = await studio.at("spoken").inner_text()
    await studio.at("pause").click()
    await studio.shows("status", "Finished.")
    assert float(spoken.split()[0]) < float((await studio.at("spoken").inner_text()).split()[0])

    sent, heard = studio.turns[0].sound, (await studio.heard()).sound
    sent = sent[np.flatnonzero(sent)[0] : np.flatnonzero(sent)[-1] + 1]
    heard = heard[np.flatnonzero(heard)[0] : np.flatnonzero(heard)[-1] + 1]
    before = int(np.argmin(same(heard[: len(sent)], sent)))
    after = int(np.argmin(same(heard[::-1][: len(sent)], sent[::-1])))
    faded = len(sent) - before - after
    assert 0 < faded <= 2 * FADE_SAMPLES, "what was not heard in full was heard in the two fades"
    silent = heard[before + FADE_SAMPLES : len(heard) - after - FADE_SAMPLES]
    assert len(silent) >= 0.2 * RATE_HZ
    assert not silent.any()
    told = dict.fromkeys(message["type"] for message in studio.sent)
    assert [*told] == ["start", "text", "end", "pause", "played", "resume"]


async def test_stop_is_silence_at_once_and_a_receipt_in_the_text(studio: Studio) -> None:
    silent_ms = []
    for _ in range(3):
        await studio.forget_sound()
        await studio.speak(LONG)
        await studio.until_heard(4_800)
        await studio.at("stop").click()
        await studio.until_state("Ready")
        heard = await studio.heard()
        silent_ms.append(heard.at_ms[np.flatnonzero(heard.sound)[-1]] - await studio.clicked_ms("stop"))

        receipt = studio.turns[-1].ended
        assert receipt is not None
        assert (receipt["type"], receipt["reason"]) == ("stopped", "stop")
        assert receipt["text_spoken"] + receipt["text_remaining"] == LONG
        assert receipt["text_remaining"]
        assert receipt["samples_played"] == studio.sent[-1]["played_samples"] < receipt["samples_sent"]
        assert all_sounded(heard.sound, studio.turns[-1].sound[: receipt["samples_played"]])
        assert await studio.page.locator(".spoken").inner_text() == receipt["text_spoken"]
        assert await studio.page.locator(".remaining").text_content() == receipt["text_remaining"]
        characters = f"{len(receipt['text_spoken'])} of {len(LONG)} characters"
        await studio.shows("status", f"Stopped. {characters} were heard.")
        assert await studio.shown_ms("stop-silent") in PLAUSIBLE_MS
        assert await studio.shown_ms("stop-answered") in PLAUSIBLE_MS
    assert min(silent_ms) <= 50, "what a busy machine delays once is not delayed three times"


async def test_the_rest_can_be_spoken_after_all(studio: Studio) -> None:
    await studio.speak(LONG)
    await studio.until_heard(4_800)
    await studio.at("stop").click()
    await studio.at("rest").click()
    before = len(await studio.lit())
    await studio.until("lit => spy.lit.length >= lit", before + 3)
    assert await studio.at("mirror").text_content() == LONG
    await studio.at("stop").click()
    await studio.until_state("Ready")
    first, second = (turn.ended for turn in studio.turns)
    assert first is not None
    assert second is not None
    assert first["text_spoken"]
    assert first["text_remaining"] == second["text_spoken"] + second["text_remaining"]
    lit = [word["text"] for word in await studio.lit()][before:]
    assert lit[: len(second["words"])] == [word["text"] for word in second["words"]]
    assert LONG.split()[len(first["words"]) :][: len(lit)] == lit, "it lights up where it stands"
    assert await studio.at("mirror").text_content() == LONG


async def test_a_new_turn_right_after_stop_is_only_itself(studio: Studio) -> None:
    await studio.speak("This is the old turn, and it goes on and on. " * 4)
    await studio.until_heard(4_800)
    await studio.at("stop").click()
    await studio.speak("New.")
    await studio.shows("status", "Finished.")
    old, new = studio.turns
    heard = (await studio.heard()).sound
    sent = new.sound[np.flatnonzero(new.sound)[0] : np.flatnonzero(new.sound)[-1] + 1]
    end = np.flatnonzero(heard)[-1] + 1
    assert same(heard[end - len(sent) : end], sent).all()
    assert old.ended is not None
    before = old.sound[: old.ended["samples_played"]]
    assert all_sounded(heard[: end - len(sent)], before), "and of the old no more came"


async def test_speak_while_speaking_says_the_new_text_instead(studio: Studio) -> None:
    await studio.speak(LONG)
    await studio.until_heard(4_800)
    await studio.at("speak").click()
    await studio.until("() => spy.lit.filter(({ text }) => text === 'Hello').length === 2")
    await studio.at("stop").click()
    await studio.until_state("Ready")
    assert [turn.ended["type"] for turn in studio.turns if turn.ended] == ["stopped", "stopped"]
    assert studio.sent_text() == LONG * 2


async def test_stop_before_the_first_sound(studio: Studio) -> None:
    await studio.write(TEXT)
    await studio.page.evaluate("document.getElementById('speak').click(), document.getElementById('stop').click()")
    await studio.shows("status", f"Stopped. 0 of {len(TEXT)} characters were heard.")
    assert not len((await studio.heard()).sound)
    await studio.at("speak").dblclick()
    await studio.shows("status", "Finished.")
    starts = [message for message in studio.sent if message["type"] == "start"]
    assert len(starts) == 2, "a double click is one wish"


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clicks=st.lists(st.sampled_from(["speak", "pause", "stop", "rest", "tick"]), min_size=1, max_size=12))
async def test_any_clicks_in_any_order_leave_the_page_ready(studio: Studio, clicks: list[str]) -> None:
    await studio.write(TEXT)
    before = len(studio.turns)
    for name in clicks:
        if name == "tick":
            await studio.page.evaluate("new Promise(requestAnimationFrame)")
        else:
            click = "name => { const it = document.getElementById(name); it.hidden || it.click(); }"
            await studio.page.evaluate(click, name)
    await studio.page.evaluate("document.getElementById('stop').click()")
    await studio.until_state("Ready")
    for turn in studio.turns[before:]:
        assert turn.ended is not None
        assert turn.ended["text_spoken"] + turn.ended["text_remaining"] in TEXT
    await studio.until_silent(seconds=0.05)
    await studio.forget_sound()
    await studio.speak("Ok.")
    await studio.shows("status", "Finished.")
    assert all_sounded((await studio.heard()).sound, studio.turns[-1].sound)


async def test_sound_that_the_system_takes_away_is_paused_and_comes_back(studio: Studio) -> None:
    await studio.speak(TEXT * 3)
    await studio.until_heard(4_800)
    await studio.page.evaluate("spy.contexts[0].suspend()")
    await studio.until_state("Paused")
    await studio.shows("problem", "The browser took the sound away. Press Resume to go on.")
    await studio.at("pause").click()
    await studio.shows("status", "Finished.")
    await studio.shows("problem", "")
    assert len((await studio.heard()).trimmed) >= len(studio.turns[0].sound) - 4


async def test_the_real_voice(browser: Browser) -> None:
    async with serving(engines={"hibari": {"kind": "hibari"}}) as address, Studio.open(browser, address) as studio:
        await studio.until_state("Ready")
        await studio.speak("Good morning, it works.")
        await studio.shows("status", "Finished.")
        sent, heard = studio.turns[0].sound, (await studio.heard()).trimmed
        assert RATE_HZ < len(heard) <= len(sent)
        assert np.abs(heard).max() > 1_000
        assert [word["text"] for word in await studio.lit()] == ["Good", "morning,", "it", "works."]
        assert await studio.shown_ms("first-audio") in PLAUSIBLE_MS
