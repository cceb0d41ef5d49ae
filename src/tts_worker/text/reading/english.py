"""English."""

from tts_worker.text.spoken_forms import rewrites as rewrites
