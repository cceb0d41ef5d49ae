"""The web page before and between utterances: voices, the waveform at rest, states, links and comparisons."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Page, Request, Route, expect

from tests.browser.demo_page import DemoPage, without_end
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

LONG = "Hello there, my friend. " * 20
INK = """() => {
  const canvas = document.getElementById("timeline");
  const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  let ink = 0;
  for (let i = 3; i < data.length; i += 4) ink += data[i] > 0;
  return ink / canvas.width;
}"""
"""Painted pixels in each column of the waveform on average: two at most for silence, which is a line."""


async def ink(demo: DemoPage) -> float:
    return float(await demo.page.evaluate(INK))


async def test_waveform_of_the_sample_is_ready(browser: Browser, address: str) -> None:
    requested: list[dict[str, Any]] = []

    async def before(page: Page) -> None:
        def note(sent: Request) -> None:
            if "audio/speech" in sent.url:
                requested.append(sent.post_data_json)

        page.on("request", note)

    async with DemoPage.open(browser, address, before=before) as demo:
        await demo.until("() => document.getElementById('wave-hint').textContent.includes('in the voice of tone')")
        assert await ink(demo) > 5
        assert [(each["voice"], each["input"][:7]) for each in requested] == [("tone", "Type or")]
        await demo.write("My own words are not spoken unasked.")
        assert await ink(demo) <= 2
        await demo.page.get_by_role("button", name="Greeting").click()
        await demo.until("() => document.getElementById('wave-hint').textContent !== ''")
        assert [each["input"][:4] for each in requested] == ["Type", "Good"]


async def test_figures_are_folded_until_something_was_heard(demo: DemoPage) -> None:
    assert not await demo.at("latencies").is_visible()
    await demo.speak("Ok.")
    await demo.shows("status", "Finished.")
    await expect(demo.at("latencies")).to_be_visible()
    await demo.page.get_by_text("Where the time goes").click()
    await demo.speak("Ok.")
    await demo.shows("status", "Finished.")
    assert not await demo.at("latencies").is_visible(), "from then on the user decides"


async def test_a_color_of_the_legend_has_one_meaning(modules: Page) -> None:
    parts = await modules.evaluate(
        """async () => {
          const { Latencies } = await import("/static/latencies.js");
          const container = document.createElement("div");
          const latencies = new Latencies(container);
          const classes = () => [...container.querySelectorAll("dl div")].map((it) => it.className);
          latencies.showStop("WebRTC", { silentMs: 30, answeredMs: 5 });
          const withoutAudio = classes();
          latencies.showStart("WebRTC", { askedMs: 0, sentMs: 1, acceptedMs: 2, firstFrameMs: 3, heardMs: 4 });
          return [withoutAudio, classes()];
        }"""
    )
    assert parts == [["stop", "stop"], ["sent", "accepted", "synthesized", "played"]], "a new start has no stop"


async def test_another_text_clears_what_was_heard_before(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, before=without_end()) as demo:
        await demo.until_state("Ready")
        await demo.speak(LONG)
        await demo.click_when_played(4_800, "stop")
        await demo.until_state("Ready")
        assert await demo.shown_ms("stop-silent") >= 0
        await demo.page.get_by_role("button", name="Markdown").click()
        for figure in ("first-audio", "stop-silent", "stop-answered"):
            assert await demo.at(figure).text_content() == "–", figure
        assert await demo.at("status").text_content() == ""
        assert await demo.page.locator("#mirror .spoken").count() == 0
        await demo.at("speak").click()
        await demo.until_state("Speaking")
        assert await demo.at("stop-silent").text_content() == "–", "of another utterance"


async def test_page_that_waits_for_text_says_so(demo: DemoPage) -> None:
    await demo.at("live").check()
    await demo.write("")
    await demo.at("text").press_sequentially("Hello there. ")
    await demo.shows("status", "Speaking.")
    await demo.shows("status", "Waiting for more text.")
    await demo.at("text").press_sequentially("And on. ")
    await demo.shows("status", "Speaking.")
    await demo.shows("status", "Waiting for more text.")
    await demo.at("text").press("Enter")
    await demo.shows("status", "Finished.")


async def test_silence_after_the_last_word_awaits_text(modules: Page) -> None:
    """On a track, which does not say that it has no audio."""
    assert await modules.evaluate(
        """async () => {
          const { Utterance } = await import("/static/utterance.js");
          const utterance = new Utterance(1, { text: "Hi ", base: 0, settings: {}, open: true, askedAtMs: 0 });
          const awaits = (samples) => (utterance.render(samples), utterance.awaitsText);
          const before = awaits(20000);
          utterance.addWords([{ start_char: 0, end_char: 2, start_sample: 0, end_sample: 9000 }]);
          const states = [before, awaits(20900), awaits(21100)];
          utterance.open = false;
          return [...states, utterance.awaitsText];
        }"""
    ) == [False, False, True, False]


async def test_examples_are_in_a_language_of_the_visitor(modules: Page) -> None:
    assert await modules.evaluate(
        """async () => {
          const { preferredLanguage } = await import("/static/languages.js");
          const texts = { en: 1, zh: 1 };
          const of = (voice, visitor) => preferredLanguage(voice, texts, visitor);
          return [of(["zh", "en-US"], ["de", "en-GB"]), of(["zh", "en"], ["fr"]), of(["ja"], ["zh"])];
        }"""
    ) == ["en", "zh", "en"]


@pytest.mark.parametrize(
    ("pages", "reason"),
    [({"/agent": None}, "This server does not offer WebRTC."), ({"/webrtc": "It needs this"}, "It needs this.")],
)
async def test_transport_that_does_not_work_is_disabled(
    browser: Browser, address: str, pages: dict[str, str | None], reason: str
) -> None:
    async def before(page: Page) -> None:
        async def answer(route: Route) -> None:
            await route.fulfill(json=pages)

        await page.route("**/static/pages.json", answer)

    async with DemoPage.open(browser, address, before=before) as demo:
        await demo.shows("transport-hint", reason)
        await expect(demo.page.locator("[name=transport][value=webrtc]")).to_be_disabled()
        assert await demo.at("transport").get_attribute("aria-describedby") == "transport-hint"
        assert await demo.at("agent").is_visible() == ("/agent" in pages)


async def test_shared_link_restores_the_settings(browser: Browser) -> None:
    key = "a-key-of-some-length"
    permissions = ["clipboard-read", "clipboard-write"]
    async with (
        serving(server={"api_keys": [key]}) as address,
        DemoPage.open(browser, address, permissions=permissions) as demo,
    ):
        await demo.at("key").fill(key)
        await demo.page.keyboard.press("Enter")
        await demo.until_state("Ready")
        await demo.page.locator("[name=voice][value=tone-low]").check()
        await demo.at("speed").fill("1.5")
        await demo.write("A secret, with spaces & signs.")
        await demo.page.get_by_text("Share", exact=True).click()
        links = []
        for with_text in (False, True):
            await demo.at("share-text").set_checked(with_text)
            await demo.at("share-copy").click()
            links.append(await demo.page.evaluate("navigator.clipboard.readText()"))
        assert links[0] == f"http://{address}/#voice=tone-low&speed=1.5&seed=0"
        assert "secret" in links[1]
        assert not [link for link in links if key in link or "ttst_" in link]
        await demo.page.goto(f"http://{address}/health/live")
        await demo.page.goto(links[1])
        await demo.until_state("Ready")
        await expect(demo.page.locator("[name=voice]:checked")).to_have_value("tone-low")
        assert await demo.at("speed").input_value() == "1.5"
        assert await demo.at("text").input_value() == "A secret, with spaces & signs."
        assert not [message for message in demo.sent if message["type"] == "start"], "a click speaks"


async def test_link_that_says_nonsense_changes_nothing_else(modules: Page) -> None:
    assert await modules.evaluate(
        """async () => {
          const { linkOf, readLink } = await import("/static/share.js");
          const link = linkOf("https://host/", { voice: "a@b", speed: 1, seed: 0, instruct: "Ü & =" }, "<b>x</b>");
          const long = readLink("#speed=fast&seed=1e999&voice=&text=" + "x".repeat(9999));
          return [readLink(new URL(link).hash), long.text.length, readLink("#speed=fast&key=k")];
        }"""
    ) == [{"voice": "a@b", "instruct": "Ü & =", "text": "<b>x</b>", "speed": 1, "seed": 0}, 4000, {}]


async def test_two_voices_are_compared_with_the_same_text(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address) as demo:
        await demo.until_state("Ready")
        await demo.write("The same words in both.")
        await demo.page.get_by_text("Compare two voices").click()
        await demo.at("compare-with").select_option("tone-high")
        first, second = demo.at("compare-a"), demo.at("compare-b")
        await expect(first).to_have_text("tone")
        await expect(second).to_have_text("tone-high")
        for button, voice in ((first, "tone"), (second, "tone-high")):
            async with demo.page.expect_request("**/v1/audio/speech") as requested:
                await button.click()
            body = (await requested.value).post_data_json
            assert (body["voice"], body["input"]) == (voice, "The same words in both.")
            await expect(button).to_have_attribute("aria-pressed", "true")
        await expect(first).to_have_attribute("aria-pressed", "false")
        await demo.at("speak").click()
        await expect(second).to_have_attribute("aria-pressed", "false")
        await demo.at("stop").click()
        await demo.until_state("Ready")
        await demo.at("compare-blind").check()
        assert [await it.inner_text() for it in (first, second)] == ["Voice A", "Voice B"]
        await demo.at("compare-reveal").click()
        assert {await it.inner_text() for it in (first, second)} == {"tone", "tone-high"}


async def test_sample_of_every_voice_is_one_tab_stop(demo: DemoPage) -> None:
    stops = "() => [...document.querySelectorAll('.preview')].filter((it) => it.tabIndex === 0).map((it) => it.value)"
    await expect(demo.page.locator(".voice")).to_have_count(3)
    assert await demo.page.evaluate(stops) == ["tone"]
    await demo.page.locator("[name=voice]:checked").press("ArrowDown")
    assert await demo.page.evaluate(stops) == ["tone-low"]


async def test_clip_is_synthesized_once_for_each_request(modules: Page) -> None:
    assert await modules.evaluate(
        """async () => {
          const { Clips } = await import("/static/clips.js");
          const { fetch } = globalThis;
          let requests = 0;
          globalThis.fetch = (...given) => (requests += 1, fetch(...given));
          try {
            const clips = new Clips();
            const get = (voice) => clips.get("Ok.", { voice, speed: 1 }, new AbortController().signal);
            const [first, again, other] = [await get("tone"), await get("tone"), await get("tone-low")];
            clips.forget("tone");
            const anew = await get("tone");
            await get("tone-low");
            return [requests, first === again, first === other, first === anew, first.samples.length > 0];
          } finally {
            globalThis.fetch = fetch;
          }
        }"""
    ) == [3, True, False, False, True]
