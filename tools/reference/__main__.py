"""Entry point of ``python -m tools.reference``."""

import sys

from tools.reference import command
from tts_worker.cli import run_command

if __name__ == "__main__":
    sys.exit(run_command("python -m tools.reference", command, sys.argv[1:]))
