"""``python -m tts_worker`` is the command line."""

from tts_worker.cli import entry

entry()
