"""Parts that a caller hands over while they come into being, from ordinary and asynchronous iterables alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def iterate(parts: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Yield the parts. An ordinary iterable runs on a thread, since it may wait for a model or a microphone."""
    if isinstance(parts, AsyncIterable):
        async for part in parts:
            yield part
        return
    iterator = iter(parts)

    def next_part() -> tuple[T, ...]:
        return tuple(itertools.islice(iterator, 1))

    while following := await asyncio.to_thread(next_part):
        yield following[0]
