"""The text on the web page: typed while it is spoken, in any script, hostile, long, and never markup."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser, Page, expect

from tests.browser.demo_page import PATIENCE_MS, RATE_HZ, DemoPage
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

HOSTILE = '<img src=x onerror="alert(1)"> <script>alert(2)</script> & &amp; ok' + ", and so it goes on" * 10


async def test_typed_text_is_spoken_and_enter_ends_the_utterance(demo: DemoPage) -> None:
    await demo.write("Not this. ")
    await demo.at("live").check()
    await expect(demo.at("text")).to_be_focused()
    await demo.page.keyboard.type("First one, then more")
    await demo.highlighted()  # a round trip: all messages sent so far have been recorded
    assert demo.sent_text() == "First one, then ", "the word being typed is held back"
    await demo.page.keyboard.press("Enter")
    await demo.page.keyboard.type("Second.")
    await demo.page.keyboard.press("Enter")
    await demo.shows("status", "Finished.")
    await demo.until_state("Ready")
    assert [utterance.ended["text_spoken"] for utterance in demo.utterances if utterance.ended] == [
        "First one, then more\n",
        "Second.\n",
    ]
    assert [word["text"] for word in await demo.highlighted()] == ["First", "one,", "then", "more", "Second."]
    assert await demo.at("mirror").text_content() == "Not this. First one, then more\nSecond.\n"
    assert await demo.shown_ms("first-audio") in range(1, 60_000)
    typed = [message for message in demo.sent if message["type"] == "text"]
    assert len(typed) >= 5, "word by word"


async def test_spoken_text_cannot_be_edited_only_emptied(demo: DemoPage) -> None:
    await demo.write("")
    await demo.at("live").check()
    await demo.page.keyboard.type("This is said, and th")
    await demo.until_played(2_400)
    for _ in range(4):
        await demo.page.keyboard.press("Backspace")
    assert await demo.at("text").input_value() == "This is said, and "
    await demo.page.keyboard.press("Control+a")
    await demo.page.keyboard.press("Delete")
    await demo.until_state("Ready")
    assert await demo.at("text").input_value() == ""
    assert await demo.at("mirror").text_content() == ""
    await demo.page.keyboard.type("New.")
    await demo.page.keyboard.press("Enter")
    await demo.shows("status", "Finished.")
    assert demo.utterances[-1].ended is not None
    assert demo.utterances[-1].ended["text_spoken"] == "New.\n"


async def test_typing_continues_after_stop(demo: DemoPage) -> None:
    await demo.write("")
    await demo.at("live").check()
    await demo.page.keyboard.type("One two three, four five six. ")
    await demo.until_played(2_400)
    await demo.page.keyboard.press("Escape")
    await demo.until_state("Ready")
    cut = demo.utterances[-1].ended
    assert cut is not None
    assert cut["text_spoken"] + cut["text_remaining"] == "One two three, four five six. "
    await demo.page.keyboard.type("On.")
    await demo.page.keyboard.press("Enter")
    await demo.shows("status", "Finished.")
    assert demo.utterances[-1].ended is not None
    assert demo.utterances[-1].ended["text_spoken"] == "On.\n"


async def test_words_of_any_script_are_highlighted_in_place(demo: DemoPage) -> None:
    text = "**Ei** 👩‍👩‍👧 naïve\n 你好, 🎉ok."
    await demo.speak(text)
    await demo.shows("status", "Finished.")
    (utterance,) = demo.utterances
    shown = [word["text"] for word in await demo.highlighted()]
    assert shown == [word["text"] for word in utterance.words]
    assert {"naïve", "你"} <= set(shown)
    assert await demo.at("mirror").text_content() == text


async def test_markup_in_the_text_is_not_interpreted(endless: DemoPage) -> None:
    await endless.write(HOSTILE)
    await endless.at("speak").click()
    await endless.until_played(1_200)
    assert await endless.at("mirror").text_content() == HOSTILE
    await endless.at("stop").click()
    await endless.until_state("Ready")
    assert await endless.at("mirror").text_content() == HOSTILE
    assert await endless.page.locator("#text-view img, #text-view script").count() == 0


async def test_unspeakable_text_is_reported(demo: DemoPage) -> None:
    await demo.speak("🎉 🎉")
    await demo.shows("problem", "There is nothing here that can be spoken.")
    await demo.speak("  \n ")
    await demo.shows("status", "There is no text yet: type or paste something first.")
    await demo.shows("problem", "")
    assert len(demo.utterances) == 1


async def test_skipped_text_is_marked_and_named(browser: Browser, heart_address: str) -> None:
    text = "👋 Hello 你好 world, Привет, Anna. It ends in 世界."
    async with DemoPage.open(browser, heart_address) as page:
        await page.until_state("Ready")
        await page.speak(text)
        await page.shows("status", "Finished. The voice cannot speak “你好”, “Привет”, “世界”: skipped.")
        assert await page.page.locator("#mirror .skipped").all_text_contents() == ["你好", "Привет", "世界"]
        assert await page.at("mirror").text_content() == text
        style = await page.page.locator("#mirror .skipped").first.evaluate("e => getComputedStyle(e).textDecoration")
        assert "dotted" in style


async def test_skipped_text_is_marked_while_it_is_passed(browser: Browser, heart_address: str) -> None:
    text = "Hello 你好 world, this goes on and on. " + "And so on, and on, and on. " * 10
    async with DemoPage.open(browser, heart_address) as page:
        await page.until_state("Ready")
        await page.speak(text)
        await page.until("() => document.querySelectorAll('#mirror .word.heard').length > 2")
        assert await page.page.locator("#mirror .skipped").all_text_contents() == ["你好"]
        await page.at("stop").click()
        await page.until_state("Ready")
        assert await page.page.locator("#mirror .spoken .skipped").all_text_contents() == ["你好"]
        status = await page.at("status").text_content()
        assert status is not None
        assert "The voice cannot speak “你好”: skipped." in status
        assert await page.at("mirror").text_content() == text


async def test_report_of_a_long_text_is_complete(endless: DemoPage) -> None:
    # Surrogate pairs at odd offsets: the boundary between two messages falls inside one.
    text = "a" + "🎉" * 20_000 + " and so it goes on" * 20
    await endless.speak(text)
    await endless.click_when_played(1_200, "stop")
    await endless.until_state("Ready")
    report = endless.utterances[-1].ended
    assert report is not None
    assert sum(message["type"] == "text" for message in endless.sent) > 1
    assert report["text_spoken"] + report["text_remaining"] == text
    assert await endless.at("mirror").text_content() == text


async def test_keyboard_only_use(endless: DemoPage) -> None:
    await endless.page.keyboard.press("Tab")
    await expect(endless.at("agent")).to_be_focused()
    for control in ("[name=transport]:checked", ".preview[value=tone]", "[name=voice]:checked", "#text"):
        await endless.page.keyboard.press("Tab")
        await expect(endless.page.locator(control)).to_be_focused()
    await endless.write("Hello there, my friend. " * 8)
    await endless.page.keyboard.press("Control+Enter")
    await endless.until_played(2_400)
    for name in ("speak", "pause"):
        await endless.page.keyboard.press("Tab")
        await expect(endless.at(name)).to_be_focused()
    await endless.page.keyboard.press("Space")
    await endless.until_state("Paused")
    await expect(endless.at("pause")).to_be_focused()
    await endless.page.keyboard.press("Escape")
    await endless.until_state("Ready")
    await expect(endless.at("status")).to_have_attribute("role", "status")


async def test_every_control_has_an_accessible_name(demo: DemoPage) -> None:
    await expect(demo.page.locator(".voice")).to_have_count(3)
    tree = await demo.page.locator("body").aria_snapshot()
    controls = re.findall(r"- (textbox|button|switch|radio|combobox|slider|spinbutton)(?: \"([^\"]*)\")?", tree)
    assert len(controls) == 20
    assert all(name for _, name in controls), controls


async def test_word_counts_as_heard_from_its_first_sample(modules: Page) -> None:
    text = "a 🎉b c"
    words = [(0, 1, 0, 100), (2, 4, 150, 300), (5, 6, 300, 400)]  # offsets in characters, as the server counts
    heard = await modules.evaluate(
        "([text, words, at]) => heardWords(text, words, at)", [text, words, [0, 149, 150, 299, 300]]
    )
    assert heard == ["a", "a", "a 🎉b", "a 🎉b", "a 🎉b c"]


HEIGHTS = """() => {
  const [mirror, field] = ["mirror", "text"].map((id) => document.getElementById(id));
  Object.assign(mirror.style, { alignSelf: "start", minHeight: 0 });
  Object.assign(field.style, { alignSelf: "start", minHeight: 0, height: 0 });
  const heights = [mirror.offsetHeight, field.scrollHeight];
  for (const it of [mirror, field]) it.removeAttribute("style");
  return heights;
}"""
WRITING = st.lists(st.sampled_from([*"ab ,.\n\tWi中🎉<&", "W" * 80]), min_size=1, max_size=200).map("".join)


@example(text="a" + "W" * 80 + "\taaaa ", width=499)
@example(text="a\n", width=400)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=WRITING, width=st.integers(320, 700))
async def test_mirror_wraps_like_the_text_field(demo: DemoPage, text: str, width: int) -> None:
    """The mirror shows the text, the field has the caret: both must wrap identically at any width."""
    await demo.page.set_viewport_size({"width": width, "height": 700})
    await demo.write(text)
    mirror, field = await demo.page.evaluate(HEIGHTS)
    assert mirror == field
    for it in ("document.documentElement", "document.getElementById('text-view')"):
        assert await demo.page.evaluate(f"{it}.scrollWidth <= {it}.clientWidth"), "no horizontal scrolling"


async def test_page_obeys_its_content_policy(browser: Browser, address: str) -> None:
    """As served, without the spy: the content policy blocks nothing, and the page speaks."""
    async with await browser.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        console: list[str] = []
        page.on("console", lambda message: console.append(message.text))
        page.on("pageerror", lambda error: console.append(str(error)))
        await page.goto(f"http://{address}/")
        await page.locator("#text").fill("Ok.")
        await page.locator("#speak").click()
        await expect(page.locator("#status")).to_have_text("Finished.")
        assert console == []
        refused = await page.evaluate("fetch('data:text/plain,x').then(() => false, () => true)")
        assert refused, "the policy is in force"


async def test_unpunctuated_text_is_spoken_while_typing_pauses(browser: Browser) -> None:
    async with serving(session={"flush_after_ms": 0}) as address, DemoPage.open(browser, address) as demo:
        await demo.until_state("Ready")
        await demo.page.get_by_text("Advanced").click()
        await demo.at("flush-after").fill("20")
        await demo.write("")
        await demo.at("live").check()
        await expect(demo.at("text")).to_be_focused()
        await demo.page.keyboard.type("I would like to book a table for two ")
        await demo.until_played(RATE_HZ // 2)
        assert any(message["type"] == "start" and message["flush_after_ms"] == 20 for message in demo.sent)
