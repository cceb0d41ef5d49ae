"""Measurements behind ``tts-worker bench``: coroutines that return figures and print nothing."""
