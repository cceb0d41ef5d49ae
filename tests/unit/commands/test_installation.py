"""The pip command for an extra works for every way in which the package can have been installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tts_worker.cli import all_commands, main, run_command
from tts_worker.commands import doctor
from tts_worker.commands.installation import install_command
from tts_worker.errors import MissingExtra


def installed_from(origin: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Distribution())


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (
            {"url": "file:///srv/a%20clone", "dir_info": {}},
            'pip install "/srv/a clone/packages/tts-worker-client" "/srv/a clone[grpc]"',
        ),
        (
            {"url": "file:///srv/clone", "dir_info": {"editable": True}},
            'pip install -e "/srv/clone/packages/tts-worker-client" -e "/srv/clone[grpc]"',
        ),
        (
            {"url": "file:///tmp/tts_worker-1-py3-none-any.whl", "archive_info": {}},
            'pip install "tts-worker[grpc] @ file:///tmp/tts_worker-1-py3-none-any.whl"',
        ),
        (
            {"url": "https://example.org/tts.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}},
            'pip install "tts-worker-client @ git+https://example.org/tts.git@abc123'
            '#subdirectory=packages/tts-worker-client" '
            '"tts-worker[grpc] @ git+https://example.org/tts.git@abc123"',
        ),
        (None, 'pip install "tts-worker[grpc]"'),
    ],
)
def test_command_names_the_source(origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from(origin, monkeypatch)
    assert install_command("grpc") == command
    assert install_command() == command.replace("[grpc]", "")


def test_command_without_installation_is_for_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert install_command("grpc") == 'pip install "./packages/tts-worker-client" ".[grpc]" in the clone of tts-worker'
    assert '"./packages/livekit-plugins-tts-worker" ".[livekit]"' in install_command("livekit")
    assert '"./packages/tts-worker-voices" ".[voices]"' in install_command("voices")


def test_missing_extra_tells_no_path_to_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    installed_from({"url": "file:///srv/secret", "dir_info": {}}, monkeypatch)
    message = MissingExtra("WebRTC", "webrtc").message
    assert 'pip install ".[webrtc]"' in message
    assert "secret" not in message


def command_that_needs(package: str) -> Any:
    def run(_: object) -> int:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    return SimpleNamespace(add_arguments=lambda parser: None, run=run)


def test_command_without_torch_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether its module imports torch, or only some of what it does."""
    assert run_command("tts-worker bench x", command_that_needs("torch"), []) == 1
    message = capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", command_that_needs("torch").run)
        assert main(["export", "onnx", "x"]) == 1
    assert capsys.readouterr().err == message.replace("bench x", "export")
    assert message.startswith('error: tts-worker bench x needs the extra "cosyvoice": pip install')


def test_missing_module_of_the_package_is_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError):
        run_command("tts-worker x", command_that_needs("tts_worker.gone"), [])


def test_doctor_accepts_the_pythons_of_the_packages() -> None:
    oldest, newest = doctor.OLDEST_PYTHON, doctor.NEWEST_PYTHON
    minors = range(oldest[1], newest[1] + 1)
    root = Path(__file__).parents[3]
    projects = [root / "pyproject.toml", *root.glob("packages/*/pyproject.toml")]
    assert len(projects) == 5
    for project in projects:
        text = project.read_text("utf-8")
        assert f'requires-python = ">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"' in text, project
        named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text)
        assert named == [str(minor) for minor in minors], project


def test_tools_run_on_the_pythons_of_the_package() -> None:
    (_, oldest), (_, newest) = doctor.OLDEST_PYTHON, doctor.NEWEST_PYTHON
    versions = [f"3.{minor}" for minor in range(oldest, newest + 1)]
    root = Path(__file__).parents[3]
    project = (root / "pyproject.toml").read_text("utf-8")
    assert f'target-version = "py3{oldest}"' in project
    assert f'python_version = "3.{oldest}"' in project
    assert f'supported="{" ".join(versions)}"' in (root / "scripts/test-matrix").read_text("utf-8")
    assert f"--python-version {versions[0]} " in (root / "scripts/pin").read_text("utf-8")
    assert f"Python {versions[0]} to {versions[-1]}" in (root / "README.md").read_text("utf-8")
    workflow = (root / ".github/workflows/ci.yml").read_text("utf-8")
    assert f"python: {json.dumps(versions)}" in workflow


def test_no_extra_installs_a_second_onnxruntime() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")
    assert "onnxruntime>=" in project
    assert '"onnxruntime-' not in project


@pytest.mark.parametrize("name", all_commands())
def test_help_keeps_the_capitals_of_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    text = all_commands()[name].summary
    assert f"{text[0].upper()}{text[1:]}." in shown


def test_help_of_no_command_needs_torch() -> None:
    program = """
import contextlib, io, sys
sys.modules["torch"] = None
from tts_worker.cli import all_commands, main
for name in all_commands():
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            print("code", main([*name.split(), "--help"]), file=sys.stderr)
        except SystemExit as exit:
            if exit.code:
                raise
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert shown.stderr == ""


@pytest.mark.parametrize(("version", "named"), [((3, 10, 13), True), ((3, 11, 0), False)])
def test_missing_pipecat_names_the_python_it_needs(
    version: tuple[int, int, int], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    monkeypatch.setattr(doctor, "is_installed", lambda _: False)
    advice = doctor.extra_finding("pipecat").advice
    assert ("use Python 3.11 or newer, then pip install" in advice) is named
    # Not the package alone: its modules that another test has imported would still be found.
    monkeypatch.setitem(sys.modules, "pipecat.frames.frames", None)
    monkeypatch.delitem(sys.modules, "tts_worker.integrations.pipecat", raising=False)
    with pytest.raises(MissingExtra, match=r'pip install "./packages/tts-worker-client\[pipecat]"') as missing:
        importlib.import_module("tts_worker.integrations.pipecat")
    assert ("needs Python 3.11 or newer, not 3.10" in missing.value.message) is named


def test_doctor_knows_every_extra() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "test", "quality"}
    assert {name for name in extras if doctor.extra_finding(name).what == f"[{name}]"} == extras
