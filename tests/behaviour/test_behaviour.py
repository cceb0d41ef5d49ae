"""The table of behaviours, over every way to a worker."""

from __future__ import annotations

import pytest

from tests.behaviour.behaviours import BEHAVIOURS, Room
from tests.behaviour.ways import WAYS


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", BEHAVIOURS)
@pytest.mark.parametrize("way", WAYS)
async def test_behaviour(way: str, name: str) -> None:
    behave, setup = BEHAVIOURS[name]
    async with WAYS[way].enter(setup) as client:
        await behave(Room(client, WAYS[way].exact))


def test_the_table_is_complete() -> None:
    assert len(BEHAVIOURS) >= 30
