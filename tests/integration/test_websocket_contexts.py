"""``/v1/stream``: clients may name their utterances, and events carry that name."""

from __future__ import annotations

from tests.conftest import serving
from tests.integration.test_websocket import TEXT, dial


async def test_events_carry_the_context_name() -> None:
    async with serving() as address, dial(address, "/v1/stream?realtime=false") as client:
        await client.send(type="text", text=TEXT, context="a", end=True)
        await client.send(type="text", text="Second.", context="b", end=True)
        await client.send(type="text", text="Third, without a name.", end=True)
        for _ in range(3):
            await client.until("done")
        named = [(m["type"], m.get("context")) for m in client.log if isinstance(m, dict) and m["type"] != "words"]
        expected = [("started", "a"), ("done", "a"), ("started", "b"), ("done", "b"), ("started", None), ("done", None)]
        assert [item for item in named if item[0] != "ready"] == expected
        await client.send(type="text", text="a" * 150_000, context="c")
        assert (await client.until("rejected"))["context"] == "c"


async def test_start_after_stop_keeps_playback_report() -> None:
    async with serving() as address, dial(address) as client:
        await client.until("ready")
        await client.send(type="text", text=TEXT, context="a")
        await client.until_audio()
        await client.send(type="stop")
        await client.send(type="start", voice="tone-low")
        await client.send(type="text", text="New.", context="b", end=True)
        await client.until("done")
        stopped = [m for m in client.log if isinstance(m, dict) and m["type"] == "stopped"]
        assert [(m["context"], m["text_spoken"] + m["text_remaining"]) for m in stopped] == [("a", TEXT)]
