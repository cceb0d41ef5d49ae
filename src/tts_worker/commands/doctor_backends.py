"""What ``tts-worker doctor`` says about ONNX Runtime and PyTorch, found out by using them."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tts_worker.commands.installation import install_command
from tts_worker.commands.onnxruntime_builds import (
    diagnose,
    gpu_command,
    imported_folder,
    installed_builds,
)
from tts_worker.engine.cosyvoice.execution.settings import OLDEST_TORCH
from tts_worker.finding import Finding, Status


def backend_findings() -> Iterator[Finding]:
    """Check ONNX Runtime, which the CPU voice needs, and PyTorch, which CosyVoice needs."""
    builds = diagnose(installed_builds(), imported_folder(), install_command())
    yield Finding("onnxruntime", Status.OK if builds.works else Status.FAULT, builds.detail, builds.advice)
    torch = importlib.import_module("torch") if find_spec("torch") is not None else None
    yield torch_finding(torch)
    if builds.works:
        yield onnxruntime_finding()


def is_recent(torch: Any) -> bool:
    """Whether this version of PyTorch can run the engine."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= OLDEST_TORCH


def has_nvidia_driver() -> bool:
    """Whether this machine has an NVIDIA driver, so that missing CUDA support is worth a command."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def torch_finding(torch: Any) -> Finding:
    what = "backend torch"
    if torch is None:
        return Finding(what, Status.OPTIONAL, "not installed; only the built-in voice can speak", _cosyvoice_command())
    version = torch.__version__
    if not is_recent(torch):
        oldest = ".".join(map(str, OLDEST_TORCH))
        return Finding(what, Status.OPTIONAL, f"{version} is too old, needed: {oldest} or later", _cosyvoice_command())
    if torch.version.cuda is None:
        advice = "pip install --force-reinstall torch" if has_nvidia_driver() else ""
        return Finding(what, Status.OK, f"{version} on the CPU; this build has no CUDA", advice)
    if not torch.cuda.is_available():
        return Finding(
            what, Status.OK, f"{version} on the CPU; built for CUDA {torch.version.cuda}, but sees no device"
        )
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Finding(what, Status.OK, f"{version}, CUDA {torch.version.cuda}, {names}")


def _cosyvoice_command() -> str:
    return install_command("gpu" if has_nvidia_driver() else "cosyvoice")


def onnxruntime_finding() -> Finding:
    """Load every provider of the installed build that the worker would use."""
    from tts_worker.engine.cosyvoice.execution.onnx_providers import CPU, CUDA, PREFERENCE, load_problem

    what = "backend onnxruntime"
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError as error:
        return Finding(what, Status.FAULT, f"onnxruntime cannot be imported: {error!s:.200}", install_command())
    onnxruntime.set_default_logger_severity(4)  # the reasons are in the findings
    available = onnxruntime.get_available_providers()
    problems = {name: load_problem(onnxruntime, name) for name in PREFERENCE if name in available}
    states = [f"{_short(name)} {problem or 'works'}" for name, problem in problems.items()]
    states += [f"{_short(name)} not in this build" for name in PREFERENCE if name not in available]
    detail = f"{onnxruntime.__version__}: {', '.join(states)}"
    if problems.get(CPU, "missing"):
        return Finding(what, Status.FAULT, detail, install_command())
    if problems.get(CUDA, "missing") and has_nvidia_driver():
        advice = gpu_command() if CUDA not in available else "install the CUDA and cuDNN libraries that it names"
        return Finding(what, Status.OK, detail, advice)
    return Finding(what, Status.OK, detail)


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")
