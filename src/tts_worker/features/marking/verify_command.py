"""``tts-worker verify``: checks the signed provenance of audio files."""

from __future__ import annotations

import argparse
from pathlib import Path

from tts_worker.audio.decode import MAX_AUDIO_BYTES
from tts_worker.client.arguments import read_file
from tts_worker.errors import InvalidRequest
from tts_worker.features.marking.provenance import Provenance, verify

PEM = ".pem"
NOT_VALID = 3
"""Exit code if a file has no provenance, or one that does not fit; 1 and 2 are errors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="WAV or MP3; or PEM, certificates of authorities to trust"
    )


def run(args: argparse.Namespace) -> int:
    authorities = b"".join(_read(file) for file in args.files if file.suffix == PEM)
    files = [file for file in args.files if file.suffix != PEM]
    if not files:
        raise InvalidRequest("name a WAV or MP3 file, too")
    code = 0
    for file in files:
        found = verify(_read(file), authorities)
        print(f"{file}: {_describe(found)}")
        is_good = found is not None and found.valid and (found.trusted or not authorities)
        code = code if is_good else NOT_VALID
    return code


def _read(file: Path) -> bytes:
    if file.is_file() and file.stat().st_size > MAX_AUDIO_BYTES:
        raise InvalidRequest(f"{file.name} has more than {MAX_AUDIO_BYTES >> 20} MiB")
    return read_file(file)


def _describe(found: Provenance | None) -> str:
    if found is None:
        return "no provenance"
    if not found.valid:
        return f"changed since it was signed, or wrongly signed ({', '.join(found.problems)})"
    made = "synthetic" if found.synthetic else "not said to be synthetic"
    trust = "trusted" if found.trusted else "not from a trusted authority"
    return f"{made}, made by {found.generator or 'an unknown program'}, signed by {found.signer} ({trust})"
