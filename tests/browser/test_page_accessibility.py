"""What the page looks like: contrast in both colour schemes, forced colours, narrow screens, and disabled controls."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, Route

from tests.browser.demo_page import DemoPage

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

TEXT = "Hello there, my friend. " * 20
MIN_CONTRAST = 4.5
"""WCAG 2.2, success criterion 1.4.3 (AA), for text of normal size. Disabled controls are exempt."""

LOW_CONTRAST = """(minimum) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let it = element; it; it = it.parentElement) {
      const [r, g, b, alpha] = rgba(getComputedStyle(it).backgroundColor);
      if (alpha === 255) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const low = [];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const element = nodes.currentNode.parentElement;
    const hidden = !element.checkVisibility() || element.closest(".visually-hidden, [aria-disabled=true], textarea");
    if (!nodes.currentNode.data.trim() || hidden) continue;
    const [light, dark] = [rgba(getComputedStyle(element).color).slice(0, 3), background(element)]
      .map(luminance)
      .sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < minimum) low.push([element.id || element.className || element.tagName, contrast]);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_enough_contrast_in_every_state(browser: Browser, address: str, scheme: str) -> None:
    async with DemoPage.open(browser, address, color_scheme=scheme) as demo:
        await demo.until_state("Ready")
        assert await demo.page.evaluate(LOW_CONTRAST, MIN_CONTRAST) == [], "idle"
        await demo.speak(TEXT)
        await demo.until("() => spy.highlighted.length >= 2")
        assert await demo.page.evaluate(LOW_CONTRAST, MIN_CONTRAST) == [], "speaking"
        await demo.at("stop").click()
        await demo.until_state("Ready")
        assert await demo.page.evaluate(LOW_CONTRAST, MIN_CONTRAST) == [], "interrupted"
        await demo.speak("🎉")
        await demo.shows("problem", "There is nothing here that can be spoken.")
        assert await demo.page.evaluate(LOW_CONTRAST, MIN_CONTRAST) == [], "problem"


async def test_placeholder_has_enough_contrast(browser: Browser, address: str) -> None:
    """The placeholder has the colour of unspoken text, which the test above measures."""
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


async def test_switches_show_their_state_with_forced_colours(browser: Browser, address: str) -> None:
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


VOICE = {
    "name": "anna",
    "id": "anna",
    "languages": ["zh", "en", "ja", "ko", "yue", "de", "es", "fr", "it", "ru", "x-nonsense-code"],
    "description": "A calm voice.",
    "alignment": "measured",
    "speed_range": [0.5, 2.0],
    "default": True,
}


@pytest.mark.parametrize("width", [320, 900])
async def test_voice_of_many_languages_fits_its_card(browser: Browser, address: str, width: int) -> None:
    async def before(page: Page) -> None:
        async def voices(route: Route) -> None:
            await route.fulfill(json={"voices": [VOICE]})

        await page.route("**/v1/voices", voices)

    viewport = {"width": width, "height": 900}
    async with DemoPage.open(browser, address, before=before, viewport=viewport) as demo:
        await demo.until_state("Ready")
        card = demo.page.locator(".voice")
        assert await card.inner_text() == "anna\n11 languages"
        assert await card.evaluate("(it) => it.scrollWidth <= it.clientWidth")
        details = await demo.at("voice-details").inner_text()
        assert details.startswith("A calm voice. Languages: Chinese, English, Japanese, Korean, Cantonese, German")


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
