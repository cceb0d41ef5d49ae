"""``python -m tools.train COMMAND``: see tools/train/README.md."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

import torch

from tools.train import boundaries
from tools.train.config import Config
from tools.train.curves import draw, read_curves
from tools.train.evaluate import STAGES, evaluate
from tools.train.fast import command as fast
from tools.train.finetune import METHODS, FineTuning, fine_tune
from tools.train.pack import PRECISIONS
from tools.train.runner import Training
from tools.train.text import held_out
from tools.train.trainer import STOP
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.errors import TTSWorkerError


def _add_finetune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tuning = commands.add_parser("finetune", help="fine-tune a bundle on recordings with transcripts")
    tuning.add_argument("bundle", type=Path)
    tuning.add_argument("manifest", type=Path, help='JSON lines: {"audio": FILE, "text": TRANSCRIPT}')
    tuning.add_argument("out", type=Path, help="folder of the new bundle")
    tuning.add_argument("--run", type=Path, required=True, help="folder of checkpoints and curves")
    tuning.add_argument("--voice", required=True, help="name of the new speaker")
    tuning.add_argument("--lm", choices=METHODS, default="lora")
    tuning.add_argument("--flow", choices=("full", "none"), default="full")
    tuning.add_argument("--lm-steps", type=int, default=1000)
    tuning.add_argument("--flow-steps", type=int, default=2000)
    tuning.add_argument("--rank", type=int, default=8)
    tuning.add_argument("--lr", type=float, default=1e-5)
    tuning.add_argument("--positions", type=int, default=2000, help="batch of both (default 2000)")
    tuning.add_argument("--precision", choices=PRECISIONS, default="fp32")
    tuning.add_argument("--threads", type=int, default=1)
    tuning.add_argument("--device", default="cpu")


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    judging = commands.add_parser("evaluate", help="score a bundle on the held-out sentences (extra quality)")
    judging.add_argument("bundle", type=Path)
    judging.add_argument("--graph", type=Path, required=True, help="file of the teacher's network (RUN/teacher.onnx)")
    judging.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    judging.add_argument("--sentences", type=int, help="only the first ones")
    judging.add_argument("--out", type=Path, metavar="DIR", help="also write the audio")
    judging.add_argument("--json", type=Path, metavar="FILE", help="also write the scores")
    judging.add_argument("--threads", type=int, default=2)


def _add_boundaries(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    seams = commands.add_parser("boundaries", help="compare chunk boundaries of streamed audio with the rest of it")
    seams.add_argument("bundle", type=Path)
    seams.add_argument("--graph", type=Path, required=True, help="file of the teacher's network (RUN/teacher.onnx)")
    seams.add_argument("--sentences", type=int, help="only the first ones")
    seams.add_argument("--svg", type=Path, help="also draw a picture")
    seams.add_argument("--threads", type=int, default=2)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.train", description="Train a CosyVoice bundle, or a voice of the CPU engine."
    )
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

    drawing = command("plot", "draw the learning curves as SVG files beside them")
    drawing.set_defaults(device="cpu")
    _add_finetune(commands)
    _add_evaluate(commands)
    _add_boundaries(commands)
    fast.add_arguments(commands)

    args = parser.parse_args()
    if args.command in ("run", "stage", "fast"):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: STOP.set())
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
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


def _boundaries(args: argparse.Namespace) -> int:
    result = boundaries.measure(args.bundle, held_out()[: args.sentences], args.graph)
    if args.svg is not None:
        args.svg.write_text(boundaries.draw(result), "utf-8")
    low, high = result.usual
    print(f"{result.boundaries} boundaries: streaming adds {result.excess:.2%} of the mean flux", end=" ")
    print(f"(as many random times: {low:.2%} to {high:.2%})")
    return 0


def _fine_tune(args: argparse.Namespace) -> int:
    names = ("voice", "lm", "flow", "lm_steps", "flow_steps", "rank", "lr", "positions")
    plan = FineTuning(**{name: getattr(args, name) for name in names})
    bundle = Bundle.open(args.bundle)
    fine_tune(bundle, args.manifest, args.out, args.run, plan, device=args.device, precision=args.precision)
    return 0


def _run(args: argparse.Namespace) -> int:
    if args.command == "evaluate":
        return _evaluate(args)
    if args.command == "boundaries":
        return _boundaries(args)
    if args.command == "finetune":
        return _fine_tune(args)
    if args.command == "fast":
        return fast.run(args)
    if args.command == "plot":
        for curve in sorted(args.run.glob("*.jsonl")):
            curve.with_suffix(".svg").write_text(draw(read_curves(curve), curve.stem), "utf-8")
        return 0
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
