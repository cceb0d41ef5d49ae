"""``tts-worker voicepack``: creates, checks and packs voice packs, and the same and more for model directories."""

from __future__ import annotations

import argparse
from pathlib import Path

from tts_worker.commands.progress import Bar
from tts_worker.features.voicepack.directory import PRECISIONS, check, convert, report_json
from tts_worker.features.voicepack.manifest import PUBLISHED, published
from tts_worker.features.voicepack.packs import check_voicepack, init_voicepack, pack_voicepack
from tts_worker.features.voicepack.pull import SOURCES, pull
from tts_worker.voices.packs import METADATA


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    names = ", ".join(model.name for model in PUBLISHED)

    pulling = actions.add_parser("pull", help="download a published model; resumes a partial download")
    pulling.add_argument("name", help=f"one of: {names}")
    pulling.add_argument("--out", type=Path, metavar="DIR", help="target folder (default: the name of the model)")
    sources = f"{', '.join(SOURCES)}, or the URL of a mirror with the same paths (default {SOURCES[0]})"
    pulling.add_argument("--source", default=SOURCES[0], help=sources)
    pulling.add_argument("--rl", action="store_true", help="also the reinforcement-tuned language model (CosyVoice3)")

    initializing = actions.add_parser("init", help="create a voice pack, a folder FAMILY/NAME, to be filled")
    initializing.add_argument("folder", type=Path, metavar="DIR", help="such as voicepacks/cosyvoice/anna")

    packing = actions.add_parser("pack", help="check a voice pack and write it to a zip file")
    packing.add_argument("folder", type=Path, metavar="DIR")
    packing.add_argument("--out", type=Path, metavar="FILE", help="target file (default: NAME.zip)")

    checking = actions.add_parser("check", help="report all faults of a voice pack or a model directory")
    checking.add_argument("bundle", type=Path, metavar="DIR")
    checking.add_argument("--name", help=f"require the published files of one of: {names}")
    checking.add_argument("--no-hashes", action="store_true", help="skip the hashes of files with the published size")
    checking.add_argument("--json", action="store_true", help="print one JSON object")

    converting = actions.add_parser(
        "convert", help="convert weights to safetensors, which loads faster and holds no code"
    )
    converting.add_argument("bundle", type=Path, metavar="DIR")
    converting.add_argument("--out", type=Path, metavar="DIR", help="target folder (default: beside the old files)")
    converting.add_argument("--dtype", choices=PRECISIONS, default="fp32", help="bf16 halves all but the vocoder")


def run(args: argparse.Namespace) -> int:
    actions = {
        "pull": _pull,
        "init": _init,
        "pack": _pack,
        "check": _check,
        "convert": _convert,
    }
    return actions[args.action](args)


def _pull(args: argparse.Namespace) -> int:
    model = published(args.name)
    out: Path = args.out or Path(model.folder)
    with Bar(unit="bytes") as bar:
        report = pull(
            model,
            out,
            args.source,
            rl=args.rl,
            base_url=args.source if "://" in args.source else None,
            progress=lambda p: bar.update(p.file, p.done_bytes, p.size_bytes),
        )
    print(report)
    return 0


def _init(args: argparse.Namespace) -> int:
    print(init_voicepack(args.folder))
    return 0


def _pack(args: argparse.Namespace) -> int:
    print(pack_voicepack(args.folder, args.out or Path(f"{args.folder.resolve().name}.zip")))
    return 0


def _check(args: argparse.Namespace) -> int:
    if (args.bundle / METADATA).exists():
        report = check_voicepack(args.bundle)
        print(report_json(report) if args.json else report)
        return 0 if report.ok else 1
    with Bar(shown=not args.json) as bar:
        bar.update("reading the weights")
        hashes = not args.no_hashes
        report = check(args.bundle, args.name, hashes=hashes, step=lambda file: bar.update(f"hashing {file}"))
    print(report_json(report) if args.json else report)
    return 0 if report.ok else 1


def _convert(args: argparse.Namespace) -> int:
    with Bar() as bar:
        step = lambda file: bar.update(f"writing {file}")  # noqa: E731
        report = convert(args.bundle, args.out or args.bundle, args.dtype, step=step)
    print(report)
    return 0 if report.ok else 1
