"""How the computations of an engine are executed: the table that the plain path fills and acceleration may override.

The plain path runs PyTorch's operators one by one, on any device. The feature ``acceleration`` is optional:
``find_accelerator`` looks for it, for an engine that may use it. It takes an accelerated path only after a check
on this machine that it gives the numbers of the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from time import perf_counter

from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import Compiler, EagerRunner, GraphRunner
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams
from tts_worker.engine.cosyvoice.networks.kv_cache import PagedLibrary, PageShape
from tts_worker.errors import ConfigError
from tts_worker.feature_names import modules

ABSENT = "acceleration: it is not part of this installation"


class Backend(str, Enum):
    """What runs the flow and the vocoder. The language model always runs on PyTorch."""

    TORCH = "torch"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


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
class ChunkPlan:
    """Limits of the chunks of an engine.

    Attributes:
        batch: Most utterances in one pass.
        stride: Most chunks of an utterance in one pass.
        chunks: Most chunks of an utterance, prompt included.
    """

    batch: int
    stride: int
    chunks: int


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


def _eager_runners() -> tuple[GraphRunner, GraphRunner]:
    return EagerRunner(), EagerRunner()


@dataclass(frozen=True)
class Execution:
    """What executes the computations of one engine. The defaults are the plain path.

    Attributes:
        runners: Run the computations of the language model and of the audio networks.
        compiler: Compiles computations before they are captured.
        library: Returns what computes the flow's attention to its pages, instead of ``ops.audio.paged_attention``.
        kernel_faults: Why fused operators do not use their kernels although they should, by name.
        missing: What else is slower than it should be, in words.
        start_s: What the checks took, by name.
    """

    runners: tuple[GraphRunner, GraphRunner] = field(default_factory=_eager_runners)
    compiler: Compiler | None = None
    library: Callable[[PageShape], PagedLibrary] | None = None
    kernel_faults: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    start_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Accelerator:
    """What the feature ``acceleration`` offers. It checks on the device what it chooses.

    Attributes:
        select_backend: As the function ``select_backend``, for other back ends than PyTorch.
        plan_execution: As the function ``plan_execution``, for PyTorch on a GPU.
    """

    select_backend: Callable[[Networks, BackendOptions], BackendState]
    plan_execution: Callable[
        [Networks, ExecutionStreams, StreamingConfig, tuple[GraphRunner, GraphRunner] | None], Execution
    ]


def find_accelerator() -> Accelerator | None:
    """Return what a feature of this installation offers in its module ``accelerator``; None without one."""
    return next((module.ACCELERATOR for module in modules("accelerator")), None)


def backend_named(name: str) -> Backend:
    """Return the back end called ``name``. Raises ConfigError."""
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
        ConfigError: ONNX Runtime does not work on the device, or acceleration is not part of this installation.
        MissingExtra: ONNX Runtime is not installed.
    """
    if options.backend is Backend.TORCH:
        return BackendState()
    accelerator = find_accelerator()
    if accelerator is None:
        raise ConfigError(f"backend: {options.backend.value} cannot be used ({ABSENT}); set backend: torch")
    return accelerator.select_backend(networks, options)


def plan_execution(
    networks: Networks,
    streams: ExecutionStreams,
    settings: StreamingConfig,
    runners: tuple[GraphRunner, GraphRunner] | None = None,
) -> Execution:
    """Choose what executes the computations of an engine, after its checks on the device.

    Args:
        networks: The networks.
        streams: The streams of the engine.
        settings: Settings of the engine.
        runners: Replace those of the device, for tests.

    Raises:
        DeviceLost: The device no longer responds after a check.
    """
    plain = Execution() if runners is None else Execution(runners)
    if networks.device.type != "cuda" and settings.library is None:
        return plain
    accelerator = find_accelerator() if settings.acceleration else None
    if accelerator is not None:
        return accelerator.plan_execution(networks, streams, settings, runners)
    ops.disable()
    return replace(plain, missing=(ABSENT,)) if settings.acceleration else plain


@contextmanager
def timed(parts: dict[str, float], part: str) -> Iterator[None]:
    """Add the seconds that the body takes to a part of the start."""
    began_s = perf_counter()
    yield
    parts[part] = parts.get(part, 0.0) + perf_counter() - began_s
