"""``tts-worker voice``: adds, lists and imports voices of a CosyVoice model directory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tts_worker.commands.progress import Bar
from tts_worker.errors import BundleError
from tts_worker.features.voicepack.directory import add_voice, import_speakers
from tts_worker.voices.files import VOICES_DIR, Voice, load_voice, stored_voices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    adding = actions.add_parser("add", help="add a voice from 3 to 30 s of clear speech and its transcript")
    adding.add_argument("name", help="name of the new voice")
    adding.add_argument("--audio", type=Path, required=True, metavar="FILE", help="WAV, FLAC, Ogg or MP3")
    adding.add_argument(
        "--text", default="", help="transcript of the recording; without it only the timbre is cloned (cross-lingual)"
    )
    listing = actions.add_parser("list", help="list the stored voices")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    importing = actions.add_parser("import", help="import the speakers of a spk2info.pt")
    importing.add_argument(
        "--file", type=Path, metavar="FILE", help="speaker file (default: the one in the model directory)"
    )

    for action in (adding, listing, importing):
        action.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="model directory")
        action.add_argument(
            "--voices", type=Path, metavar="DIR", help=f"folder of voices (default: BUNDLE/{VOICES_DIR})"
        )
    for action in (adding, importing):
        action.add_argument("--replace", action="store_true", help="overwrite a voice of the same name")


def run(args: argparse.Namespace) -> int:
    root: Path = args.voices or args.bundle / VOICES_DIR
    return {"add": _add, "list": _list, "import": _import}[args.action](args, root)


def _add(args: argparse.Namespace, root: Path) -> int:
    with Bar() as bar:
        bar.update("analyzing the recording")
        voice = add_voice(args.bundle, root, args.name, args.audio, args.text, replace=args.replace)
    print(f"{root / args.name}: {voice.seconds:.1f} s of speech, level changed by {voice.gain_db:+.1f} dB")
    for note in voice.notes:
        print(f"note: {note}")
    return 0


def _import(args: argparse.Namespace, root: Path) -> int:
    names = import_speakers(args.bundle, root, args.file, replace=args.replace)
    for name in names:
        print(root / name)
    return 0 if names else 1


def _list(args: argparse.Namespace, root: Path) -> int:
    rows = []
    damaged = False
    for name in stored_voices(root):
        try:
            rows.append(_about(name, load_voice(root, name)))
        except BundleError as error:
            rows.append({"name": name, "error": error.message})
            damaged = True
    if args.json:
        print(json.dumps({"voices": rows}, ensure_ascii=False))
    else:
        for row in rows:
            details = f"{row['family']:11} {row['mode']:13} {row['seconds']:5.1f} s" if "mode" in row else row["error"]
            print(f"{row['name']:24} {details}")
        if not rows:
            print(f"{root}: no voices yet; add one with: tts-worker voice add NAME --audio FILE --text TEXT")
    return 1 if damaged else 0


def _about(name: str, voice: Voice) -> dict[str, Any]:
    mode = "zero-shot" if voice.prompt_text_ids.size else "cross-lingual"
    return {
        "name": name,
        "family": voice.family,
        "mode": mode if voice.tokens.size else "sft",
        "seconds": round(voice.seconds, 2),
        "notes": list(voice.notes),
        "content_hash": voice.content_hash,
    }
