"""The web page and a server that refuses, disconnects, hangs or is gone: shown in words, followed by a reconnect."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, WebSocketRoute, expect
from websockets.asyncio.client import connect

from tests.browser.demo_page import Before, DemoPage, routed
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

KEY = "a-key-of-some-length"
TEXT = "Hello there, my friend."


async def test_page_files_load_without_the_key() -> None:
    async with (
        serving(server={"api_keys": [KEY]}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        for path in ("/", "/static/app.js", "/static/style.css"):
            answer = await client.get(path)
            assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-cache"
        assert (await client.get("/static/../v1/voices")).status_code == 401


async def test_key_is_exchanged_for_a_token_of_this_tab(browser: Browser) -> None:
    async with serving(server={"api_keys": [KEY]}) as address, DemoPage.open(browser, address) as demo:
        await demo.shows("problem", "This server needs an API key.")
        await demo.until_state("API key needed")
        await demo.at("key").fill("not the key")
        await demo.page.keyboard.press("Enter")
        await demo.shows("problem", "An API key has no spaces and no letters outside of ASCII.")
        await demo.at("key").fill("not-the-key")
        await demo.page.keyboard.press("Enter")
        await demo.shows("problem", "The server did not accept this API key.")
        await demo.at("key").fill(KEY)
        await demo.page.keyboard.press("Enter")
        await demo.until_state("Ready")
        assert await demo.at("key-form").is_hidden()
        assert await demo.at("key").input_value() == ""
        await demo.shows("problem", "")
        await expect(demo.page.locator(".voice-name")).to_have_text(["tone", "tone-low", "tone-high"])
        await demo.speak("Ok.")
        await demo.shows("status", "Finished.")
        (token,) = await demo.page.evaluate("Object.values(sessionStorage)")
        assert token.startswith("ttst_")
        assert KEY not in await demo.page.content()
        assert await demo.page.evaluate("localStorage.length + document.cookie.length") == 0
        assert KEY not in await demo.page.evaluate(
            "performance.getEntriesByType('resource').map((e) => e.name).join() + location"
        )
        await demo.page.reload()
        await demo.until_state("Ready")
        await demo.page.evaluate("sessionStorage.setItem('tts-worker.token', 'ttst_ended.ended')")
        await demo.page.reload()
        await demo.shows("problem", "Access has ended: enter the API key again.")


async def test_key_that_may_not_enroll_is_exchanged_too(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys: [{{name: page, key: {KEY}, scopes: [speak]}}]\n", encoding="utf-8")
    async with serving(server={"key_file": str(file)}) as address, DemoPage.open(browser, address) as demo:
        await demo.at("key").fill(KEY)
        await demo.page.keyboard.press("Enter")
        await demo.until_state("Ready")
        await demo.speak("Ok.")
        await demo.shows("status", "Finished.")


async def test_page_connects_when_a_full_server_has_a_free_session(browser: Browser) -> None:
    full = "The server is full: every session is taken. Trying again …"
    async with (
        serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address,
        connect(f"ws://{address}/v1/stream") as holder,
        DemoPage.open(browser, address) as demo,
    ):
        await demo.shows("problem", full)
        await demo.until_state("Server full")
        await holder.close()
        await demo.until_state("Ready")
        await demo.shows("problem", "")


async def test_server_shutdown_is_shown_and_page_reconnects(browser: Browser) -> None:
    text = TEXT * 40  # stopping the server may take long on a busy machine
    async with AsyncExitStack() as worker:
        address = await worker.enter_async_context(serving())
        async with DemoPage.open(browser, address) as demo:
            await demo.until_state("Ready")
            await demo.speak(text)
            await demo.until_played(9_600)
            await worker.aclose()
            await demo.shows("connection", "Server gone")
            await demo.until_state("Server gone")
            assert (await demo.at("status").inner_text()).startswith("Cut off: the server is shutting down. ")
            spoken = await demo.page.locator(".spoken").inner_text()
            remaining = await demo.page.locator(".remaining").text_content()
            assert spoken
            assert remaining
            assert spoken + remaining == text
            await demo.speak(TEXT)
            await demo.shows("problem", "The server cannot be reached. Trying again …")
            await demo.shows("status", "")  # a request that failed is not repeated later
            await worker.enter_async_context(serving(server={"port": int(address.rpartition(":")[2])}))
            await demo.until_state("Ready")
            await demo.shows("problem", "")
            await demo.speak(TEXT)
            await demo.shows("status", "Finished.")
            assert demo.utterances[-1].ended is not None
            assert demo.utterances[-1].ended["text_spoken"] == TEXT


async def paused_clock(page: Page) -> None:
    """Time passes only when the test advances it."""
    await page.clock.install(time=0)
    await page.clock.pause_at(1_000)


def mute_after(silent: asyncio.Event) -> Before:
    """With the event set, nothing of the server reaches the page any more: it hangs, but its port is open."""

    async def before(page: Page) -> None:
        def handler(route: WebSocketRoute) -> None:
            server = route.connect_to_server()
            server.on_message(lambda raw: None if silent.is_set() else route.send(raw))

        await paused_clock(page)
        await routed(handler)(page)

    return before


async def test_hung_server_is_shown_within_3_s_and_given_up(browser: Browser, address: str) -> None:
    silent = asyncio.Event()
    async with DemoPage.open(browser, address, before=mute_after(silent)) as demo:
        await demo.until_state("Ready")
        silent.set()
        await demo.page.clock.run_for(3_000)
        await demo.shows("connection", "Not answering")
        await demo.page.clock.run_for(7_000)
        await demo.shows("connection", "Reconnecting")
        await demo.until_problem("The connection was lost: it stopped answering. Trying again …")
        silent.clear()
        await demo.page.clock.run_for(2_000)
        await demo.shows("connection", "Connected")


async def test_server_that_answers_again_keeps_its_connection(browser: Browser, address: str) -> None:
    silent = asyncio.Event()
    async with DemoPage.open(browser, address, before=mute_after(silent)) as demo:
        await demo.until_state("Ready")
        silent.set()
        await demo.page.clock.run_for(3_000)
        await demo.shows("connection", "Not answering")
        silent.clear()
        await demo.page.clock.run_for(1_000)
        await demo.shows("connection", "Connected")
        assert await demo.page.evaluate("spy.problems") == []


async def test_unreachable_port_ends_a_silent_connection_within_3_s(browser: Browser, address: str) -> None:
    """A process that is killed behind a proxy, or over WebRTC, closes no connection."""
    silent = asyncio.Event()
    async with DemoPage.open(browser, address, before=mute_after(silent)) as demo:
        await demo.until_state("Ready")
        silent.set()
        await demo.page.route("**/health/live", lambda route: route.abort("connectionrefused"))
        await demo.page.clock.run_for(3_000)
        await demo.shows("connection", "Server gone")
        await demo.until_problem("The server is gone. Trying again …")


def changing(*, ends: bool = True, **fields: Any) -> Before:
    """Changes fields of the page's ``start`` message. Without ``ends`` the ``end`` messages are dropped, so that the
    server never completes an utterance."""

    def change(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def forward(raw: str | bytes) -> None:
            message = json.loads(raw)
            if ends or message["type"] != "end":
                server.send(json.dumps(message | fields if message["type"] == "start" else message))

        route.on_message(forward)

    return routed(change)


async def test_late_stop_does_not_end_the_next_utterance(browser: Browser, address: str) -> None:
    """The server completes an utterance while the stop is in flight: its answer, nothing to stop, arrives
    when the page could already be in the next utterance."""

    def delay(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        crossing: dict[str, str | bytes] = {}  # the first `done` and the first `stop` cross

        def cross(kind: str, raw: str | bytes) -> None:
            crossing[kind] = raw
            if len(crossing) == 2:
                route.send(crossing["done"])
                server.send(crossing["stop"])

        def from_page(raw: str | bytes) -> None:
            if json.loads(raw)["type"] == "stop":
                cross("stop", raw)
            else:
                server.send(raw)

        def from_worker(raw: str | bytes) -> None:
            if isinstance(raw, str) and json.loads(raw)["type"] == "done" and "done" not in crossing:
                cross("done", raw)
            else:
                route.send(raw)

        route.on_message(from_page)
        server.on_message(from_worker)

    async with DemoPage.open(browser, address, before=routed(delay)) as demo:
        await demo.until_state("Ready")
        await demo.speak(TEXT)
        await demo.click_when_played(1_200, "stop")
        await demo.at("speak").click()
        await demo.shows("status", "Finished.")
        assert [utterance.ended["type"] for utterance in demo.utterances if utterance.ended] == ["done", "done"]
        assert {"type": "stopped", "applied": False, "utterance": None, "position_samples": 0} in demo.received
        assert [word["text"] for word in await demo.highlighted()][-4:] == ["Hello", "there,", "my", "friend."]


async def test_unanswered_stop_ends_with_the_connection(browser: Browser, address: str) -> None:
    def cut(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        async def forward(raw: str | bytes) -> None:
            kind = json.loads(raw)["type"]
            if kind == "stop":
                await route.close(code=1011, reason="broken")
            elif kind != "end":  # so that the server does not complete it before
                server.send(raw)

        route.on_message(forward)

    async with DemoPage.open(browser, address, before=routed(cut)) as demo:
        await demo.until_state("Ready")
        await demo.speak(TEXT * 4)
        await demo.click_when_played(1_200, "stop")
        await demo.until_problem("The connection was lost: broken. Trying again …")
        await demo.until_state("Ready")
        assert (await demo.at("status").inner_text()).startswith("Cut off. ")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"voice": "unknown"}, "The server does not have this voice any more. Choose another one."),
        ({"speed": 9}, "The server refused: speed must be 0.25 to 4 for voice tone"),
        ({"seed": "one"}, "The server refused: seed must be a whole number, not text"),
    ],
)
async def test_rejected_options_are_shown_and_nothing_is_played(
    browser: Browser, address: str, fields: dict[str, Any], problem: str
) -> None:
    async with DemoPage.open(browser, address, before=changing(**fields)) as demo:
        await demo.until_state("Ready")
        await demo.speak(TEXT)
        await demo.shows("problem", problem)
        await demo.until_state("Ready")
        assert not len((await demo.recorded_audio()).samples)
        assert await demo.page.locator(".remaining").text_content() == TEXT


async def test_pause_timeout_is_shown(browser: Browser, address: str) -> None:
    async with DemoPage.open(browser, address, before=changing(ends=False, pause_timeout_s=0.2)) as demo:
        await demo.until_state("Ready")
        await demo.speak(TEXT * 4)  # long: a completed utterance has no pause timeout
        await demo.click_when_played(2_400, "pause")
        await demo.until_state("Ready")
        status = await demo.at("status").inner_text()
        assert status.startswith("Paused for too long: the server ended it. ")
        assert await demo.at("rest").is_visible()
        assert (await demo.page.locator(".spoken").inner_text()) in TEXT * 4
