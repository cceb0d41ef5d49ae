"""The record by which ``execution.plan`` finds this package: the checks of a start, and what they allow."""

from __future__ import annotations

import logging
from functools import partial

import torch

from tts_worker.engine.cosyvoice.bundle.config import V1
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.device import device_checked, device_responds
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner, GraphRunner
from tts_worker.engine.cosyvoice.execution.plan import (
    Accelerator,
    Backend,
    BackendOptions,
    BackendState,
    Execution,
    timed,
)
from tts_worker.engine.cosyvoice.execution.settings import CompileMode, StreamingConfig
from tts_worker.engine.cosyvoice.execution.streams import CudaStream, ExecutionStreams
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.ops import audio, disable, language_model
from tts_worker.errors import BackendUnavailable
from tts_worker.features.acceleration import kernels, tensorrt
from tts_worker.features.acceleration.compiling import compiler_for
from tts_worker.features.acceleration.graphs import CudaGraphRunner, graph_problem
from tts_worker.features.acceleration.kernels.audio_cases import flow_cases, vocoder_cases
from tts_worker.features.acceleration.kernels.language_model_cases import language_model_cases
from tts_worker.features.acceleration.onnx_runtime import run_on_onnxruntime

log = logging.getLogger(__name__)


def plan_execution(
    networks: Networks,
    streams: ExecutionStreams,
    settings: StreamingConfig,
    runners: tuple[GraphRunner, GraphRunner] | None = None,
) -> Execution:
    """As ``plan.plan_execution``: kernels, CUDA graphs, the compiler and a library, each after its check."""
    device = networks.device
    start_s: dict[str, float] = {}
    kernel_faults: dict[str, str] = {}
    missing = missing_packages(networks.config.family, device, settings)
    if device.type == "cuda":
        with timed(start_s, "kernels"):
            kernel_faults = use_kernels(networks, device, settings)
    if runners is None:
        runners, uncaptured = _runners(streams, settings)
        missing += uncaptured
    library = None
    if settings.library is not None and isinstance(networks.flow, Flow):
        with timed(start_s, "attention"):
            library, unattended = settings.library(networks.flow, runners[1].fixed_shapes)
        missing += unattended
    compiler = compiler_for(settings.compile, device) if settings.graphs else None
    return Execution(runners, compiler, library, kernel_faults, missing, start_s)


def _runners(
    streams: ExecutionStreams, settings: StreamingConfig
) -> tuple[tuple[GraphRunner, GraphRunner], tuple[str, ...]]:
    """Return what runs the computations, with graphs if the device replays one correctly, and why not."""
    tokens, flow = streams.tokens, streams.flow
    if not (settings.graphs and isinstance(tokens, CudaStream) and isinstance(flow, CudaStream)):
        return (EagerRunner(), EagerRunner()), ()
    if problem := graph_problem(tokens.device):
        log.warning("computing without CUDA graphs, which is slower: %s", problem)
        return (EagerRunner(), EagerRunner()), (f"CUDA graphs are not used: {problem}",)
    audio_runner = CudaGraphRunner(flow.cuda_stream) if settings.audio_graphs else EagerRunner()
    return (CudaGraphRunner(tokens.cuda_stream), audio_runner), ()


def missing_packages(family: str, device: torch.device, settings: StreamingConfig) -> tuple[str, ...]:
    """Say what an engine computes more slowly because a package is missing, or what it needs."""
    has_use = (settings.kernels and family != V1) or (settings.graphs and settings.compile is not CompileMode.OFF)
    if device.type != "cuda" or not has_use or not (problem := kernels.triton_problem()):
        return ()
    return (f"{problem}: no fused kernels, nothing is compiled",)


def use_kernels(networks: Networks, device: torch.device, settings: StreamingConfig) -> dict[str, str]:
    """Switch fused kernels on or off, and check them on the device.

    Returns:
        Why operators of ``networks`` are not fused although they should be, by name.
    """
    faults: dict[str, str] = {}
    for operator in (language_model.slot_attention, audio.paged_attention):
        operator.is_excluded = settings.gathers
    if not settings.kernels:
        disable()
    elif networks.config.family != V1 and kernels.enable():
        advice = "; if the log says that a kernel has failed, set acceleration: off"
        with device_checked(partial(device_responds, device), advice):
            faults = _check_kernels(networks, device, settings)
    return faults


def _check_kernels(networks: Networks, device: torch.device, settings: StreamingConfig) -> dict[str, str]:
    model = networks.config
    lm_dtype, flow_dtype = networks.lm.llm_decoder.weight.dtype, networks.flow.dtype
    return {
        **kernels.check(language_model_cases(model.qwen, model.sampling, lm_dtype, device)),
        **kernels.check(flow_cases(model.chunked_flow, flow_dtype, device, settings.stride_chunks)),
        **kernels.check(vocoder_cases(model.hift, device)),
    }


def select_backend(networks: Networks, options: BackendOptions) -> BackendState:
    """As ``plan.select_backend``."""
    if options.backend is Backend.ONNXRUNTIME:
        providers = run_on_onnxruntime(
            networks,
            options.graphs,
            threads=options.threads,
            plan=options.plan,
            allow_tf32=options.allow_tf32,
            cache=options.plan_cache or tensorrt.default_cache(),
        )
        state = BackendState(options.backend, options.backend, ", ".join(providers))
    else:
        try:
            state = BackendState(options.backend, options.backend, _use_tensorrt(networks, options))
        except BackendUnavailable as error:
            log.warning("backend: tensorrt cannot be used, running on PyTorch: %s", error.message)
            return BackendState(options.backend, Backend.TORCH, error.message)
    log.info("flow and vocoder run on %s (%s)", state.active.value, state.detail)
    return state


def _use_tensorrt(networks: Networks, options: BackendOptions) -> str:
    """Run on TensorRT and describe it. Raises BackendUnavailable."""
    device = networks.device
    library, gpu = tensorrt.find_tensorrt(device)
    cache = tensorrt.PlanCache(options.plan_cache or tensorrt.default_cache())
    engines = tensorrt.TensorRtEngines(library, gpu, cache, device)
    tensorrt.run_on_tensorrt(networks, options.graphs, engines, options.plan, allow_tf32=options.allow_tf32)
    return f"TensorRT {library.version} on {gpu.name}"


ACCELERATOR = Accelerator(select_backend, plan_execution)
