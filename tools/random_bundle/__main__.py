"""Entry point of ``python -m tools.random_bundle DIR``."""

import sys

from tools.random_bundle import command
from tts_worker.cli import run_command

if __name__ == "__main__":
    sys.exit(run_command("python -m tools.random_bundle", command, sys.argv[1:]))
