"""A tiny model directory with voices, and a command that speaks with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import soundfile

from tests.unit.cosyvoice.bundles import GOLDEN, copy_of
from tests.unit.cosyvoice.networks import load_shallow
from tts_worker.cli import main
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks

Say = Callable[..., dict[str, Any]]


@contextmanager
def shallow_weights_loaded_once() -> Iterator[None]:
    """Load the weights of a directory once for a module: PyTorch as back end changes none."""

    @lru_cache
    def load_once(path: Path, rl: bool, **options: Any) -> Networks:
        return load_shallow(Bundle.open(path, rl=rl), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "load", lambda bundle, **options: load_once(bundle.path, bundle.rl, **options))
        yield


def bundle_with_voices(family: str, target: Path) -> Path:
    """Write a tiny model directory with a voice of a recording, one without transcript, and a tuned speaker."""
    path = copy_of(family, target)
    prompt = GOLDEN["cosyvoice2"] / "prompt_24k.wav"
    add = ["--bundle", str(path), "--audio", str(prompt)]
    assert main(["voice", "add", "anna", *add, "--text", "What is said in this prompt."]) == 0
    assert main(["voice", "add", "mute", *add]) == 0
    assert main(["voice", "import", "--bundle", str(path)]) == 0
    return path


def speaker(run: Callable[[list[str]], int], bundle: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Return what runs a speaking command with more arguments; it returns what ``--json`` says, and ``samples``."""

    def speak(*args: str, voice: str = "anna") -> dict[str, Any]:
        capsys.readouterr()
        assert run(["--bundle", str(bundle), "--voice", voice, "--out", str(out), "--json", *args]) == 0
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        said["samples"], rate_hz = soundfile.read(out, dtype="int16")
        assert rate_hz == 24_000
        return said

    return speak
