"""The page over WebRTC in a real browser against a real server: the received track itself is recorded and checked."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Playwright, expect
from websockets.asyncio.client import connect

from tests.browser.conftest import PROGRAMS, launch
from tests.browser.demo_page import PATIENCE_MS
from tests.browser.test_microphone import record
from tests.conftest import serving
from tests.fakes.clock import measure_stalls
from tests.integration.test_websocket import until_live_sessions

pytest.importorskip("aiortc", reason='needs the extra "webrtc"')

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

WEBRTC_FLAGS = (
    "--disable-features=WebRtcHideLocalIpsWithMdns",  # mDNS names cannot be resolved here
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
PLAUSIBLE_MS = range(1, 60_000)
"""Plausible on a busy machine; the benchmarks measure the values."""
LONG = "This is a rather long story, and it goes on and on. " * 20

RECORDER = """
(() => {
  const spy = (window.spy = { peers: 0, recorded: [], received: [], highlighted: [], problems: [], silenced: false });
  spy.stalledMs = 0; // for which a busy machine delayed this page
  let ranAtMs = performance.now();
  setInterval(() => {
    const nowMs = performance.now();
    spy.stalledMs += Math.max(0, nowMs - ranAtMs - 20);
    ranAtMs = nowMs;
  }, 10);
  window.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(...options) {
      super(...options);
      spy.peers += 1;
      this.addEventListener("track", async ({ track }) => {
        const context = new AudioContext({ sampleRate: 24000 });
        const source = `registerProcessor("recorder", class extends AudioWorkletProcessor {
          process([input]) { if (input[0]) this.port.postMessage(input[0].slice()); return true; }
        });`;
        await context.audioWorklet.addModule(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
        const node = new AudioWorkletNode(context, "recorder", { channelCount: 1, channelCountMode: "explicit" });
        node.port.onmessage = ({ data }) => {
          spy.recorded.push(data);
          if (data.some((sample) => Math.abs(sample) > 0.01)) {
            spy.firstLoudMs ??= Date.now();
            spy.quietSamples = 0;
          } else if (spy.quietSamples !== null) spy.quietSamples += data.length;
        };
        context.createMediaStreamSource(new MediaStream([track])).connect(node);
        await context.resume();
      });
    }
    createDataChannel(...options) {
      const channel = super.createDataChannel(...options);
      // Registered before the page's handler: `silenced` makes a server that answers nothing any more.
      channel.addEventListener("message", (event) => {
        if (spy.silenced) event.stopImmediatePropagation();
        else spy.received.push(JSON.parse(event.data));
      });
      return channel;
    }
  };
  new MutationObserver((records) => {
    for (const { target, oldValue } of records) {
      if (target.classList.contains("heard") && !oldValue.includes("heard")) {
        spy.highlighted.push({ text: target.textContent, atMs: Date.now() });
      }
    }
  }).observe(document, { subtree: true, attributeFilter: ["class"], attributeOldValue: true });
  new MutationObserver((records) => {
    for (const { target } of records) {
      if (target.id === "problem" && target.textContent) spy.problems.push(target.textContent);
    }
  }).observe(document, { subtree: true, childList: true });
  spy.quietSamples = null; // received since the last loud ones; null before these
  spy.quietMs = () => (spy.quietSamples === null ? -1 : (spy.quietSamples / 24000) * 1000);
  spy.take = () => {
    const all = spy.recorded.flatMap((block) => Array.from(block, (sample) => Math.round(sample * 32767)));
    spy.recorded = [];
    spy.quietSamples = null;
    const bytes = new Uint8Array(Int16Array.from(all).buffer);
    let text = "";
    for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
    return btoa(text);
  };
})();
"""

STOP_AFTER_WORDS = """async (words) => {
  while (spy.highlighted.length < words) await new Promise((done) => setTimeout(done, 5));
  document.getElementById("stop").click();
  return spy.highlighted.length;
}"""

SHOWN_AT = """() => {
  const label = document.getElementById("connection");
  window.shownGone = new Promise((resolve) => {
    new MutationObserver(() => label.dataset.state === "gone" && resolve(Date.now())).observe(label, {
      attributes: true,
    });
  });
}"""


@asynccontextmanager
async def server_process(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A server in its own process, which can be killed, and its address."""
    config = folder / "worker.yaml"
    config.write_text("engines: {tone: {kind: tone}}\nserver: {port: 0}\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tts_worker", "serve", "--config", str(config), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        with anyio.fail_after(PATIENCE_MS / 1000):
            lines = []
            while not (found := re.search(r"http://(\S+:\d+)", "".join(lines))):
                lines.append((await process.stdout.readline()).decode())
                assert lines[-1], "the server ended"
        address = found[1]
        async with httpx.AsyncClient() as client:
            with anyio.fail_after(PATIENCE_MS / 1000):
                while (await client.get(f"http://{address}/health/ready")).status_code != 200:  # noqa: ASYNC110  (a process)
                    await anyio.sleep(0.02)
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class WebRtcDemo:
    """A page object for the page at ``/webrtc``, with a recorder on its track."""

    def __init__(self, page: Page, server_stalled_s: Callable[[], float]) -> None:
        self.page = page
        self._server_stalled_s = server_stalled_s
        self.page_errors: list[str] = []
        page.on("pageerror", lambda error: self.page_errors.append(str(error)))

    def at(self, name: str) -> Locator:
        return self.page.locator(f"#{name}")

    async def until(self, condition: str, argument: Any = None) -> None:
        """Waits for a JavaScript condition; by default Playwright would look at it in every frame."""
        await self.page.wait_for_function(condition, arg=argument, polling=20)

    async def shows(self, name: str, text: str) -> None:
        await self.until("([id, text]) => document.getElementById(id).textContent.startsWith(text)", [name, text])

    async def connected(self) -> None:
        await self.shows("connection", "Connected")

    async def until_problem(self, problem: str) -> None:
        """Waits until this problem has been shown, even for a moment."""
        await self.until("text => spy.problems.includes(text)", problem)

    async def speak(self, text: str) -> None:
        await self.page.fill("#text", text)
        await self.page.click("#speak")

    async def audible(self) -> None:
        """Waits until audio was received since the recording was last read."""
        await self.until("spy.quietMs() >= 0")

    async def finished(self) -> None:
        """Waits until the server has completed the utterance and all of it was played."""
        await self.until("spy.received.some(({ type }) => type === 'done')")
        await self.shows("status", "Finished.")
        await self.page.evaluate("spy.received.length = 0")
        await self.quiet(500)

    async def quiet(self, at_least_ms: int) -> None:
        await self.until("ms => spy.quietMs() > ms", at_least_ms)

    async def recorded(self) -> np.ndarray[Any, Any]:
        """The audio received since the last call: s16 mono at 24 kHz."""
        return np.frombuffer(base64.b64decode(await self.page.evaluate("spy.take()")), "<i2")

    async def stalled_ms(self) -> float:
        """For how long a busy machine has delayed this page and the server, which shares the event loop of the test."""
        return float(await self.page.evaluate("spy.stalledMs")) + 1_000 * self._server_stalled_s()

    async def shown_ms(self, name: str) -> float:
        await self.until("id => document.getElementById(id).textContent.endsWith(' ms')", name)
        return float((await self.page.inner_text(f"#{name}")).removesuffix(" ms"))


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def caller(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    recording = tmp_path_factory.mktemp("caller") / "voice.wav"
    record(recording)
    async with launch(playwright, *WEBRTC_FLAGS, f"--use-file-for-fake-audio-capture={recording}") as launched:
        yield launched


@asynccontextmanager
async def open_webrtc_demo(browser: Browser, address: str, *, own_clock: bool = False) -> AsyncIterator[WebRtcDemo]:
    """The opened page; with ``own_clock``, the test can advance the time of its timers."""
    # The page's content policy admits only its own scripts. The timeline is not looked at.
    context = await browser.new_context(bypass_csp=True, reduced_motion="reduce")
    try:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        async with measure_stalls() as stalled_s:
            opened = WebRtcDemo(page, stalled_s)
            if own_clock:
                await page.clock.install()
            await page.add_init_script(RECORDER)
            await page.goto(f"http://{address}/webrtc")
            yield opened
        assert not opened.page_errors, opened.page_errors
    finally:
        await context.close()


def pitch_hz(samples: np.ndarray[Any, Any]) -> float:
    """The dominant frequency. On a busy machine there may be a gap in the audio, or a remainder of earlier audio."""
    loud = np.flatnonzero(np.abs(samples) > 300)
    assert len(loud) > 6_000, "hardly any audio was received"
    segment = samples[loud[0] : loud[-1] + 1].astype(float)
    spectrum = np.abs(np.fft.rfft(segment * np.hanning(len(segment))))
    return float(np.argmax(spectrum) * 24_000 / len(segment))


async def test_tone_arrives_with_the_pitch_of_its_text(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await demo.speak("aaaaaaaaaaaaaa aaaaaaaaaaaaaa")
        await demo.audible()
        await demo.finished()
        low = pitch_hz(await demo.recorded())
        assert await demo.shown_ms("first-audio") in PLAUSIBLE_MS
        await demo.speak("zzzzzzzzzzzzzz zzzzzzzzzzzzzz")
        await demo.audible()
        await demo.finished()
        assert pitch_hz(await demo.recorded()) != pytest.approx(low, rel=0.03), "other letters, another pitch"


@pytest.mark.long  # over WebSocket in test_page.py
async def test_words_are_highlighted_as_they_are_heard(caller: Browser, address: str) -> None:
    text = "Hello there my friend, how are you on this fine morning."
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await demo.speak(text)
        await demo.shows("status", "Finished.")
        highlighted = await demo.page.evaluate("spy.highlighted")
        words = await demo.page.evaluate(
            "spy.received.filter(({ type }) => type === 'words').flatMap(({ words }) => words)"
        )
        first_loud_ms = await demo.page.evaluate("spy.firstLoudMs")
        stalled_ms = await demo.stalled_ms()
    assert [word["text"] for word in highlighted] == text.split()
    starts_ms = np.array([word["start_sample"] / 24 for word in words])
    shown_ms = np.array([word["atMs"] for word in highlighted], float)
    # Another node of the audio graph saw the first loud quantum: a few quanta earlier or later than the page's own.
    assert shown_ms[0] >= first_loud_ms - 30 - stalled_ms, "no word is highlighted before it is heard"
    late_ms = (shown_ms - shown_ms[0]) - (starts_ms - starts_ms[0])
    assert np.abs(np.median(late_ms)) < 150 + stalled_ms, "words are highlighted at the pace of the audio"


async def test_jitter_is_the_mean_since_the_last_call(modules: Page) -> None:
    assert await modules.evaluate(
        """async () => {
          const { Peer } = await import("/static/webrtc/peer.js");
          const reports = [[1, 10], [1.5, 20], [1.5, 20], [2, 25]];
          RTCPeerConnection.prototype.getStats = async () => {
            const [jitterBufferDelay, jitterBufferEmittedCount] = reports.shift();
            const audio = { type: "inbound-rtp", jitterBufferDelay, jitterBufferEmittedCount };
            return new Map([["codec", { type: "codec" }], ["audio", audio]]);
          };
          const peer = new Peer({});
          const means = [];
          while (reports.length) means.push((await peer.delays()).jitterMs);
          peer.close();
          return means;
        }"""
    ) == [100, 50, 0, 100]


async def test_stop_silences_and_shows_its_latency(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        played_ms, answered_ms = [], []
        for _ in range(3):
            await demo.speak(LONG)
            await demo.audible()
            await demo.shown_ms("first-audio")  # heard, although the page has muted the audio before
            before_ms = await demo.stalled_ms()
            await demo.page.click("#stop")
            played = await demo.shown_ms("stop-played")
            answered = await demo.shown_ms("stop-answered")
            assert played <= await demo.shown_ms("stop-arrived"), "stale audio is muted"
            stalled_ms = await demo.stalled_ms() - before_ms
            played_ms.append(played - stalled_ms)
            answered_ms.append(answered - stalled_ms)
            for part in ("network", "server", "jitter", "playout", "device", "stop-silent"):
                assert await demo.shown_ms(part) >= 0
            await demo.quiet(300)
            await demo.recorded()
            clear = "ids => ids.forEach((id) => (document.getElementById(id).textContent = ''))"
            await demo.page.evaluate(clear, ["first-audio", "stop-played", "stop-answered"])
        # A busy machine may delay one of three, not all.
        assert min(played_ms) < 120
        assert min(answered_ms) < 370, "loopback, and a server with other work"


@pytest.mark.long  # over WebSocket in test_page.py
async def test_stop_shows_the_playback_report(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await demo.speak(LONG)
        highlighted = await demo.page.evaluate(STOP_AFTER_WORDS, 3)
        await demo.shows("status", "Stopped. ")
        report = await demo.page.evaluate("spy.received.find(({ type }) => type === 'stopped')")
        assert report["text_spoken"] + report["text_remaining"] == LONG
        assert report["samples_played"] <= report["samples_sent"]
        assert await demo.page.locator(".spoken").inner_text() == report["text_spoken"].rstrip()
        spoken = len(report["text_spoken"].split())
        word_ms = 40 * len(LONG) / len(LONG.split())  # the tone engine of the fixture speaks 40 ms per character
        tolerance = 1 + await demo.stalled_ms() / word_ms
        assert abs(spoken - highlighted) <= tolerance, (
            "words heard by half count, and highlighting follows the audio device"
        )
        await demo.page.click("#rest")
        await demo.until("spy.received.filter(({ type }) => type === 'started').length === 2")
        assert await demo.at("mirror").text_content() == LONG


async def test_voice_and_speed_are_used(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await expect(demo.page.locator(".voice-name")).to_have_text(["tone", "tone-low", "tone-high"])
        await demo.page.locator("[name=voice][value=tone-high]").check()
        await demo.at("speed").fill("1.5")
        await demo.speak("Ok.")
        await demo.shows("status", "Finished.")
        started = await demo.page.evaluate("spy.received.find(({ type }) => type === 'started')")
        assert (started["voice"], started["speed"]) == ("tone-high", 1.5)


async def test_pause_holds_the_audio_and_resume_continues(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await demo.speak(LONG)
        await demo.audible()
        await demo.page.click("#pause")
        await demo.shows("pause", "Resume")
        await demo.quiet(400)
        await demo.recorded()
        spoken = await demo.at("spoken").inner_text()
        await demo.page.click("#pause")
        await demo.shows("pause", "Pause")
        await demo.audible()
        await demo.until(
            "before => parseFloat(document.getElementById('spoken').textContent) > parseFloat(before)", spoken
        )


async def test_leaving_the_page_frees_its_session(playwright: Playwright, address: str) -> None:
    """In the whole browser: its shell does not tell the peer that the page was left."""
    await until_live_sessions(address, 0)  # the tab of an earlier test may just have been closed
    async with (
        launch(playwright, *WEBRTC_FLAGS, program=PROGRAMS[-1]) as browser,
        open_webrtc_demo(browser, address) as demo,
    ):
        for _ in range(2):
            await demo.connected()
            await demo.speak(LONG)
            await demo.audible()
            await demo.page.goto("about:blank")
            await until_live_sessions(address, 0)
            await demo.page.goto(f"http://{address}/webrtc")
        await demo.connected()
    await until_live_sessions(address, 0)


@pytest.mark.long  # over WebSocket in test_page_connection.py
async def test_server_shutdown_is_shown_and_page_reconnects(caller: Browser) -> None:
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(serving())
        async with open_webrtc_demo(caller, address) as demo:
            await demo.connected()
            await server.aclose()
            await demo.shows("connection", "Server gone")
            await demo.until_problem("The server cannot be reached. Trying again …")
            await server.enter_async_context(serving(server={"port": int(address.rpartition(":")[2])}))
            await demo.connected()
            await demo.shows("problem", "")
            await demo.speak("Ok.")
            await demo.audible()
            await demo.shows("status", "Finished.")


async def test_killed_server_is_shown_within_3_s(caller: Browser, tmp_path: Path) -> None:
    """A killed process ends neither ICE nor the data channel."""
    async with server_process(tmp_path) as (process, address), open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await demo.page.evaluate(SHOWN_AT)
        killed_ms = time.time() * 1000
        process.kill()
        shown_ms = await demo.page.evaluate("shownGone")
        assert shown_ms - killed_ms <= 3_000 + 2 * await demo.stalled_ms()


async def test_hung_data_channel_is_replaced(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address, own_clock=True) as demo:
        await demo.connected()
        await demo.page.evaluate("spy.silenced = true")
        await demo.page.clock.run_for(3_000)
        await demo.shows("connection", "Not answering")
        await demo.page.clock.run_for(7_000)
        await demo.until_problem("The connection was lost: it stopped answering. Trying again …")
        await demo.page.evaluate("spy.silenced = false")
        await demo.page.clock.run_for(2_000)
        await demo.connected()
        assert await demo.page.evaluate("spy.peers") >= 2


@pytest.mark.long  # over WebSocket in test_page_connection.py
async def test_key_form_is_shown_only_when_a_key_is_needed(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        assert await demo.at("key-form").is_hidden()
    async with serving(server={"api_keys": ["a-long-secret"]}) as locked, open_webrtc_demo(caller, locked) as demo:
        await demo.shows("connection", "API key needed")
        await demo.shows("problem", "This server needs an API key.")
        await demo.page.fill("#key", "a-wrong-secret")
        await demo.page.keyboard.press("Enter")
        await demo.shows("problem", "The server did not accept this API key.")
        await demo.page.fill("#key", "a-long-secret")
        await demo.page.keyboard.press("Enter")
        await demo.connected()
        assert await demo.at("key-form").is_hidden()


async def test_full_server_is_shown_and_used_when_free(caller: Browser) -> None:
    async with (
        serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address,
        connect(f"ws://{address}/v1/stream") as holder,
        open_webrtc_demo(caller, address) as demo,
    ):
        await demo.shows("connection", "Server full")
        await demo.shows("problem", "The server is full: every session is taken. Trying again …")
        await holder.close()
        await demo.connected()


@pytest.mark.long  # over WebSocket in test_microphone.py
async def test_voice_interrupts(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await demo.speak(LONG)
        await demo.audible()
        before_ms = await demo.stalled_ms()
        await demo.page.check("#microphone")  # the recording speaks after a while
        assert await demo.shown_ms("stop-played") < 370 + await demo.stalled_ms() - before_ms
        await demo.shows("status", "Interrupted by you. ")
        await demo.quiet(300)


async def test_switch_continues_over_the_other_transport(caller: Browser, address: str) -> None:
    async with open_webrtc_demo(caller, address) as demo:
        await demo.connected()
        await demo.speak(LONG)
        await demo.audible()
        await demo.page.locator("[name=transport][value=websocket]").check(force=True)
        await demo.shows("status", "Cut off. ")
        await demo.connected()
        assert demo.page.url == f"http://{address}/"
        await demo.page.click("#rest")
        await demo.until("parseFloat(document.getElementById('spoken').textContent) > 0.3")
        assert await demo.at("mirror").text_content() == LONG
        await demo.page.click("#stop")
        await demo.shows("status", "Stopped. ")
        await demo.page.locator("[name=transport][value=webrtc]").check(force=True)
        await demo.connected()
        assert demo.page.url == f"http://{address}/webrtc"
        await demo.speak("Ok.")
        await demo.audible()
        await demo.shows("status", "Finished.")


async def test_switch_offers_webrtc_only_where_enabled(caller: Browser) -> None:
    async with serving(webrtc={"enabled": False}) as address, await caller.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        await page.goto(f"http://{address}/")
        await expect(page.locator("[name=transport][value=webrtc]")).to_be_disabled()


async def test_webrtc_page_obeys_its_content_policy(caller: Browser, address: str) -> None:
    """As served, without the recorder: the content policy blocks nothing, and the page speaks."""
    async with await caller.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        console: list[str] = []
        page.on("console", lambda message: console.append(message.text))
        page.on("pageerror", lambda error: console.append(str(error)))
        await page.goto(f"http://{address}/webrtc")
        await page.locator("#text").fill("Ok.")
        await page.locator("#speak").click()
        await expect(page.locator("#status")).to_have_text("Finished.")
        assert console == []
