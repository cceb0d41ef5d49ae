"""``python -m tools.reference``: speech with the reference's algorithms, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.unit.cosyvoice.bundles import FAMILIES, GOLDEN, copy_of
from tests.unit.cosyvoice.networks import load_shallow
from tools.reference import command
from tts_worker.cli import main, run_command
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.networks import Networks


def reference(*args: str) -> int:
    return run_command("python -m tools.reference", command, args)


@pytest.fixture(autouse=True, scope="module")
def shallow_weights_are_loaded_once() -> Iterator[None]:
    """PyTorch as back end changes no weights."""

    @lru_cache
    def load_once(path: Path, rl: bool, **options: Any) -> Networks:
        return load_shallow(Bundle.open(path, rl=rl), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "load", lambda bundle, **options: load_once(bundle.path, bundle.rl, **options))
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model directory with a voice of a recording, one without transcript, and a tuned speaker."""
    path = copy_of(request.param, tmp_path_factory.mktemp("bundle"))
    prompt = GOLDEN["cosyvoice2"] / "prompt_24k.wav"
    add = ["--bundle", str(path), "--audio", str(prompt)]
    assert main(["voice", "add", "anna", *add, "--text", "What is said in this prompt."]) == 0
    assert main(["voice", "add", "mute", *add]) == 0
    assert main(["voice", "import", "--bundle", str(path)]) == 0
    return path


Say = Callable[..., dict[str, Any]]


@pytest.fixture
def say(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Speak with these arguments; what ``--json`` says, with the PCM under ``samples``."""

    def speak(*args: str, voice: str = "anna") -> dict[str, Any]:
        out = tmp_path / "out.wav"
        capsys.readouterr()
        base = ["--bundle", str(bundle), "--voice", voice, "--out", str(out)]
        assert reference(*base, "--json", *args) == 0
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        said["samples"], rate_hz = soundfile.read(out, dtype="int16")
        assert rate_hz == 24_000
        return said

    return speak


def test_chunks_grow_and_the_last_is_recomputed(say: Say, tmp_path: Path) -> None:
    spoken, rate_hz = soundfile.read(GOLDEN["cosyvoice2"] / "prompt_24k.wav")
    soundfile.write(tmp_path / "long.wav", np.tile(spoken, 3), rate_hz)
    chunks = say("--mode", "vc", "--source", str(tmp_path / "long.wav"), "--stream")["chunks"]

    sizes = [chunk["end_token"] - chunk["first_token"] for chunk in chunks]
    assert sizes[1:3] == [50, 100]
    assert 25 <= sizes[0] < 50  # with what completes the prompt's last chunk
    assert [chunk["chunk_mask"] for chunk in chunks] == [True, True, True, False]


def test_special_token_is_text_unless_allowed(say: Say) -> None:
    text = "Well <|im_start|> yes."
    plain, allowed = (say(text, *how, "--seed", "1")["samples"].tolist() for how in ([], ["--allow-special"]))
    assert plain != allowed


def test_text_requires_the_prompt_tag(bundle: Path, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    tagged = "You are a helpful assistant.<|endofprompt|>Hello."
    assert say(tagged, "--allow-special", "--seed", "1", voice="mute")["audio_s"] > 0
    if "cosyvoice3" in bundle.name:
        assert reference("--bundle", str(bundle), "--voice", "mute", "--allow-special", "Hello.") == 2
        assert "requires <|endofprompt|> in the text" in capsys.readouterr().err


def test_speed_with_stream_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ["--bundle", str(bundle), "--voice", "anna", "--out", str(tmp_path / "x.wav")]
    assert reference(*args, "--stream", "--speed", "2", "Hello.") == 2
    assert "disable streaming" in capsys.readouterr().err
    assert not (tmp_path / "x.wav").exists()
