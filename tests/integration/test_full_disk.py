"""A full disk: nothing that was stored is lost, nothing half-written stays, and with room again all goes on.

A file may have a few bytes (RLIMIT_FSIZE, which is as good as a full disk: the kernel refuses the write), in a command
from its start, in a running worker at any time.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import programs
from tests.fakes.programs import Program
from tests.fakes.recordings import SAID, speech, wav
from tests.integration.stored_data import batch_request, tiny_bundle, voice_settings
from tests.unit.cosyvoice.bundles import copy_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit and /dev/full"),
    pytest.mark.timeout(300),
]

PROGRAM = "-m", "tts_worker"
FEW_BYTES = 16
RECORDING = wav(speech(4, 16_000))
# Python would write its own files, too.
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


def run(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``. ``options``: those of ``Program``."""
    return programs.run(*PROGRAM, *command, cwd=folder, env=ENVIRONMENT, **options)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def nothing(folder: Path) -> None:
    pass


def a_recording(folder: Path) -> None:
    (folder / "a.wav").write_bytes(RECORDING)


def a_model(folder: Path) -> None:
    a_recording(folder)
    copy_of("cosyvoice3", folder)


def a_voice_pack(folder: Path) -> None:
    prompts = folder / "cosyvoice/anna/prompts"
    prompts.mkdir(parents=True)
    about = {"language": "en", "license": "CC0", "consent": True, "styles": ["neutral"], "tags": []}
    (folder / "cosyvoice/anna/metadata.yaml").write_text(json.dumps(about))
    (prompts / "neutral.wav").write_bytes(RECORDING)
    (prompts / "neutral.txt").write_text(SAID)


@dataclass(frozen=True)
class Writer:
    """A command that writes files.

    Attributes:
        command: Its words.
        prepare: Writes what it needs.
        leaves: The file that was asked for remains as far as it was written, as with any player's recording.
    """

    command: str
    prepare: Callable[[Path], None] = nothing
    leaves: tuple[str, ...] = ()


WRITERS = [
    Writer("config init out.yaml"),
    Writer("say Hello. --out out.wav --engine tone", leaves=("out.wav",)),
    Writer("say Hello. --out out.mp3 --engine tone", leaves=("out.mp3",)),
    Writer("voicepack init cosyvoice/anna"),
    Writer("voicepack pack cosyvoice/anna --out anna.zip", a_voice_pack),
    pytest.param(Writer("voicepack convert cosyvoice3 --out converted", a_model), marks=pytest.mark.long),
    pytest.param(Writer("export onnx cosyvoice3 --out graphs --part hift", a_model), marks=pytest.mark.long),
    Writer("voice add anna --bundle cosyvoice3 --audio a.wav", a_model),
]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.command.partition(" --")[0].replace(" ", "_"))
def test_command_names_the_full_disk_and_succeeds_with_room(writer: Writer, tmp_path: Path) -> None:
    if writer.prepare is a_model:
        pytest.importorskip("torch", reason="torch is not installed")
    writer.prepare(tmp_path)
    before = files_of(tmp_path)
    words = writer.command.split()
    run_it = partial(run, tmp_path, *words, modules=programs.NETWORKS if writer.prepare is a_model else ())

    done = run_it(file_limit=FEW_BYTES)

    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(errors), "Traceback" in done.stderr) == (2, 1, False), done.stderr
    assert "File too large" in errors[0]
    left = files_of(tmp_path)
    assert {name: left.get(name) for name in before} == before, "what was there is as it was"
    assert left.keys() - before.keys() == set(writer.leaves)

    done = run_it()

    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path).keys() - before.keys()


def test_command_names_a_full_standard_output() -> None:
    with open("/dev/full", "wb") as full:
        done = programs.run(*PROGRAM, "completion", "bash", stdout=full)
    assert (done.returncode, done.stderr) == (1, "error: the output cannot be written: No space left on device\n")


# -- a running worker -------------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A worker whose disk can be filled. Its log, too, is a file."""

    process: Program
    client: httpx.Client
    folder: Path

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # it has ended
                resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, unlimited)

    def add_voice(self, name: str, recording: bytes = RECORDING, **fields: str) -> httpx.Response:
        data = {"name": name, "consent": "true", "transcript": SAID, **fields}
        return self.client.post("/v1/voices", data=data, files={"audio": ("a.wav", recording)})

    def add_lexicon(self, name: str) -> httpx.Response:
        return self.client.post("/v1/lexicons", json={"name": name, "entries": {"nginx": "engine x"}})

    def submit(self) -> httpx.Response:
        request = batch_request("first").model_dump(mode="json") | {"voice": "anna"}
        return self.client.post("/v1/batch", json=request)

    def speak(self, voice: str) -> httpx.Response:
        return self.client.post("/v1/audio/speech", json={"input": "Hi.", "voice": voice, "response_format": "pcm"})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("torch", reason="torch is not installed")
    folder = tmp_path_factory.mktemp("full")
    settings = voice_settings(folder / "voices", tiny_bundle(folder)) | {
        "batch": {"directory": str(folder / "batches")},
        "lexicons": {"directory": str(folder / "lexicons")},
    }
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings))
    with (
        open(folder / "log", "wb") as log,
        Program(
            *PROGRAM,
            *("serve", "--port", "0", "--config", str(config)),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=log,
            modules=programs.NETWORKS,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().removeprefix("listening on ").strip()
            assert process.stdout.readline() == b"ready\n"
            with httpx.Client(base_url=url, timeout=60) as client:
                served = Served(process, client, folder)
                assert [served.add_voice(name).status_code for name in ("anna", "ann")] == [201, 201]
                assert served.add_lexicon("brands").status_code == 201
                yield served
        finally:
            process.kill()


def test_worker_with_a_full_disk_speaks_and_refuses_what_it_cannot_store(served: Served) -> None:
    stored = files_of(served.folder / "voices")
    lexicons = files_of(served.folder / "lexicons")
    spoken = served.speak("anna").content
    with served.full_disk():
        for answer in (
            served.add_voice("ben"),
            served.add_voice("anna", style="calm"),
            served.add_voice("large", wav(speech(29, 48_000))),
            served.client.post("/v1/voices", json={"name": "both", "mix": [{"voice": "anna"}, {"voice": "ann"}]}),
            served.submit(),
            served.add_lexicon("others"),
            served.client.put("/v1/lexicons/brands", json={"entries": {"nginx": "no"}}),
        ):
            error = answer.json()["error"]
            assert (answer.status_code, error["retryable"]) == (503, True), answer.text
            assert "store" in error["message"] or "write" in error["message"]
            assert str(served.folder) not in answer.text, "a client learns no path"
        assert served.speak("anna").content == spoken
        assert served.client.get("/health/ready").status_code == 200
        assert [voice["id"] for voice in served.client.get("/v1/voices").json()["voices"]] == ["ann", "anna"]
        assert served.client.get("/v1/batch").json()["batches"] == []
        assert files_of(served.folder / "voices") == stored
        assert files_of(served.folder / "batches") == {}
        assert files_of(served.folder / "lexicons") == lexicons

    assert served.add_voice("ben").status_code == 201
    assert served.speak("ben").status_code == 200
    assert served.add_lexicon("others").status_code == 201
    submitted = served.submit()
    assert submitted.status_code == 202
    results = served.client.get(f"{submitted.headers['location']}/results").text.splitlines()
    assert [json.loads(line).get("error", {}).get("code") for line in results] == [None, None, "unspeakable_text"]


def test_voices_and_lexicons_are_deleted_on_a_full_disk(served: Served) -> None:
    """Otherwise there would be no way to make room."""
    assert served.add_voice("doomed").status_code == 201
    assert served.add_lexicon("doomed").status_code == 201
    with served.full_disk():
        assert served.client.delete("/v1/lexicons/doomed").status_code == 200
        assert served.client.delete("/v1/voices/doomed").status_code == 200
        assert served.speak("doomed").status_code == 404


def test_batch_command_names_the_full_disk_and_goes_on_with_room(served: Served, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("One.\nTwo.\n")
    words = ["batch", "texts.txt", "--voice", "anna", "--out", "out", "--url", str(served.client.base_url), "--quiet"]
    done = run(tmp_path, *words, file_limit=FEW_BYTES)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "File too large" in done.stderr
    assert files_of(tmp_path).keys() == {"texts.txt"}
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert len([name for name in files_of(tmp_path) if name.endswith(".wav")]) == 2


def test_worker_with_a_full_disk_drains(served: Served) -> None:
    with served.full_disk():
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
