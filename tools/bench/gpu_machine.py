"""What a GPU machine is: hardware, driver and packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tts_worker.features.acceleration import kernels

PACKAGES = ("torch", "triton", "flashinfer-python", "flash-attn", "tensorrt", "onnxruntime", "onnxruntime-gpu", "numpy")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine of ``device``."""
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "packages": dict(_versions()),
        "device": str(device),
        # Triton builds its launchers with them; without, no kernel runs (``triton`` says so).
        "c_compiler": os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"),
        "python_headers": Path(sysconfig.get_path("include"), "Python.h").is_file(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        figures |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gb": round(total / 1e9, 1),
            "free_gb": round(free / 1e9, 1),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nvidia_smi": _nvidia_smi(),
            "triton": kernels.triton_problem() or "works",
        }
    return figures


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"


def _nvidia_smi() -> str | None:
    """Return driver, clocks, power limit and MIG mode, or None."""
    query = "driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu,mig.mode.current"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
