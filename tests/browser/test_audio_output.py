"""The audio output of browsers that do not start it, or that block the page when they are asked for its latency."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page

from tests.browser.demo_page import DemoPage

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0"
NOT_STARTED = "The browser has not started the audio output. Check that a loudspeaker or headphones are connected."

# As without an audio device: `resume` is not answered. The page's patience of 5 s ends at once.
NO_DEVICE = """{
  const { resume } = AudioContext.prototype;
  let connectDevice;
  const device = new Promise((resolve) => (connectDevice = resolve));
  globalThis.connectDevice = connectDevice;
  let connected = false;
  device.then(() => (connected = true));
  AudioContext = class extends AudioContext {
    constructor(...options) {
      super(...options);
      this.suspend();
    }
    get state() {
      return connected ? super.state : "suspended";
    }
    resume() {
      return device.then(() => resume.call(this));
    }
  };
  const { setTimeout } = globalThis;
  globalThis.setTimeout = (act, ms, ...rest) => setTimeout(act, ms === 5000 ? 0 : ms, ...rest);
}"""

COUNT_READS = """
globalThis.reads = 0;
const count = { get() { globalThis.reads += 1; return 0.01; } };
Object.defineProperty(AudioContext.prototype, "outputLatency", count);
"""


async def no_device(page: Page) -> None:
    await page.add_init_script(NO_DEVICE)


async def count_reads(page: Page) -> None:
    await page.add_init_script(COUNT_READS)


async def test_output_that_does_not_start_is_shown(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, before=no_device) as demo:
        await demo.until_state("Ready")
        await demo.speak("Hello there.")
        await demo.until_problem(NOT_STARTED)
        await demo.page.evaluate("connectDevice()")
        await demo.shows("status", "Finished.")
        await demo.shows("problem", "")


@pytest.mark.parametrize(("user_agent", "read"), [(FIREFOX, False), (None, True)])
async def test_output_latency_is_not_read_in_firefox_on_linux(
    browser: Browser, address: str, user_agent: str | None, read: bool
) -> None:
    async with DemoPage.open(browser, address, before=count_reads, user_agent=user_agent) as demo:
        await demo.until_state("Ready")
        await demo.speak("Hello.")
        await demo.shows("status", "Finished.")
        assert (await demo.page.evaluate("reads") > 0) is read
