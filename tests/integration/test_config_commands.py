"""``tts-worker config init`` and ``config check``, and the reload of the log level."""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from tests.conftest import serving, until
from tests.unit.test_settings import uncommented
from tts_worker.cli import main
from tts_worker.errors import ConfigError
from tts_worker.settings import load_settings


def test_written_config_is_valid_and_holds_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "worker.yaml"
    assert main(["config", "init", str(file)]) == 0
    assert load_settings(file).model_dump() == load_settings().model_dump()
    shown = yaml.safe_load(re.sub(r"(?m)^( *)# ( *\w+:)", r"\1\2", file.read_text("utf-8")))
    assert {name: set(section) for name, section in shown.items() if isinstance(section, dict)} == {
        name: set(section) for name, section in uncommented().items() if isinstance(section, dict)
    }
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out.endswith("worker.yaml: valid\n")


def test_short_config_shows_fifteen_settings(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    assert main(["config", "init", "--short", str(file)]) == 0
    assert load_settings(file).model_dump() == load_settings().model_dump()
    text = file.read_text("utf-8")
    shown = yaml.safe_load(re.sub(r"(?m)^( *)# ( *\w+:)", r"\1\2", text))
    engines = shown.pop("engines")
    others = [key for value in shown.values() for key in (value if isinstance(value, dict) else ["one"])]
    assert len(others) + 1 == 15
    assert {name: set(engine) for name, engine in engines.items()} == {
        "hibari": {"kind"},
        "cosyvoice2": {"kind", "bundle"},
    }
    assert "\n\n\n" not in text


def test_existing_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("server: {port: 9000}")
    assert main(["config", "init", str(file)]) == 2
    assert file.read_text() == "server: {port: 9000}"
    assert "exists" in capsys.readouterr().err


INVALID = """\
server:
  prot: 9000
  drain_s: soon
  key_file: keys.yaml
sesion: {max_sessions: 3}
engines:
  hibari:
    kind: hibari
    thread: 2
webrtc:
  ice_servers:
    - {urls: "stun:a", user: me}
"""


def test_check_names_every_error_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text(INVALID)
    assert main(["config", "check", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{file}:2: server.prot: unknown setting, did you mean port?" in lines
    assert any(line.startswith(f"{file}:3: server.drain_s: ") for line in lines)
    assert f"{file}:5: sesion: unknown setting, did you mean session?" in lines
    assert f"{file}:9: engines.hibari.thread: unknown setting, did you mean threads?" in lines
    assert any(line.startswith(f"{file}:12: webrtc.ice_servers.0.user: unknown setting") for line in lines)
    assert main(["config", "check", str(tmp_path / "none.yaml")]) == 2


def test_check_finds_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("server:\n  port: 1\n  key_file: keys.yaml\n")
    assert main(["config", "check", str(file)]) == 1
    missing = f"{tmp_path / 'keys.yaml'} cannot be read: No such file or directory"
    assert capsys.readouterr().out == f"{file}:3: server.key_file: {missing}\n"


def test_check_opens_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text(
        "server:\n  key_file: keys.yaml\n  tls_certificate: junk.pem\n"
        "grpc:\n  tls_certificate: junk.pem\n"
        "text:\n  lexicon: words.yaml\n"
        "voices:\n  directory: none\n"
        "batch:\n  directory: junk.pem/batches\n"
    )
    (tmp_path / "keys.yaml").write_text("keys: [{name: a, key: secret}]")
    (tmp_path / "junk.pem").write_text("junk")
    (tmp_path / "words.yaml").write_text("word: [1]")
    assert main(["config", "check", str(file)]) == 1
    output = capsys.readouterr().out
    places = [line.removeprefix(f"{file}:").split(": ")[:2] for line in output.splitlines()]
    assert places == [
        ["2", "server.key_file"],
        ["3", "server.tls_certificate"],
        ["5", "grpc.tls_certificate"],
        ["7", "text.lexicon"],
        ["9", "voices.directory"],
        ["11", "batch.directory"],
    ]
    assert "8 characters" in output
    assert "secret" not in output


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"voices": {"directory": "{folder}/none"}}, "voices.directory: {folder}/none is not a directory"),
        ({"batch": {"directory": "{folder}/file/batches"}}, "batch.directory: {folder}/file is not a directory"),
    ],
)
async def test_serving_refuses_directories_that_cannot_be_used(
    section: dict[str, dict[str, str]], message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path)
    ((name, values),) = section.items()
    with pytest.raises(ConfigError) as refused:
        async with serving(**{name: {key: value.format(folder=folder) for key, value in values.items()}}):
            pass
    assert refused.value.message == message.format(folder=folder)


def test_check_names_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("server: {}")
    monkeypatch.setenv("TTS_WORKER_SESSION__LED_MS", "3")
    assert main(["config", "check", str(file)]) == 1
    assert f"{file}, environment: session.led_ms: unknown setting, did you mean lead_ms?" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
async def test_sighup_calls_the_reload() -> None:
    calls: list[str] = []
    async with serving(on_reload=lambda: calls.append("reload")):
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: calls)


def test_reload_sets_the_level_of_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tts_worker.commands.serve import LogLevelReload

    file = tmp_path / "worker.yaml"
    file.write_text("log_level: warning")
    level = logging.getLogger("tts_worker").level
    try:
        reload = LogLevelReload(lambda: load_settings(file))
        reload()
        assert logging.getLogger("tts_worker").level == logging.WARNING
        file.write_text("log_level: loud")
        reload()
        assert logging.getLogger("tts_worker").level == logging.WARNING
        assert "the log level is unchanged: " in caplog.text
    finally:
        logging.getLogger("tts_worker").setLevel(level)
