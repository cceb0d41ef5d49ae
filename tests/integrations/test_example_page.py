"""``examples/browser.html`` in a real browser, served from another origin than the worker."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.async_api", reason="needs playwright")

from playwright.async_api import async_playwright

from tests.behavior.transports import Setup, serve_setup
from tests.browser.conftest import ABSENT, launch

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = "Hello there, my friend. Press Stop whenever you like. " * 20
"""Plays longer than a click takes on a busy machine."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[str]:
    """Serve the examples; yields their origin."""
    handler = functools.partial(_Quiet, directory=str(EXAMPLES))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.browser
@pytest.mark.skipif(ABSENT, reason="needs Debian's chromium: apt install chromium-headless-shell")
async def test_example_page_plays_stops_and_checks_origin(origin: str) -> None:
    allowed = Setup({"server": {"allowed_origins": [origin]}})
    async with serve_setup(allowed) as address, async_playwright() as playwright, launch(playwright) as browser:
        page = await browser.new_page()
        page.set_default_timeout(100_000)
        await page.goto(f"{origin}/browser.html?worker=ws://{address}")
        await page.fill("#text", "Short.")
        await page.click("#speak")
        await page.wait_for_function("document.getElementById('status').value === 'done: Short. '")
        await page.fill("#text", TEXT)
        await page.click("#speak")
        await page.wait_for_function("document.getElementById('status').value.includes('words: Hello')")
        await page.click("#stop")
        await page.wait_for_function("document.getElementById('status').value.startsWith('stopped: Hello')")
        async with serve_setup(Setup()) as closed:
            await page.goto(f"{origin}/browser.html?worker=ws://{closed}")
            await page.click("#speak")
            await page.wait_for_function("document.getElementById('status').value.includes('no worker')")
