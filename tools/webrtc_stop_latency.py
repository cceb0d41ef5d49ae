"""Stop latency over WebRTC in Chromium, by part: from the click to the last audible sample.

    python -m tools.webrtc_stop_latency [--stops 60] [--json]

Runs a worker with the tone engine, its page ``/webrtc`` and Debian's headless Chromium on this machine. The page
measures (``features/page/web/webrtc``) and mutes stale audio: "stop-played" is the last sample at the end of the
browser's audio graph, "stop-arrived" the last sample without muting; the other columns are its parts. The latency of
the audio device is not included. Needs ``pip install "tts-worker[webrtc]" playwright`` and ``apt install chromium``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Page, async_playwright

from tts_worker.features.bench.stats import percentile
from tts_worker.serving import serve
from tts_worker.settings import load_settings

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-features=WebRtcHideLocalIpsWithMdns",  # mDNS names may not resolve
)
PARTS = ("stop-played", "stop-arrived", "stop-answered", "network", "server", "jitter", "playout", "device")
TEXT = "This is a rather long story, and it goes on and on. " * 20
PROMISE_MS = 120


@asynccontextmanager
async def worker() -> AsyncIterator[str]:
    """Run a worker on a free port; yield its address."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    ready = asyncio.Event()
    settings = load_settings(flags={"engines": {"tone": {"kind": "tone"}}, "server": {"port": 0}})
    task = asyncio.create_task(serve(settings, listening.set_result, ready.set))
    try:
        address = await listening
        await ready.wait()
        yield address
    finally:
        task.cancel()
        await asyncio.wait({task})


async def shown_ms(page: Page, name: str) -> float:
    shown = await page.wait_for_function(
        "id => document.getElementById(id).textContent.endsWith(' ms') && document.getElementById(id).textContent",
        arg=name,
        polling=50,  # polling on every animation frame would load the browser while it plays
    )
    return float(str(await shown.json_value()).removesuffix(" ms"))


async def barge_in(page: Page, after_ms: float) -> dict[str, float]:
    """Speak, interrupt, and read the figures from the page."""
    await page.evaluate(
        "ids => ids.forEach((id) => (document.getElementById(id).textContent = ''))", [*PARTS, "first-audio"]
    )
    await page.click("#speak")
    await shown_ms(page, "first-audio")
    await page.wait_for_timeout(after_ms)
    await page.click("#stop")
    played_ms = await shown_ms(page, "stop-played")  # the page shows it last
    return {"stop-played": played_ms, **{name: await shown_ms(page, name) for name in PARTS[1:]}}


async def measure(stops: int) -> list[dict[str, float]]:
    chance = random.Random(1)
    async with worker() as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = await browser.new_page()
        await page.goto(f"{address}/webrtc")
        await page.fill("#text", TEXT)
        await page.wait_for_function("() => document.getElementById('connection').textContent === 'Connected'")
        await barge_in(page, 500.0)  # warm-up, not counted
        found = [await barge_in(page, chance.uniform(300.0, 1_500.0)) for _ in range(stops)]
        await browser.close()
        return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--stops", type=int, default=60, help="number of interruptions (default 60)")
    arguments.add_argument("--json", action="store_true", help="print one JSON object")
    options = arguments.parse_args()
    found = asyncio.run(measure(options.stops))
    figures = {
        name: {f"p{percent}_ms": percentile([each[name] for each in found], percent) for percent in (50, 95, 99)}
        for name in PARTS
    }
    if options.json:
        print(json.dumps({"stops": options.stops, "promise_p99_ms": PROMISE_MS, **figures}))
        return 0
    print(f"{'':14}{'p50':>9}{'p95':>9}{'p99':>9}   of {options.stops} stops; stop-played: at most {PROMISE_MS} ms")
    for name, values in figures.items():
        print(f"{name:14}" + "".join(f"{value:>6.0f} ms" for value in values.values() if value is not None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
