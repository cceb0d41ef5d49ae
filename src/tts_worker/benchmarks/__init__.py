"""The measurements behind ``tts-worker bench``: each is a coroutine that returns figures, and nobody prints here."""
