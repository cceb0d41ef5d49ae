"""What the page looks like: axe-core in every state, both color schemes, forced colors, narrow and disabled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.async_api import Browser, Page, Route

from tests.browser.demo_page import Before, DemoPage

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

TEXT = "Hello there, my friend. " * 20
VOICE: dict[str, Any] = {
    "name": "anna",
    "id": "anna",
    "languages": ["zh", "en", "ja", "ko", "yue", "de", "es", "fr", "it", "ru", "x-nonsense-code"],
    "description": "A calm voice.",
    "alignment": "measured",
    "speed_range": [0.5, 2.0],
    "default": True,
}
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
WCAG_AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RULES = {"light": WCAG_AA, "dark": ["color-contrast", "link-in-text-block"]}
"""What axe-core checks in each color scheme: in the second one, what depends on colors."""
VIOLATIONS = """async (rules) => {
  const { violations } = await axe.run(document, { runOnly: rules, resultTypes: ["violations"] });
  return violations.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => [id, html, failureSummary]));
}"""


async def violations(demo: DemoPage, scheme: str) -> list[list[str]]:
    """What axe-core finds in the page as it is now."""
    await demo.page.evaluate("Promise.all(document.getAnimations().map((it) => it.finished))")
    return list(await demo.page.evaluate(VIOLATIONS, RULES[scheme]))


def listing(*voices: dict[str, Any]) -> Before:
    """The server lists these voices and adds others; axe-core is there."""

    async def before(page: Page) -> None:
        async def answer(route: Route) -> None:
            await route.fulfill(json={"voices": voices, "can_add": True})

        await page.route("**/v1/voices", answer)
        await page.add_init_script(AXE)

    return before


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_page_is_accessible_in_every_state(browser: Browser, address: str, scheme: str) -> None:
    tone = VOICE | {"id": "tone", "name": "tone", "styles": ["neutral", "happy"], "capabilities": ["instruct"]}
    before = listing(tone, VOICE | {"default": False, "stored": {}})
    async with DemoPage.open(browser, address, before=before, color_scheme=scheme) as demo:
        await demo.until_state("Ready")
        await demo.page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
        assert await violations(demo, scheme) == [], "idle"
        await demo.page.locator("[name=voice][value=tone]").check()
        await demo.at("instruct").fill("low")
        await demo.at("instruct").fill("")
        await demo.speak(TEXT)
        await demo.until("() => spy.highlighted.length >= 2")
        assert await violations(demo, scheme) == [], "speaking"
        await demo.at("stop").click()
        await demo.until_state("Ready")
        assert await violations(demo, scheme) == [], "interrupted, with a history"
        await demo.speak("🎉")
        await demo.shows("problem", "There is nothing here that can be spoken.")
        assert await violations(demo, scheme) == [], "problem"
        for state in ("full", "gone", "unresponsive", "locked"):
            await demo.page.evaluate(SHOW_CONNECTION, state)
            assert await violations(demo, scheme) == [], state


SHOW_CONNECTION = """async (state) => {
  const { ConnectionView } = await import("/static/connection-view.js");
  const problem = (text) => { document.getElementById("problem").textContent = text; };
  new ConnectionView({ problem, connect() {} }).show(state, { text: "The server says why.", final: false });
}"""


async def test_placeholder_has_enough_contrast(browser: Browser, address: str) -> None:
    """The placeholder has the color of unspoken text, which the test above measures."""
    async with DemoPage.open(browser, address) as demo:
        color = "getComputedStyle(document.getElementById('text'), '::placeholder').webkitTextFillColor"
        await demo.write(TEXT)
        await demo.at("speak").click()
        await demo.until("() => document.getElementById('mirror').dataset.shows === 'utterance'")
        assert await demo.page.evaluate(color) == await demo.page.evaluate(
            "getComputedStyle(document.getElementById('mirror')).color"
        )


async def pixels(page: Page, selector: str) -> bytes:
    return await page.locator(selector).screenshot(animations="disabled")


async def test_switches_show_their_state_with_forced_colors(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, forced_colors="active") as demo:
        await demo.until_state("Ready")
        off = await pixels(demo.page, "#live")
        await demo.at("live").check()
        await demo.at("speak").focus()
        on = await pixels(demo.page, "#live")
        assert on != off
        knob, track = await demo.page.evaluate(
            """() => [getComputedStyle(document.getElementById("live"), "::before").backgroundColor,
                      getComputedStyle(document.getElementById("live")).backgroundColor]"""
        )
        assert knob != track


@pytest.mark.parametrize("forced", ["active", "none"])
async def test_disabled_buttons_look_disabled(browser: Browser, address: str, forced: str) -> None:
    look = """(id) => {
      const { color, cursor, borderTopStyle } = getComputedStyle(document.getElementById(id));
      return [color, cursor, borderTopStyle];
    }"""
    async with DemoPage.open(browser, address, forced_colors=forced) as demo:
        await demo.until_state("Ready")
        disabled = await demo.page.evaluate(look, "stop")
        await demo.speak(TEXT)
        await demo.until_state("Speaking")
        enabled = await demo.page.evaluate(look, "stop")
        await demo.at("stop").click()
        assert all(before != after for before, after in zip(disabled, enabled, strict=True))


async def test_rest_is_not_offered_where_it_cannot_be_spoken(demo: DemoPage) -> None:
    await demo.speak("🎉 🎉")
    await demo.shows("problem", "There is nothing here that can be spoken.")
    assert await demo.at("rest").is_hidden()


@pytest.mark.parametrize(
    ("ending", "offered"),
    [
        ({"type": "error", "code": "unspeakable_text", "text_spoken": "", "text_remaining": "你好"}, False),
        ({"type": "error", "code": "engine_fault", "text_spoken": "", "text_remaining": "Hello"}, True),
        ({"type": "truncated", "text_spoken": "Hello ", "text_remaining": "🎉!"}, False),
    ],
)
async def test_rest_is_offered_only_if_speakable(modules: Page, ending: dict[str, str], offered: bool) -> None:
    speakable = await modules.evaluate(
        """async (ending) => {
          const { Utterance } = await import("/static/utterance.js");
          const text = ending.text_spoken + ending.text_remaining;
          const utterance = new Utterance(1, { text, base: 0, settings: {}, open: false, askedAtMs: 0 });
          utterance.ending = ending;
          return utterance.outcome().speakable;
        }""",
        ending,
    )
    assert speakable is offered


@pytest.mark.parametrize("width", [320, 900])
async def test_voice_of_many_languages_fits_its_card(browser: Browser, address: str, width: int) -> None:
    viewport = {"width": width, "height": 900}
    async with DemoPage.open(browser, address, before=listing(VOICE), viewport=viewport) as demo:
        await demo.until_state("Ready")
        card = demo.page.locator(".voice")
        assert (await card.inner_text()).split() == ["anna", "11", "languages", "A", "calm", "voice."]
        assert await card.evaluate("(it) => it.scrollWidth <= it.clientWidth")
        details = await demo.at("voice-details").text_content()
        assert details is not None
        assert details.startswith("Languages: Chinese, English, Japanese, Korean, Cantonese, German")


@pytest.mark.parametrize("path", ["/", "/webrtc"])
async def test_page_fits_a_narrow_screen(browser: Browser, address: str, path: str) -> None:
    async with await browser.new_context(viewport={"width": 320, "height": 700}) as context:
        page = await context.new_page()
        await page.goto(f"http://{address}{path}")
        await page.locator("#connection").filter(has_text="Connected").wait_for()
        assert await page.evaluate("document.documentElement.scrollWidth <= 320")
        cut = """[...document.querySelectorAll("dt, dd, button, h1, label")]
          .filter((it) => it.checkVisibility() && it.scrollWidth > it.clientWidth + 1 && it.clientWidth > 1)
          .map((it) => it.textContent)"""
        assert await page.evaluate(cut) == []
