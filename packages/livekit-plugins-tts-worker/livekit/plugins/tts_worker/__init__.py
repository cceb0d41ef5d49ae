"""LiveKit Agents plugin of tts-worker: ``from livekit.plugins import tts_worker``."""

from __future__ import annotations

from livekit.agents import Plugin

from livekit.plugins.tts_worker.log import logger
from livekit.plugins.tts_worker.tts import TTS, ChunkedStream, Counters, SynthesizeStream
from livekit.plugins.tts_worker.version import __version__

__all__ = ["TTS", "ChunkedStream", "Counters", "SynthesizeStream", "__version__"]


class TTSWorkerPlugin(Plugin):
    """Plugin entry. It downloads no files: the voices are on the worker."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __name__, logger)


Plugin.register_plugin(TTSWorkerPlugin())
