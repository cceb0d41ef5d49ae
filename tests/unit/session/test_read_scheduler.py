"""Long texts of many sessions delay the event loop by one portion at a time."""

from __future__ import annotations

import asyncio

from tts_worker.session.reading import ReadScheduler


async def test_one_portion_is_read_per_loop_iteration() -> None:
    turns = ReadScheduler(asyncio.get_running_loop())
    read: list[str] = []
    for name in "abcdef":
        turns.add(lambda name=name: read.append(name), paced=False)  # type: ignore[misc]
    for count in range(1, 7):
        await asyncio.sleep(0)
        assert read == list("abcdef")[:count]


async def test_calls_do_not_wait_behind_downloads() -> None:
    turns = ReadScheduler(asyncio.get_running_loop())
    read: list[str] = []
    for name in ("d1", "d2", "d3"):
        turns.add(lambda name=name: read.append(name), paced=False)  # type: ignore[misc]
    turns.add(lambda: read.append("call"), paced=True)
    for _ in range(4):
        await asyncio.sleep(0)
    assert read == ["call", "d1", "d2", "d3"]


async def test_unfinished_text_is_rescheduled() -> None:
    turns = ReadScheduler(asyncio.get_running_loop())
    read: list[str] = []

    def endless() -> None:
        read.append("endless")
        turns.add(endless, paced=False)

    turns.add(endless, paced=False)
    turns.add(lambda: read.append("other"), paced=False)
    for _ in range(4):
        await asyncio.sleep(0)
    assert read == ["endless", "other", "endless", "endless"]
