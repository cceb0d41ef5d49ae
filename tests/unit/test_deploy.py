"""``deploy/``: what the files name exists in the worker, and its tools accept them where they are installed."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Serving
from tts_worker.cli import EXIT_DEVICE_LOST
from tts_worker.commands import serve
from tts_worker.settings import find_config, load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "tts-worker.json"


def drain_s() -> float:
    return load_settings().server.drain_s


# -- systemd ----------------------------------------------------------------------------------------------------------


@cache
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "systemd" / "tts-worker.service")
    return parser


def parsed(words: list[str]) -> argparse.Namespace:
    assert words[0] == "serve"
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    return parser.parse_args(words[1:])


def test_unit_starts_the_worker_and_waits_for_its_drain() -> None:
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/tts-worker")
    assert parsed(words).config == Path("/etc/tts-worker.yaml")
    assert float(service["TimeoutStopSec"]) > drain_s() + 10


def test_unit_restarts_after_a_lost_device() -> None:
    service = unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert str(EXIT_DEVICE_LOST) not in service["RestartPreventExitStatus"].split()
    assert f"| {EXIT_DEVICE_LOST} |" in (ROOT / "docs" / "deployment.md").read_text("utf-8")


def test_unit_is_hardened() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", DEPLOY / "systemd/tts-worker.service"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


# -- Prometheus and Grafana -------------------------------------------------------------------------------------------


@cache
def documented_labels() -> dict[str, set[str]]:
    """Labels of each metric in ``docs/metrics.md``, which a test compares with what a worker exports."""
    labels = {}
    for line in (ROOT / "docs" / "metrics.md").read_text("utf-8").splitlines():
        if line.startswith("| `tts_"):
            name, kind, texts = (cell.strip() for cell in line.split("|")[1:4])
            named = set(re.findall(r"`(\w+)`", texts)) | {"instance", "job"}
            if "session labels" in texts:
                named |= {"transport", "engine", "voice"}
            if kind == "histogram":
                labels[f"{name[1:-1]}_bucket"] = named | {"le"}
            labels[name[1:-1]] = named
    return labels


def alert_expressions() -> list[str]:
    return [rule["expr"] for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return document


def test_expressions_name_exported_metrics_and_labels() -> None:
    known = documented_labels()
    assert len(known) > 40
    for expression in alert_expressions() + dashboard_expressions():
        names = re.findall(r"\btts_\w+", expression)
        assert names
        for name in names:
            assert name in known, expression
        for name, selector in re.findall(r"(tts_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)\s*(?:=|!)", selector)) <= known[name], expression
        grouped = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
        assert grouped <= set().union(*(known[name] for name in names)), expression


def test_dashboard_shows_what_alerts_are_about() -> None:
    shown = set(re.findall(r"\btts_\w+", " ".join(dashboard_expressions())))
    for expression in alert_expressions():
        assert set(re.findall(r"\btts_\w+", expression)) <= shown, expression


def test_dashboard_panels_are_explained_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_alerts_fire_as_their_tests_say() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    for words in (["check", "rules", ALERTS], ["test", "rules", ALERTS.with_name("alerts.test.yml")]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# -- Kubernetes -------------------------------------------------------------------------------------------------------


def manifest(path: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((KUBERNETES / path).read_text("utf-8"))
    return document


def container(path: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(path)["spec"]["template"]["spec"]["containers"][0]
    return found


def test_kustomizations_list_files_that_exist() -> None:
    for folder in ("base", "gpu", "monitoring"):
        document = manifest(f"{folder}/kustomization.yaml")
        patches = [patch["path"] for patch in document.get("patches", ()) if "path" in patch]
        for name in [*document["resources"], *patches]:
            assert (KUBERNETES / folder / name).exists()
        files = {path.name for path in (KUBERNETES / folder).glob("*.yaml")} - {"kustomization.yaml"}
        assert files <= {*document["resources"], *patches}


@pytest.mark.parametrize("path", ["base/deployment.yaml", "gpu/deployment.yaml"])
def test_container_runs_a_packaged_config(path: str) -> None:
    config = parsed(container(path)["args"]).config
    assert (ROOT / config).exists()
    assert find_config(config)


async def test_probes_ask_routes_of_the_worker(serve_tone: Serving) -> None:
    import httpx

    async with serve_tone() as address, httpx.AsyncClient() as client:
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container("base/deployment.yaml")[name]["httpGet"]
            assert (await client.get(f"http://{address}{probe['path']}")).status_code == 200


def test_environment_is_made_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in container("base/deployment.yaml")["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", '["a-long-enough-key"]'))
    settings = load_settings(ROOT / "configs" / "worker.yaml")
    assert settings.server.host == "0.0.0.0"
    assert settings.server.api_keys
    assert settings.server.port == container("base/deployment.yaml")["ports"][0]["containerPort"]


def test_pod_may_drain_and_runs_as_the_user_of_the_image() -> None:
    pod = manifest("base/deployment.yaml")["spec"]["template"]["spec"]
    pre_stop_s = float(container("base/deployment.yaml")["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain_s() + pre_stop_s + 10
    for file in (ROOT / "docker").glob("*.Dockerfile"):
        assert f"--uid {pod['securityContext']['runAsUser']} " in file.read_text("utf-8")


def test_startup_probe_allows_the_start_of_an_engine() -> None:
    probe = {**container("base/deployment.yaml")["startupProbe"], **container("gpu/deployment.yaml")["startupProbe"]}
    assert probe["periodSeconds"] * probe["failureThreshold"] >= load_settings().engine.start_timeout_s
