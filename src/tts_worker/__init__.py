"""tts-worker: text streams in, 24 kHz speech streams out, and STOP means stop.

    async with tts_worker.create_worker() as worker:
        async for frame in worker.synthesize_stream(text_chunks):
            ...

Importing this package is cheap; engines and servers are imported when they are asked for.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tts_worker.adapter import TTSWorker
    from tts_worker.client import Client, ClientSettings
    from tts_worker.settings import Settings

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "create_worker"]


def create_worker(settings: Settings | None = None) -> AbstractAsyncContextManager[TTSWorker]:
    """A worker in this process, its engines loaded and warm; stopped when the context ends.

    Without ``settings``: the embedded CPU voice. Raises ConfigError and what an engine's start raises.
    """
    from tts_worker.app import running_adapter
    from tts_worker.settings import load_settings

    return running_adapter(settings if settings is not None else load_settings())


def connect(url: str, settings: ClientSettings | None = None) -> Client:
    """A client of the worker at ``url``: ``ws://host:port``, ``wss://...``, or ``local:`` for one in this process.

    Dials nothing yet. Raises InvalidRequest if the URL makes no sense, MissingExtra.
    """
    from tts_worker import client

    return client.connect(url, settings)
