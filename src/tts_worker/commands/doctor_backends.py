"""What ``tts-worker doctor`` says about PyTorch, found out by using it."""

from __future__ import annotations

import importlib
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tts_worker.commands.installation import install_command
from tts_worker.engine.cosyvoice.execution.settings import OLDEST_TORCH
from tts_worker.finding import Finding, Status


def is_recent(torch: Any) -> bool:
    """Whether this version of PyTorch can run the engine."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= OLDEST_TORCH


def has_nvidia_driver() -> bool:
    """Whether this machine has an NVIDIA driver, so that missing CUDA support is worth a command."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def import_torch() -> Any:
    """Return PyTorch; None if it is not installed."""
    return importlib.import_module("torch") if find_spec("torch") is not None else None


def torch_finding(torch: Any) -> Finding:
    """Describe PyTorch, which CosyVoice needs, and the devices that it sees."""
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
