"""Entry point of ``python -m tools.bench NAME``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tts_worker.cli import run_module

COMMANDS = {
    "control": "latency of STOP, PAUSE and RESUME under load",
    "conversion": "first-audio latency of voice conversions",
    "load": "underruns with many sessions",
    "fairness": "effect of downloads on calls",
    "frames": "processor time of the server per frame",
    "text": "processor time of the text pipeline and of wetext per character",
    "lm": "the decoder of the language model beside transformers, on the same weights",
    "engine": "the CosyVoice engine by stage, with forced tokens",
    "gpu": "everything that a GPU machine promises, within a time budget",
    "simulate": "how many calls an engine serves, predicted from the times of its stages",
}
"""Module in ``tools.bench.commands`` -> what it measures."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code, as ``tts_worker.cli.main`` does."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return run_module(f"python -m tools.bench {words[0]}", f"tools.bench.commands.{words[0]}", words[1:])
    is_asked = not words or words[0] in ("-h", "--help")
    lines = ["usage: python -m tools.bench NAME [--help] ...", ""]
    lines += [f"  {name:11} {measures}" for name, measures in COMMANDS.items()]
    if not is_asked:
        lines.insert(0, f'error: there is no benchmark "{words[0][:64]}"')
    print("\n".join(lines), file=sys.stdout if is_asked else sys.stderr)
    return 0 if is_asked else 2


if __name__ == "__main__":  # not in the processes that a benchmark spawns
    sys.exit(main())
