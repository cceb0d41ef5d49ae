"""Entry point of ``python -m tools.parity``."""

import sys

from tools.parity import command
from tts_worker.cli import run_command

sys.exit(run_command("python -m tools.parity", command, sys.argv[1:]))
