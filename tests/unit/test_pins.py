"""constraints.txt pins every package of the development environment, on every supported Python."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tts_worker.commands.doctor import NEWEST_PYTHON, OLDEST_PYTHON

ROOT = Path(__file__).parents[2]
OURS = {"tts-worker", "tts-worker-client", "livekit-plugins-tts-worker"}
VERSIONS = [f"3.{minor}" for minor in range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1)]
EXTRAS = ("dev", "test")
"""Extras of ``tts-worker`` that ``scripts/setup dev`` installs; the latter without torch."""
LINUX = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}


def lines_of(file: str) -> list[Requirement]:
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return [Requirement(line.partition(" --hash")[0]) for line in lines if line and not line.startswith("#")]


def pins(python: str) -> dict[str, Requirement]:
    """Return the pin of each package for a Python on Linux. Fails if a package has two."""
    environment = {"python_version": python, "python_full_version": f"{python}.5", "extra": ""}
    found: dict[str, Requirement] = {}
    for requirement in [
        line for file in ("constraints.txt", "scripts/no-deps.txt", "scripts/voice.txt") for line in lines_of(file)
    ]:
        if requirement.marker is None or requirement.marker.evaluate({**LINUX, **environment}):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"two pins of {name} for Python {python}"
            found[name] = requirement
    return found


def direct_requirements() -> Iterator[Requirement]:
    """Yield what our distributions require, with the extras of the development environment."""
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")
    for folder in (".", "packages/tts-worker-client", "packages/livekit-plugins-tts-worker"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"]
        wanted = list(project["dependencies"])
        if folder == ".":
            extras = project["optional-dependencies"]
            waiting, seen = ["dev"], set()
            while waiting:
                extra = waiting.pop()
                if extra in seen:
                    continue
                seen.add(extra)
                for line in extras[extra]:
                    requirement = Requirement(line)
                    if requirement.name == "tts-worker":
                        waiting.extend(requirement.extras)
                    else:
                        wanted.append(line)
        yield from map(Requirement, wanted)


@pytest.mark.parametrize("python", VERSIONS)
def test_every_requirement_has_one_pin_that_it_allows(python: str) -> None:
    pinned = pins(python)
    for requirement in direct_requirements():
        environment = {**LINUX, "python_version": python, "python_full_version": f"{python}.5", "extra": ""}
        if requirement.name in OURS or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        pin = pinned[canonicalize_name(requirement.name)]
        version = re.fullmatch(r"==([^*]+)", str(pin.specifier))
        assert version, f"{pin} is not exact"
        assert version[1] in requirement.specifier, f"{pin} does not satisfy {requirement}"


def test_installed_dependencies_are_pinned() -> None:
    """The whole tree, as it is on the Python that runs this test: ``scripts/test-matrix`` runs it on all of them."""
    environment = default_environment()
    pinned = pins(environment["python_version"])
    waiting = [(name, frozenset(EXTRAS if name == "tts-worker" else ())) for name in OURS]
    seen: set[tuple[str, frozenset[str]]] = set()
    unpinned: set[str] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that is not installed, such as torch
        installed = distribution.version.partition("+")[0]  # without local labels of builds, such as +cpu
        if name not in OURS and (name not in pinned or installed not in pinned[name].specifier):
            unpinned.add(f"{name}=={installed}")
        for line in distribution.requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    assert not unpinned, f"run scripts/setup dev, or scripts/pin: {', '.join(sorted(unpinned))}"
