"""What ``tts-worker doctor`` says about the accelerated paths of the CosyVoice engine, by the checks of its start."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from tts_worker.commands.doctor_backends import import_torch, is_recent
from tts_worker.commands.installation import install_command
from tts_worker.errors import BackendUnavailable
from tts_worker.features.acceleration.onnx_checks import onnxruntime_findings
from tts_worker.features.acceleration.tensorrt_package import OLDEST_TENSORRT, import_tensorrt
from tts_worker.finding import Finding, Status

_TENSORRT_DISTRIBUTIONS = re.compile(r"tensorrt(-cu\d+)?(-bindings|-libs)?")
"""Distributions of the package ``tensorrt``: those for CUDA 12 and 13 write to the same folders."""

_FLOW_SIZES = (16, 64, 50)  # heads, their size and frames of a page of Fun-CosyVoice 3's flow


def findings() -> Iterator[Finding]:
    """Check ONNX Runtime, the kernels on this machine's device, and the optional library for flow and vocoder."""
    yield from onnxruntime_findings()
    torch = import_torch()
    if torch is not None and is_recent(torch) and torch.version.cuda is not None and torch.cuda.is_available():
        yield kernels_finding(torch)
    yield tensorrt_finding(torch)


def kernels_finding(torch: Any) -> Finding:
    """Say whether CUDA graphs and fused kernels work on the device, and what to do about it."""
    from tts_worker.features.acceleration.graphs import graph_problem

    what = "kernels"
    problem = graph_problem("cuda", torch)
    graphs = f"CUDA graphs fail ({problem})" if problem else "CUDA graphs work"
    if find_spec("triton") is None:
        detail = f"{graphs}; no fused kernels, as triton is not installed"
        return Finding(what, Status.OK, detail, "pip install --force-reinstall torch")
    problem = kernel_problem()
    return Finding(what, Status.OK, f"{graphs}; fused attention {f'is not used ({problem})' if problem else 'works'}")


def kernel_problem() -> str:
    """Return why the fused kernel of the flow's attention is not used, by comparing it; empty if it is used."""
    import torch

    from tts_worker.engine.cosyvoice.ops.audio import paged_attention
    from tts_worker.features.acceleration.kernels import Case, check, triton_problem
    from tts_worker.features.acceleration.kernels.audio_cases import attention_arguments

    if problem := triton_problem():
        return problem
    try:
        case = attention_arguments(*_FLOW_SIZES, 1, torch.bfloat16, torch.device("cuda"))
        faults = check([Case(paged_attention, *case)])
    except RuntimeError as error:
        return f"{error!s:.100}"
    return "; ".join(f"{fault:.100}" for fault in faults.values())


def tensorrt_finding(torch: Any) -> Finding:
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
    from tts_worker.features.acceleration.tensorrt import check_tensorrt, find_tensorrt

    device = torch.device("cuda")
    try:
        library, _ = find_tensorrt(device)
        check_tensorrt(library, device)
    except BackendUnavailable as error:
        detail = f"{version} does not work, so that the worker runs on PyTorch instead: {error.message}"
        return Finding(what, Status.OPTIONAL, detail, _tensorrt_command(torch))
    return Finding(what, Status.OK, f"{version}, builds and runs a small engine; {_plans(version)}")


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


def _plans(version: str) -> str:
    """Describe the plan cache of this user."""
    from tts_worker.features.acceleration.tensorrt import PlanCache, default_cache

    folder = default_cache()
    plans = list(PlanCache(folder).entries())
    usable = sum(plan.tensorrt == version for plan in plans)
    size_mb = sum(plan.size_bytes for plan in plans) / 1e6
    return f"{len(plans)} plans, {usable} of this version, {size_mb:.0f} MB in {folder}"
