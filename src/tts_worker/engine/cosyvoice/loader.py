"""Builds an engine from a model directory: device, precision and settings."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from tts_worker.engine.cosyvoice.bundle.config import V1, CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.components import Components, max_flow_chunks
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.device import device_checked, device_responds
from tts_worker.engine.cosyvoice.execution.plan import (
    Backend,
    BackendOptions,
    BackendState,
    ChunkPlan,
    backend_named,
    select_backend,
)
from tts_worker.engine.cosyvoice.execution.settings import (
    GRAPHS_DIR,
    OLDEST_TORCH,
    CompileMode,
    EngineOptions,
    LibraryChoice,
    StreamingConfig,
    TextMode,
)
from tts_worker.engine.cosyvoice.execution.streams import flow_threads
from tts_worker.engine.cosyvoice.memory import CPU_UTTERANCES, default_utterances, page_count, return_unused_memory
from tts_worker.engine.cosyvoice.token_generator import EngineSpec, Script
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.enrolled import EnrolledVoices
from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices
from tts_worker.errors import ConfigError
from tts_worker.voices.files import VOICES_DIR, Voice

log = logging.getLogger(__name__)

MIN_OVERLAP_THREADS = 3  # with fewer, the two computing threads would starve the event loop


@dataclass(frozen=True)
class LoadOptions(EngineOptions):
    """Options of ``load_engine``. ``None`` selects a value for the device.

    Attributes:
        bundle: Model directory.
        voices: Directory of stored voices; ``None``: inside the model directory.
        rl: Use the reinforcement-learned weights.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        half: Run the language model and the flow estimator in bfloat16.
        threads: PyTorch threads.
        backend: ``torch``, ``onnxruntime`` or ``tensorrt``, for flow and vocoder.
        acceleration: ``auto``, or ``off`` for PyTorch's operators one after the other: no kernels, graphs or compiler
            on CUDA, no second thread on a CPU.
        graphs_dir: Directory of the ONNX graphs; ``None``: inside the model directory.
        memory_gb: Memory of the flow cache.
        memory_share: Part of the GPU's memory for this engine, weights included; processes that share a GPU divide it.
        plan_cache: Directory of the engines that TensorRT builds; ``None``: in the user's cache directory.

    The other options are those of ``EngineOptions`` and ``StreamingConfig``.
    """

    bundle: Path
    voices: Path | None = None
    rl: bool = False
    device: str = "auto"
    half: bool | None = None
    threads: int | None = None
    overlap: bool | None = None
    backend: str = "torch"
    acceleration: str = "auto"
    graphs: bool = True
    compile: str = "auto"
    gathers: bool = False
    library: LibraryChoice | None = None
    max_utterances: int | None = None
    text_mode: str = "clause"
    stride_chunks: int | None = None
    memory_gb: float | None = None
    memory_share: float = 1.0
    decode_batch: int | None = None
    render_batch: int | None = None
    first_chunk_on_device: bool = True
    graphs_dir: Path | None = None
    plan_cache: Path | None = None

    @property
    def is_accelerated(self) -> bool:
        """Whether the device may use more than PyTorch's operators one after the other."""
        return self.acceleration == "auto"


def load_engine(
    options: LoadOptions,
    script: Script | None = None,
    more_voices: Mapping[str, Voice] | None = None,
    enrolled: EnrolledVoices | None = None,
    networks: Networks | None = None,
) -> CosyVoiceEngine:
    """Load an engine. ``warm_up`` must be called before use.

    Args:
        options: What to load.
        script: Replaces drawn ids, for benchmarks and tests.
        more_voices: Voices in addition to those of the model directory, for benchmarks.
        enrolled: Voices enrolled at run time.
        networks: Those of another engine with the same model directory, device, precision and back end, which took
            them from their files; None: load them.

    Raises:
        BundleError: The model directory is incomplete or damaged.
        ConfigError: The options contradict each other or the device, or PyTorch is too old.
        DeviceLost: The device no longer responds.
        MissingExtra: A package for the options is not installed.
    """
    check_torch(torch.__version__)
    _check_counts(options)
    device = resolve_device(options.device)
    with device_checked(lambda: device_responds(device)):
        return _load_engine(options, device, script, more_voices, enrolled, networks)


def _load_engine(
    options: LoadOptions,
    device: torch.device,
    script: Script | None,
    more_voices: Mapping[str, Voice] | None,
    enrolled: EnrolledVoices | None,
    networks: Networks | None,
) -> CosyVoiceEngine:
    if options.threads is not None or device.type == "cpu":
        torch.set_num_threads(options.threads or default_threads())
    bundle = Bundle.open(options.bundle, rl=options.rl)
    if bundle.has_random_weights:
        log.warning("the weights in %s are random: the audio is noise", options.bundle)
    tokenizer = TextTokenizer.from_bundle(bundle)
    _check_model(options, bundle.config)
    chosen = _DeviceChoices.of(options, device, bundle.config)
    if device.type == "cuda":
        return_unused_memory()
    is_loaded = networks is not None
    if networks is None:
        networks = Networks.load(bundle, device=device, lm_dtype=torch.bfloat16 if chosen.half else torch.float32)
    backend = _select_backend(options, chosen, networks)
    if chosen.half and backend.active is Backend.TORCH and not is_loaded:
        networks.flow.use_dtype(torch.bfloat16)
    settings = _settings(options, chosen, networks, backend)
    stored = options.voices or options.bundle / VOICES_DIR
    voices = {**(more_voices or {}), **bundle_voices(bundle)}
    components = Components.build(
        networks, tokenizer, voices, settings, stored=stored, enrolled=enrolled, backend=backend
    )
    return CosyVoiceEngine(components, EngineSpec(bundle.config, tokenizer, settings, script))


@dataclass(frozen=True, slots=True)
class _DeviceChoices:
    """The values of ``LoadOptions`` for a device and a model, of those that do not depend on its memory."""

    half: bool
    threads: int
    overlap: bool
    stride_chunks: int
    render_batch: int

    @classmethod
    def of(cls, options: LoadOptions, device: torch.device, config: CosyVoiceConfig) -> _DeviceChoices:
        cuda = device.type == "cuda"
        threads = torch.get_num_threads()
        overlap = threads >= MIN_OVERLAP_THREADS if options.overlap is None else options.overlap
        return cls(
            half=cuda if options.half is None else options.half,
            threads=threads,
            overlap=overlap and options.is_accelerated and not cuda,
            stride_chunks=1 if config.family == V1 else options.stride_chunks or (1 if cuda else 2),
            render_batch=options.render_batch or (8 if cuda else 1),
        )


def _select_backend(options: LoadOptions, chosen: _DeviceChoices, networks: Networks) -> BackendState:
    """Choose the back end of flow and vocoder."""
    chunks = max_flow_chunks(networks.config, options.max_segment_s)
    return select_backend(
        networks,
        BackendOptions(
            backend_named(options.backend),
            options.graphs_dir or options.bundle / GRAPHS_DIR,
            ChunkPlan(chosen.render_batch, chosen.stride_chunks, chunks),
            threads=flow_threads(chosen.threads) if chosen.overlap else chosen.threads,
            allow_tf32=chosen.half,
            plan_cache=options.plan_cache,
        ),
    )


def _settings(
    options: LoadOptions, chosen: _DeviceChoices, networks: Networks, backend: BackendState
) -> StreamingConfig:
    """Return the settings of the engine."""
    cuda = networks.device.type == "cuda"
    has_graphs = backend.active is Backend.TORCH and networks.config.family != V1
    max_utterances = options.max_utterances or default_utterances(networks, options.memory_share)
    return StreamingConfig(
        **{field.name: getattr(options, field.name) for field in fields(EngineOptions)},
        acceleration=options.is_accelerated,
        overlap=chosen.overlap,
        max_utterances=max_utterances,
        text_mode=TextMode(options.text_mode),
        stride_chunks=chosen.stride_chunks,
        pages=page_count(networks, max_utterances, options.memory_gb, options.memory_share),
        decode_batch=options.decode_batch or (max_utterances if cuda else CPU_UTTERANCES),
        render_batch=chosen.render_batch,
        first_chunk_on_device=options.first_chunk_on_device and has_graphs,
        graphs=options.graphs and options.is_accelerated and cuda,
        compile=CompileMode(options.compile),
        gathers=options.gathers,
        library=options.library,
        audio_graphs=has_graphs,
    )


def _check_model(options: LoadOptions, config: CosyVoiceConfig) -> None:
    """Refuse options that contradict each other or the model. Raises ConfigError."""
    if not options.is_accelerated and options.backend != Backend.TORCH.value:
        raise ConfigError(f"backend: {options.backend} needs acceleration: auto; or set backend: torch")
    if config.family == V1:
        _check_v1(options)
    elif options.first_tokens > (most := config.chunked_flow.chunk_tokens):
        raise ConfigError(f"first_tokens: must be at most {most}, the tokens of a chunk, not {options.first_tokens}")


def _check_counts(options: LoadOptions) -> None:
    """Refuse numbers below 1, which would mean the default of the device. Raises ConfigError."""
    for name in ("threads", "max_utterances", "stride_chunks", "decode_batch", "render_batch"):
        count = getattr(options, name)
        if count is not None and count < 1:
            raise ConfigError(f"{name}: must be at least 1, not {count}")


def _check_v1(options: LoadOptions) -> None:
    """Refuse what CosyVoice-300M cannot do. Raises ConfigError."""
    if options.text_mode != TextMode.CLAUSE.value:
        raise ConfigError("text_mode: CosyVoice-300M reads whole clauses only, as it encodes a text before it speaks")
    if options.backend != Backend.TORCH.value:
        raise ConfigError("backend: CosyVoice-300M runs on torch only")


def check_torch(version: str) -> None:
    """Check the version of PyTorch. Raises ConfigError if it is too old."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ConfigError(f"torch {version} is too old for CosyVoice: pip install 'torch>={oldest}'")


def default_threads() -> int:
    """Return all cores but one, which serves the event loop.

    PyTorch's threads synchronize many times per chunk. One thread too many, on a core that other work uses, raised the
    first-audio latency from 0.15 s to 10 s.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores - 1)


def resolve_device(name: str) -> torch.device:
    """Return the device called ``name``. Raises ConfigError if it is unavailable."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        raise ConfigError(f"device: must be auto, cpu, cuda or cuda:N, not {name[:32]!r}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: no CUDA device is available; use auto or cpu")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ConfigError(f"device: there is no {name}; the number of CUDA devices is {torch.cuda.device_count()}")
    return device


def load_networks(bundle: Bundle, device: torch.device, *, half: bool, float32_phase: bool = False) -> Networks:
    """Load the networks to run on PyTorch.

    Args:
        bundle: Model directory.
        device: Where to load them.
        half: Run the language model and the flow estimator in bfloat16. Sums of norms, rotary angles, scores, solver
            state, encoder and vocoder stay in float32, the pitch in float64.
        float32_phase: Accumulate the vocoder's phase in float32, as the reference does.
    """
    lm_dtype = torch.bfloat16 if half else torch.float32
    networks = Networks.load(bundle, device=device, lm_dtype=lm_dtype, float32_phase=float32_phase)
    if half:
        networks.flow.use_dtype(torch.bfloat16)
    return networks


def bundle_voices(bundle: Bundle) -> dict[str, Voice]:
    """Return the voices of the model directory, by name."""
    return bundled_voices(bundle.speaker_info, bundle.config) if bundle.speaker_info.is_file() else {}
