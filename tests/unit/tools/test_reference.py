"""``python -m tools.reference``: speech with the reference's algorithms, from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.unit.cosyvoice.bundles import FAMILIES, GOLDEN
from tests.unit.cosyvoice.speaking import Say, bundle_with_voices, shallow_weights_loaded_once, speaker
from tools.reference import command
from tts_worker.cli import run_command


def reference(*args: str) -> int:
    return run_command("python -m tools.reference", command, args)


@pytest.fixture(autouse=True, scope="module")
def weights() -> Iterator[None]:
    with shallow_weights_loaded_once():
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_with_voices(request.param, tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def say(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(lambda args: reference(*args), bundle, tmp_path / "out.wav", capsys)


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
