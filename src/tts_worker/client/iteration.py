"""Parts that a caller hands over while they come into being, from ordinary and asynchronous iterables alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from concurrent.futures import Future
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
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

    # Not the loop's executor: a few iterables that wait would take all of its threads. And a daemon: the program does
    # not wait at its end for an iterable that waits forever.
    calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    Thread(target=_run_calls, args=(calls,), name="tts-parts", daemon=True).start()
    try:
        while True:
            future: Future[tuple[T, ...]] = Future()
            calls.put(partial(_resolve, future, copy_context(), next_part))
            following = await asyncio.wrap_future(future)
            if not following:
                return
            yield following[0]
    finally:
        calls.put(None)


def _run_calls(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()


def _resolve(future: Future[T], context: Context, function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = context.run(function)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
