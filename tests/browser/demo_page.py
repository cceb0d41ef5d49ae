"""A page object for the web page, with everything that can be observed from outside.

It records the messages on the WebSocket, what the audio graph plays (sample by sample, with times), and which words are
highlighted and when. The page itself is as served; ``spy.js`` only adds observers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, WebSocket, WebSocketRoute, expect

HERE = Path(__file__).parent
RATE_HZ = 24_000
PATIENCE_MS = 60_000
"""Timeout for events that must happen: how soon they do depends on the load of the machine."""
expect.set_options(timeout=PATIENCE_MS)

# A browser reports every refused request on the console by itself; these are not errors of the page.
NETWORK_NOISE = ("Failed to load resource", "WebSocket connection to")

UNTIL_TEXT = """([id, text]) => new Promise((resolve) => {
  const it = document.getElementById(id);
  const look = () => it.textContent === text && resolve();
  new MutationObserver(look).observe(it, { childList: true, characterData: true, subtree: true });
  look();
})"""

Before = Callable[[Page], Awaitable[None]]
Samples = np.ndarray[Any, np.dtype[np.float64]]


def routed(handler: Callable[[WebSocketRoute], None]) -> Before:
    """Puts the handler between the page and the server."""

    async def before(page: Page) -> None:
        await page.route_web_socket("**/v1/stream", handler)

    return before


def without_end(*contexts: str) -> Before:
    """Drops the ``end`` messages of these contexts (of all, if none is given): the server never completes the utterance
    before it is stopped, however long that takes on a busy machine."""

    def handler(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def from_page(raw: str | bytes) -> None:
            message = json.loads(raw)
            if message["type"] != "end" or (contexts and message["context"] not in contexts):
                server.send(raw)

        route.on_message(from_page)

    return routed(handler)


def all_played(heard: Samples, sent: Samples) -> bool:
    """Asserts that all samples sent were played, and returns True; a failure says where they differ. Silent samples do
    not count: on a busy machine there may be more of them. The end of a fade may round to silence."""
    played, expected = int(np.count_nonzero(heard)), int(np.count_nonzero(sent))
    different = np.flatnonzero(heard[: len(sent)] != sent[: len(heard)])
    silent = heard == 0
    begins = np.flatnonzero(silent & ~np.r_[False, silent[:-1]])
    ends = np.flatnonzero(silent & ~np.r_[silent[1:], False]) + 1
    silent_runs = [(int(begin), int(end - begin)) for begin, end in zip(begins, ends, strict=True) if end - begin >= 8]
    assert abs(played - expected) <= 4, (
        f"{played} of {expected} samples played, of {len(sent)} sent in a span of {len(heard)}; "
        f"different from {different[:1]} on; silences (begin, samples): {silent_runs[:20]}"
    )
    return True


def silences(audio: Samples) -> dict[int, int]:
    """Lengths of the silences, by the number of audible samples before each. Fewer than 8 zeros are part of a wave."""
    audible = np.flatnonzero(audio)
    lengths = np.diff(audible) - 1
    return {int(place) + 1: int(lengths[place]) for place in np.flatnonzero(lengths >= 8)}


@dataclass(frozen=True)
class PlaybackDifference:
    """What differs between the audio sent and the audio played. ``faded``: samples played at reduced gain. ``gaps``:
    lengths of the silences that were played and not sent, in samples."""

    faded: int
    gaps: list[int]


def compare_playback(heard: Samples, sent: Samples) -> PlaybackDifference:
    """Fails unless every sample was played once and in order."""
    played, expected = heard[heard != 0], sent[sent != 0]
    assert len(played) == len(expected), f"{len(played)} of {len(expected)} samples played"
    between, wanted = silences(heard), silences(sent)
    added = {place: between.get(place, 0) - wanted.get(place, 0) for place in {*between, *wanted}}
    assert min(added.values(), default=0) >= 0, "a silence was cut short"
    faded = np.abs(played) < np.abs(expected) - 0.01
    assert (played * expected > 0).all(), "other audio than was sent"
    assert (np.abs(played - expected)[~faded] < 0.01).all(), "other audio than was sent"
    return PlaybackDifference(int(faded.sum()), [samples for samples in added.values() if samples])


@dataclass
class Utterance:
    """An utterance as it went over the wire."""

    started: dict[str, Any]
    pcm: bytearray = field(default_factory=bytearray)
    words: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, Any] | None = None

    @property
    def samples(self) -> Samples:
        return np.frombuffer(bytes(self.pcm), "<i2").astype(float)


@dataclass(frozen=True)
class RecordedAudio:
    """What the audio graph played: 16-bit sample values, from the first audible quantum to the last, and when each
    sample was rendered. ``frame``: the position of the first one, in samples that the audio graph has rendered."""

    samples: Samples
    at_ms: Samples
    frame: int = 0

    @property
    def trimmed(self) -> Samples:
        """Without the leading and trailing silence of the quanta."""
        audible = np.flatnonzero(self.samples)
        return self.samples[audible[0] : audible[-1] + 1] if len(audible) else self.samples[:0]


class DemoPage:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.utterances: list[Utterance] = []
        self.page_errors: list[str] = []
        page.on("websocket", self._on_websocket)
        page.on("pageerror", lambda error: self.page_errors.append(str(error)))
        page.on("dialog", lambda dialog: self.page_errors.append(f"dialog: {dialog.message}"))
        page.on("console", self._on_console)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        browser: Browser,
        address: str,
        before: Before | None = None,
        **context: Any,
    ) -> AsyncIterator[DemoPage]:
        """The opened page; fails if the page reported an error. ``before`` prepares the page before it loads."""
        # The page's content policy admits only its own scripts, and the spy's worklet is not one of them.
        # Drawing the waveform costs more than the rest of the page; one test without a spy covers it.
        options = {"viewport": {"width": 900, "height": 800}, "bypass_csp": True, "reduced_motion": "reduce"}
        browser_context = await browser.new_context(**{**options, **context})
        try:
            page = await browser_context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            demo = cls(page)
            await page.add_init_script(path=HERE / "spy.js")
            if before is not None:
                await before(page)
            await page.goto(f"http://{address}/")
            yield demo
            assert not demo.page_errors, demo.page_errors
        finally:
            await browser_context.close()

    # -- what the page shows ------------------------------------------------------------------------------------------

    def at(self, name: str) -> Locator:
        return self.page.locator(f"#{name}")

    async def shows(self, name: str, text: str) -> None:
        """Waits until the element has shown this text, even for a moment."""
        with anyio.move_on_after(PATIENCE_MS / 1000):
            await self.page.evaluate(UNTIL_TEXT, [name, text])  # an observer: playwright's own wait polls
            return
        shown = await self.at(name).text_content()
        raise AssertionError(f"{name} shows {shown!r}, not {text!r}")

    async def until_problem(self, problem: str) -> None:
        """Waits until this problem has been shown, even for a moment."""
        await self.until("text => spy.problems.includes(text)", problem)

    async def until_state(self, state: str) -> None:
        await self.shows("state", state)

    async def shown_ms(self, name: str) -> int:
        await self.until("id => document.getElementById(id).textContent.endsWith(' ms')", name)
        return int((await self.at(name).inner_text()).removesuffix(" ms"))

    async def highlighted(self) -> list[dict[str, Any]]:
        """``text`` and ``atMs`` of the words that were highlighted, in order."""
        return list(await self.page.evaluate("spy.highlighted"))

    # -- user actions -------------------------------------------------------------------------------------------------

    async def write(self, text: str) -> None:
        await self.at("text").fill(text)

    async def speak(self, text: str) -> None:
        await self.write(text)
        await self.at("speak").click()

    async def until_played(self, samples: int) -> None:
        """Waits until that many samples were played since the last ``clear_recording``."""
        await self.until("samples => spy.quanta.length * 128 >= samples", samples)

    async def click_when_played(self, samples: int, name: str) -> None:
        """Clicks the button as soon as that many samples were played. A click from outside can take seconds on a busy
        machine, and the utterance may have ended."""
        await self.until(
            """([samples, id]) => {
              if (spy.quanta.length * 128 < samples) return false;
              document.getElementById(id).click();
              return true;
            }""",
            [samples, name],
        )

    async def until_silent(self, seconds: float) -> None:
        """Waits until nothing was played for that long, by the number of samples rendered."""
        with anyio.fail_after(PATIENCE_MS / 1000):
            await self.page.evaluate("samples => spy.untilSilent(samples)", seconds * RATE_HZ)

    async def clicked_at(self, name: str) -> int:
        """The position, in samples rendered, at which the audio thread could learn of the last click on this button."""
        await self.page.evaluate("spy.settled().then(() => null)")
        return int(await self.page.evaluate("id => spy.clicks.findLast((click) => click.id === id).frame", name))

    async def until(self, condition: str, argument: Any = None) -> None:
        """Waits until the JavaScript function returns true for ``argument``."""
        with anyio.fail_after(PATIENCE_MS / 1000):
            await self.page.evaluate(
                f"async (it) => {{ while (!({condition})(it)) await new Promise((done) => setTimeout(done, 5)); }}",
                argument,
            )

    # -- audio --------------------------------------------------------------------------------------------------------

    async def clear_recording(self) -> None:
        await self.page.evaluate("spy.settled().then(() => { spy.quanta.length = 0; })")

    async def recorded_audio(self) -> RecordedAudio:
        await self.page.evaluate("spy.settled().then(() => null)")
        # As one string: much faster than value by value.
        quanta = json.loads(await self.page.evaluate("JSON.stringify(spy.quanta)"))
        if not quanta:
            return RecordedAudio(np.zeros(0), np.zeros(0))
        first = quanta[0]["frame"]
        samples = np.zeros(quanta[-1]["frame"] - first + 128)
        at_ms = np.zeros(len(samples))
        for quantum in quanta:
            place = slice(quantum["frame"] - first, quantum["frame"] - first + 128)
            samples[place] = np.array(quantum["samples"]) * 32_768
            at_ms[place] = quantum["atMs"]
        return RecordedAudio(samples, at_ms, first)

    # -- messages -----------------------------------------------------------------------------------------------------

    def sent_text(self) -> str:
        return "".join(message["text"] for message in self.sent if message["type"] == "text")

    def _on_websocket(self, socket: WebSocket) -> None:
        socket.on("framesent", self._on_sent)
        socket.on("framereceived", self._on_received)

    def _on_sent(self, raw: str | bytes) -> None:
        message = json.loads(raw)
        if message["type"] != "ping":  # pings are sent by a timer
            self.sent.append(message)

    def _on_received(self, raw: str | bytes) -> None:
        if isinstance(raw, bytes):
            self.utterances[-1].pcm += raw
            return
        message = json.loads(raw)
        self.received.append(message)
        if message["type"] == "started":
            self.utterances.append(Utterance(message))
        elif message["type"] == "words":
            self.utterances[-1].words += message["words"]
        elif message["type"] in ("done", "stopped", "truncated", "error") and message.get("utterance") is not None:
            self.utterances[-1].ended = message

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(NETWORK_NOISE):
            self.page_errors.append(message.text)
