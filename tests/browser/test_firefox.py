"""The web page in Firefox over both transports: what it plays is recorded at the audio device."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.browser.firefox import Firefox, missing_programs
from tests.conftest import serving, until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

LONG = "Hello there, my friend. " + "And how is all of the rest? " * 40
BOTH = pytest.mark.parametrize("path", ["", "webrtc"], ids=["websocket", "webrtc"])


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def firefox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Firefox]:
    if missing := " ".join(missing_programs()):
        pytest.skip(f"needs Debian's Firefox and PulseAudio: apt install {missing}")
    async with Firefox.open(tmp_path_factory.mktemp("firefox")) as opened:
        yield opened


@BOTH
async def test_page_stops_reports_and_reconnects(firefox: Firefox, path: str) -> None:
    async with AsyncExitStack() as server:
        address = await server.enter_async_context(serving())
        async with firefox.page(f"http://{address}/{path}") as page:
            await page.shows("connection", "Connected")
            await page.write(LONG)
            await page.click("speak")
            await firefox.speaker.heard(seconds=0.3)
            await page.shows("state", "Speaking")
            await page.click("stop")
            await page.shows("state", "Ready")
            await firefox.speaker.silent(seconds=0.2)
            spoken, remaining = await page.text(".spoken"), await page.text(".remaining")
            assert spoken.startswith("Hello")
            assert spoken + remaining == LONG
            await page.shows("status", f"Stopped. {len(spoken)} of {len(LONG):,} characters were heard.")

            await server.aclose()
            await page.shows("connection", "Server gone")
            await server.enter_async_context(serving(server={"port": int(address.rpartition(":")[2])}))
            await page.shows("connection", "Connected")
            await page.write("Ok.")
            await page.click("speak")
            await firefox.speaker.heard(seconds=0.05)
            await page.shows("status", "Finished.")


DELAYS_OF_A_CLOSED_PEER = """async () => {
  const { Peer } = await import("/static/webrtc/peer.js");
  const ignored = () => {};
  const [closed, closing] = [1, 2].map(() => new Peer({ message: ignored, track: ignored, closed: ignored }));
  closed.close();
  const delays = closing.delays();
  closing.close();
  return [await closed.delays(), await delays];
}"""


async def test_a_closed_peer_has_no_delays(firefox: Firefox, address: str) -> None:
    """A stop is measured when its audio has settled: the connection may be gone by then."""
    async with firefox.page(f"http://{address}/webrtc") as page:
        assert await page.call(DELAYS_OF_A_CLOSED_PEER) == [None, None]


BREAK_THE_RULES = """() => {
  console.error("an error");
  document.body.append(Object.assign(document.createElement("script"), { textContent: "1" }));
}"""


async def test_errors_and_blocked_scripts_are_seen(firefox: Firefox, address: str) -> None:
    async def errors() -> None:
        async with firefox.page(f"http://{address}/") as page:
            await page.call(BREAK_THE_RULES)
            await until(lambda: "blocked an inline script" in " ".join(firefox.problems))

    with pytest.raises(AssertionError, match="an error"):
        await errors()
