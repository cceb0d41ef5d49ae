"""The web page against a real server with the tone engine: playback, highlighting, pause, stop and playback reports."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser, Page, WebSocketRoute

from tests.browser.demo_page import RATE_HZ, DemoPage, all_played, compare_playback, routed, without_end
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

TEXT = "Hello there, my friend."
LONG = f"{TEXT} How are you? {'And how is all of the rest? ' * 20}".strip()
"""Long enough that the server has not sent all of it when it is interrupted, nor all of the rest."""
FADE_SAMPLES = 120
REPORT_SAMPLES = 480
"""The interval of the player's position reports."""
PLAUSIBLE_MS = range(1, 60_000)
"""Plausible on a busy machine; the benchmarks measure the values."""


COUNT_CHANGES = """() => {
  spy.changes = 0;
  const counter = new MutationObserver((records) => { spy.changes += records.length; });
  for (const name of ["spoken", "lead"]) counter.observe(document.getElementById(name), { childList: true });
}"""


async def test_words_are_highlighted_when_they_are_heard(demo: DemoPage) -> None:
    await demo.page.evaluate(COUNT_CHANGES)
    await demo.speak(TEXT)
    await demo.shows("status", "Finished.")
    (utterance,) = demo.utterances
    heard = await demo.recorded_audio()
    assert len(utterance.samples) > RATE_HZ / 2
    tenths_s = 10 * len(utterance.samples) / RATE_HZ
    assert await demo.page.evaluate("spy.changes") <= 2 * (tenths_s + 3), "each change paints the page again"
    gaps = int(await demo.at("gaps").inner_text())  # 0, unless the machine was too busy
    played = compare_playback(heard.samples, utterance.samples)
    assert played.faded <= gaps * 2 * FADE_SAMPLES, "every sample as it was sent"
    assert len(played.gaps) <= gaps, "no gap that the page does not report"

    highlighted = await demo.highlighted()
    assert [word["text"] for word in highlighted] == ["Hello", "there,", "my", "friend."]
    audible = np.flatnonzero(heard.samples)
    stall_ms = await demo.page.evaluate("spy.stallMs")
    for word, shown in zip(utterance.words, highlighted, strict=True):
        place = np.count_nonzero(utterance.samples[: word["start_sample"]])
        assert heard.at_ms[audible[place]] <= shown["atMs"] + 1, "no word is highlighted before it is heard"
        reported = min(place + REPORT_SAMPLES, len(audible) - 1)
        assert shown["atMs"] <= heard.at_ms[audible[reported]] + 500 + 2 * stall_ms
    assert await demo.at("first-audio").inner_text() != "–"
    assert await demo.shown_ms("first-audio") in PLAUSIBLE_MS
    await demo.shows("spoken", f"{len(utterance.samples) / RATE_HZ:.1f} s")


SILENT_QUANTUM = """
const { addModule } = AudioWorklet.prototype;
AudioWorklet.prototype.addModule = async function (url) {
  if (!`${url}`.endsWith("player-worklet.js")) return addModule.call(this, url);
  const begin = "process(_inputs, [[out]]) {";
  const silent = "if (this.#playedSamples > 4800 && !this.wasSilent) return (this.wasSilent = true);";
  const code = (await (await fetch(url)).text())
    .replace(begin, begin + silent)
    .replace("./ring-buffer.js", new URL("ring-buffer.js", url));
  return addModule.call(this, URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
};
"""


async def test_a_gap_that_the_page_does_not_report_is_seen(browser: Browser, address: str) -> None:
    async def leave_a_quantum_silent(page: Page) -> None:
        await page.add_init_script(SILENT_QUANTUM)

    async with DemoPage.open(browser, address, before=leave_a_quantum_silent) as demo:
        await demo.until_state("Ready")
        await demo.speak(TEXT)
        await demo.shows("status", "Finished.")
        played = compare_playback((await demo.recorded_audio()).samples, demo.utterances[0].samples)
        gaps = int(await demo.at("gaps").inner_text())  # 0, unless the machine was too busy
        assert len(played.gaps) == gaps + 1
        assert 128 in played.gaps


def hold_the_end(route: WebSocketRoute) -> None:
    """Delivers ``end`` after the resume, so that the server does not complete the utterance before."""
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


async def test_resume_continues_without_losing_a_sample(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, before=routed(hold_the_end)) as demo:
        await demo.until_state("Ready")
        await demo.speak(f"{TEXT} And then I go. It is a little longer.")
        await demo.click_when_played(4_800, "pause")
        await demo.until_state("Paused")
        await demo.shows("pause", "Resume")
        await demo.until_silent(seconds=0.2)
        spoken = await demo.at("spoken").inner_text()
        await demo.at("pause").click()
        await demo.shows("status", "Finished.")
        assert float(spoken.split()[0]) < float((await demo.at("spoken").inner_text()).split()[0])

        played = compare_playback((await demo.recorded_audio()).samples, demo.utterances[0].samples)
        gaps = int(await demo.at("gaps").inner_text())  # 0, unless the machine was too busy
        assert 0 < played.faded <= (1 + gaps) * 2 * FADE_SAMPLES, "only the fades reduce the gain"
        assert len(played.gaps) <= 1 + gaps
        assert max(played.gaps) >= 0.2 * RATE_HZ
        message_types = dict.fromkeys(message["type"] for message in demo.sent)
        assert [*message_types] == ["start", "text", "pause", "played", "resume", "end"]
        positions = [message for message in demo.sent if message["type"] == "played"]
        assert {position["utterance"] for position in positions} == {1}


async def test_stop_silences_and_shows_the_playback_report(endless: DemoPage) -> None:
    ahead: list[int] = []
    after: list[int] = []
    for _ in range(3):
        await endless.clear_recording()
        await endless.speak(LONG)
        await endless.click_when_played(4_800, "stop")
        await endless.until_state("Ready")
        heard = await endless.recorded_audio()
        after.append(heard.frame + np.flatnonzero(heard.samples)[-1] + 1 - await endless.clicked_at("stop"))

        report = endless.utterances[-1].ended
        assert report is not None
        assert (report["type"], report["reason"]) == ("stopped", "stop")
        assert report["text_spoken"] + report["text_remaining"] == LONG
        assert report["text_remaining"]
        assert report["samples_played"] == endless.sent[-1]["played_samples"] <= report["samples_sent"]
        assert report["utterance"] == endless.sent[-1]["utterance"]
        ahead.append(report["samples_sent"] - report["samples_played"])
        assert all_played(heard.samples, endless.utterances[-1].samples[: report["samples_played"]])
        assert await endless.page.locator(".spoken").inner_text() == report["text_spoken"]
        assert await endless.page.locator(".remaining").text_content() == report["text_remaining"]
        characters = f"{len(report['text_spoken'])} of {len(LONG)} characters"
        await endless.shows("status", f"Stopped. {characters} were heard.")
        assert await endless.shown_ms("stop-silent") in PLAUSIBLE_MS
        assert await endless.shown_ms("stop-answered") in PLAUSIBLE_MS
    # A busy machine may delay one of three, not all.
    assert min(after) <= 0.05 * RATE_HZ, "nothing is rendered once the audio thread knows of the stop"
    assert max(ahead) > 0, "the report counts what was heard, not what was sent"


async def test_speak_the_rest_continues_after_the_cut(endless: DemoPage) -> None:
    await endless.speak(LONG)
    await endless.click_when_played(4_800, "stop")
    await endless.until_state("Ready")
    before = len(await endless.highlighted())
    await endless.at("rest").click()
    await endless.until("count => spy.highlighted.length >= count", before + 3)
    assert await endless.at("mirror").text_content() == LONG
    await endless.at("stop").click()
    await endless.until_state("Ready")
    first, second = (utterance.ended for utterance in endless.utterances)
    assert first is not None
    assert second is not None
    assert first["text_spoken"]
    assert first["text_remaining"] == second["text_spoken"] + second["text_remaining"]
    highlighted = [word["text"] for word in await endless.highlighted()][before:]
    spoken = [word["text"] for word in second["words"]]
    both = min(len(highlighted), len(spoken))  # the last words of either may still be in flight
    assert both >= 2
    assert highlighted[:both] == spoken[:both]
    assert LONG.split()[len(first["words"]) :][: len(highlighted)] == highlighted, "highlighted where it stands"
    assert await endless.at("mirror").text_content() == LONG


async def test_speak_after_stop_plays_no_stale_audio(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, before=without_end("utterance-1")) as demo:
        await demo.until_state("Ready")
        await demo.speak("This is the old utterance, and it goes on and on. " * 12)
        await demo.click_when_played(4_800, "stop")
        await demo.speak("New.")
        await demo.shows("status", "Finished.")
        old, new = demo.utterances
        heard = (await demo.recorded_audio()).samples
        begin = np.flatnonzero(heard)[-np.count_nonzero(new.samples)]
        gaps = int(await demo.at("gaps").inner_text())  # 0, unless the machine was too busy
        assert compare_playback(heard[begin:], new.samples).faded <= gaps * 2 * FADE_SAMPLES
        assert old.ended is not None
        before = old.samples[: old.ended["samples_played"]]
        assert all_played(heard[:begin], before), "of the first utterance nothing more was played"


async def test_speak_replaces_the_current_utterance(endless: DemoPage) -> None:
    await endless.speak(LONG)
    await endless.until("() => spy.highlighted.length")
    await endless.click_when_played(4_800, "speak")
    await endless.until("() => spy.highlighted.filter(({ text }) => text === 'Hello').length === 2")
    await endless.at("stop").click()
    await endless.until_state("Ready")
    assert [utterance.ended["type"] for utterance in endless.utterances if utterance.ended] == ["stopped", "stopped"]
    assert endless.sent_text() == LONG * 2


async def test_stop_before_the_first_audio(demo: DemoPage) -> None:
    await demo.write(TEXT)
    await demo.page.evaluate("document.getElementById('speak').click(), document.getElementById('stop').click()")
    await demo.shows("status", f"Stopped. 0 of {len(TEXT)} characters were heard.")
    assert not len((await demo.recorded_audio()).samples)
    await demo.at("speak").dblclick()
    await demo.shows("status", "Finished.")
    starts = [message for message in demo.sent if message["type"] == "start"]
    assert len(starts) == 2, "a double click is one request"


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clicks=st.lists(st.sampled_from(["speak", "pause", "stop", "rest", "tick"]), min_size=1, max_size=12))
async def test_random_clicks_leave_the_page_ready(demo: DemoPage, clicks: list[str]) -> None:
    await demo.write(TEXT)
    before = len(demo.utterances)
    for name in clicks:
        if name == "tick":
            await demo.page.evaluate("new Promise(requestAnimationFrame)")
        else:
            click = "name => { const it = document.getElementById(name); it.hidden || it.click(); }"
            await demo.page.evaluate(click, name)
    await demo.page.evaluate("document.getElementById('stop').click()")
    await demo.until_state("Ready")
    for utterance in demo.utterances[before:]:
        assert utterance.ended is not None
        assert utterance.ended["text_spoken"] + utterance.ended["text_remaining"] in TEXT
    await demo.until_silent(seconds=0.05)
    await demo.clear_recording()
    await demo.speak("Ok.")
    await demo.shows("status", "Finished.")
    assert all_played((await demo.recorded_audio()).samples, demo.utterances[-1].samples)


async def test_suspended_audio_pauses_and_can_be_resumed(demo: DemoPage) -> None:
    await demo.speak(TEXT * 3)
    await demo.until("() => spy.quanta.length * 128 >= 4_800 && spy.contexts[0].suspend()")
    await demo.until_state("Paused")
    await demo.shows("problem", "The browser suspended the audio. Press Resume to continue.")
    await demo.at("pause").click()
    await demo.shows("status", "Finished.")
    await demo.shows("problem", "")
    assert len((await demo.recorded_audio()).trimmed) >= len(demo.utterances[0].samples) - 4


async def test_the_real_voice(browser: Browser) -> None:
    async with serving(engines={"hibari": {"kind": "hibari"}}) as address, DemoPage.open(browser, address) as demo:
        await demo.until_state("Ready")
        await demo.speak("Good morning, it works.")
        await demo.shows("status", "Finished.")
        sent, heard = demo.utterances[0].samples, (await demo.recorded_audio()).trimmed
        assert np.count_nonzero(heard) > RATE_HZ
        assert all_played(heard, sent)
        assert np.abs(heard).max() > 1_000
        assert [word["text"] for word in await demo.highlighted()] == ["Good", "morning,", "it", "works."]
        assert await demo.shown_ms("first-audio") in PLAUSIBLE_MS
