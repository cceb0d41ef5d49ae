"""``python -m tools.train fast COMMAND``: see tools/train/README.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from tools.train.fast import evaluate
from tools.train.fast.network import set_vector
from tools.train.fast.package import SCORES_FILE, add_voices, write_table
from tools.train.fast.runner import STAGES, FastConfig, FastTraining
from tools.train.fast.speakers import Speaker
from tools.train.trainer import STOP
from tts_worker.engine.cpu.hibari.model import VOICE, HibariModel, VoiceModel
from tts_worker.voices.installed import CPU_NETWORK, CPU_VECTOR

_WHOLE = ("data", "stages", "export", "evaluate")
_UNROUNDED = " before int8"


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``fast`` with its own commands."""
    fast = commands.add_parser("fast", help="train voices of the CPU engine from styles of Kokoro or from recordings")
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
    command("export", f"write RUN/{CPU_NETWORK} and RUN/VOICE/{CPU_VECTOR}")
    scoring = command("evaluate", f"score the voices that have no scores: RUN/VOICE/{SCORES_FILE}")
    scoring.add_argument("--sentences", type=int, help="only the first ones")
    scoring.add_argument("--compare", action="store_true", help="score heart and the network before int8, too")
    packing = own.add_parser("pack", help="put the voices that are good enough into a package")
    packing.add_argument("run", type=Path, help="folder of the training")
    packing.add_argument("--subpackage", default="", help="part of the package for voices of another network")
    table = own.add_parser("table", help="renew the table of figures in the README of a package")
    for added in (packing, table):
        added.add_argument("package", type=Path)
        added.set_defaults(threads=1)


def run(args: argparse.Namespace) -> int:
    """Run a command of ``fast``."""
    if args.fast_command == "pack":
        for line in add_voices(args.run, args.package, args.subpackage):
            _report(line)
    elif args.fast_command == "table":
        write_table(args.package)
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
            training.export()
        else:
            for voice in config.voices:
                _evaluate(training, voice, getattr(args, "sentences", None), compare=getattr(args, "compare", False))


def _evaluate(training: FastTraining, name: str, count: int | None = None, *, compare: bool = False) -> None:
    """Score an exported voice and its teacher, and to compare the network before the export and ``heart``.

    Nothing if there are scores of the same weights.
    """
    folder, language = training.run / name, Speaker.of(name).language
    files = training.network_file, training.vector_file(name)
    sha256 = evaluate.file_hash(*files)
    scores_file = folder / SCORES_FILE
    if scores_file.is_file() and json.loads(scores_file.read_text("utf-8"))["model_sha256"] == sha256:
        return
    data = training.data(name)
    sentences = data.sentences()[:count]
    model = HibariModel(voices=[VoiceModel(name, *files, sha256, language)])
    phonemizer = model.phonemizer_of(name)
    spoken = {
        evaluate.TEACHER: evaluate.teacher_utterances(phonemizer, data.held_out(), sentences),
        name: evaluate.speak(phonemizer, evaluate.predict_with(model, name), sentences),
    }
    if compare:
        network, vectors = training.trained()
        set_vector(network, vectors[name])
        spoken[name + _UNROUNDED] = evaluate.speak(phonemizer, evaluate.predict_with(network, name), sentences)
        spoken[VOICE] = evaluate.speak(model.phonemizer, evaluate.predict_with(model, VOICE), sentences)
    figures = evaluate.evaluate(spoken, language)
    scores = {
        "voice": name,
        "model_sha256": sha256,
        "sentences": len(sentences),
        "config": asdict(training.config),
        "steps": {stage: training.steps(stage) for stage in STAGES},
        "figures": {voice: asdict(values) for voice, values in figures.items()},
    }
    scores_file.write_text(json.dumps(scores, indent=2) + "\n", "utf-8")
    print(evaluate.table(figures), end="", flush=True)
