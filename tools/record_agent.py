"""Take the pictures of the talking agent from the real page, an animated GIF and a still, in docs/images.

    python -m tools.record_agent --whisper MODEL [--out docs/images]

Runs the agent with the built-in voice, a script and a Whisper model, and opens its page in Debian's headless Chromium.
A recorded caller interrupts through the fake microphone. Needs the extra "whisper", ``pip install playwright pillow``
and ``apt install chromium``.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.async_api import Page, async_playwright

from tools.caller import microphone_flags, record_caller
from tools.record_page import CHROMIUM, FLAGS, Screencast, animate, screencast, write_gif
from tts_worker.features.agent.command import agent_extension
from tts_worker.features.agent.recognizer import WhisperRecognizer
from tts_worker.features.agent.script import ScriptedModel
from tts_worker.features.agent.service import speech_options
from tts_worker.serving import serve
from tts_worker.settings import load_settings

SIZE = (1120, 800)
FRAME_MS = 250
MAX_MS = 40_000
CALLER = "Wait, please stop for a moment."
WORDS_HEARD = 22


async def capture(whisper: str) -> tuple[Screencast, bytes]:
    """Return the painted frames of a conversation and a picture at its end, as PNG."""
    recognizer = WhisperRecognizer(whisper, language="en")
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    ready = asyncio.Event()
    settings = load_settings(flags={"engines": {"hibari": {"kind": "hibari"}}, "server": {"port": 0}})
    extension = agent_extension(speech_options(), ScriptedModel(), recognizer)
    server = asyncio.create_task(serve(settings, listening.set_result, ready.set, extension=extension))
    try:
        address = await listening
        await ready.wait()
        with tempfile.TemporaryDirectory() as folder:
            recording = Path(folder) / "caller.wav"
            await asyncio.to_thread(record_caller, address.removeprefix("http://"), CALLER, recording)
            flags = [*FLAGS, *microphone_flags(recording, repeats=False)]
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
                page = await browser.new_page(
                    viewport={"width": SIZE[0], "height": SIZE[1]},
                    color_scheme="light",
                    reduced_motion="reduce",  # discs that follow the voice would double the size of the GIF
                )
                await page.goto(f"{address}/agent")
                await page.locator("#connection").filter(has_text="Connected").wait_for()
                async with screencast(page) as frames:
                    picture = await converse(page)
                await browser.close()
                return frames, picture
    finally:
        recognizer.close()
        server.cancel()
        await asyncio.wait({server})


async def converse(page: Page) -> bytes:
    """Let the caller interrupt the first answer, and return a picture while the second one is heard."""
    await page.click("#send")
    await page.locator(".word.heard").nth(WORDS_HEARD).wait_for()
    await page.check("#microphone")
    await page.locator("li.assistant del").wait_for()
    await page.locator(".speaking .word.heard").nth(WORDS_HEARD).wait_for()
    return await page.screenshot()


def main(whisper: str, out: Path) -> None:
    frames, picture = asyncio.run(capture(whisper))
    write_gif(animate(frames, FRAME_MS, MAX_MS), out / "agent.gif")
    Image.open(io.BytesIO(picture)).save(out / "agent.png", optimize=True)
    for path in (out / "agent.gif", out / "agent.png"):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whisper", required=True, metavar="MODEL", help="a faster-whisper model or its directory")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="target folder")
    arguments = parser.parse_args()
    main(arguments.whisper, arguments.out)
