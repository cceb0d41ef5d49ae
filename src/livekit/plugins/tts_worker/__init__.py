"""The tts-worker plugin where LiveKit Agents looks for plugins. The code is ``tts_worker.integrations.livekit``."""

from __future__ import annotations

from livekit.agents import Plugin

from tts_worker import __version__
from tts_worker.integrations.livekit import TTS, ChunkedStream, SynthesizeStream, log

__all__ = ["TTS", "ChunkedStream", "SynthesizeStream", "__version__"]


class TTSWorkerPlugin(Plugin):
    """Nothing to download: the voices are the worker's."""

    def __init__(self) -> None:
        super().__init__(__name__, __version__, __name__, log)


Plugin.register_plugin(TTSWorkerPlugin())
