"""A headless Chromium for the tests of the web page, and servers for it to connect to.

One browser and one server for all tests, on one event loop; every test gets its own browser context (storage, sockets,
audio).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Playwright, async_playwright

from tests.browser.demo_page import PATIENCE_MS, DemoPage, without_end
from tests.conftest import serving

PROGRAMS = [path for path in (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium")) if path.exists()]
"""The first one has no windows: a page costs a sixth of the processor time."""
ABSENT = not PROGRAMS
FLAGS = (
    "--no-sandbox",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def playwright() -> AsyncIterator[Playwright]:
    if ABSENT:
        pytest.skip("needs Debian's chromium: apt install chromium-headless-shell")
    async with async_playwright() as running:
        yield running


@asynccontextmanager
async def launch(playwright: Playwright, *flags: str, program: Path | None = None) -> AsyncIterator[Browser]:
    launched = await playwright.chromium.launch(
        executable_path=program or PROGRAMS[0], args=[*FLAGS, *flags], timeout=PATIENCE_MS
    )
    try:
        yield launched
    finally:
        await launched.close()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser(playwright: Playwright) -> AsyncIterator[Browser]:
    async with launch(playwright) as launched:
        yield launched


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def address() -> AsyncIterator[str]:
    """``host:port`` of a server with the tone engine."""
    async with serving(engines={"tone": {"kind": "tone", "ms_per_char": 40}}) as listening:
        yield listening


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def heart_address() -> AsyncIterator[str]:
    """``host:port`` of a server with the CPU voice, which speaks English alone."""
    async with serving(engines={"hibari": {"kind": "hibari"}}) as listening:
        yield listening


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def modules(browser: Browser, address: str) -> AsyncIterator[Page]:
    """A page of the server's origin without the application, for tests of single modules."""
    async with await browser.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        page = await context.new_page()
        await page.goto(f"http://{address}/health/live")
        await page.add_script_tag(path=Path(__file__).parent / "modules.js")
        yield page


@pytest_asyncio.fixture(loop_scope="package")
async def demo(browser: Browser, address: str) -> AsyncIterator[DemoPage]:
    """The web page, opened and connected; fails the test if the page reports an error."""
    async with DemoPage.open(browser, address) as opened:
        await opened.until_state("Ready")
        yield opened


@pytest_asyncio.fixture(loop_scope="package")
async def endless(browser: Browser, address: str) -> AsyncIterator[DemoPage]:
    """The same with a server that continues every utterance until it is stopped."""
    async with DemoPage.open(browser, address, before=without_end()) as opened:
        await opened.until_state("Ready")
        yield opened
