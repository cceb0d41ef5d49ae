"""``python -m tools.train fast COMMAND``: see tools/train/README.md."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from tools.train.fast import evaluate
from tools.train.fast.network import load_network
from tools.train.fast.runner import STAGES, FastConfig, FastTraining
from tools.train.text import held_out
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel, VoiceModel

MODEL, SCORES, TABLE = "model.onnx", "scores.json", "scores.md"
_UNROUNDED = " before int8"


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``fast`` with its own commands."""
    fast = commands.add_parser("fast", help="train a voice of the CPU engine from a style of Kokoro (extra voices)")
    own = fast.add_subparsers(dest="fast_command", required=True)

    def command(name: str, help: str) -> argparse.ArgumentParser:
        added = own.add_parser(name, help=help)
        added.add_argument("config", type=Path, help="YAML file")
        added.add_argument("--run", type=Path, required=True, help="folder of data, checkpoints, curves and results")
        added.add_argument("--threads", type=int, default=1, help="threads of torch and of the teacher (default 1)")
        added.add_argument("--device", default="cpu")
        return added

    command("run", "everything: data, both stages, export and evaluation (extra quality)")
    command("data", "make what is missing of the data")
    stage = command("stage", "train one stage, resuming where the last training stopped")
    stage.add_argument("stage", choices=STAGES)
    stage.add_argument("--minutes", type=float, default=1e9)
    command("export", f"write RUN/{MODEL}")
    scoring = command("evaluate", f"score RUN/{MODEL}: RUN/{SCORES} and RUN/{TABLE} (extra quality)")
    scoring.add_argument("--sentences", type=int, help="only the first ones")
    scoring.add_argument("--compare", action="store_true", help="score heart and the network before int8, too")


def run(args: argparse.Namespace) -> int:
    """Run a command of ``fast``."""
    config = FastConfig.load(args.config)

    def report(line: str) -> None:
        print(line, flush=True)

    training = FastTraining(config, args.run, torch.device(args.device), args.threads, report)
    commands = (args.fast_command,) if args.fast_command != "run" else ("data", "stages", "export", "evaluate")
    for command in commands:
        if command == "data":
            training.prepare()
        elif command == "stages":
            for name in STAGES:
                training.train(name)
        elif command == "stage":
            training.train(args.stage, args.minutes)
        elif command == "export":
            training.export(args.run / MODEL)
        else:
            _evaluate(training, getattr(args, "sentences", None), compare=getattr(args, "compare", False))
    return 0


def _evaluate(training: FastTraining, count: int | None = None, *, compare: bool = False) -> None:
    """Score the exported voice and its teacher, and to compare the network before the export and ``heart``."""
    run, name = training.run, training.config.name
    sentences = held_out()[:count]
    hash = evaluate.file_hash(run / MODEL)
    model = HibariModel(voices=[VoiceModel(name, run / MODEL, hash, training.config.language)])
    phonemizer = model.phonemizer_of(name)
    spoken = {
        evaluate.TEACHER: evaluate.teacher_utterances(phonemizer, training.data.held_out(), sentences),
        name: evaluate.speak(phonemizer, evaluate.predict_with(model, name), sentences),
    }
    if compare:
        network = load_network(run / MODEL)
        training.load_weights(network)
        spoken[name + _UNROUNDED] = evaluate.speak(phonemizer, evaluate.predict_with(network, name), sentences)
        spoken[VOICE] = evaluate.speak(model.phonemizer, evaluate.predict_with(model, VOICE), sentences)
    figures = evaluate.evaluate(spoken)
    scores = {
        "voice": name,
        "model_sha256": evaluate.file_hash(run / MODEL),
        "sentences": len(sentences),
        "config": asdict(training.config),
        "steps": {stage: training.steps(stage) for stage in STAGES},
        "figures": {voice: asdict(values) for voice, values in figures.items()},
    }
    (run / SCORES).write_text(json.dumps(scores, indent=2) + "\n", "utf-8")
    (run / TABLE).write_text(evaluate.table(figures), "utf-8")
    print(evaluate.table(figures), end="", flush=True)
