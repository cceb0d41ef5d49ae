"""Logger of the plugin."""

import logging

logger = logging.getLogger("livekit.plugins.tts_worker")
