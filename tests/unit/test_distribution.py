"""Content of the wheels and source distributions, built by the build backend."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import tts_worker
from tts_worker.features.completion.command import SHELLS

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "packages" / "tts-worker-client"
LIVEKIT = ROOT / "packages" / "livekit-plugins-tts-worker"
PROJECTS = (ROOT, CLIENT, LIVEKIT)


def built(kind: str, directory: Path, project: Path = ROOT) -> Path:
    pytest.importorskip("hatchling", reason="needs the build backend hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(directory)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=100)
    (file,) = directory.iterdir()
    return file


def run_installed(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in ``directory`` with the packages of ``directory / "site"`` instead of those of this checkout."""
    installed = [entry for entry in sys.path[1:] if entry and not (Path(entry) / "tts_worker").exists()]
    path = os.pathsep.join([str(directory / "site"), *installed])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True)


@dataclass(frozen=True)
class Wheels:
    """The wheels of the server, its client, and the LiveKit plugin."""

    server: zipfile.ZipFile
    client: zipfile.ZipFile
    livekit: zipfile.ZipFile

    @property
    def all(self) -> tuple[zipfile.ZipFile, ...]:
        return self.server, self.client, self.livekit


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    return Wheels(*(zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel"), project)) for project in PROJECTS))


@pytest.fixture(scope="module")
def installed(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels in ``site``, which Python compiles once."""
    folder = tmp_path_factory.mktemp("installed")
    wheels.server.extractall(folder / "site")
    wheels.client.extractall(folder / "site")
    return folder


def contents(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def source_files(folder: Path, name: str) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {f"{name}/{path.relative_to(folder).as_posix()}" for path in files if not path.name.startswith(".")}


def project_table(project: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    return table


# -- the split --------------------------------------------------------------------------------------------------------


def test_wheels_have_no_common_file_and_no_gap(wheels: Wheels) -> None:
    server, client, livekit = (contents(wheel) for wheel in wheels.all)
    assert not server & client
    assert server | client == (
        source_files(ROOT / "src" / "tts_worker", "tts_worker")
        | source_files(ROOT / "configs", "tts_worker/configs")
        | source_files(ROOT / "voicepacks", "tts_worker/voicepacks")
    )
    assert livekit == source_files(LIVEKIT / "livekit", "livekit")
    assert {name.partition("/")[0] for name in server | client} == {"tts_worker"}, "the tools stay in the clone"
    assert {"tts_worker/__init__.py", "tts_worker/py.typed", "tts_worker/client/grpc.py"} <= client
    assert {
        "tts_worker/cli.py",
        "tts_worker/local.py",
        "tts_worker/voicepacks/hibari/heart/metadata.yaml",
    } <= server


def test_wheels_carry_the_license(wheels: Wheels) -> None:
    for wheel in wheels.all:
        texts = {
            name.rpartition("/")[2]: wheel.read(name).decode() for name in wheel.namelist() if "/licenses/" in name
        }
        assert texts == {name: (ROOT / name).read_text("utf-8") for name in ("LICENSE", "NOTICE")}


def test_versions_agree_and_are_required_exactly() -> None:
    tables = [project_table(project) for project in PROJECTS]
    version = tts_worker.__version__
    assert {table["version"] for table in tables} == {version}
    assert f'"{version}"' in (LIVEKIT / "livekit" / "plugins" / "tts_worker" / "version.py").read_text("utf-8")
    server, client, livekit = tables
    required = f"{client['name']}=={version}"
    assert required in server["dependencies"]
    assert required in livekit["dependencies"]
    assert server["optional-dependencies"]["livekit"] == [f"{livekit['name']}=={version}"]
    assert [table["requires-python"] for table in tables] == 3 * [server["requires-python"]]


def test_client_needs_few_packages() -> None:
    """Fewer than ten with itself, as they are installed here."""
    needed: dict[str, None] = {}
    waiting = [Requirement(text) for text in project_table(CLIENT)["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        if name not in needed and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            needed[name] = None
            waiting += [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    assert {"grpcio", "msgspec", "protobuf", "websockets"} <= needed.keys()
    assert len(needed) + 1 < 10, sorted(needed)
    assert not needed.keys() & {"anyio", "fastapi", "numpy", "onnxruntime", "pydantic"}


CLIENT_PROGRAM = """
import asyncio, importlib, pkgutil, sys
import tts_worker, tts_worker.client, tts_worker.client.grpc, tts_worker.client.websocket
heavy = {'anyio', 'fastapi', 'numpy', 'onnxruntime', 'pydantic', 'uvicorn', 'yaml', 'tts_worker.text.pipeline'}
print('loaded', sorted(heavy & set(sys.modules)))
from tts_worker.errors import MissingExtra, MissingServer
sys.modules['pipecat'] = None
for module in pkgutil.walk_packages(tts_worker.__path__, 'tts_worker.'):
    try:
        importlib.import_module(module.name)
    except MissingExtra as missing:
        print('missing', module.name, missing.message)
for call in (lambda: tts_worker.connect('local:'), tts_worker.create_worker):
    try:
        call()
    except MissingServer as missing:
        print('server', missing.message)
"""


def test_client_alone_imports_and_names_what_is_missing(wheels: Wheels, tmp_path: Path) -> None:
    wheels.client.extractall(tmp_path / "site")
    done = run_installed(["-c", CLIENT_PROGRAM], tmp_path)
    assert done.returncode == 0, done.stderr[-2_000:]
    install = "pip install ./packages/tts-worker-client . in the clone"
    needs_server = f"server a worker in this process needs the distribution tts-worker: {install}"
    loaded, *missing, local, worker = done.stdout.splitlines()
    assert loaded == "loaded []"
    assert [local, worker] == [needs_server] * 2
    assert [line.split()[1] for line in missing] == ["tts_worker.integrations.pipecat"]
    assert 'pip install "./packages/tts-worker-client[pipecat]"' in missing[0]


# -- the installed server ---------------------------------------------------------------------------------------------


def test_installed_wheel_finds_its_voices_and_configs(installed: Path) -> None:
    """Outside of the clone the voice has its description and lexicon, and a configuration is found by name."""
    code = (
        "from pathlib import Path\n"
        "import tts_worker\n"
        "from tts_worker.settings import find_config, load_settings, packaged\n"
        "from tts_worker.voices.packs import read_voicepacks\n"
        f"assert Path(tts_worker.__file__).is_relative_to({str(installed)!r}), tts_worker.__file__\n"
        "packs = {each.pack.name: each.pack for each in read_voicepacks(packaged('voicepacks'))}\n"
        "assert packs['heart'].description and packs['heart'].lexicon\n"
        "settings = load_settings(find_config(Path('configs/worker.yaml')))\n"
        "assert read_voicepacks(settings.voices.directory)\n"
    )
    done = run_installed(["-c", code], installed)
    assert done.returncode == 0, done.stderr


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from tts_worker.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("shell", SHELLS)
def test_installed_wheel_completes_commands(installed: Path, shell: str) -> None:
    done = run_installed(["-c", WITHOUT_TORCH, "completion", shell], installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert "speed" in done.stdout, "the options of the commands that it can run"


# -- source distributions ---------------------------------------------------------------------------------------------


def test_sdist_holds_docs_and_examples_but_no_weights(wheels: Wheels, tmp_path: Path) -> None:
    file = built("sdist", tmp_path / "sdist")
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    folders = {name.partition("/")[0] for name in names}
    assert {
        "src",
        "configs",
        "voicepacks",
        "docs",
        "examples",
        "packages",
        "tests",
        "tools",
        "scripts",
        "LICENSE",
        "NOTICE",
    } <= folders
    assert not [name for name in names if name.endswith((".safetensors", ".pt", ".onnx"))]
    assert file.stat().st_size < 5_000_000, "weights for tests made it 15 MB"
    (project,) = tmp_path.glob("tts_worker-*")
    assert contents(zipfile.ZipFile(built("wheel", tmp_path / "wheel", project))) == contents(wheels.server)


def test_client_sdist_builds_the_same_wheel(wheels: Wheels, tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path / "sdist", CLIENT)) as archive:
        archive.extractall(tmp_path, filter="data")
    (project,) = tmp_path.glob("tts_worker_client-*")
    assert contents(zipfile.ZipFile(built("wheel", tmp_path / "wheel", project))) == contents(wheels.client)
