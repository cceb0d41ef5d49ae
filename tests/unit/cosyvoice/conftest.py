"""Reads the files of the tiny bundles once, with few solver steps: hundreds of tests open them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tts_worker.feature_names import present


def _digest(file: Path) -> bytes:
    return hashlib.blake2b(file.read_bytes()).digest()


@pytest.fixture(scope="session", autouse=True)
def files_are_read_once() -> Iterator[None]:
    """Also those of copies: what is read depends on the content."""
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    from tts_worker.engine.cosyvoice.bundle import config, directory, tensor_files
    from tts_worker.models.bundles import hyperyaml

    read, parse = tensor_files.read_tensors, hyperyaml.load_hyperyaml
    tensors: dict[Hashable, dict[str, Any]] = {}
    parsed: dict[str, Any] = {}

    def read_tensors(path: Path) -> dict[str, Any]:
        if not path.is_file():
            return read(path)
        content = path.suffix, _digest(path)
        if content not in tensors:
            tensors[content] = deepcopy(read(path))  # not mapped: a test may damage the file
        return deepcopy(tensors[content])

    def load_hyperyaml(text: str, source: str) -> dict[str, Any]:
        if text not in parsed:
            parsed[text] = parse(text, source)
        return deepcopy(parsed[text])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "read_tensors", read_tensors)
        patch.setattr(config, "load_hyperyaml", load_hyperyaml)
        yield


@pytest.fixture(scope="session", autouse=True)
def sessions_are_created_once() -> Iterator[None]:
    """ONNX Runtime optimizes a graph for half a second; its sessions keep nothing between calls."""
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    from tts_worker.engine.cosyvoice.execution import onnx_providers
    from tts_worker.engine.cosyvoice.voices import audio_frontend

    users = [audio_frontend, onnx_providers]
    if "acceleration" in present():
        users.append(import_module("tts_worker.features.acceleration.onnx_runtime"))
    installed = pytest.importorskip("onnxruntime", reason="ships with the CPU voice")
    create: Callable[..., Any] = onnx_providers.create_session
    sessions: dict[Hashable, Any] = {}

    def create_session(onnxruntime: Any, model: str | bytes, providers: Any, threads: int = 1) -> Any:
        is_double = onnxruntime is not installed  # also in tests of other folders, which the same process runs later
        if is_double or (isinstance(model, str) and not Path(model).is_file()):
            return create(onnxruntime, model, providers, threads)
        content = _digest(Path(model)) if isinstance(model, str) else model
        key = content, repr(providers), threads
        if key not in sessions:
            sessions[key] = create(onnxruntime, model, providers, threads)
        return sessions[key]

    with pytest.MonkeyPatch.context() as patch:
        for module in users:
            patch.setattr(module, "create_session", create_session)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_solver_steps() -> Iterator[None]:
    """Not for the session: other folders, which the same process may run, compare with the reference."""
    pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")
    from tests.unit.cosyvoice.networks import SOLVER_STEPS
    from tts_worker.engine.cosyvoice.bundle import config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "EULER_STEPS", SOLVER_STEPS)
        yield
