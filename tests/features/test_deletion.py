"""Each feature is a folder that can be deleted, and so are all of them together."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tts_worker.commands import doctor
from tts_worker.feature import features
from tts_worker.feature_names import SECTIONS
from tts_worker.settings import Settings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tts_worker"

CORE_TESTS = (
    "contract/test_tone_contract.py",
    "integration/test_adapter.py",
    "integration/test_session.py",
    "integration/test_websocket.py",
    "unit/protocol/test_dialogue.py",
)
"""Tests that take little time and pass through most of the core: an engine, sessions, and a socket."""

REMAINING = """
import asyncio, gc, importlib, json, os, pkgutil, re, sys, traceback

sys.modules.update(dict.fromkeys(("ray", "torch", "faster_whisper")))  # absent: they take seconds to import

def import_features():
    import tts_worker.features
    from tts_worker import errors, serving
    for module in pkgutil.walk_packages(tts_worker.features.__path__, "tts_worker.features."):
        try:
            importlib.import_module(module.name)
        except (errors.MissingExtra, ModuleNotFoundError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name.startswith("tts_worker"):
                raise

PATHS = {"compat": "/v1/audio/speech", "conversion": "/v1/audio/conversions", "webrtc": "/webrtc/offer",
         "batch": "/v1/batch", "lexicons": "/v1/lexicons", "marking": "/v1/audio/detect",
         "page": "/docs"}

async def serve(absent):
    import httpx
    from tts_worker.serving import create_application
    from tts_worker.settings import load_settings
    from tts_worker.types import Ended, SessionOptions
    from tts_worker.worker import running_worker

    async with running_worker(load_settings(flags={"engines": {"tone": {"kind": "tone"}}})) as worker:
        transport = httpx.ASGITransport(create_application(worker))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            for path in ("/health", "/v1/voices", "/v1/models", "/openapi.json"):
                assert (await http.get(path)).status_code == 200, path
            statuses = {name: (await http.get(path)).status_code for name, path in PATHS.items()}
            assert {name for name, status in statuses.items() if status == 404} == {absent} & {*PATHS}, statuses
        session = await worker.hub.admit(SessionOptions())
        session.speak("Hello there.")
        session.end_text()
        async for item in session:
            if isinstance(item, Ended):
                assert item.outcome.value == "done"
                break
        session.close()

def check(folder, absent):
    sys.path.insert(0, folder)
    import tts_worker
    from tts_worker import errors
    from tts_worker.feature import features
    from tts_worker.feature_names import SECTIONS
    from tts_worker.settings import load_settings

    assert tts_worker.__file__ == os.path.join(folder, "tts_worker", "__init__.py"), tts_worker.__file__
    assert set(features()) == {*SECTIONS} - {absent}, features()
    import_features()
    for name in ("batch", "registry"):
        try:
            load_settings(flags={name: {}})
        except errors.ConfigError as error:
            assert absent in error.message and "lacks the feature" in error.message, error
        else:
            assert absent != {"batch": "batch", "registry": "fleet"}[name]
    asyncio.run(serve(absent))

import httpx, uvicorn
re._MAXCACHE = 100_000  # so that the processes below find compiled what they compile
import_features()  # for the libraries that they import, which the processes below share
for name in [name for name in sys.modules if name.partition(".")[0] == "tts_worker"]:
    del sys.modules[name]
gc.collect()
gc.freeze()
for line in sys.stdin:
    folder, absent = json.loads(line)
    process = os.fork()
    if not process:
        failed = 1
        try:
            os.dup2(os.open(os.path.join(folder, "output"), os.O_CREAT | os.O_WRONLY), 2)
            check(folder, absent)
            failed = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(failed)
    print(os.waitpid(process, 0)[1], flush=True)
"""
"""Reads folders of packages and the feature that each lacks, checks each in a process of its own, and writes how it
ended. The libraries are imported once, for all of them: that takes longer than the checks."""


def package_without(folder: Path, absent: frozenset[str]) -> dict[str, str]:
    """Link the package into ``folder``, without these features; return the environment of processes that use it."""
    package = folder / "tts_worker"
    package.mkdir()
    left_out = {"__pycache__", "features"}
    for path in (*PACKAGE.iterdir(), ROOT / "configs", ROOT / "voicepacks"):
        if path.name not in left_out:
            (package / path.name).symlink_to(path)
    if absent < {*SECTIONS}:
        (package / "features").mkdir()
        for path in (PACKAGE / "features").iterdir():
            if path.name not in {"__pycache__", *absent}:
                (package / "features" / path.name).symlink_to(path)
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout[-3_000:] + ended.stderr[-3_000:]
    return ended


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes without any feature."""
    environment = package_without(tmp_path_factory.mktemp("core"), frozenset(SECTIONS))
    shown = run(environment, "-c", "import tts_worker.feature as f; print(f.__file__, dict(f.features()))").stdout
    assert shown.split() == [str(Path(environment["PYTHONPATH"]) / "tts_worker" / "feature.py"), "{}"]
    return environment


@contextmanager
def served(environment: dict[str, str], *arguments: str) -> Iterator[str]:
    """Run ``serve`` and yield its address."""
    command = [sys.executable, "-m", "tts_worker", "serve", "--engine", "tone", "--port", "0", *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().split("//")[-1].strip()
            assert process.stdout.readline().strip() == "ready"
            yield address
        finally:
            process.terminate()
    assert process.returncode == 0


def test_core_tests_pass_without_features(core: dict[str, str]) -> None:
    paths = [f"tests/{path}" for path in CORE_TESTS]
    run(core, "-m", "pytest", "-q", "-n", "0", "-o", "pythonpath=", "-p", "no:cacheprovider", *paths)


def test_say_speaks_without_features(core: dict[str, str], tmp_path: Path) -> None:
    run(core, "-m", "tts_worker", "say", "--engine", "tone", "--out", str(tmp_path / "hello.wav"), "Hello there.")
    assert (tmp_path / "hello.wav").stat().st_size > 10_000


def test_server_streams_and_stops_without_features(core: dict[str, str]) -> None:
    with served(core) as address:
        assert httpx.get(f"http://{address}/health").json() == {"status": "ready"}
        assert httpx.post(f"http://{address}/v1/audio/speech", json={"input": "Hello."}).status_code == 404
        with connect(f"ws://{address}/v1/stream") as socket:
            socket.send(json.dumps({"type": "start"}))
            text = "One sentence. " * 50
            socket.send(json.dumps({"type": "text", "text": text, "end": True}))
            while not isinstance(socket.recv(timeout=20), bytes):
                pass
            socket.send(json.dumps({"type": "stop"}))
            messages = (json.loads(item) for item in iter(lambda: socket.recv(timeout=20), None) if type(item) is str)
            end = next(message for message in messages if message["type"] in ("stopped", "done"))
            assert end["type"] == "stopped"
            assert end["text_remaining"]
            assert end["text_spoken"] + end["text_remaining"] == text


def test_help_lists_the_commands_that_are_there(core: dict[str, str]) -> None:
    listed = run(core, "-m", "tts_worker", "--help").stdout
    assert "  say " in listed
    assert not any(f"  {name} " in listed for feature in features().values() for name in feature.commands)
    assert "--ray" not in run(core, "-m", "tts_worker", "serve", "--help").stdout


READINGS = """
import logging
from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.text.reading.verbalizer import Verbalizer

warnings = []
logging.basicConfig(handlers=[type("Kept", (logging.Handler,), {"emit": lambda self, it: warnings.append(it)})()])

def read(text, language):
    pipeline = TextPipeline(TextOptions(language=language), verbalizer=Verbalizer((language,)))
    return " ".join(segment.text for segment in [*pipeline.feed(text), *pipeline.end()])

for text, language in (("Das kostet 5 € p. P. heute.", "de"), ("共3个。", "zh"), ("Cuesta 5 €.", "es")):
    assert read(text, language) == text, text
assert read("It is 5 kg.", "en") == "It is five kilograms."
for text in (r"so $x^2$ is", r"so \\(\\alpha\\) is", r"so \\frac{1}{2} is", r"so \\alpha is", r"so \\foo{x} is"):
    assert read(text, "en") == "so is", read(text, "en")
assert read(r"so $x^2 \\leq 3$ is", "de") == "so is"
assert ["languages" in str(each.msg) for each in warnings] == [True], warnings
"""


def test_other_languages_pass_and_formulas_are_dropped_without_features(core: dict[str, str]) -> None:
    run(core, "-c", READINGS)


@pytest.fixture(scope="module")
def remaining() -> Iterator[Callable[[Path, str], None]]:
    """Check the package in a folder, which lacks a feature."""
    command = [sys.executable, "-c", REMAINING]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def check(folder: Path, absent: str) -> None:
            print(json.dumps([str(folder), absent]), file=asked, flush=True)
            assert answers.readline() == "0\n", (folder / "output").read_text()[-3_000:]

        yield check
        asked.close()
    assert process.returncode == 0


@pytest.mark.parametrize("name", SECTIONS)
def test_the_rest_serves_without_a_feature(name: str, remaining: Callable[[Path, str], None], tmp_path: Path) -> None:
    package_without(tmp_path, frozenset({name}))
    remaining(tmp_path, name)


def test_sections_of_features_are_settings() -> None:
    for feature, names in SECTIONS.items():
        if names:
            declared = importlib.import_module(f"tts_worker.features.{feature}.settings").SECTIONS
            assert declared == {name: Settings.model_fields[name].annotation for name in names}


def test_every_feature_has_a_page_of_the_docs() -> None:
    pages = {name: feature.docs for name, feature in features().items() if feature.docs}
    assert {name for name, page in pages.items() if not (ROOT / "docs" / page).exists()} == set()
    assert {*SECTIONS} - {*pages} == {"page"}


def test_every_extra_is_known_to_doctor() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {*project["optional-dependencies"]} - {*doctor.all_extras()} <= {"dev", "test", "quality"}
