"""The containers, as far as they can be checked without a Docker engine: whatever they name exists here and fits."""

from __future__ import annotations

import argparse
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tts_worker.app import Worker, create_application
from tts_worker.commands import serve
from tts_worker.settings import Settings, load_settings

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
KEY = "a-long-enough-key"


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", file.read_text("utf-8")))
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def arguments(service: dict[str, Any]) -> argparse.Namespace:
    """The command, parsed by the command line itself."""
    name, *words = service["command"]
    assert name == "serve"
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    return parser.parse_args(words)


def settings_in(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings as the container would read them, paths of the image taken for those of the repository."""
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{TTS_KEY:\?[^}]*\}", KEY, value))
    return load_settings(ROOT / arguments(service).config)


def test_there_are_the_services_that_are_promised() -> None:
    assert {"redis", "worker", "worker-gpu", "ray"} <= set(SERVICES)
    assert [SERVICES[name].get("profiles") for name in ("redis", "worker", "worker-gpu", "ray")] == [
        None,
        None,
        ["gpu"],
        ["ray"],
    ]


@pytest.mark.parametrize("name", OURS)
def test_a_service_fits_the_command_line_and_the_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    settings = settings_in(service, monkeypatch)
    assert settings.server.keys == (KEY,)
    inside = {int(port.rpartition(":")[2]) for port in service["ports"]}
    listening = {settings.server.port} | ({settings.grpc.port} if settings.grpc.enabled else set())
    assert inside == listening
    assert arguments(service).ray == (name == "ray")
    if settings.registry.url is not None:
        host = settings.registry.url.get_secret_value().split("/")[2].split(":")[0]
        assert host in SERVICES
        assert settings.registry.address == f"{name}:{settings.grpc.port}"
    grace_s = float(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings.server.drain_s
    assert not (set(service["environment"]) - {"RAY_USAGE_STATS_ENABLED"}) - {
        key for key in service["environment"] if key.startswith("TTS_WORKER_")
    }


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_reachable_from_outside_this_machine(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")
    assert not SERVICES["redis"].get("ports")


def test_ports_of_the_machine_are_taken_once() -> None:
    taken = [port.rsplit(":", 1)[0] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize("name", OURS)
async def test_the_healthcheck_asks_a_route_that_there_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    (url,) = re.findall(r"http://[^']+", service["healthcheck"]["test"][-1])
    settings = settings_in(service, monkeypatch)
    worker = Worker(settings)
    statuses: list[int] = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    host, _, path = url.removeprefix("http://").partition("/")
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/{path}",
        "raw_path": f"/{path}".encode(),
        "query_string": b"",
        "headers": [(b"host", host.encode())],
        "http_version": "1.1",
        "scheme": "http",
    }
    await create_application(worker)(scope, receive, send)
    assert statuses[0] == 503  # it is there, asks for no key, and says that the engines are not: curl and ours fail
    assert host == f"127.0.0.1:{settings.server.port}"


@pytest.mark.parametrize("name", OURS)
def test_images_are_built_from_what_there_is(name: str) -> None:
    service = SERVICES[name]
    file = ROOT / service["build"]["dockerfile"]
    extras = dict(line.split("=") for key, line in instructions(file) if key == "ARG")["EXTRAS"]
    extras = service["build"].get("args", {}).get("EXTRAS", extras)
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    if name == "ray":
        assert "ray" in extras.split(",")
    for volume in service.get("volumes", []):
        source, target, mode = volume.split(":")
        assert (source.startswith("./"), target.startswith("/app/"), mode) == (True, True, "ro")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_the_base_image_can_be_pinned_by_digest(file: Path) -> None:
    lines = instructions(file)
    assert lines[0] == ("ARG", "BASE=python:3.12-slim")
    assert [line for key, line in lines if key == "FROM"] == ["${BASE}"]
    for name in OURS:
        assert SERVICES[name]["build"]["args"]["BASE"] == "${TTS_BASE_IMAGE:-python:3.12-slim}"


def kept(path: str) -> bool:
    """Whether .dockerignore lets a path into the build, by its last rule that matches it or a folder above it."""
    decision = True
    for rule in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        if rule and not rule.startswith("#"):
            pattern = rule.removeprefix("!").removeprefix("**/")
            parts = Path(path).parts
            if any(
                fnmatch("/".join(parts[:end]), pattern) or fnmatch(parts[end - 1], pattern)
                for end in range(1, len(parts) + 1)
            ):
                decision = rule.startswith("!")
    return decision


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_a_dockerfile_copies_what_there_is_and_runs_as_nobody(file: Path) -> None:
    lines = instructions(file)
    copied = [source for key, line in lines if key == "COPY" for source in line.split()[:-1]]
    for source in copied:
        assert (ROOT / source).exists(), source
        assert kept(source), f"{source} is kept out by .dockerignore"
    assert not kept("models/llm.pt")
    assert not kept(".git/config")
    assert [line for key, line in lines if key == "USER"] == ["worker"]
    (entry,) = [line for key, line in lines if key == "ENTRYPOINT"]
    assert yaml.safe_load(entry) == list(PROJECT["project"]["scripts"])
    (command,) = [yaml.safe_load(line) for key, line in lines if key == "CMD"]
    config = arguments({"command": command}).config
    assert (ROOT / config).is_file()
    assert config.parts[0] in copied
    exposed = {int(port) for key, line in lines if key == "EXPOSE" for port in line.split()}
    settings = load_settings(ROOT / config)
    assert exposed == {settings.server.port, settings.grpc.port}
    assert PROJECT["project"]["readme"] in copied
    assert set(PROJECT["project"]["license-files"]) <= set(copied)


def test_the_image_has_what_the_wheel_is_built_of() -> None:
    for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert package.split("/")[0] == "src"
