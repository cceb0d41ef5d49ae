"""Docker files, as far as they can be checked without a Docker engine: everything they name exists and fits."""

from __future__ import annotations

import argparse
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tts_worker.commands import serve
from tts_worker.features.fleet.settings import RegistrySettings
from tts_worker.serving import create_application
from tts_worker.settings import Settings, load_settings
from tts_worker.worker import Worker

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT_SERVICES = [name for name, service in SERVICES.items() if "build" in service]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
KEY = "a-long-enough-key"


def instructions(file: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", file.read_text("utf-8")))
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def arguments(service: dict[str, Any]) -> argparse.Namespace:
    """Parse the command with the command's own parser."""
    name, *words = service["command"]
    assert name == "serve"
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    return parser.parse_args(words)


def settings_in(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings as the container reads them, with paths of the image mapped to the repository."""
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{TTS_KEY:\?[^}]*\}", KEY, value))
    return load_settings(ROOT / arguments(service).config)


def test_compose_defines_the_documented_services() -> None:
    assert {"redis", "worker", "worker-gpu", "ray"} <= set(SERVICES)
    assert [SERVICES[name].get("profiles") for name in ("redis", "worker", "worker-gpu", "ray")] == [
        None,
        None,
        ["gpu"],
        ["ray"],
    ]


@pytest.mark.parametrize("name", BUILT_SERVICES)
def test_service_matches_command_line_and_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    settings = settings_in(service, monkeypatch)
    assert settings.server.keys == (KEY,)
    published = {int(port.rpartition(":")[2]) for port in service["ports"]}
    listening = {settings.server.port} | ({settings.grpc.port} if settings.grpc.enabled else set())
    assert published == listening
    assert arguments(service).ray == (name == "ray")
    registry = settings.section(RegistrySettings)
    if registry.url is not None:
        host = registry.url.get_secret_value().split("/")[2].split(":")[0]
        assert host in SERVICES
        assert registry.address == f"{name}:{settings.grpc.port}"
    grace_s = float(service["stop_grace_period"].removesuffix("s"))
    assert grace_s > settings.server.drain_s
    assert not (set(service["environment"]) - {"RAY_USAGE_STATS_ENABLED"}) - {
        key for key in service["environment"] if key.startswith("TTS_WORKER_")
    }


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")
    assert not SERVICES["redis"].get("ports")


def test_published_ports_are_unique() -> None:
    taken = [port.rsplit(":", 1)[0] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize("name", BUILT_SERVICES)
async def test_healthcheck_requests_an_existing_route(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert statuses[0] == 503  # the route exists without a key; the engines are not ready
    assert host == f"127.0.0.1:{settings.server.port}"


@pytest.mark.parametrize("name", BUILT_SERVICES)
def test_images_use_existing_extras_and_volumes(name: str) -> None:
    service = SERVICES[name]
    file = ROOT / service["build"]["dockerfile"]
    extras = dict(line.split("=") for key, line in instructions(file) if key == "ARG")["EXTRAS"]
    extras = service["build"].get("args", {}).get("EXTRAS", extras)
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    if name == "ray":
        assert "ray" in extras.split(",")
    for volume in service.get("volumes", []):
        source, target, *mode = volume.split(":")
        if source in COMPOSE["volumes"]:
            assert (target, mode) == ("/cache", [])
        else:
            assert (source.startswith("./"), target.startswith("/app/"), mode) == (True, True, ["ro"])


def test_gpu_service_can_write_and_run_compiled_kernels() -> None:
    """Its file system is read-only and /tmp noexec: every cache of kernels must be in the volume, owned by the user."""
    service = SERVICES["worker-gpu"]
    assert service["read_only"]
    lines = instructions(ROOT / service["build"]["dockerfile"])
    environment = dict(word.split("=") for key, text in lines if key == "ENV" for word in text.split())
    caches = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    for name in (*caches, "PYTORCH_KERNEL_CACHE_PATH"):
        assert f"{environment[name]}/".startswith("/cache/")
    assert "kernels:/cache" in service["volumes"]
    assert any("--owner=worker /cache" in text for key, text in lines if key == "RUN")


@pytest.mark.parametrize("name", BUILT_SERVICES)
def test_every_service_restarts_after_a_lost_device(name: str) -> None:
    assert SERVICES[name]["restart"] in ("unless-stopped", "always")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_base_image_can_be_pinned_by_digest(file: Path) -> None:
    lines = instructions(file)
    assert lines[0] == ("ARG", "BASE=python:3.12-slim")
    assert [line for key, line in lines if key == "FROM"] == ["${BASE}"]
    for name in BUILT_SERVICES:
        assert SERVICES[name]["build"]["args"]["BASE"] == "${TTS_BASE_IMAGE:-python:3.12-slim}"


def is_in_build_context(path: str) -> bool:
    """Return whether .dockerignore admits a path, by the last rule that matches it or a folder above it."""
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
def test_dockerfile_copies_existing_files_without_root(file: Path) -> None:
    lines = instructions(file)
    copied = [source for key, line in lines if key == "COPY" for source in line.split()[:-1]]
    for source in copied:
        assert (ROOT / source).exists(), source
        assert is_in_build_context(source), f"{source} is is_in_build_context out by .dockerignore"
    assert not is_in_build_context("models/llm.pt")
    assert not is_in_build_context(".git/config")
    assert [line for key, line in lines if key == "USER"] == ["10001"]  # Kubernetes checks numbers only
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


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_image_installs_both_distributions_from_their_sources(file: Path) -> None:
    lines = instructions(file)
    (install,) = [index for index, (key, line) in enumerate(lines) if key == "RUN" and "${EXTRAS}" in line]
    assert '-c constraints.txt ./packages/tts-worker-client ".[${EXTRAS}]"' in lines[install][1]
    copied = {source for key, line in lines[:install] if key == "COPY" for source in line.split()[:-1]}
    assert {"src", "packages", "configs", "voicepacks"} <= copied
