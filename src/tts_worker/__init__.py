"""tts-worker: streaming text-to-speech for real-time voice agents.

    with tts_worker.TTS() as tts:
        tts.speak("Hello there.").save("hello.wav")

``AsyncTTS`` is the same with ``await``; ``connect`` opens sessions with control over every frame, and ``create_worker``
runs a worker inside a program.

Importing this package is cheap; engines and servers are imported on first use.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from tts_worker.version import __version__

if TYPE_CHECKING:
    from tts_worker.adapter import TTSWorker
    from tts_worker.client import Client, ClientSettings
    from tts_worker.client.async_tts import AsyncTTS
    from tts_worker.client.speech import Speech
    from tts_worker.client.tts import TTS
    from tts_worker.settings import Settings

__all__ = ["TTS", "AsyncTTS", "Speech", "__version__", "connect", "create_worker"]

_LAZY = {
    "TTS": "tts_worker.client.tts",
    "AsyncTTS": "tts_worker.client.async_tts",
    "Speech": "tts_worker.client.speech",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create_worker(settings: Settings | None = None) -> AbstractAsyncContextManager[TTSWorker]:
    """Run a worker in this process with its engines loaded and warm; it stops when the context exits.

    Args:
        settings: The settings; None uses the embedded CPU voice.

    Raises:
        ConfigError: A setting is invalid.
        TTSWorkerError: An engine failed to start.
        MissingServer: Only the client is installed.
    """
    try:
        from tts_worker.settings import load_settings
        from tts_worker.worker import running_adapter
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tts_worker."):
            from tts_worker.errors import MissingServer

            raise MissingServer("a worker in this process") from None
        raise

    return running_adapter(settings if settings is not None else load_settings())


def connect(url: str, settings: ClientSettings | None = None) -> Client:
    """Create a client of the worker at ``url``; it connects on first use.

    Args:
        url: ``ws://host:port``, ``wss://...``, ``grpc://...``, ``redis://...``, or ``local:`` for a worker in this
            process.
        settings: Settings of the client.

    Raises:
        InvalidRequest: The URL is invalid.
        MissingExtra: The transport needs an extra that is not installed.
        MissingServer: ``local:``, and only the client is installed.
    """
    from tts_worker import client

    return client.connect(url, settings)
