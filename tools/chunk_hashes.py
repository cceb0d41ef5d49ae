"""Record the hashes of an engine's audio, and compare two recordings of one machine.

    python -m tools.chunk_hashes record before.json --engine cpu [--crowd 4]
    python -m tools.chunk_hashes compare before.json after.json

``record`` speaks fixed texts in this process and writes the SHA-256 of each 200 ms of PCM. With ``--crowd`` every text
is spoken by as many sessions at the same time, which must agree. ``compare`` names the first block that differs and
exits with 1. The same seed, thread count, packages and processor give the same hashes in every process. Other
processors, thread counts and back ends may differ in the last bits, so a recording belongs to one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tts_worker.cli import run_command
from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.errors import InvalidRequest, SynthesisFailed
from tts_worker.settings import Settings
from tts_worker.types import SAMPLE_RATE_HZ, Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker

TEXTS = (
    "Yes.",
    "Hello there, how can I help you today?",
    "The total comes to $42.50, including tax. Is there anything else?",
)
BLOCK_BYTES = 2 * SAMPLE_RATE_HZ // 5
SEED = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="one to record, two to compare")
    parser.add_argument("--crowd", type=int, default=1, metavar="N", help="sessions that speak each text (default 1)")
    parser.add_argument("--voice", help="voice (default: the first one)")
    add_settings_arguments(parser, bundle=True)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if len(args.files) != (1 if args.action == "record" else 2):
        raise InvalidRequest("record takes one file, compare takes two")
    if args.action == "record":
        recording = asyncio.run(record(settings_from(args), args.voice, args.crowd))
        args.files[0].write_text(json.dumps(recording, indent=1))
        return 0
    differences = compare(*map(_read, args.files))
    print("\n".join(differences) or "the audio is the same")
    return 1 if differences else 0


def _read(file: Path) -> dict[str, Any]:
    try:
        recording: dict[str, Any] = json.loads(file.read_text())
        return {"made_on": recording["made_on"], "hashes": recording["hashes"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidRequest(f"{file} is no recording of this tool") from None


async def record(settings: Settings, voice: str | None, crowd: int) -> dict[str, Any]:
    """Speak all texts and return their hashes, and what they depend on.

    Raises:
        SynthesisFailed: Two sessions of the crowd had different audio.
    """
    async with running_worker(settings) as worker:
        spoken = {}
        for text in TEXTS:
            hashes, *others = await asyncio.gather(*(_speak(worker, voice, text) for _ in range(max(1, crowd))))
            if any(other != hashes for other in others):
                raise SynthesisFailed(f"sessions that spoke {text!r} at the same time had different audio")
            spoken[text] = hashes
        made_on = {"machine": platform.machine(), "numpy": np.__version__, "versions": dict(worker.hub.model_versions)}
    return {"made_on": made_on, "hashes": spoken}


async def _speak(worker: Worker, voice: str | None, text: str) -> list[str]:
    session = await worker.hub.admit(SessionOptions(voice=voice, seed=SEED, realtime=False, raw_chunks=True))
    session.speak(text)
    session.end_text()
    pcm = bytearray()
    while not isinstance(item := await session.next(), Ended):
        pcm += item.pcm if isinstance(item, PcmFrame) else b""
    session.close()
    if item.error is not None:
        raise SynthesisFailed(item.error.message)
    return [hashlib.sha256(pcm[at : at + BLOCK_BYTES]).hexdigest() for at in range(0, len(pcm), BLOCK_BYTES)]


def compare(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return a line for each difference between two recordings."""
    lines = [
        f"{key}: {first['made_on'][key]} and {second['made_on'].get(key)}"
        for key in first["made_on"]
        if first["made_on"][key] != second["made_on"].get(key)
    ]
    for text in {**first["hashes"], **second["hashes"]}:
        a, b = first["hashes"].get(text, []), second["hashes"].get(text, [])
        if a != b:
            block = next(
                (at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b))
            )
            lines.append(f"{text!r} differs from {block * 0.2:.1f} s on ({len(a)} and {len(b)} blocks)")
    return lines


def main(words: Sequence[str]) -> int:
    return run_command("python -m tools.chunk_hashes", sys.modules[__name__], words, description=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
