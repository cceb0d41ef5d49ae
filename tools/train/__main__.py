"""``python -m tools.train COMMAND``: see docs/training.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from tools.train.config import Config
from tools.train.evaluate import STAGES, evaluate
from tools.train.pack import PRECISIONS
from tools.train.runner import Training
from tools.train.text import held_out
from tts_worker.errors import TTSWorkerError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.train", description="Train a CosyVoice bundle.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help)
        added.add_argument("config", type=Path, help="YAML file")
        added.add_argument("--run", type=Path, required=True, help="folder of data, checkpoints and curves")
        added.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
        added.add_argument("--device", default="cpu")
        return added

    data = command("data", "make text, codes and audio")
    data.add_argument("--workers", type=int, default=1, help="processes of the teacher")
    run = command("run", "train all stages in turn, resuming where the last run stopped")
    run.add_argument("--minutes", type=float, default=1e9)
    run.add_argument("--scale", type=int, default=1, help="multiplies all batches, for a GPU")
    run.add_argument("--workers", type=int, default=1, help="processes of the teacher")
    stage = command("stage", "train one stage")
    stage.add_argument("stage", choices=("vocoder", "flow", "lm"))
    stage.add_argument("--minutes", type=float, default=1e9)
    stage.add_argument("--until-step", type=int, default=1 << 60)
    stage.add_argument("--scale", type=int, default=1)

    packing = command("pack", "write a bundle with the averaged weights of all stages")
    packing.add_argument("out", type=Path)
    packing.add_argument("--precision", choices=PRECISIONS, default="int8")

    judging = commands.add_parser("evaluate", help="score a bundle on the held-out sentences (extra quality)")
    judging.add_argument("bundle", type=Path)
    judging.add_argument("--graph", type=Path, required=True, help="file of the teacher's network (RUN/teacher.onnx)")
    judging.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    judging.add_argument("--sentences", type=int, help="only the first ones")
    judging.add_argument("--out", type=Path, metavar="DIR", help="also write the audio")
    judging.add_argument("--json", type=Path, metavar="FILE", help="also write the scores")
    judging.add_argument("--threads", type=int, default=2)

    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    try:
        return _run(args)
    except TTSWorkerError as error:
        print(error.message, file=sys.stderr)
        return 1


def _evaluate(args: argparse.Namespace) -> int:
    sentences = held_out()[: args.sentences]
    scores = evaluate(args.bundle, sentences, args.graph, args.stages, args.out, args.threads)
    text = json.dumps(scores, indent=2)
    if args.json is not None:
        args.json.write_text(text + "\n", "utf-8")
    print(text)
    return 0


def _run(args: argparse.Namespace) -> int:
    if args.command == "evaluate":
        return _evaluate(args)
    config = Config.load(args.config)

    def report(line: str) -> None:
        print(line, flush=True)

    training = Training(config, args.run, torch.device(args.device), getattr(args, "scale", 1), report)
    if args.command == "data":
        training.prepare(args.workers)
    elif args.command == "run":
        training.prepare(args.workers)
        training.follow_plan(args.minutes)
    elif args.command == "stage":
        training.train_stage(args.stage, args.minutes, args.until_step)
    elif args.command == "pack":
        bundle = training.pack(args.out, args.precision)
        report(f"{bundle.path}: {sum(file.stat().st_size for file in bundle.path.rglob('*')) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
