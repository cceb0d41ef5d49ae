"""The web page in a browser, with everything that can be known about it from outside.

What it sends and gets on the WebSocket, what its audio graph plays (sample by sample, with a time), which words light
up and when. The page itself is as it is served; only ears and eyes are added to it.
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
"""For whatever is to happen in the end: how soon it does says how busy the machine is."""
expect.set_options(timeout=PATIENCE_MS)

# A browser reports every refused request on the console by itself; these are no faults of the page.
NETWORK_NOISE = ("Failed to load resource", "WebSocket connection to")

UNTIL_TEXT = """([id, text]) => new Promise((resolve) => {
  const it = document.getElementById(id);
  const look = () => it.textContent === text && resolve();
  new MutationObserver(look).observe(it, { childList: true, characterData: true, subtree: true });
  look();
})"""

Before = Callable[[Page], Awaitable[None]]
Sound = np.ndarray[Any, np.dtype[np.float64]]


def routed(handler: Callable[[WebSocketRoute], None]) -> Before:
    """With that handler between the page and the worker."""

    async def before(page: Page) -> None:
        await page.route_web_socket("**/v1/stream", handler)

    return before


def without_end(*contexts: str) -> Before:
    """The worker does not hear that these texts (or any) are complete: it is never done before it is stopped, however
    long that takes a busy machine."""

    def handler(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def from_page(raw: str | bytes) -> None:
            message = json.loads(raw)
            if message["type"] != "end" or (contexts and message["context"] not in contexts):
                server.send(raw)

        route.on_message(from_page)

    return routed(handler)


def all_sounded(heard: Sound, sent: Sound) -> bool:
    """Whether as many samples sounded as were sent; if not, fails with where they part. Silence does not count: on a
    machine that stutters there may be more of it. The end of a fade may be too faint to tell from silence."""
    sounded, expected = int(np.count_nonzero(heard)), int(np.count_nonzero(sent))
    parted = np.flatnonzero(heard[: len(sent)] != sent[: len(heard)])
    silent = heard == 0
    begins = np.flatnonzero(silent & ~np.r_[False, silent[:-1]])
    ends = np.flatnonzero(silent & ~np.r_[silent[1:], False]) + 1
    holes = [(int(begin), int(end - begin)) for begin, end in zip(begins, ends, strict=True) if end - begin >= 8]
    assert abs(sounded - expected) <= 4, (
        f"{sounded} of {expected} samples sounded, of {len(sent)} sent in a span of {len(heard)}; "
        f"different from {parted[:1]} on; silences (begin, samples): {holes[:20]}"
    )
    return True


def silences(sound: Sound) -> dict[int, int]:
    """How long it is silent after so many samples that are not. A zero or two are no silence, but part of a wave."""
    sounding = np.flatnonzero(sound)
    lengths = np.diff(sounding) - 1
    return {int(place) + 1: int(lengths[place]) for place in np.flatnonzero(lengths >= 8)}


@dataclass(frozen=True)
class Carried:
    """What became of sound between the wire and the loudspeaker. ``faded``: samples that were heard, but not in full.
    ``holes``: the silences that were heard and not sent, in samples."""

    faded: int
    holes: list[int]


def carried(heard: Sound, sent: Sound) -> Carried:
    """Fails unless every sample sounded once and in its order."""
    sounded, expected = heard[heard != 0], sent[sent != 0]
    assert len(sounded) == len(expected), f"{len(sounded)} of {len(expected)} samples sounded"
    between, wanted = silences(heard), silences(sent)
    added = {place: between.get(place, 0) - wanted.get(place, 0) for place in {*between, *wanted}}
    assert min(added.values(), default=0) >= 0, "a silence was cut short"
    faded = np.abs(sounded) < np.abs(expected) - 0.01
    assert (sounded * expected > 0).all(), "other sound than was sent"
    assert (np.abs(sounded - expected)[~faded] < 0.01).all(), "other sound than was sent"
    return Carried(int(faded.sum()), [samples for samples in added.values() if samples])


@dataclass
class Turn:
    """An utterance as it went over the wire."""

    started: dict[str, Any]
    pcm: bytearray = field(default_factory=bytearray)
    words: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, Any] | None = None

    @property
    def sound(self) -> Sound:
        return np.frombuffer(bytes(self.pcm), "<i2").astype(float)


@dataclass(frozen=True)
class Heard:
    """What went to the loudspeaker: 16-bit sample values, from the first sounding quantum to the last, and when each
    sample was rendered. ``frame``: the place of the first one on the audio clock."""

    sound: Sound
    at_ms: Sound
    frame: int = 0

    @property
    def trimmed(self) -> Sound:
        """Without the silence around it, which belongs to the quanta and not to the sound."""
        sounding = np.flatnonzero(self.sound)
        return self.sound[sounding[0] : sounding[-1] + 1] if len(sounding) else self.sound[:0]


class Studio:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []
        self.turns: list[Turn] = []
        self.faults: list[str] = []
        page.on("websocket", self._on_websocket)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("console", self._on_console)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        browser: Browser,
        address: str,
        before: Before | None = None,
        **context: Any,
    ) -> AsyncIterator[Studio]:
        """The page, opened; fails if the page reported an error of its own. ``before`` arranges things first."""
        # The page's policy admits no script but its own, and the ear in the audio graph is one more.
        # Drawing the wave costs more than all the rest of it, so that is left to the one test without ears and eyes.
        options = {"viewport": {"width": 900, "height": 800}, "bypass_csp": True, "reduced_motion": "reduce"}
        own = await browser.new_context(**{**options, **context})
        try:
            page = await own.new_page()
            page.set_default_timeout(PATIENCE_MS)
            studio = cls(page)
            await page.add_init_script(path=HERE / "spy.js")
            if before is not None:
                await before(page)
            await page.goto(f"http://{address}/")
            yield studio
            assert not studio.faults, studio.faults
        finally:
            await own.close()

    # -- what it shows ------------------------------------------------------------------------------------------------

    def at(self, name: str) -> Locator:
        return self.page.locator(f"#{name}")

    async def shows(self, name: str, text: str) -> None:
        """Until it does, also if it is over by now."""
        with anyio.move_on_after(PATIENCE_MS / 1000):
            await self.page.evaluate(UNTIL_TEXT, [name, text])  # at once, where playwright's own looks now and then
            return
        shown = await self.at(name).text_content()
        raise AssertionError(f"{name} shows {shown!r}, not {text!r}")

    async def said(self, problem: str) -> None:
        """Until that problem was shown, also if it is over by now."""
        await self.until("text => spy.problems.includes(text)", problem)

    async def until_state(self, state: str) -> None:
        await self.shows("state", state)

    async def shown_ms(self, name: str) -> int:
        await self.until("id => document.getElementById(id).textContent.endsWith(' ms')", name)
        return int((await self.at(name).inner_text()).removesuffix(" ms"))

    async def lit(self) -> list[dict[str, Any]]:
        """``text`` and ``atMs`` of the words that lit up, in the order in which they did."""
        return list(await self.page.evaluate("spy.lit"))

    # -- what is done with it -----------------------------------------------------------------------------------------

    async def write(self, text: str) -> None:
        await self.at("text").fill(text)

    async def speak(self, text: str) -> None:
        await self.write(text)
        await self.at("speak").click()

    async def until_heard(self, samples: int) -> None:
        """Until that many samples went to the loudspeaker since the last ``forget_sound``."""
        await self.until("samples => spy.quanta.length * 128 >= samples", samples)

    async def when_heard(self, samples: int, name: str) -> None:
        """Click that button in the moment in which so many samples have gone to the loudspeaker. A click from outside
        takes a busy machine seconds, and the turn may be over."""
        await self.until(
            """([samples, id]) => {
              if (spy.quanta.length * 128 < samples) return false;
              document.getElementById(id).click();
              return true;
            }""",
            [samples, name],
        )

    async def until_silent(self, seconds: float) -> None:
        """Until nothing went to the loudspeaker for so long, by the audio clock."""
        await self.until(
            "seconds => (spy.contexts[0]?.currentTime ?? 9) - (spy.quanta.at(-1)?.frame ?? 0) / 24000 >= seconds",
            seconds,
        )

    async def clicked_at(self, name: str) -> int:
        """The place on the audio clock where the audio thread could hear that this button was clicked last."""
        await self.page.evaluate("spy.settled().then(() => null)")
        return int(await self.page.evaluate("id => spy.clicks.findLast((click) => click.id === id).frame", name))

    async def until(self, condition: str, argument: Any = None) -> None:
        """Until that JavaScript function of ``argument`` is true."""
        with anyio.fail_after(PATIENCE_MS / 1000):
            await self.page.evaluate(
                f"async (it) => {{ while (!({condition})(it)) await new Promise((done) => setTimeout(done, 5)); }}",
                argument,
            )

    # -- what it plays ------------------------------------------------------------------------------------------------

    async def forget_sound(self) -> None:
        await self.page.evaluate("spy.settled().then(() => { spy.quanta.length = 0; })")

    async def heard(self) -> Heard:
        await self.page.evaluate("spy.settled().then(() => null)")
        # As one string: much faster than value by value.
        quanta = json.loads(await self.page.evaluate("JSON.stringify(spy.quanta)"))
        if not quanta:
            return Heard(np.zeros(0), np.zeros(0))
        first = quanta[0]["frame"]
        sound = np.zeros(quanta[-1]["frame"] - first + 128)
        at_ms = np.zeros(len(sound))
        for quantum in quanta:
            place = slice(quantum["frame"] - first, quantum["frame"] - first + 128)
            sound[place] = np.array(quantum["samples"]) * 32_768
            at_ms[place] = quantum["atMs"]
        return Heard(sound, at_ms, first)

    # -- what goes over the wire --------------------------------------------------------------------------------------

    def sent_text(self) -> str:
        return "".join(message["text"] for message in self.sent if message["type"] == "text")

    def _on_websocket(self, socket: WebSocket) -> None:
        socket.on("framesent", self._on_sent)
        socket.on("framereceived", self._on_received)

    def _on_sent(self, raw: str | bytes) -> None:
        message = json.loads(raw)
        if message["type"] != "ping":  # those come by the clock
            self.sent.append(message)

    def _on_received(self, raw: str | bytes) -> None:
        if isinstance(raw, bytes):
            self.turns[-1].pcm += raw
            return
        message = json.loads(raw)
        self.received.append(message)
        if message["type"] == "started":
            self.turns.append(Turn(message))
        elif message["type"] == "words":
            self.turns[-1].words += message["words"]
        elif message["type"] in ("done", "stopped", "truncated", "error") and message.get("utterance") is not None:
            self.turns[-1].ended = message

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(NETWORK_NOISE):
            self.faults.append(message.text)
