"""Standard input of commands that use it while it arrives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator


async def stdin_parts() -> AsyncIterator[bytes]:
    """Yield data from standard input as it arrives.

    Reads on a separate thread, since an event loop handles pipes, terminals and files differently. The thread may still
    block when the program ends.
    """
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            while True:
                data = os.read(0, 65_536)
                asyncio.run_coroutine_threadsafe(received.put(data), loop).result()
                if not data:
                    return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while data := await received.get():
        yield data
