"""``tts-worker export onnx``: writes the networks of a model directory as ONNX graphs, compared with PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path

from tts_worker.commands.model_directory import open_bundle
from tts_worker.commands.progress import Bar
from tts_worker.engine.cosyvoice.execution.settings import GRAPHS_DIR
from tts_worker.errors import MissingExtra

PARTS = {"flow": "encoder and estimator", "hift": "vocoder"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("format", choices=["onnx"], help="what to write")
    parser.add_argument("bundle", type=Path, metavar="DIR", help="model directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for the graphs (default: DIR/{GRAPHS_DIR})")
    names = ", ".join(f"{part} ({what})" for part, what in PARTS.items())
    parser.add_argument(
        "--part",
        action="append",
        choices=list(PARTS),
        help=f"only this part; can be repeated: {names} (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    bundle = open_bundle(args.bundle)
    from tts_worker.engine.cosyvoice.bundle.networks import Networks
    from tts_worker.features.acceleration.onnx_graphs import export_onnx
    from tts_worker.features.acceleration.onnx_runtime import compare_graphs

    out: Path = args.out or args.bundle / GRAPHS_DIR
    with Bar() as bar:
        bar.update("loading the networks")
        networks = Networks.load(bundle)
        bar.update("writing and checking the graphs")
        written = export_onnx(networks, out, args.part or tuple(PARTS))
        bar.update("comparing them with PyTorch")
        try:
            differences = compare_graphs(networks, out, [path.name for path in written])
        except MissingExtra:
            differences = {}
    for path in written:
        found = differences.get(path.name)
        note = f"  differs from PyTorch by {found:.1e}" if found is not None else "  (not compared: no onnxruntime)"
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB{note}")
    return 0
