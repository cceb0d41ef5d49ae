"""The connections of clients in this process, as the event loop sees them."""

from __future__ import annotations

import asyncio

_PREFIX = "tts-client-"


def client_tasks() -> list[str]:
    """Return what the tasks of all connections do: each has one "reader" as long as it is open."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
