"""A time limit for a block of asyncio code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout


@asynccontextmanager
async def fail_after(timeout_s: float) -> AsyncIterator[None]:
    """Cancel the block after ``timeout_s`` and raise TimeoutError."""
    try:
        async with timeout(timeout_s):
            yield
    except asyncio.TimeoutError:  # before Python 3.11 it is not the built-in one
        raise TimeoutError(f"not finished within {timeout_s:g} s") from None
