"""Parts that a caller hands over while they come into being, from ordinary and asynchronous iterables alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def iterate(parts: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[T, None]:
    """Yield the parts. An ordinary iterable runs on its own thread, since it may wait for a model or a microphone."""
    if isinstance(parts, AsyncIterable):
        async for part in parts:
            yield part
        return
    iterator = iter(parts)

    def next_part() -> tuple[T, ...]:
        return tuple(itertools.islice(iterator, 1))

    # Not the loop's executor: a few iterables that wait would take all of its threads.
    thread = ThreadPoolExecutor(1, "tts-parts")
    try:
        while following := await asyncio.get_running_loop().run_in_executor(thread, copy_context().run, next_part):
            yield following[0]
    finally:
        thread.shutdown(wait=False)
