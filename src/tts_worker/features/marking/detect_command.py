"""``tts-worker detect``: looks for the watermark of synthetic speech in audio files."""

from __future__ import annotations

import argparse
from pathlib import Path

from tts_worker.audio.decode import read_recording
from tts_worker.features.marking.detector import Detection, detect

NOT_MARKED = 3
"""Exit code if a file has no watermark; 1 and 2 are errors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="WAV, FLAC, Ogg, MP3, M4A or WebM")


def run(args: argparse.Namespace) -> int:
    code = 0
    for file in args.files:
        recording = read_recording(file)
        found = detect(recording.samples, recording.rate_hz)
        print(f"{file}: {_describe(found)}")
        code = code if found.marked else NOT_MARKED
    return code


def _describe(found: Detection) -> str:
    if not found.marked:
        return f"no watermark (score {found.score:g})"
    parts = ", ".join(f"{start:.1f}-{end:.1f} s" for start, end in found.parts)
    deployment = "not readable" if found.deployment_id is None else f"0x{found.deployment_id:08x}"
    speed = "" if abs(found.speed - 1) < 0.002 else f", at {found.speed:.3f} times its speed"
    return f"synthetic, deployment {deployment}, {parts}{speed} (score {found.score:g})"
