"""The web page against a real server with the tone engine: what is written is heard, and what is heard is shown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser, WebSocketRoute

from tests.browser.studio import RATE_HZ, Studio, all_sounded, carried, routed, without_end
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

TEXT = "Hello there, my friend."
LONG = f"{TEXT} How are you? {'And how is all of the rest? ' * 20}".strip()
"""So long that the worker has not sent all of it when it is interrupted, nor all of its rest."""
FADE_SAMPLES = 120
REPORT_SAMPLES = 480
"""How often the player says where it is, and the quantum in which it does."""
PLAUSIBLE_MS = range(1, 60_000)
"""What a noisy machine may take; the figures themselves are the benchmarks' business."""


async def test_what_is_written_is_heard_and_every_word_lights_up_in_its_time(studio: Studio) -> None:
    await studio.speak(TEXT)
    await studio.shows("status", "Finished.")
    (turn,) = studio.turns
    heard = await studio.heard()
    assert len(turn.sound) > RATE_HZ / 2
    gaps = int(await studio.at("gaps").inner_text())  # none, unless the machine was too busy to be in time
    played = carried(heard.sound, turn.sound)
    assert played.faded <= gaps * 2 * FADE_SAMPLES, "sample for sample what was sent"
    assert len(played.holes) <= gaps, "and no gap that the page does not know of"

    lit = await studio.lit()
    assert [word["text"] for word in lit] == ["Hello", "there,", "my", "friend."]
    sounding = np.flatnonzero(heard.sound)
    stall_ms = await studio.page.evaluate("spy.stallMs")
    for word, shown in zip(turn.words, lit, strict=True):
        place = np.count_nonzero(turn.sound[: word["start_sample"]])
        assert heard.at_ms[sounding[place]] <= shown["atMs"] + 1, "no word lights up before it is heard"
        told = min(place + REPORT_SAMPLES, len(sounding) - 1)
        assert shown["atMs"] <= heard.at_ms[sounding[told]] + 500 + 2 * stall_ms
    assert await studio.at("first-audio").inner_text() != "–"
    assert await studio.shown_ms("first-audio") in PLAUSIBLE_MS
    await studio.shows("spoken", f"{len(turn.sound) / RATE_HZ:.1f} s")


def hold_the_end(route: WebSocketRoute) -> None:
    """The worker hears that a text is complete after the pause, so it is never done before that."""
    server, held = route.connect_to_server(), list[str | bytes]()

    def from_page(raw: str | bytes) -> None:
        kind = json.loads(raw)["type"]
        if kind == "end":
            held.append(raw)
        else:
            server.send(raw)
        if kind == "resume":
            server.send(held.pop())

    route.on_message(from_page)


async def test_pause_is_silence_and_resume_goes_on_without_losing_a_sample(browser: Browser, address: str) -> None:
    async with Studio.open(browser, address, before=routed(hold_the_end)) as studio:
        await studio.until_state("Ready")
        await studio.speak(f"{TEXT} And then I go. It is a little longer.")
        await studio.when_heard(4_800, "pause")
        await studio.until_state("Paused")
        await studio.shows("pause", "Resume")
        await studio.until_silent(seconds=0.2)
        spoken = await studio.at("spoken").inner_text()
        await studio.at("pause").click()
        await studio.shows("status", "Finished.")
        assert float(spoken.split()[0]) < float((await studio.at("spoken").inner_text()).split()[0])

        played = carried((await studio.heard()).sound, studio.turns[0].sound)
        gaps = int(await studio.at("gaps").inner_text())  # none, unless the machine was too busy to be in time
        assert 0 < played.faded <= (1 + gaps) * 2 * FADE_SAMPLES, "what was not heard in full was heard in fades"
        assert len(played.holes) <= 1 + gaps
        assert max(played.holes) >= 0.2 * RATE_HZ
        told = dict.fromkeys(message["type"] for message in studio.sent)
        assert [*told] == ["start", "text", "pause", "played", "resume", "end"]


async def test_stop_is_silence_at_once_and_a_receipt_in_the_text(endless: Studio) -> None:
    ahead, after = [], []
    for _ in range(3):
        await endless.forget_sound()
        await endless.speak(LONG)
        await endless.when_heard(4_800, "stop")
        await endless.until_state("Ready")
        heard = await endless.heard()
        after.append(heard.frame + np.flatnonzero(heard.sound)[-1] + 1 - await endless.clicked_at("stop"))

        receipt = endless.turns[-1].ended
        assert receipt is not None
        assert (receipt["type"], receipt["reason"]) == ("stopped", "stop")
        assert receipt["text_spoken"] + receipt["text_remaining"] == LONG
        assert receipt["text_remaining"]
        assert receipt["samples_played"] == endless.sent[-1]["played_samples"] <= receipt["samples_sent"]
        ahead.append(receipt["samples_sent"] - receipt["samples_played"])
        assert all_sounded(heard.sound, endless.turns[-1].sound[: receipt["samples_played"]])
        assert await endless.page.locator(".spoken").inner_text() == receipt["text_spoken"]
        assert await endless.page.locator(".remaining").text_content() == receipt["text_remaining"]
        characters = f"{len(receipt['text_spoken'])} of {len(LONG)} characters"
        await endless.shows("status", f"Stopped. {characters} were heard.")
        assert await endless.shown_ms("stop-silent") in PLAUSIBLE_MS
        assert await endless.shown_ms("stop-answered") in PLAUSIBLE_MS
    # What a busy machine delays once is not delayed three times.
    assert min(after) <= 0.05 * RATE_HZ, "no more is rendered once the audio thread can know"
    assert max(ahead) > 0, "what was sent is not what was heard"


async def test_the_rest_can_be_spoken_after_all(endless: Studio) -> None:
    await endless.speak(LONG)
    await endless.when_heard(4_800, "stop")
    await endless.until_state("Ready")
    before = len(await endless.lit())
    await endless.at("rest").click()
    await endless.until("lit => spy.lit.length >= lit", before + 3)
    assert await endless.at("mirror").text_content() == LONG
    await endless.at("stop").click()
    await endless.until_state("Ready")
    first, second = (turn.ended for turn in endless.turns)
    assert first is not None
    assert second is not None
    assert first["text_spoken"]
    assert first["text_remaining"] == second["text_spoken"] + second["text_remaining"]
    lit = [word["text"] for word in await endless.lit()][before:]
    spoken = [word["text"] for word in second["words"]]
    both = min(len(lit), len(spoken))  # what is told and shown last may be on its way yet
    assert both >= 2
    assert lit[:both] == spoken[:both]
    assert LONG.split()[len(first["words"]) :][: len(lit)] == lit, "it lights up where it stands"
    assert await endless.at("mirror").text_content() == LONG


async def test_a_new_turn_right_after_stop_is_only_itself(browser: Browser, address: str) -> None:
    async with Studio.open(browser, address, before=without_end("turn-1")) as studio:
        await studio.until_state("Ready")
        await studio.speak("This is the old turn, and it goes on and on. " * 12)
        await studio.when_heard(4_800, "stop")
        await studio.speak("New.")
        await studio.shows("status", "Finished.")
        old, new = studio.turns
        heard = (await studio.heard()).sound
        begin = np.flatnonzero(heard)[-np.count_nonzero(new.sound)]
        gaps = int(await studio.at("gaps").inner_text())  # none, unless the machine was too busy to be in time
        assert carried(heard[begin:], new.sound).faded <= gaps * 2 * FADE_SAMPLES
        assert old.ended is not None
        before = old.sound[: old.ended["samples_played"]]
        assert all_sounded(heard[:begin], before), "and of the old no more came"


async def test_speak_while_speaking_says_the_new_text_instead(endless: Studio) -> None:
    await endless.speak(LONG)
    await endless.until("() => spy.lit.length")
    await endless.when_heard(4_800, "speak")
    await endless.until("() => spy.lit.filter(({ text }) => text === 'Hello').length === 2")
    await endless.at("stop").click()
    await endless.until_state("Ready")
    assert [turn.ended["type"] for turn in endless.turns if turn.ended] == ["stopped", "stopped"]
    assert endless.sent_text() == LONG * 2


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
    await studio.until("() => spy.quanta.length * 128 >= 4_800 && spy.contexts[0].suspend()")
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
        assert np.count_nonzero(heard) > RATE_HZ
        assert all_sounded(heard, sent)
        assert np.abs(heard).max() > 1_000
        assert [word["text"] for word in await studio.lit()] == ["Good", "morning,", "it", "works."]
        assert await studio.shown_ms("first-audio") in PLAUSIBLE_MS
