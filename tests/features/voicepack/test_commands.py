"""``tts-worker voicepack`` and ``tts-worker voice`` from the command line."""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import http.server
import json
import os
import pty
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tests.unit.cosyvoice.bundles import GOLDEN, ONE_FAMILY, copy_of, tiny
from tools.random_bundle.writer import write_random_bundle
from tts_worker.cli import main
from tts_worker.commands.progress import Bar
from tts_worker.features.voicepack import manifest
from tts_worker.features.voicepack.manifest import ModelFile, PublishedModel

PROMPT = GOLDEN["cosyvoice2"] / "prompt_24k.wav"


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run a command: its exit code, and what it wrote to standard output and to standard error."""

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_random_bundle_passes_every_command(lines, tmp_path: Path, family: str) -> None:  # type: ignore[no-untyped-def]
    noise = tmp_path / "noise"
    converted = tmp_path / "converted"

    write_random_bundle(noise, family, seed=3)
    assert lines("voicepack", "check", noise)[:2] == (0, f"{noise}: complete and valid\n")
    assert lines("voice", "import", "--bundle", noise)[:2] == (0, f"{noise}/voices/random\n")
    assert lines("voicepack", "convert", noise, "--out", converted, "--dtype", "bf16")[0] == 0
    code, out, _ = lines("voicepack", "check", converted, "--json")
    assert code == 0
    assert json.loads(out)["ok"] is True
    # Voices go where the model goes, and a bf16 model still speaks.
    wav = tmp_path / "x.wav"
    assert lines("say", "--bundle", converted, "--out", wav, "--quiet", "Hi.")[0] == 0
    assert soundfile.info(wav).frames > 0


def test_check_lists_problems_and_sets_the_exit_code(lines, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = copy_of("cosyvoice2", tmp_path)
    state = torch.load(path / "flow.pt", weights_only=True)
    state["encoder_proj.weight"][0, 0] = torch.nan
    torch.save(state, path / "flow.pt")
    (path / "hift.pt").write_bytes((path / "hift.pt").read_bytes()[:1000])

    code, out, err = lines("voicepack", "check", path)
    assert code == 1
    assert "cannot be served" in out
    assert "NaN or infinite values in (1): encoder_proj.weight" in out
    assert "hift.pt" in out
    assert err == "reading the weights\n"
    code, out, err = lines("voicepack", "check", path, "--json")
    assert (code, err) == (1, "")
    assert {problem["file"] for problem in json.loads(out)["problems"]} == {"flow.pt", "hift.pt"}
    assert lines("voicepack", "convert", path)[0] == 2
    assert lines("export", "onnx", path)[0] == 2
    assert not list(path.glob("*.safetensors"))
    assert not (path / "onnx").exists()


def test_wrong_arguments_name_the_alternatives(lines, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for args, message in (
        (["voicepack", "pull", "cosyvoice9"], "there are: cosyvoice2-0.5b, cosyvoice3-0.5b"),
        (["voicepack", "pull", "cosyvoice2-0.5b", "--source", "ftp://x"], "must begin with https://"),
        (["voicepack", "check", tmp_path / "no"], "get one with: tts-worker voicepack pull"),
        (["voicepack", "check", tiny("cosyvoice2"), "--name", "nope"], "there is no published model"),
        (["voice", "list", "--bundle", tmp_path / "no"], ""),
    ):
        code, _, err = lines(*args)
        assert message in err
        assert code == (2 if message else 0)
    assert not (tmp_path / "x").exists()
    for args in (["voicepack"], ["voicepack", "push"], ["voice", "add"], ["export", "tensorrt", "x"]):
        with pytest.raises(SystemExit) as exited:
            main(args)
        assert exited.value.code == 2


def test_voice_add_and_list(lines, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = copy_of("cosyvoice3", tmp_path)
    add = ["voice", "add", "anna", "--bundle", path, "--audio", PROMPT, "--text", "What is said in this prompt."]

    code, out, _ = lines(*add)
    assert code == 0
    assert out.startswith(f"{path}/voices/anna: 3.0 s of speech, level changed by ")
    code, _, err = lines(*add)
    assert code == 1
    assert "there is a voice 'anna' already" in err
    assert lines(*add, "--replace")[0] == 0
    assert "note: no transcript" in lines("voice", "add", "mute", "--bundle", path, "--audio", PROMPT)[1]
    listed = json.loads(lines("voice", "list", "--bundle", path, "--json")[1])["voices"]
    assert [(voice["name"], voice["mode"]) for voice in listed] == [("anna", "zero-shot"), ("mute", "cross-lingual")]
    assert all(len(voice["content_hash"]) == 64 for voice in listed)
    # Another folder of voices, which has none.
    assert "no voices yet; add one with" in lines("voice", "list", "--bundle", path, "--voices", tmp_path / "own")[1]
    (path / "voices" / "anna" / "voice.safetensors").write_bytes(b"")
    code, out, _ = lines("voice", "list", "--bundle", path)
    assert code == 1
    assert "voice.safetensors" in out
    assert "mute" in out


@pytest.mark.parametrize(
    ("name", "samples", "rate_hz", "message"),
    [
        ("silent", np.zeros(100_000), 24_000, "the audio is silent"),
        ("short", np.sin(np.arange(24_000) / 9), 24_000, "1.0 s of speech; use 3 to 30 s"),
        ("long", np.sin(np.arange(5 * 60 * 16_000) / 9), 16_000, "300.0 s long; use 3 to 30 s"),
        ("telephone", np.sin(np.arange(40_000) / 9), 8_000, "8000 Hz"),
        ("corrupt", None, 0, "the audio cannot be read"),
        ("missing", None, 0, "no such audio file"),
    ],
)
def test_bad_recording_is_refused(  # type: ignore[no-untyped-def]
    lines, tmp_path: Path, name: str, samples: np.ndarray | None, rate_hz: int, message: str
) -> None:
    audio = tmp_path / f"{name}.wav"
    if samples is not None:
        soundfile.write(audio, 0.3 * samples, rate_hz)
    elif name == "corrupt":
        audio.write_bytes(PROMPT.read_bytes()[:30] + b"\0" * 100)
    voices = tmp_path / "voices"

    code, _, err = lines(
        "voice", "add", "x", "--bundle", tiny("cosyvoice2"), "--voices", voices, "--audio", audio, "--text", "Hello."
    )
    assert code == 2
    assert message in err
    assert not voices.exists()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with the tiny CosyVoice2 as if it were published; its address."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    source = tiny("cosyvoice2")
    files = tuple(
        ModelFile(str(f.relative_to(source)), f.stat().st_size, hashlib.sha256(f.read_bytes()).hexdigest())
        for f in sorted(source.rglob("*.*"))
    )
    monkeypatch.setattr(
        manifest, "PUBLISHED", (PublishedModel("tiny2", "Tiny2", {"huggingface": "http://[::]/"}, files),)
    )

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Print no traceback when a client closes the connection early, for example after a 404."""

    with Server(("127.0.0.1", 0), partial(Quiet, directory=str(source))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_pull_downloads_a_published_model(lines, tmp_path: Path, mirror: str) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "pulled"
    code, told, err = lines("voicepack", "pull", "tiny2", "--out", out, "--source", mirror)

    assert code == 0
    assert told == f"{out}: complete and valid\n"
    assert "flow.pt" in err.splitlines()  # one line a file where there is no terminal
    assert lines("voicepack", "check", out)[0] == 0
    (out / "hift.pt").unlink()
    code, _, err = lines("voicepack", "pull", "tiny2", "--out", out, "--source", mirror + "/elsewhere")
    assert code in (1, 2)
    assert "404" in err


def test_progress_without_terminal_is_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def no_rich(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("rich"):
            raise ImportError(name)
        return imported(name, *args, **kwargs)  # type: ignore[arg-type]

    for terminal in (False, True):
        monkeypatch.setattr(builtins, "__import__", no_rich)
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with Bar(unit="bytes") as bar:
            for done in range(3):
                bar.update("first", done, 3)
            bar.update("second")
        monkeypatch.undo()
        assert capsys.readouterr().err == "first\nsecond\n"
    with Bar(shown=False) as bar:
        bar.update("nothing")
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Through a real pseudo-terminal: what moves goes to standard error, what counts to standard output."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end closes
            while piece := os.read(ours, 4096):
                shown.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        code = main(["voicepack", "check", str(tiny("cosyvoice2"))])
    reader.join()
    os.close(ours)

    assert code == 0
    assert capsys.readouterr().out.endswith("complete and valid\n")
    assert b"reading the weights" in shown
    assert b"\x1b[" in shown
