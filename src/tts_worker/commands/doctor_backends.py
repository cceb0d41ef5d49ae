"""What ``tts-worker doctor`` says about the back ends of the CosyVoice engine, found out by using them."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_worker.commands.finding import Finding, Status
from tts_worker.commands.installation import install_command
from tts_worker.commands.onnxruntime_builds import (
    diagnose,
    gpu_command,
    imported_folder,
    installed_builds,
)
from tts_worker.engine.cosyvoice.acceleration.tensorrt_package import OLDEST_TENSORRT, import_tensorrt
from tts_worker.engine.cosyvoice.engine_config import OLDEST_TORCH
from tts_worker.errors import BackendUnavailable

if TYPE_CHECKING:
    from tts_worker.settings import Settings

_TENSORRT_DISTRIBUTIONS = re.compile(r"tensorrt(-cu\d+)?(-bindings|-libs)?")
"""Distributions of the package ``tensorrt``: those for CUDA 12 and 13 write to the same folders."""

_FLOW_SIZES = (16, 64, 50)  # heads, their size and frames of a page of Fun-CosyVoice 3's flow


def backend_findings(settings: Settings | None) -> Iterator[Finding]:
    """Check ONNX Runtime, which the CPU voice needs, and every other back end and library."""
    builds = diagnose(installed_builds(), imported_folder(), install_command())
    yield Finding("onnxruntime", Status.OK if builds.works else Status.FAULT, builds.detail, builds.advice)
    torch = importlib.import_module("torch") if find_spec("torch") is not None else None
    yield _torch(torch)
    if builds.works:
        yield _providers()
    yield _tensorrt(torch, settings)
    yield _flashinfer(torch)


def has_nvidia_driver() -> bool:
    """Whether this machine has an NVIDIA driver, so that missing CUDA support is worth a command."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def _torch(torch: Any) -> Finding:
    what = "backend torch"
    if torch is None:
        return Finding(what, Status.OPTIONAL, "not installed; only the built-in voice can speak", _cosyvoice_command())
    version = torch.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
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
    problem = _graph_problem(torch)
    graphs = f"CUDA graphs fail ({problem})" if problem else "CUDA graphs work"
    advice = ""
    if find_spec("triton") is None:
        fused, advice = "no fused kernels, as triton is not installed", "pip install --force-reinstall torch"
    else:
        problem = _kernel_problem()
        fused = f"fused attention is not used ({problem})" if problem else "fused attention works"
    return Finding(what, Status.OK, f"{version}, CUDA {torch.version.cuda}, {names}; {graphs}; {fused}", advice)


def _cosyvoice_command() -> str:
    return install_command("gpu" if has_nvidia_driver() else "cosyvoice")


def _graph_problem(torch: Any) -> str:
    """Return why CUDA graphs do not work, by capturing one; empty if they do."""
    try:
        x = torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x += 1
        graph.replay()
        return "" if x.tolist() == [1.0] else "a replay changed nothing"
    except RuntimeError as error:
        return f"{error!s:.100}"


def _kernel_problem() -> str:
    """Return why the fused kernel of the flow's attention is not used, by comparing it; empty if it is used."""
    import torch

    from tts_worker.engine.cosyvoice.acceleration.kernels import Case, check, triton_problem
    from tts_worker.engine.cosyvoice.acceleration.kernels.audio import attention_arguments, paged_attention

    if problem := triton_problem():
        return problem
    try:
        case = attention_arguments(*_FLOW_SIZES, 1, torch.bfloat16, torch.device("cuda"))
        faults = check([Case(paged_attention, *case)])
    except RuntimeError as error:
        return f"{error!s:.100}"
    return "; ".join(f"{fault:.100}" for fault in faults.values())


def _providers() -> Finding:
    """Load every provider of the installed build that the worker would use."""
    from tts_worker.engine.cosyvoice.acceleration.onnx_providers import CPU, CUDA, PREFERENCE, load_problem

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


def _tensorrt(torch: Any, settings: Settings | None) -> Finding:
    """Build and run a small engine on the device, as the worker does."""
    what = "backend tensorrt"
    try:
        version = import_tensorrt().__version__
    except BackendUnavailable as error:
        return Finding(what, Status.OPTIONAL, error.message, _tensorrt_command(torch))
    if torch is None:
        return Finding(what, Status.OPTIONAL, f"{version}, but PyTorch is not installed", install_command("tensorrt"))
    if not torch.cuda.is_available():
        return Finding(what, Status.OPTIONAL, f"{version}, but PyTorch sees no CUDA device: runs on PyTorch instead")
    from tts_worker.engine.cosyvoice.acceleration.tensorrt import check_tensorrt, find_tensorrt

    device = torch.device("cuda")
    try:
        library, _ = find_tensorrt(device)
        check_tensorrt(library, device)
    except BackendUnavailable as error:
        detail = f"{version} does not work, so that the worker runs on PyTorch instead: {error.message}"
        return Finding(what, Status.OPTIONAL, detail, _tensorrt_command(torch))
    return Finding(what, Status.OK, f"{version}, builds and runs a small engine; {_plans(settings, version)}")


def _tensorrt_command(torch: Any) -> str:
    """Return the command that installs TensorRT, or that replaces it by the build for PyTorch's CUDA.

    pip keeps a package whose version satisfies the extra, even one that does not work, and the distribution "tensorrt"
    depends on the build for the newest CUDA, which an older driver cannot run.
    """
    names = {
        re.sub(r"[-_.]+", "-", name).lower()
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"])  # damaged metadata has none
    }
    installed = sorted(filter(_TENSORRT_DISTRIBUTIONS.fullmatch, names))
    install = install_command("tensorrt")
    if not installed:
        return install
    if torch is not None and torch.version.cuda is not None:
        oldest = ".".join(map(str, OLDEST_TENSORRT))
        install = f'pip install "tensorrt-cu{torch.version.cuda.partition(".")[0]}>={oldest}"'
    return f"pip uninstall -y {' '.join(installed)} && {install}"


def _flashinfer(torch: Any) -> Finding:
    """Compare FlashInfer with PyTorch's operators on the device; its kernels are compiled on first use."""
    what = "attention flashinfer"
    if find_spec("flashinfer") is None:
        return Finding(what, Status.OPTIONAL, "not installed", install_command("flashinfer"))
    if torch is None:
        return Finding(what, Status.OPTIONAL, "PyTorch is not installed", install_command("flashinfer"))
    from tts_worker.engine.cosyvoice.acceleration.attention import PageShape, check_flashinfer, find_flashinfer

    try:
        module = find_flashinfer()
        version = getattr(module, "__version__", "installed")
        if not torch.cuda.is_available():
            return Finding(what, Status.OPTIONAL, f"{version}, but PyTorch sees no CUDA device")
        check_flashinfer(module, PageShape(*_FLOW_SIZES), torch.bfloat16, torch.device("cuda"))
    except BackendUnavailable as error:
        return Finding(what, Status.OPTIONAL, f"cannot be used: {error.message}")
    return Finding(
        what, Status.OK, f"{version}, with the numbers of PyTorch's operators; attention: flashinfer uses it"
    )


def _plans(settings: Settings | None, version: str) -> str:
    """Describe the plan caches of the settings."""
    from tts_worker.engine.cosyvoice.acceleration.tensorrt import PlanCache, default_cache
    from tts_worker.settings.engines import CosyVoiceEngineSettings

    engines = settings.engines.values() if settings is not None else ()
    folders = {
        engine.plan_cache or default_cache() for engine in engines if isinstance(engine, CosyVoiceEngineSettings)
    }
    described = []
    for folder in sorted(folders or {default_cache()}):
        plans = list(PlanCache(folder).entries())
        usable = sum(plan.tensorrt == version for plan in plans)
        size_mb = sum(plan.size_bytes for plan in plans) / 1e6
        described.append(f"{len(plans)} plans, {usable} of this version, {size_mb:.0f} MB in {folder}")
    return "; ".join(described)
