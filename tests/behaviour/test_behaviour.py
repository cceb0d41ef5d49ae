"""The table of behaviours, over every way to a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import product

import anyio
import pytest
import pytest_asyncio

from tests.behaviour.behaviours import BEHAVIOURS, Room
from tests.behaviour.ways import WAYS

SIDE_BY_SIDE = 12
"""Behaviours of a way that plays at the pace of a listener: they wait, most of the time."""
PATIENCE_S = 110
"""Just before pytest-timeout ends it: on a busy machine sound may take several times as long as it lasts."""


async def behave(way: str, name: str) -> None:
    wanted = BEHAVIOURS[name]
    over = WAYS[way]
    async with over.enter(wanted.setup) as client:
        await wanted.behave(Room(client, over.exact, over.slow, over.crowd))


def table(*, paced: bool) -> pytest.MarkDecorator:
    """Every way with every behaviour that it has words for; the others are skipped and say why."""
    rows = []
    for way, name in product((way for way in WAYS if WAYS[way].paced is paced), BEHAVIOURS):
        missing = ", ".join(sorted(BEHAVIOURS[name].needs & WAYS[way].lacks))
        lacks = pytest.mark.skipif(bool(missing), reason=f"{way} has no words for: {missing}")
        rows.append(pytest.param(way, name, marks=lacks, id=f"{way}-{name}"))
    return pytest.mark.parametrize(("way", "name"), rows)


@table(paced=False)
async def test_behaviour(way: str, name: str) -> None:
    await behave(way, name)


Begun = Callable[[str, str], "asyncio.Task[None]"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def begun(request: pytest.FixtureRequest) -> AsyncIterator[Begun]:
    """Begins all behaviours of the paced ways that were asked for; each test waits for its own."""
    turn = asyncio.Semaphore(SIDE_BY_SIDE)

    async def when_there_is_room(way: str, name: str) -> None:
        async with turn:
            with anyio.fail_after(PATIENCE_S):
                await behave(way, name)

    tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
    for item in request.session.items:
        asked_for = isinstance(item, pytest.Function) and item.function is test_behaviour_at_the_pace_of_a_listener
        if asked_for and not any(mark.args[0] for mark in item.iter_markers("skipif")):
            way, name = (str(item.callspec.params[key]) for key in ("way", "name"))
            tasks[way, name] = asyncio.create_task(when_there_is_room(way, name))
    yield lambda way, name: tasks[way, name]
    for task in tasks.values():
        task.cancel()
    if tasks:
        await asyncio.wait(tasks.values())


@table(paced=True)
@pytest.mark.asyncio(loop_scope="module")
async def test_behaviour_at_the_pace_of_a_listener(begun: Begun, way: str, name: str) -> None:
    await begun(way, name)


def test_the_table_is_complete() -> None:
    assert len(BEHAVIOURS) >= 30
