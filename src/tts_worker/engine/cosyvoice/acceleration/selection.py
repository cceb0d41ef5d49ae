"""Selects what runs the flow encoder, the flow estimator and the vocoder: PyTorch, ONNX Runtime or TensorRT."""

from __future__ import annotations

import logging

from tts_worker.engine.cosyvoice.acceleration import tensorrt
from tts_worker.engine.cosyvoice.acceleration.onnx_runtime import run_on_onnxruntime
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.plan import Backend, BackendOptions, BackendState
from tts_worker.errors import BackendUnavailable

log = logging.getLogger(__name__)


def select_backend(networks: Networks, options: BackendOptions) -> BackendState:
    """As ``execution.select_backend``."""
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
