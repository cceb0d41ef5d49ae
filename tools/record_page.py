"""Record the pictures of the README from the real page: an animated GIF and a still, in docs/images.

    python -m tools.record_page [--out docs/images]

Runs a worker with the built-in voice and opens its page in Debian's headless Chromium: words light up as they are
played, Stop interrupts, the playback report appears. Needs ``pip install playwright pillow`` and ``apt install
chromium``.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.async_api import Page, async_playwright

from tts_worker.serving import serve
from tts_worker.settings import load_settings

CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required")
TEXT = (
    "Speech starts while the rest of the text is still being synthesized. When the user interrupts, "
    "playback stops at once, and a report says which words were heard."
)
SIZE = (1120, 800)
FRAME_MS = 100
IDLE_MS = 600
WORDS_HEARD = 17
REPORT_MS = 3_000
COLORS = 128
MAX_BYTES = 1_500_000
MAX_MS = 10_000

STOP_AFTER = """(words) => new Promise((done) => {
  const timer = setInterval(() => {
    if (document.querySelectorAll(".word.heard").length < words) return;
    clearInterval(timer);
    document.getElementById("stop").click();
    done();
  }, 20);
})"""

Screencast = list[tuple[float, bytes]]


@asynccontextmanager
async def screencast(page: Page) -> AsyncIterator[Screencast]:
    """Collect the frames that the page paints, with their times in seconds."""
    frames: Screencast = []
    cdp = await page.context.new_cdp_session(page)

    def on_frame(event: dict[str, Any]) -> None:
        frames.append((event["metadata"]["timestamp"], base64.b64decode(event["data"])))
        acknowledgements.append(
            asyncio.ensure_future(cdp.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]}))
        )

    acknowledgements: list[asyncio.Future[Any]] = []
    cdp.on("Page.screencastFrame", on_frame)
    await cdp.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1})
    yield frames
    cdp.remove_listener("Page.screencastFrame", on_frame)
    await cdp.send("Page.stopScreencast")
    await asyncio.gather(*acknowledgements, return_exceptions=True)


async def record(page: Page) -> tuple[Screencast, bytes]:
    """Return the painted frames, and a PNG of the page while it speaks."""
    async with screencast(page) as frames:
        await page.wait_for_timeout(IDLE_MS)
        await page.click("#speak")
        heard = page.locator(".word.heard")
        await heard.nth(WORDS_HEARD // 2).wait_for()
        still = await page.screenshot()
        # The page itself clicks, since a remote click is late on a busy machine.
        await page.evaluate(STOP_AFTER, WORDS_HEARD)
        await page.locator("#rest").wait_for()
        await page.wait_for_timeout(REPORT_MS)
    return frames, still


def animate(frames: Screencast, frame_ms: int = FRAME_MS, max_ms: int = MAX_MS) -> bytes:
    """Return a GIF of the frames, sampled every ``frame_ms``, with a palette taken in the middle.

    The last picture is shown for less where the GIF would take more than ``max_ms``.
    """
    begin_s = frames[0][0]
    end_s = frames[-1][0] + REPORT_MS / 1000
    pictures: list[Image.Image] = []
    durations_ms: list[int] = []
    shown = b""
    index = 0
    for step in range(int((end_s - begin_s) * 1000 / frame_ms)):
        while index + 1 < len(frames) and frames[index + 1][0] <= begin_s + step * frame_ms / 1000:
            index += 1
        data = frames[index][1]
        if data == shown:
            durations_ms[-1] += frame_ms
            continue
        shown = data
        pictures.append(Image.open(io.BytesIO(data)).convert("RGB"))
        durations_ms.append(frame_ms)
    total_ms = sum(durations_ms)
    durations_ms[0] += IDLE_MS
    durations_ms[-1] = max(frame_ms, durations_ms[-1] - max(0, total_ms + IDLE_MS - max_ms))
    palette = pictures[len(pictures) // 2].quantize(COLORS, method=Image.Quantize.MAXCOVERAGE)
    indexed = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    file = io.BytesIO()
    indexed[0].save(
        file, "GIF", save_all=True, append_images=indexed[1:], duration=durations_ms, loop=0, optimize=False, disposal=1
    )
    return file.getvalue()


async def capture() -> tuple[Screencast, bytes]:
    """Start a worker and record its page."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    ready = asyncio.Event()
    settings = load_settings(flags={"engines": {"hibari": {"kind": "hibari"}}, "server": {"port": 0}})
    server = asyncio.create_task(serve(settings, listening.set_result, ready.set))
    try:
        address = await listening
        await ready.wait()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            page = await browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
            await page.goto(address)
            await page.locator("#connection").filter(has_text="Connected").wait_for()
            await page.fill("#text", TEXT)
            await page.evaluate("document.activeElement.blur()")
            recorded = await record(page)
            await browser.close()
            return recorded
    finally:
        server.cancel()
        await asyncio.wait({server})


def write_gif(gif: bytes, path: Path) -> None:
    """Write a GIF. Raises SystemExit if it is too large for the documentation."""
    if len(gif) > MAX_BYTES:
        raise SystemExit(f"the GIF has {len(gif)} bytes, more than {MAX_BYTES}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gif)


def main(out: Path) -> None:
    frames, still = asyncio.run(capture())
    gif = animate(frames)
    write_gif(gif, out / "page.gif")
    Image.open(io.BytesIO(still)).convert("RGB").quantize(256).save(out / "page.png", optimize=True)
    for path in (out / "page.gif", out / "page.png"):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="target folder for page.gif and page.png")
    main(parser.parse_args().out)
