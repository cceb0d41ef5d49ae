"""What is written on the web page: typed while it is spoken, in any script, hostile, long, and always just text."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.async_api import Browser, Page, expect

from tests.browser.studio import PATIENCE_MS, Studio

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

HOSTILE = '<img src=x onerror="alert(1)"> <script>alert(2)</script> & &amp; ok' + ", and so it goes on" * 10


async def test_text_is_spoken_while_it_is_typed_and_enter_ends_a_turn(studio: Studio) -> None:
    await studio.write("Not this. ")
    await studio.at("live").check()
    await expect(studio.at("text")).to_be_focused()
    await studio.page.keyboard.type("First one, then more")
    await studio.lit()  # the page's answer comes after what it has sent until now
    assert studio.sent_text() == "First one, then ", "the word being typed is held back"
    await studio.page.keyboard.press("Enter")
    await studio.page.keyboard.type("Second.")
    await studio.page.keyboard.press("Enter")
    await studio.shows("status", "Finished.")
    await studio.until_state("Ready")
    assert [turn.ended["text_spoken"] for turn in studio.turns if turn.ended] == ["First one, then more\n", "Second.\n"]
    assert [word["text"] for word in await studio.lit()] == ["First", "one,", "then", "more", "Second."]
    assert await studio.at("mirror").text_content() == "Not this. First one, then more\nSecond.\n"
    assert await studio.shown_ms("first-audio") in range(1, 60_000)
    typed = [message for message in studio.sent if message["type"] == "text"]
    assert len(typed) >= 5, "word by word"


async def test_what_is_spoken_already_cannot_be_unwritten_but_emptied(studio: Studio) -> None:
    await studio.write("")
    await studio.at("live").check()
    await studio.page.keyboard.type("This is said, and th")
    await studio.until_heard(2_400)
    for _ in range(4):
        await studio.page.keyboard.press("Backspace")
    assert await studio.at("text").input_value() == "This is said, and "
    await studio.page.keyboard.press("Control+a")
    await studio.page.keyboard.press("Delete")
    await studio.until_state("Ready")
    assert await studio.at("text").input_value() == ""
    assert await studio.at("mirror").text_content() == ""
    await studio.page.keyboard.type("New.")
    await studio.page.keyboard.press("Enter")
    await studio.shows("status", "Finished.")
    assert studio.turns[-1].ended is not None
    assert studio.turns[-1].ended["text_spoken"] == "New.\n"


async def test_stop_while_typing_cuts_there_and_typing_goes_on(studio: Studio) -> None:
    await studio.write("")
    await studio.at("live").check()
    await studio.page.keyboard.type("One two three, four five six. ")
    await studio.until_heard(2_400)
    await studio.page.keyboard.press("Escape")
    await studio.until_state("Ready")
    cut = studio.turns[-1].ended
    assert cut is not None
    assert cut["text_spoken"] + cut["text_remaining"] == "One two three, four five six. "
    await studio.page.keyboard.type("On.")
    await studio.page.keyboard.press("Enter")
    await studio.shows("status", "Finished.")
    assert studio.turns[-1].ended is not None
    assert studio.turns[-1].ended["text_spoken"] == "On.\n"


async def test_words_light_up_where_they_were_written_in_any_script(studio: Studio) -> None:
    text = "**Ei** 👩‍👩‍👧 naïve\n 你好, 🎉ok."
    await studio.speak(text)
    await studio.shows("status", "Finished.")
    (turn,) = studio.turns
    shown = [word["text"] for word in await studio.lit()]
    assert shown == [word["text"] for word in turn.words]
    assert {"naïve", "你"} <= set(shown)
    assert await studio.at("mirror").text_content() == text


async def test_markup_in_the_text_is_text(endless: Studio) -> None:
    await endless.write(HOSTILE)
    await endless.at("speak").click()
    await endless.until_heard(1_200)
    assert await endless.at("mirror").text_content() == HOSTILE
    await endless.at("stop").click()
    await endless.until_state("Ready")
    assert await endless.at("mirror").text_content() == HOSTILE
    assert await endless.page.locator("#script img, #script script").count() == 0


async def test_text_without_any_sound_is_said_to_have_none(studio: Studio) -> None:
    await studio.speak("🎉 🎉")
    await studio.shows("problem", "There is nothing here that can be spoken.")
    await studio.speak("  \n ")
    await studio.shows("status", "There is no text yet: type or paste something first.")
    await studio.shows("problem", "")
    assert len(studio.turns) == 1


async def test_a_text_of_many_messages_comes_back_whole(endless: Studio) -> None:
    # An emoji on every second place: the cut between two messages falls into one of them.
    text = "a" + "🎉" * 20_000 + " and so it goes on" * 20
    await endless.speak(text)
    await endless.when_heard(1_200, "stop")
    await endless.until_state("Ready")
    receipt = endless.turns[-1].ended
    assert receipt is not None
    assert sum(message["type"] == "text" for message in endless.sent) > 1
    assert receipt["text_spoken"] + receipt["text_remaining"] == text
    assert await endless.at("mirror").text_content() == text


async def test_without_a_mouse(endless: Studio) -> None:
    await endless.page.keyboard.press("Tab")
    await expect(endless.at("text")).to_be_focused()
    await endless.write("Hello there, my friend. " * 8)
    await endless.page.keyboard.press("Control+Enter")
    await endless.until_heard(2_400)
    for name in ("speak", "pause"):
        await endless.page.keyboard.press("Tab")
        await expect(endless.at(name)).to_be_focused()
    await endless.page.keyboard.press("Space")
    await endless.until_state("Paused")
    await expect(endless.at("pause")).to_be_focused()
    await endless.page.keyboard.press("Escape")
    await endless.until_state("Ready")
    await expect(endless.at("status")).to_have_attribute("role", "status")


async def test_everything_has_a_name_for_who_cannot_see_it(studio: Studio) -> None:
    tree = await studio.page.locator("main").aria_snapshot()
    controls = re.findall(r"- (textbox|button|switch|combobox|slider|spinbutton)(?: \"([^\"]*)\")?", tree)
    assert len(controls) == 10
    assert all(name for _, name in controls), controls


async def test_a_word_is_heard_from_its_first_sample_on(lab: Page) -> None:
    text = "a 🎉b c"
    words = [(0, 1, 0, 100), (2, 4, 150, 300), (5, 6, 300, 400)]  # in characters, as the worker counts them
    heard = await lab.evaluate(
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


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=WRITING, width=st.integers(320, 700))
async def test_the_words_stand_where_the_caret_does(studio: Studio, text: str, width: int) -> None:
    """The mirror shows the letters, the field has the caret: both must wrap alike, at any width."""
    await studio.page.set_viewport_size({"width": width, "height": 700})
    await studio.write(text)
    mirror, field = await studio.page.evaluate(HEIGHTS)
    assert mirror == field
    for it in ("document.documentElement", "document.getElementById('script')"):
        assert await studio.page.evaluate(f"{it}.scrollWidth <= {it}.clientWidth"), "no sideways scrolling"


async def test_the_page_obeys_its_own_policy(browser: Browser, address: str) -> None:
    """As it is served, without ears and eyes: nothing is refused by the content policy, and it speaks."""
    async with await browser.new_context() as own:
        own.set_default_timeout(PATIENCE_MS)
        page = await own.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(f"http://{address}/")
        await page.locator("#text").fill("Ok.")
        await page.locator("#speak").click()
        await expect(page.locator("#status")).to_have_text("Finished.")
        assert complaints == []
        refused = await page.evaluate("fetch('data:text/plain,x').then(() => false, () => true)")
        assert refused, "the policy is in force"
