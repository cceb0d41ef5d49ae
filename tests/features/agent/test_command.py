"""``tts-worker agent``: wrong usage and missing extras, before anything is served."""

from __future__ import annotations

import sys

import pytest

from tts_worker.cli import main

CHAT = ("--chat-url", "http://127.0.0.1:9", "--chat-model", "small")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--chat-url", "ftp://example.com", "--chat-model", "small"), "must begin with http://"),
        (("--chat-url", "http://127.0.0.1:9"), "--chat-url needs --chat-model"),
        ((*CHAT, "--script", "script.txt"), "--script and --chat-url exclude each other"),
        (("--script", "missing.txt"), "not a readable text file"),
        (("--url", "ws://127.0.0.1:9", "--engine", "tone"), "configure a worker in this process"),
        (("--url", "ws://127.0.0.1:9", "--host", "0.0.0.0"), "served on loopback only"),
    ],
)
def test_wrong_usage_is_explained(
    flags: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TTS_WORKER_CHAT_URL", raising=False)
    monkeypatch.delenv("TTS_WORKER_CHAT_MODEL", raising=False)
    assert main(["agent", *flags]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "flags", "extra"), [("httpx", CHAT, "agent"), ("faster_whisper", ("--whisper", "tiny"), "whisper")]
)
def test_missing_extra_names_the_pip_command(
    module: str,
    flags: tuple[str, ...],
    extra: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["agent", *flags]) == 1
    assert f'pip install ".[{extra}]"' in capsys.readouterr().err


def test_unknown_model_is_not_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faster_whisper", reason="needs the extra 'whisper'")
    assert main(["agent", "--whisper", "example/missing"]) == 2
    assert "is not on this machine; --whisper-download may fetch it" in capsys.readouterr().err
