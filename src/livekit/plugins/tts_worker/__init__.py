"""Registers the plugin in the LiveKit Agents namespace; the code is in ``tts_worker.integrations.livekit``."""

from __future__ import annotations

from livekit.agents import Plugin

from tts_worker import __version__
from tts_worker.integrations.livekit import TTS, ChunkedStream, SynthesizeStream, log

__all__ = ["TTS", "ChunkedStream", "SynthesizeStream", "__version__"]


class TTSWorkerPlugin(Plugin):
    """Plugin entry. It downloads no files: the voices are on the worker."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __name__, log)


Plugin.register_plugin(TTSWorkerPlugin())
