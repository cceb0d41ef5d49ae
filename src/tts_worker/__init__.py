"""tts-worker: streaming text-to-speech for real-time voice agents.

    with tts_worker.TTS() as tts:
        tts.speak("Hello there.").save("hello.wav")

``AsyncTTS`` is the same with ``await``; ``connect`` opens sessions with control over every frame, and ``create_worker``
runs a worker inside a program.

What these return and raise can be imported from here, too: ``tts_worker.Word``, ``tts_worker.UnknownVoice``.

Importing this package is cheap; engines and servers are imported on first use.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from tts_worker.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tts_worker.adapter import TTSWorker
    from tts_worker.client import Client, ClientSettings
    from tts_worker.client.async_tts import AsyncLiveSpeech, AsyncTTS, SpeechOptions
    from tts_worker.client.playback import PlayerFailed
    from tts_worker.client.speech import Speech
    from tts_worker.client.tts import TTS, LiveSpeech
    from tts_worker.errors import *  # noqa: F403
    from tts_worker.protocol.voices import VoiceInfo
    from tts_worker.settings import Settings
    from tts_worker.types import Ended, Outcome, PcmFrame, Receipt, SessionOptions, Word, Words

# fmt: off
__all__ = [  # noqa: F405, RUF022
    "__version__", "connect", "create_worker", "detect", "AsyncLiveSpeech", "AsyncTTS", "ClientSettings", "Ended",
    "LiveSpeech", "Outcome", "PcmFrame", "PlayerFailed", "Receipt", "SessionOptions", "Speech", "SpeechOptions",
    "TTS", "VoiceInfo", "Word", "Words",
    # errors
    "TTSWorkerError", "InvalidRequest", "IllegalCommand", "TextTooLong", "UnspeakableText", "UnknownVoice",
    "UnknownLexicon", "UnknownModel", "Unauthenticated", "Forbidden", "OverCapacity", "RateLimited",
    "QuotaExceeded", "VoiceQuotaExceeded", "Draining", "NotReady", "SessionClosed", "SendTimeout", "ConnectionLost",
    "DeadlineExceeded", "MissingExtra", "MissingServer", "MissingPackage", "ConfigError", "AddressInUse",
    "BackendUnavailable", "BackendMismatch", "BundleError", "OutOfMemory", "SynthesisFailed", "EngineFault",
    "DeviceLost", "RemoteError",
]
# fmt: on

_MODULES = {
    "ClientSettings": "tts_worker.client",
    "AsyncLiveSpeech": "tts_worker.client.async_tts",
    "AsyncTTS": "tts_worker.client.async_tts",
    "SpeechOptions": "tts_worker.client.async_tts",
    "PlayerFailed": "tts_worker.client.playback",
    "Speech": "tts_worker.client.speech",
    "TTS": "tts_worker.client.tts",
    "LiveSpeech": "tts_worker.client.tts",
    "VoiceInfo": "tts_worker.protocol.voices",
    "Ended": "tts_worker.types",
    "Outcome": "tts_worker.types",
    "PcmFrame": "tts_worker.types",
    "Receipt": "tts_worker.types",
    "SessionOptions": "tts_worker.types",
    "Word": "tts_worker.types",
    "Words": "tts_worker.types",
}
"""Name -> where it is defined; the others are errors."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_MODULES.get(name, "tts_worker.errors")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def create_worker(settings: Settings | Path | str | None = None) -> AbstractAsyncContextManager[TTSWorker]:
    """Run a worker in this process with its engines loaded and warm; it stops when the context exits.

    Args:
        settings: The settings, or their YAML file; None uses the embedded CPU voice.

    Raises:
        ConfigError: A setting is invalid.
        TTSWorkerError: An engine failed to start.
        MissingServer: Only the client is installed.
    """
    try:
        from pathlib import Path

        from tts_worker.settings import Settings, load_settings
        from tts_worker.worker import running_adapter
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tts_worker."):
            from tts_worker.errors import MissingServer

            raise MissingServer("a worker in this process") from None
        raise

    if not isinstance(settings, Settings):
        settings = load_settings(None if settings is None else Path(settings))
    return running_adapter(settings)


def detect(samples: NDArray[Any], rate_hz: int = 24_000) -> Any:
    """Look for the watermark of synthetic speech (``features.marking.detector.Detection`` has what is returned).

    Args:
        samples: ``[N]`` or ``[N, channels]``, integers or floats of any scale.
        rate_hz: Their sample rate.

    Raises:
        InvalidRequest: The rate or the shape is wrong, or the audio is not between a second and ten minutes long.
        MissingServer: Only the client is installed, or the feature "marking" is not there.
    """
    try:
        detector = importlib.import_module("tts_worker.features.marking.detector")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tts_worker."):
            from tts_worker.errors import MissingServer

            raise MissingServer("the detector of watermarks") from None
        raise

    return detector.detect(samples, rate_hz)


def connect(url: str, settings: ClientSettings | None = None) -> Client:
    """Create a client of the worker at ``url``; it connects on first use.

    Args:
        url: ``ws://host:port`` (or ``http://``), ``wss://...``, ``grpc://...``, ``redis://...``, or ``local:`` for a
            worker in this process.
        settings: Settings of the client.

    Raises:
        InvalidRequest: The URL is invalid.
        MissingExtra: The transport needs an extra that is not installed.
        MissingServer: ``local:``, and only the client is installed.
    """
    from tts_worker import client

    return client.connect(url, settings)
