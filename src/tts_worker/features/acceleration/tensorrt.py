"""Runs exported graphs on TensorRT, with engines that are built once per GPU and stored as plans.

TensorRT itself is used behind ``TensorRtLibrary`` only. A plan contains machine code for one GPU, one TensorRT version
and one range of sizes: the cache key names all of them, and the content of the graph. Plans are stored outside the
model directory, because loading one from a downloaded model would run foreign code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.plan import ChunkPlan
from tts_worker.errors import BackendMismatch, BackendUnavailable
from tts_worker.features.acceleration.onnx_checks import IDENTITY_MODEL
from tts_worker.features.acceleration.onnx_graphs import GraphSpec, Sizes, check_file, graph_specs
from tts_worker.features.acceleration.onnx_networks import install_graphs, parity_error, tolerance_of
from tts_worker.features.acceleration.onnx_profiles import Bounds, Profile, SizeRange, chunk_profiles
from tts_worker.features.acceleration.tensorrt_package import import_tensorrt

log = logging.getLogger(__name__)

SUFFIX = ".plan"
_HASHED_BYTES = 1 << 20


class LoadedPlan(Protocol):
    """An engine that is ready to run."""

    def enqueue(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Run on the current CUDA stream without waiting. Raises RuntimeError."""
        ...


class TensorRtLibrary(Protocol):
    """What is used of TensorRT."""

    version: str

    def build(self, graph: Path, profile: Profile, *, allow_tf32: bool) -> bytes:
        """Build the engine of a graph; takes minutes.

        Returns:
            The plan.

        Raises:
            BackendUnavailable: TensorRT cannot build the graph.
        """
        ...

    def load(self, plan: bytes) -> LoadedPlan:
        """Load a plan. Raises BackendUnavailable."""
        ...


@dataclass(frozen=True)
class Gpu:
    """The GPU that plans are built for: its name and compute capability ("9.0")."""

    name: str
    compute_capability: str


@dataclass(frozen=True)
class PlanKey:
    """Everything a plan depends on.

    Attributes:
        graph: File name of the graph.
        graph_sha256: Hash of the file, weights included.
        gpu: Name of the GPU.
        compute_capability: Of the GPU.
        tensorrt: Version of TensorRT.
        allow_tf32: Whether the engine may use TF32.
        bounds: Smallest, most important and largest shape of each input.
    """

    graph: str
    graph_sha256: str
    gpu: str
    compute_capability: str
    tensorrt: str
    allow_tf32: bool
    bounds: tuple[tuple[str, Bounds], ...]

    @property
    def file_name(self) -> str:
        """Readable, and unique for the key."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
        parts = (Path(self.graph).stem, self.gpu, f"sm{self.compute_capability}", f"trt{self.tensorrt}", digest)
        return "--".join(re.sub(r"[^A-Za-z0-9.]+", "-", part) for part in parts) + SUFFIX


@dataclass(frozen=True)
class StoredPlan:
    """A plan in the cache, as ``doctor`` reports it."""

    path: Path
    graph: str
    gpu: str
    tensorrt: str
    size_bytes: int


def default_cache() -> Path:
    """Return the directory of plans of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tts-worker" / "tensorrt"


class PlanCache:
    """Plans in a directory, one file each: a line of JSON (key, hash, parity error), then the plan."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: PlanKey) -> bytes | None:
        """Return the plan of ``key``, or None if there is none or it is damaged."""
        path = self.folder / key.file_name
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s: cannot be read (%s); building the engine again", path, error.strerror)
            return None
        header, _, plan = raw.partition(b"\n")
        try:
            stored = json.loads(header)
            intact = stored["key"] == json.loads(json.dumps(asdict(key)))
            intact = intact and stored["sha256"] == hashlib.sha256(plan).hexdigest()
        except (ValueError, TypeError, KeyError):
            intact = False
        if not intact:
            log.warning("%s: is damaged; building the engine again", path)
            return None
        return plan

    def store(self, key: PlanKey, plan: bytes, error: float) -> None:
        """Store a plan and its parity error. A directory that cannot be written is logged."""
        header = {"key": asdict(key), "sha256": hashlib.sha256(plan).hexdigest(), "parity_error": error}
        path = self.folder / key.file_name
        partial = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial.write_bytes(json.dumps(header).encode() + b"\n" + plan)
            partial.replace(path)
        except OSError as problem:
            log.warning("%s: cannot be written (%s); the next start builds the engine again", path, problem.strerror)
            with suppress(OSError):
                partial.unlink()

    def entries(self) -> Iterator[StoredPlan]:
        """List all plans, for any GPU and shape. Unreadable files are left out."""
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                with path.open("rb") as file:
                    key = json.loads(file.readline(1 << 20))["key"]
                yield StoredPlan(path, key["graph"], key["gpu"], key["tensorrt"], path.stat().st_size)
            except (OSError, ValueError, TypeError, KeyError):
                continue


class TensorRtGraph:
    """An ``Executor`` on a plan."""

    def __init__(self, spec: GraphSpec, profile: Profile, plan: LoadedPlan) -> None:
        self._inputs = tuple(spec.inputs)
        self._outputs = tuple(spec.outputs)
        self._profile = profile
        self._plan = plan

    def admits(self, sizes: Sizes) -> bool:
        return self._profile.admits(sizes)

    def execute(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._plan.enqueue(dict(zip(self._inputs, inputs, strict=True)), dict(zip(self._outputs, outputs, strict=True)))


@dataclass(frozen=True)
class TensorRtEngines:
    """Gets the engines of one model: from the cache, or built and compared with PyTorch.

    Attributes:
        library: TensorRT.
        gpu: The GPU.
        cache: Plans of earlier starts.
        device: Where to run the comparison.
    """

    library: TensorRtLibrary
    gpu: Gpu
    cache: PlanCache
    device: torch.device

    def engine(self, spec: GraphSpec, path: Path, weights: str, profile: Profile, *, allow_tf32: bool) -> TensorRtGraph:
        """Return the engine of one graph.

        Args:
            spec: The graph.
            path: Its file.
            weights: Fingerprint of the weights that it must have been exported from.
            profile: Sizes that the engine must support.
            allow_tf32: Whether products may round their inputs to ten bits.

        Raises:
            BundleError: The graph is missing or was exported from other weights.
            BackendUnavailable: The engine cannot be built or run.
            BackendMismatch: The engine's results differ from PyTorch's.
        """
        check_file(path, weights)
        key = PlanKey(
            spec.file,
            _sha256(path),
            self.gpu.name,
            self.gpu.compute_capability,
            self.library.version,
            allow_tf32,
            tuple(profile.bounds.items()),
        )
        try:
            return self._load(spec, key, profile) or self._build(spec, path, key, profile)
        except RuntimeError as error:  # of the library, and of a device without memory
            raise BackendUnavailable(f"TensorRT fails with {spec.file}: {error!s:.200}") from error

    def _load(self, spec: GraphSpec, key: PlanKey, profile: Profile) -> TensorRtGraph | None:
        """Return the engine of a stored plan, or None if there is no usable one."""
        plan = self.cache.load(key)
        if plan is None:
            return None
        try:
            return TensorRtGraph(spec, profile, self.library.load(plan))
        except BackendUnavailable as error:
            log.warning("%s: %s; building the engine again", self.cache.folder / key.file_name, error.message)
            return None

    def _build(self, spec: GraphSpec, path: Path, key: PlanKey, profile: Profile) -> TensorRtGraph:
        """Build an engine, compare it and store its plan."""
        started_s = perf_counter()
        log.info("%s: building the TensorRT engine, which takes minutes", spec.file)
        plan = self.library.build(path, profile, allow_tf32=key.allow_tf32)
        engine = TensorRtGraph(spec, profile, self.library.load(plan))
        difference = self._check(spec, engine, profile, tolerance_of(key.allow_tf32))
        log.info("%s: built in %.0f s, parity error %.1e", spec.file, perf_counter() - started_s, difference)
        self.cache.store(key, plan, difference)
        return engine

    def _check(self, spec: GraphSpec, engine: TensorRtGraph, profile: Profile, tolerance: float) -> float:
        """Compare an engine with PyTorch at the smallest and the most important sizes; returns the larger error."""
        points = [{name: getattr(sizes, end) for name, sizes in profile.ranges.items()} for end in ("low", "best")]
        difference = max(parity_error(spec, engine, sizes, self.device) for sizes in points)
        if difference > tolerance:
            raise BackendMismatch(
                f"the results of TensorRT's {spec.file} differ from PyTorch's by {difference:.1e}, "
                f"more than {tolerance:.0e}"
            )
        return difference


def run_on_tensorrt(
    networks: Networks, folder: Path, engines: TensorRtEngines, plan: ChunkPlan, *, allow_tf32: bool
) -> None:
    """Run flow encoder, flow estimator and vocoder on TensorRT (in place). Calls beyond the plan stay on PyTorch.

    Nothing is replaced unless all engines exist.

    Args:
        networks: The networks, in float32 but for the language model.
        folder: Directory written by ``tts-worker export onnx``.
        engines: Gets the engines.
        plan: Chunks of the engine.
        allow_tf32: Whether graphs that tolerate it may use TF32.

    Raises:
        BundleError: A graph is missing or was exported from other weights.
        BackendUnavailable: An engine cannot be built, or its results differ from PyTorch's.
    """
    specs = graph_specs(networks)
    profiles = chunk_profiles(networks, specs, plan)
    graphs = {
        file: engines.engine(
            spec,
            folder / file,
            networks.fingerprints[spec.part],
            profiles[file],
            allow_tf32=allow_tf32 and spec.tolerates_tf32,
        )
        for file, spec in specs.items()
    }
    install_graphs(networks, graphs)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASHED_BYTES):
            digest.update(block)
    return digest.hexdigest()


# -- TensorRT itself --------------------------------------------------------------------------------------------------


def find_tensorrt(device: torch.device) -> tuple[TensorRtLibrary, Gpu]:
    """Return TensorRT and the GPU of ``device``.

    Raises:
        BackendUnavailable: There is no CUDA device, or TensorRT is missing, too old or broken.
    """
    if device.type != "cuda":
        raise BackendUnavailable("TensorRT needs a CUDA device")
    try:
        trt = import_tensorrt()
    except BackendUnavailable as error:
        raise BackendUnavailable(
            f'TensorRT: {error.message}; install the extra "tensorrt", or see "tts-worker doctor"'
        ) from None
    major, minor = torch.cuda.get_device_capability(device)
    return NvidiaTensorRt(trt, device), Gpu(torch.cuda.get_device_name(device), f"{major}.{minor}")


def check_tensorrt(library: TensorRtLibrary, device: torch.device) -> None:
    """Build and run a graph that returns its input; takes seconds.

    Raises:
        BackendUnavailable: TensorRT cannot build, load or run it.
        BackendMismatch: It returns other values.
    """
    sizes = SizeRange(1, 2, 4)
    profile = Profile({"n": sizes}, {"x": ((sizes.low,), (sizes.best,), (sizes.high,))})
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "identity.onnx"
        graph.write_bytes(IDENTITY_MODEL)
        plan = library.load(library.build(graph, profile, allow_tf32=False))
    with _translate_errors("run identity.onnx"):
        x = torch.arange(1, sizes.best + 1, dtype=torch.float32, device=device)
        y = torch.zeros_like(x)
        plan.enqueue({"x": x}, {"y": y})
        is_equal = torch.equal(x, y)
    if not is_equal:
        raise BackendMismatch("TensorRT's identity.onnx returns other values than its input")


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    """Raise errors of TensorRT's bindings as BackendUnavailable.

    They share no base: a constructor raises TypeError where the library returns no object, as without a usable driver.
    """
    try:
        yield
    except BackendUnavailable:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise BackendUnavailable(f"TensorRT cannot {action}: {type(error).__name__}: {reason:.200}") from error


class NvidiaTensorRt:
    """The ``tensorrt`` package. Raises BackendUnavailable if it does not start."""

    def __init__(self, trt: Any, device: torch.device) -> None:
        self._trt = trt
        self._device = device
        with _translate_errors("start"):
            self._logger = trt.Logger(trt.Logger.WARNING)
        self.version: str = trt.__version__

    def build(self, graph: Path, profile: Profile, *, allow_tf32: bool) -> bytes:
        trt = self._trt
        with _translate_errors(f"build {graph.name}"), torch.cuda.device(self._device):
            builder = trt.Builder(self._logger)
            # Types as in the graph; version 11 knows nothing else.
            network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
            parser = trt.OnnxParser(network, self._logger)
            if not parser.parse_from_file(str(graph)):
                problems = "; ".join(str(parser.get_error(i).desc()) for i in range(parser.num_errors))
                raise BackendUnavailable(f"TensorRT cannot read {graph.name}: {problems:.300}")
            config = builder.create_builder_config()
            if not allow_tf32:
                config.clear_flag(trt.BuilderFlag.TF32)
            sizes = builder.create_optimization_profile()
            for name, bounds in profile.bounds.items():
                sizes.set_shape(name, *bounds)
            config.add_optimization_profile(sizes)
            plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise BackendUnavailable(f"TensorRT cannot build {graph.name}; the log says why")
        return bytes(plan)

    def load(self, plan: bytes) -> LoadedPlan:
        with _translate_errors("load the plan"), torch.cuda.device(self._device):
            runtime = self._trt.Runtime(self._logger)
            engine = runtime.deserialize_cuda_engine(plan)
            context = engine.create_execution_context() if engine is not None else None
        if context is None:
            raise BackendUnavailable("TensorRT cannot load the plan; the log says why")
        return _NvidiaPlan(runtime, engine, context)


class _NvidiaPlan:
    """A loaded engine with one execution context: one stream may use it at a time."""

    def __init__(self, runtime: Any, engine: Any, context: Any) -> None:
        self._owners = runtime, engine  # the context does not keep them alive
        self._context = context

    def enqueue(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        context = self._context
        for name, tensor in inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise RuntimeError(f"TensorRT refuses the shape {tuple(tensor.shape)} of {name}")
        for name, tensor in (*inputs.items(), *outputs.items()):
            context.set_tensor_address(name, tensor.data_ptr())
        if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("TensorRT cannot run the engine")
