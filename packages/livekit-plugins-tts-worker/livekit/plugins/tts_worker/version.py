"""Version of the distribution livekit-plugins-tts-worker."""

__version__ = "0.1.0"
