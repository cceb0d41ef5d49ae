"""Selects what runs the flow encoder, the flow estimator and the vocoder: PyTorch, ONNX Runtime or TensorRT."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tts_worker.engine.cosyvoice.acceleration import tensorrt
from tts_worker.engine.cosyvoice.acceleration.onnx_profiles import ChunkPlan
from tts_worker.engine.cosyvoice.acceleration.onnx_runtime import run_on_onnxruntime
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.errors import BackendUnavailable, ConfigError

log = logging.getLogger(__name__)


class Backend(str, Enum):
    """What runs the flow and the vocoder. The language model always runs on PyTorch."""

    TORCH = "torch"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


RENAMED = {"onnx": Backend.ONNXRUNTIME}
"""Former names of back ends."""


@dataclass(frozen=True)
class BackendState:
    """The back end in use.

    Attributes:
        requested: The back end of the settings.
        active: The one in use.
        detail: Providers in use, or why the requested one is not.
    """

    requested: Backend = Backend.TORCH
    active: Backend = Backend.TORCH
    detail: str = ""

    @property
    def degraded(self) -> tuple[str, ...]:
        """Why the engine is slower than it should be, if it is."""
        if self.active is self.requested:
            return ()
        return (f"backend: {self.active.value} instead of {self.requested.value}: {self.detail}",)


@dataclass(frozen=True)
class BackendOptions:
    """How a back end runs.

    Attributes:
        backend: The back end.
        graphs: Directory written by ``tts-worker export onnx``.
        plan: Limits of the chunks of the engine.
        threads: Threads of ONNX Runtime on a CPU.
        allow_tf32: Whether the flow may use TF32 on a GPU.
        plan_cache: Directory of the engines of TensorRT and of its provider; None selects the user's cache directory.
    """

    backend: Backend
    graphs: Path
    plan: ChunkPlan
    threads: int = 1
    allow_tf32: bool = False
    plan_cache: Path | None = None


def backend_named(name: str) -> Backend:
    """Return the back end called ``name``. Raises ConfigError."""
    if name in RENAMED:
        raise ConfigError(f"backend: {name} is called {RENAMED[name].value} now")
    try:
        return Backend(name)
    except ValueError:
        raise ConfigError(f"backend: must be one of: {', '.join(backend.value for backend in Backend)}") from None


def select_backend(networks: Networks, options: BackendOptions) -> BackendState:
    """Run flow and vocoder on a back end (in place).

    TensorRT is replaced by PyTorch, with a warning, where it or a CUDA device is missing, and where an engine cannot be
    built or gives other results.

    Args:
        networks: The networks, in float32 but for the language model.
        options: The back end and its options.

    Raises:
        BundleError: A graph is missing, damaged or was exported from other weights.
        ConfigError: ONNX Runtime does not work on the device.
        MissingExtra: ONNX Runtime is not installed.
    """
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
    elif options.backend is Backend.TENSORRT:
        try:
            state = BackendState(options.backend, options.backend, _use_tensorrt(networks, options))
        except BackendUnavailable as error:
            log.warning("backend: tensorrt cannot be used, running on PyTorch: %s", error.message)
            return BackendState(options.backend, Backend.TORCH, error.message)
    else:
        return BackendState()
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
