"""The CPU voice hibari-tts."""
