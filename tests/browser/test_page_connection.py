"""The web page and a worker that refuses, breaks off, or is not there: said in plain words, and mended by itself."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, WebSocketRoute, expect
from websockets.asyncio.client import connect

from tests.browser.studio import Before, Studio, routed
from tests.conftest import serving

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

KEY = "a-key-of-some-length"
TEXT = "Hello there, my friend."


async def test_the_page_and_its_files_can_be_loaded_without_the_key() -> None:
    async with (
        serving(server={"api_keys": [KEY]}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        for path in ("/", "/static/app.js", "/static/style.css"):
            answer = await client.get(path)
            assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-cache"
        assert (await client.get("/static/../v1/voices")).status_code == 401


async def test_a_key_is_asked_for_kept_in_this_tab_only_and_used(browser: Browser) -> None:
    async with serving(server={"api_keys": [KEY]}) as address, Studio.open(browser, address) as studio:
        await studio.shows("problem", "This worker needs an API key.")
        await studio.at("key").fill("not the key")
        await studio.page.keyboard.press("Enter")
        await studio.shows(
            "problem", "A browser can only send keys of letters, digits and !#$%&'*+-.^_`|~ to a WebSocket."
        )
        await studio.at("key").fill("not-the-key")
        await studio.page.keyboard.press("Enter")
        await studio.shows("problem", "The worker did not accept this API key.")
        await studio.at("key").fill(KEY)
        await studio.page.keyboard.press("Enter")
        await studio.until_state("Ready")
        assert await studio.at("key-form").is_hidden()
        assert await studio.at("key").input_value() == ""
        await studio.shows("problem", "")
        await expect(studio.at("voice").locator("option")).to_have_text(["tone", "tone-low", "tone-high"])
        await studio.speak("Ok.")
        await studio.shows("status", "Finished.")
        assert await studio.page.evaluate("Object.values(sessionStorage)") == [KEY]
        assert await studio.page.evaluate("localStorage.length + document.cookie.length") == 0
        assert KEY not in await studio.page.evaluate(
            "performance.getEntriesByType('resource').map((e) => e.name).join() + location"
        )
        await studio.page.reload()
        await studio.until_state("Ready")


async def test_a_full_worker_is_said_to_be_full_and_used_once_there_is_room(browser: Browser) -> None:
    full = "The worker is full: every place is taken. Trying again …"
    async with (
        serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address,
        connect(f"ws://{address}/v1/stream") as holder,
        Studio.open(browser, address) as studio,
    ):
        await studio.shows("problem", full)
        await studio.until_state("Offline")
        await holder.close()
        await studio.until_state("Ready")
        await studio.shows("problem", "")


async def test_a_worker_that_dies_in_the_middle_and_comes_back(browser: Browser) -> None:
    text = TEXT * 40  # a busy machine may take long to end a worker
    async with AsyncExitStack() as worker:
        address = await worker.enter_async_context(serving())
        async with Studio.open(browser, address) as studio:
            await studio.until_state("Ready")
            await studio.speak(text)
            await studio.until_heard(9_600)
            await worker.aclose()
            await studio.shows("connection", "Offline")
            await studio.until_state("Offline")
            assert (await studio.at("status").inner_text()).startswith("Cut off: the worker is shutting down. ")
            spoken = await studio.page.locator(".spoken").inner_text()
            remaining = await studio.page.locator(".remaining").text_content()
            assert spoken
            assert remaining
            assert spoken + remaining == text
            await studio.speak(TEXT)
            await studio.shows("problem", "The worker cannot be reached. Trying again …")
            await studio.shows("status", "")  # what could not be said then is not said later
            await worker.enter_async_context(serving(server={"port": int(address.rpartition(":")[2])}))
            await studio.until_state("Ready")
            await studio.shows("problem", "")
            await studio.speak(TEXT)
            await studio.shows("status", "Finished.")
            assert studio.turns[-1].ended is not None
            assert studio.turns[-1].ended["text_spoken"] == TEXT


async def test_a_connection_that_falls_silent_is_given_up(browser: Browser, address: str) -> None:
    def swallow(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        route.on_message(lambda raw: None if json.loads(raw)["type"] == "ping" else server.send(raw))

    async def before(page: Page) -> None:
        await page.clock.install(time=0)
        await page.clock.pause_at(1_000)  # so that no time passes but what the test lets pass
        await routed(swallow)(page)

    async with Studio.open(browser, address, before=before) as studio:
        await studio.until_state("Ready")
        await studio.page.clock.run_for(19_000)
        assert await studio.at("connection").inner_text() == "Connected"
        await studio.page.clock.run_for(1_100)
        await studio.shows("connection", "Offline")
        await studio.shows("problem", "The connection was lost: it stopped answering. Trying again …")
        await studio.page.clock.run_for(2_000)
        await studio.until_state("Ready")


def changing(*, ends: bool = True, **fields: Any) -> Before:
    """The page's `start` message with other fields, as if the page had sent them. Without ``ends`` the worker does not
    hear that a text is complete, so it is never done."""

    def change(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def forward(raw: str | bytes) -> None:
            message = json.loads(raw)
            if ends or message["type"] != "end":
                server.send(json.dumps(message | fields if message["type"] == "start" else message))

        route.on_message(forward)

    return routed(change)


async def test_a_stop_that_comes_too_late_does_not_end_the_next_turn(browser: Browser, address: str) -> None:
    """The worker is done with a turn while the stop is on its way: its answer, that there was nothing to stop, comes
    when the page could already be in the next turn."""

    def delay(route: WebSocketRoute) -> None:
        server = route.connect_to_server()
        crossing: dict[str, str | bytes] = {}  # the first end of a turn and the first stop meet on their way

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

    async with Studio.open(browser, address, before=routed(delay)) as studio:
        await studio.until_state("Ready")
        await studio.speak(TEXT)
        await studio.when_heard(1_200, "stop")
        await studio.at("speak").click()
        await studio.shows("status", "Finished.")
        assert [turn.ended["type"] for turn in studio.turns if turn.ended] == ["done", "done"]
        assert {"type": "stopped", "applied": False, "utterance": None, "position_samples": 0} in studio.received
        assert [word["text"] for word in await studio.lit()][-4:] == ["Hello", "there,", "my", "friend."]


async def test_a_stop_that_is_never_answered_ends_with_the_connection(browser: Browser, address: str) -> None:
    def cut(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        async def forward(raw: str | bytes) -> None:
            kind = json.loads(raw)["type"]
            if kind == "stop":
                await route.close(code=1011, reason="broken")
            elif kind != "end":  # so the worker cannot be done before
                server.send(raw)

        route.on_message(forward)

    async with Studio.open(browser, address, before=routed(cut)) as studio:
        await studio.until_state("Ready")
        await studio.speak(TEXT * 4)
        await studio.when_heard(1_200, "stop")
        await studio.said("The connection was lost: broken. Trying again …")
        await studio.until_state("Ready")
        assert (await studio.at("status").inner_text()).startswith("Cut off. ")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"voice": "nobody"}, "The worker does not have this voice any more. Choose another one."),
        ({"speed": 9}, "The worker refused: speed must be 0.25 to 4 for voice tone"),
        ({"seed": "one"}, "The worker refused: seed: Input should be a valid integer"),
    ],
)
async def test_what_the_worker_rejects_is_said_and_nothing_sounds(
    browser: Browser, address: str, fields: dict[str, Any], problem: str
) -> None:
    async with Studio.open(browser, address, before=changing(**fields)) as studio:
        await studio.until_state("Ready")
        await studio.speak(TEXT)
        await studio.shows("problem", problem)
        await studio.until_state("Ready")
        assert not len((await studio.heard()).sound)
        assert await studio.page.locator(".remaining").text_content() == TEXT


async def test_a_pause_that_the_worker_ends_is_said(browser: Browser, address: str) -> None:
    async with Studio.open(browser, address, before=changing(ends=False, pause_timeout_s=0.2)) as studio:
        await studio.until_state("Ready")
        await studio.speak(TEXT * 4)  # what it has sent and is done with, the worker cannot time out
        await studio.when_heard(2_400, "pause")
        await studio.until_state("Ready")
        status = await studio.at("status").inner_text()
        assert status.startswith("Paused for too long: the worker let it go. ")
        assert await studio.at("rest").is_visible()
        assert (await studio.page.locator(".spoken").inner_text()) in TEXT * 4
