"""What ``tts-worker doctor`` says about ONNX Runtime: which build is installed, and which providers really load.

``onnxruntime.get_available_providers`` lists what a build contains. Whether a provider loads, with its CUDA libraries
and a device, shows only in a session. Needs no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from tts_worker.commands.doctor_backends import has_nvidia_driver
from tts_worker.commands.installation import install_command
from tts_worker.engine.cosyvoice.execution.onnx_providers import CPU, CUDA, TENSORRT, create_session
from tts_worker.features.acceleration.onnxruntime_builds import diagnose, gpu_command, imported_folder, installed_builds
from tts_worker.finding import Finding, Status

PREFERENCE = (TENSORRT, CUDA, CPU)

IDENTITY_MODEL = bytes.fromhex(
    "080812003a3d0a100a017812017922084964656e74697479120570726f62655a100a0178"
    "120b0a09080112050a0312016e62100a0179120b0a09080112050a0312016e42040a00100d"
)
"""An ONNX model that returns its input "x", any number of floats, as "y"."""


def onnxruntime_findings() -> Iterator[Finding]:
    """Check the installed builds and, if one works, its providers."""
    builds = diagnose(installed_builds(), imported_folder(), install_command())
    yield Finding("onnxruntime", Status.OK if builds.works else Status.FAULT, builds.detail, builds.advice)
    if builds.works:
        yield onnxruntime_finding()


def onnxruntime_finding() -> Finding:
    """Load every provider of the installed build that the worker would use."""
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


def load_problem(onnxruntime: Any, provider: str) -> str:
    """Return why a provider cannot be used, by a session of a model that returns its input; empty if it works."""
    try:
        session = create_session(onnxruntime, IDENTITY_MODEL, [(provider, {})])
        if provider not in session.get_providers():
            return "does not load"
        values = importlib.import_module("numpy").ones(1, dtype="float32")
        (out,) = session.run(None, {"x": values})
        return "" if out.tolist() == [1.0] else "gives wrong results"
    except Exception as error:  # onnxruntime's errors share no public base
        return f"{type(error).__name__}: {error!s:.200}"
