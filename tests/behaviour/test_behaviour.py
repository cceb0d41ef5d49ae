"""The table of behaviours, over every way to a worker."""

from __future__ import annotations

import pytest

from tests.behaviour.behaviours import BEHAVIOURS, Room
from tests.behaviour.ways import WAYS


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", BEHAVIOURS)
@pytest.mark.parametrize("way", WAYS)
async def test_behaviour(way: str, name: str) -> None:
    wanted, over = BEHAVIOURS[name], WAYS[way]
    missing = wanted.needs & over.lacks
    if missing:
        pytest.skip(f"{way} has no words for: {', '.join(sorted(missing))}")
    async with over.enter(wanted.setup) as client:
        await wanted.behave(Room(client, over.exact, over.slow))


def test_the_table_is_complete() -> None:
    assert len(BEHAVIOURS) >= 30
