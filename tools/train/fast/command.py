"""``python -m tools.train fast COMMAND``: see tools/train/README.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from tools.train.fast import evaluate
from tools.train.fast.family import FamilyConfig, train_family, verdicts
from tools.train.fast.network import load_network
from tools.train.fast.package import SCORES_FILE, add_voice, write_table
from tools.train.fast.runner import STAGES, FastConfig, FastTraining
from tools.train.text import held_out
from tools.train.trainer import STOP
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel, VoiceModel
from tts_worker.voices.installed import CPU_MODEL

TABLE = "scores.md"
_WHOLE = ("data", "stages", "export", "evaluate")
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
    command("export", f"write RUN/{CPU_MODEL}")
    scoring = command("evaluate", f"score RUN/{CPU_MODEL}: RUN/{SCORES_FILE} and RUN/{TABLE} (extra quality)")
    scoring.add_argument("--sentences", type=int, help="only the first ones")
    scoring.add_argument("--compare", action="store_true", help="score heart and the network before int8, too")
    command("family", "everything for each voice of CONFIG that has no scores yet, in RUN/VOICE; which are good enough")
    packing = own.add_parser("pack", help="put a scored voice that is good enough into a package")
    packing.add_argument("run", type=Path, help="folder of the voice")
    table = own.add_parser("table", help="renew the table of figures in the README of a package")
    for added in (packing, table):
        added.add_argument("package", type=Path)
        added.set_defaults(threads=1)


def run(args: argparse.Namespace) -> int:
    """Run a command of ``fast``."""
    if args.fast_command == "pack":
        add_voice(args.run, args.package)
    elif args.fast_command == "table":
        write_table(args.package)
    elif args.fast_command == "family":
        family = FamilyConfig.load(args.config)
        train_family(family, args.run, lambda config, run: _run(config, run, args, _WHOLE))
        for line in verdicts(family, args.run):
            _report(line)
    else:
        whole = args.fast_command == "run"
        _run(FastConfig.load(args.config), args.run, args, _WHOLE if whole else (args.fast_command,))
    return 0


def _report(line: str) -> None:
    print(line, flush=True)


def _run(config: FastConfig, run: Path, args: argparse.Namespace, commands: Sequence[str]) -> None:
    """Run commands in turn, until the training is stopped."""
    training = FastTraining(config, run, torch.device(args.device), args.threads, _report)
    for command in commands:
        if STOP.is_set():
            return
        if command == "data":
            training.prepare()
        elif command == "stages":
            for name in STAGES:
                training.train(name)
        elif command == "stage":
            training.train(args.stage, args.minutes)
        elif command == "export":
            training.export(run / CPU_MODEL)
        else:
            _evaluate(training, getattr(args, "sentences", None), compare=getattr(args, "compare", False))


def _evaluate(training: FastTraining, count: int | None = None, *, compare: bool = False) -> None:
    """Score the exported voice and its teacher, and to compare the network before the export and ``heart``."""
    run, name = training.run, training.config.name
    sentences = held_out()[:count]
    hash = evaluate.file_hash(run / CPU_MODEL)
    model = HibariModel(voices=[VoiceModel(name, run / CPU_MODEL, hash, training.config.language)])
    phonemizer = model.phonemizer_of(name)
    spoken = {
        evaluate.TEACHER: evaluate.teacher_utterances(phonemizer, training.data.held_out(), sentences),
        name: evaluate.speak(phonemizer, evaluate.predict_with(model, name), sentences),
    }
    if compare:
        network = load_network(run / CPU_MODEL)
        training.load_weights(network)
        spoken[name + _UNROUNDED] = evaluate.speak(phonemizer, evaluate.predict_with(network, name), sentences)
        spoken[VOICE] = evaluate.speak(model.phonemizer, evaluate.predict_with(model, VOICE), sentences)
    figures = evaluate.evaluate(spoken)
    scores = {
        "voice": name,
        "model_sha256": evaluate.file_hash(run / CPU_MODEL),
        "sentences": len(sentences),
        "config": asdict(training.config),
        "steps": {stage: training.steps(stage) for stage in STAGES},
        "figures": {voice: asdict(values) for voice, values in figures.items()},
    }
    (run / SCORES_FILE).write_text(json.dumps(scores, indent=2) + "\n", "utf-8")
    (run / TABLE).write_text(evaluate.table(figures), "utf-8")
    print(evaluate.table(figures), end="", flush=True)
