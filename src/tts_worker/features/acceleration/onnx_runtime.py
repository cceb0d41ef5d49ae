"""Runs exported graphs on ONNX Runtime, on the memory of PyTorch's tensors: nothing is copied through numpy.

Providers in order of preference: TensorRT, CUDA, CPU. A session on a GPU computes on its own CUDA stream, which waits
for the caller's stream and which the caller's stream waits for; the host waits for neither.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.onnx_providers import (
    CPU,
    create_session,
    import_onnxruntime,
    select_providers,
)
from tts_worker.engine.cosyvoice.execution.plan import ChunkPlan
from tts_worker.errors import BundleError, ConfigError
from tts_worker.features.acceleration.onnx_graphs import GraphSpec, Sizes, check_file, graph_specs
from tts_worker.features.acceleration.onnx_networks import (
    install_graphs,
    largest_difference,
    parity_error,
    tolerance_of,
)
from tts_worker.features.acceleration.onnx_profiles import Profile, chunk_profiles, profile_options

log = logging.getLogger(__name__)

_DTYPES = {torch.float32: np.float32, torch.int64: np.int64, torch.bool: np.bool_}


@dataclass(frozen=True)
class SessionOptions:
    """How one graph is run.

    Attributes:
        device: Where the tensors are.
        threads: Threads of the CPU provider.
        allow_tf32: Whether matrix products on a GPU may round their inputs to ten bits.
        profile: Sizes that the TensorRT provider builds its engine for; None leaves that provider out.
        cache: Directory of the engines that the TensorRT provider builds; None: they are not stored.
    """

    device: torch.device
    threads: int = 1
    allow_tf32: bool = False
    profile: Profile | None = None
    cache: Path | None = None


@contextmanager
def ordered(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Order work on ``stream`` after that of the current CUDA stream, and what follows on the current one after it."""
    if stream is None:
        yield
        return
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    yield
    current.wait_stream(stream)


class OnnxRuntimeGraph:
    """An ``Executor`` on an ONNX Runtime session.

    Attributes:
        providers: Providers that the session uses.
    """

    def __init__(
        self, spec: GraphSpec, session: Any, run_options: Any, device: torch.device, stream: torch.cuda.Stream | None
    ) -> None:
        self._inputs = tuple(spec.inputs)
        self._outputs = tuple(spec.outputs)
        self._session = session
        self._run_options = run_options
        self._device = (device.type, device.index or 0)
        self._stream = stream
        self.providers: tuple[str, ...] = tuple(session.get_providers())

    def admits(self, sizes: Sizes) -> bool:
        return True

    def execute(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        binding = self._session.io_binding()
        for bind, names, tensors in (
            (binding.bind_input, self._inputs, inputs),
            (binding.bind_output, self._outputs, outputs),
        ):
            for name, tensor in zip(names, tensors, strict=True):
                bind(name, *self._device, _DTYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        with ordered(self._stream):
            self._session.run_with_iobinding(binding, self._run_options)


def open_graph(spec: GraphSpec, path: Path, weights: str, options: SessionOptions) -> OnnxRuntimeGraph:
    """Open the session that runs ``spec``.

    On a GPU the results are compared with PyTorch's. A provider that fails to load or to run, or differs, is left
    out, with a warning.

    Args:
        spec: The graph.
        path: Its file.
        weights: Fingerprint of the weights that it must have been exported from.
        options: Options of the session.

    Raises:
        MissingExtra: ONNX Runtime is not installed.
        BundleError: The file is missing, damaged or was exported from other weights; names it.
        ConfigError: No provider works on the device.
    """
    onnxruntime = import_onnxruntime()
    check_file(path, weights)
    on_gpu = options.device.type == "cuda"
    stream = torch.cuda.Stream(options.device) if on_gpu else None
    available = onnxruntime.get_available_providers()
    providers = select_providers(
        available,
        (options.device.index or 0) if on_gpu else None,
        stream=None if stream is None else stream.cuda_stream,
        allow_tf32=options.allow_tf32,
        profile=None if options.profile is None else profile_options(options.profile),
        cache=_engine_folder(options, path, weights),
    )
    problem = f"it has only {', '.join(available)}"
    for skipped, (first, _) in enumerate(providers):
        if on_gpu and first == CPU:  # cannot work on the memory of the GPU
            break
        try:
            session = create_session(onnxruntime, str(path), providers[skipped:], options.threads)
            graph = OnnxRuntimeGraph(spec, session, _run_options(onnxruntime, on_gpu), options.device, stream)
            problem = _problem(spec, graph, first, options) if on_gpu else ""
        except Exception as error:  # onnxruntime's errors share no public base
            if not on_gpu:
                raise BundleError(f"{path}: onnxruntime cannot load it ({type(error).__name__})") from None
            problem = f"{first} fails: {error!s:.200}"
        if not problem:
            return graph
        log.warning("%s: %s", spec.file, problem)
    raise ConfigError(
        f"backend: onnxruntime cannot run on {options.device} ({problem}); "
        'see "tts-worker doctor", or set device: cpu or backend: torch'
    )


def _engine_folder(options: SessionOptions, path: Path, weights: str) -> Path | None:
    """Create the directory of a graph's engines, since the TensorRT provider does not name them by the weights."""
    if options.cache is None or options.device.type != "cuda" or not options.allow_tf32:
        return None
    folder = options.cache / "onnxruntime" / f"{path.stem}-{weights[:16]}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.warning("%s: cannot be written (%s); each start builds the engine again", folder, error.strerror)
        return None
    return folder


def _run_options(onnxruntime: Any, on_gpu: bool) -> Any:
    options = onnxruntime.RunOptions()
    if on_gpu:  # the order is kept by events on the device
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def _problem(spec: GraphSpec, graph: OnnxRuntimeGraph, provider: str, options: SessionOptions) -> str:
    """Return why a session on a GPU cannot be used, or an empty string."""
    if provider not in graph.providers:
        return f"{provider} does not load"
    tolerance = tolerance_of(options.allow_tf32)
    error = parity_error(spec, graph, spec.sizes, options.device)
    if error <= tolerance:
        return ""
    return f"the results of {provider} differ from PyTorch's by {error:.1e}, more than {tolerance:.0e}"


def run_on_onnxruntime(
    networks: Networks,
    folder: Path,
    *,
    threads: int = 1,
    plan: ChunkPlan | None = None,
    allow_tf32: bool = False,
    cache: Path | None = None,
) -> tuple[str, ...]:
    """Run flow encoder, flow estimator and vocoder from the graphs in ``folder`` (in place).

    Args:
        networks: The networks, in float32 but for the language model.
        folder: Directory written by ``tts-worker export onnx``.
        threads: Threads of the CPU provider.
        plan: Chunks of the engine, for the TensorRT provider; None leaves that provider out.
        allow_tf32: Whether graphs that tolerate it may use TF32 on a GPU.
        cache: Directory of the engines that the TensorRT provider builds; not in a model directory, since loading one
            from a downloaded model would run foreign code.

    Returns:
        The providers in use, most preferred first.
    """
    device = networks.device
    specs = graph_specs(networks)
    profiles = chunk_profiles(networks, specs, plan) if plan is not None else {}
    graphs = {}
    for file, spec in specs.items():
        options = SessionOptions(
            device,
            threads,
            allow_tf32=allow_tf32 and spec.tolerates_tf32,
            profile=profiles.get(file),
            cache=cache if plan is not None else None,
        )
        graphs[file] = open_graph(spec, folder / file, networks.fingerprints[spec.part], options)
    install_graphs(networks, graphs)
    return tuple(dict.fromkeys(name for graph in graphs.values() for name in graph.providers))


def compare_graphs(networks: Networks, folder: Path, files: Collection[str]) -> dict[str, float]:
    """Compare graphs in ``folder`` with PyTorch on one random input each, on the CPU.

    Returns:
        Largest absolute difference by file name.

    Raises:
        BundleError: ONNX Runtime cannot run a graph.
        MissingExtra: ONNX Runtime is not installed.
    """
    cpu = torch.device("cpu")
    differences = {}
    for file, spec in graph_specs(networks).items():
        if file in files:
            graph = open_graph(spec, folder / file, networks.fingerprints[spec.part], SessionOptions(cpu))
            differences[file] = largest_difference(spec, graph, spec.sizes, cpu)
    return differences
