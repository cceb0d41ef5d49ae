"""Entry point of ``python -m tts_worker``."""

from tts_worker.cli import entry

entry()
