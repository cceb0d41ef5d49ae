"""Finds the installed builds of ONNX Runtime, and which one's files Python imports.

Its builds are distributed under different names (``onnxruntime``, ``onnxruntime-gpu``) but install the same package
folder: the last one installed overwrites the others, and uninstalling one removes files of all. In different folders
they do not disturb each other; the first folder on ``sys.path`` is imported.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "onnxruntime"
BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-qnn")
GPU_BUILD = "onnxruntime-gpu"
_MAX_HASHED_BYTES = 1 << 16  # the libraries have hundreds of megabytes; their size tells builds apart


@dataclass(frozen=True)
class Build:
    """One installed distribution.

    Attributes:
        name: Its name.
        version: Its version.
        folder: The package folder that it installed.
        changed: Files of the package that are missing, or not as this distribution installed them.
        files: Number of its files in the package folder.
    """

    name: str
    version: str
    folder: Path
    changed: int
    files: int

    @property
    def intact(self) -> bool:
        return not self.changed

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def installed_builds() -> list[Build]:
    """Return the installed builds. A distribution without files in the package folder is not a build."""
    builds = []
    for name in BUILDS:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        folder = Path(str(distribution.locate_file(PACKAGE)))
        intact = [
            _is_as_installed(folder.parent / file, recorded_hash, recorded_size)
            # Not distribution.files, which leaves out missing files since Python 3.12.
            for file, recorded_hash, recorded_size in csv.reader((distribution.read_text("RECORD") or "").splitlines())
            if file.startswith(f"{PACKAGE}/") and not file.endswith(".pyc")
        ]
        if intact:
            builds.append(Build(name, distribution.version, folder.resolve(), intact.count(False), len(intact)))
    return builds


def _is_as_installed(path: Path, recorded_hash: str, recorded_size: str) -> bool:
    """Compare a file with its line of ``RECORD``; the hash is ``sha256=...`` in URL-safe Base64, or empty."""
    try:
        size = path.stat().st_size
        if recorded_size and size != int(recorded_size):
            return False
        if not recorded_hash.startswith("sha256=") or size > _MAX_HASHED_BYTES:
            return True
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        return recorded_hash == f"sha256={digest}"
    except OSError:
        return False


def imported_folder() -> Path | None:
    """Return the folder that ``import onnxruntime`` loads, or None if it is not installed."""
    spec = find_spec(PACKAGE)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]).resolve() if locations else None


@dataclass(frozen=True)
class Diagnosis:
    """What is installed, in words.

    Attributes:
        works: Whether one intact build is imported.
        detail: What was found.
        advice: The commands that repair it; empty if it works.
    """

    works: bool
    detail: str
    advice: str = ""


def diagnose(builds: list[Build], folder: Path | None, install: str) -> Diagnosis:
    """Explain which build is imported, and how to repair a mixture.

    Args:
        builds: Of ``installed_builds``.
        folder: Of ``imported_folder``.
        install: The command that installs this package.
    """
    if folder is None:
        if not builds:
            return Diagnosis(False, "not installed", install)
        return Diagnosis(False, f"{builds[0]}: its files are gone", _reinstall(builds[0]))
    live = [build for build in builds if build.folder == folder]
    hidden = [build for build in builds if build.folder != folder]
    if not live:
        return Diagnosis(True, f"from {folder}, which pip did not install")
    if len(live) == 1:
        (build,) = live
        if not build.intact:
            detail = f"{build}: {build.changed} of {build.files} files are missing or from another build"
            return Diagnosis(False, detail, _reinstall(build))
        others = f"; not imported: {', '.join(map(str, hidden))}" if hidden else ""
        return Diagnosis(True, f"{build}{others}")
    intact = [build for build in live if build.intact]
    whose = f"the files are those of {intact[-1]}" if intact else "the files are a mixture"
    names = " ".join(build.name for build in live)
    detail = f"{', '.join(map(str, live))}: these packages overwrite each other in {folder}; {whose}"
    return Diagnosis(False, detail, f"pip uninstall -y {names} && {install}{_and_gpu(live)}")


def _reinstall(build: Build) -> str:
    return f'pip install --force-reinstall --no-deps "{build.name}=={build.version}"'


def _and_gpu(builds: list[Build]) -> str:
    return f" && {gpu_command()}" if any(build.name == GPU_BUILD for build in builds) else ""


def gpu_command() -> str:
    """Return the commands that install the GPU build next to the other one, in a separate folder."""
    folder = Path(sys.prefix) / GPU_BUILD
    return (
        f'pip install --no-deps --target "{folder}" {GPU_BUILD}, '
        f'then start the worker with PYTHONPATH="{folder}" in the environment'
    )
