"""Content of the wheel and of the source distribution, built by the build backend."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def built(kind: str, directory: Path) -> Path:
    pytest.importorskip("hatchling", reason="needs the build backend hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (file,) = directory.iterdir()
    return file


def run_installed(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in ``directory`` with the package of ``directory / "site"``."""
    path = os.pathsep.join([str(directory / "site"), *filter(None, sys.path[1:])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def test_wheel_holds_voice_packs_configs_and_pages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"tts_worker/configs/{file.name}" for file in (ROOT / "configs").glob("*.yaml")} <= names
    assert {"tts_worker/voicepacks/hibari/heart/metadata.yaml", "livekit/plugins/tts_worker/__init__.py"} <= names
    assert any(name.startswith("tts_worker/server/web/") for name in names)
    assert not any(name.startswith(("tests/", "docs/", "tools/")) for name in names)


def test_installed_wheel_finds_its_voices_and_configs(wheel: Path, tmp_path: Path) -> None:
    """Outside of the clone the voice has its description and lexicon, and a configuration is found by name."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "from pathlib import Path\n"
        "import tts_worker\n"
        "from tts_worker.settings import find_config, load_settings, packaged\n"
        "from tts_worker.voices import read_voicepacks\n"
        f"assert Path(tts_worker.__file__).is_relative_to({str(tmp_path)!r}), tts_worker.__file__\n"
        "packs = {pack.name: pack for pack in read_voicepacks(packaged('voicepacks'))}\n"
        "assert packs['heart'].description and packs['heart'].lexicon\n"
        "settings = load_settings(find_config(Path('configs/worker.yaml')))\n"
        "assert read_voicepacks(settings.voices.directory)\n"
    )
    done = run_installed(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def test_installed_wheel_says_that_parity_needs_a_clone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    done = run_installed(["-m", "tts_worker", "parity", "--bundle", "x", "--golden", "y"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "python -m tools.parity" in done.stderr


def test_sdist_holds_docs_and_examples_but_no_weights(tmp_path: Path) -> None:
    file = built("sdist", tmp_path)
    with tarfile.open(file) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    folders = {name.partition("/")[0] for name in names}
    assert {
        "src",
        "configs",
        "voicepacks",
        "docs",
        "examples",
        "tests",
        "tools",
        "scripts",
        "LICENSE",
        "NOTICE",
    } <= folders
    assert not [name for name in names if name.endswith((".safetensors", ".pt", ".onnx"))]
    assert file.stat().st_size < 3_000_000, "weights for tests made it 15 MB"
