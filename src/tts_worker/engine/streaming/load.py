"""From a model directory and a few choices to an engine: which device, which precision, how much memory.

The only place in this package that opens files. It must not know how anything is scheduled or computed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.enrol import bundled_voices
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.offline.onnx_graphs import GRAPHS_DIR, run_on_onnx
from tts_worker.engine.streaming.config import StreamingConfig, TextMode
from tts_worker.engine.streaming.engine import CosyVoiceEngine
from tts_worker.engine.streaming.enrolled_voices import EnrolledVoices
from tts_worker.engine.streaming.parts import Parts
from tts_worker.engine.streaming.talk import Model, Script
from tts_worker.errors import ConfigError
from tts_worker.voicepack.voice_file import VOICES_DIR, Voice

log = logging.getLogger(__name__)

CPU_MEMORY_GB = 4.0
CUDA_MEMORY_SHARE = 0.6  # of what is free once the weights are loaded
OVERLAP_THREADS = 3  # with fewer, two that compute would leave nothing to whoever answers the callers
LEAST_PAGES = 12
MOST_PAGES = 65_536


@dataclass(frozen=True)
class LoadOptions:
    """``device``: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``. ``backend``: ``torch``, or ``onnx`` for estimator and
    vocoder. ``half``: bfloat16 for the language model and the flow's estimator, None where that is fast. ``memory_gb``:
    for the flow's past of all that is being spoken. What is None follows from the device; the other names are those of
    ``StreamingConfig``."""

    bundle: Path
    voices: Path | None = None
    rl: bool = False
    device: str = "auto"
    half: bool | None = None
    threads: int | None = None
    overlap: bool | None = None
    backend: str = "torch"
    graphs: bool = True
    max_utterances: int | None = None
    text_mode: str = "clause"
    first_tokens: int = 8
    stride_chunks: int | None = None
    context_tokens: int = 250
    max_passage_s: int = 30
    memory_gb: float | None = None
    cached_voices: int = 4
    decode_batch: int | None = None
    render_batch: int | None = None
    smooth_start: bool = True


def load_engine(
    options: LoadOptions,
    script: Script | None = None,
    more_voices: Mapping[str, Voice] | None = None,
    enrolled: EnrolledVoices | None = None,
) -> CosyVoiceEngine:
    """An engine that still has to warm up. Raises BundleError, ConfigError, MissingExtra. ``script`` replaces what is
    drawn, ``more_voices`` are there beside those of the bundle (benchmarks); ``enrolled`` are added at run time."""
    device = device_of(options.device)
    if options.threads is not None or device.type == "cpu":
        torch.set_num_threads(options.threads or usual_threads())
    bundle = Bundle.open(options.bundle, rl=options.rl)
    if bundle.has_random_weights:
        log.warning("the weights in %s are random: it speaks noise", options.bundle)
    tokenizer = TextTokenizer.from_bundle(bundle)
    cuda = device.type == "cuda"
    half = cuda if options.half is None else options.half
    networks = load_networks(bundle, device, half=half)
    if options.backend == "onnx":
        if cuda or half:
            raise ConfigError("backend: onnx runs on the CPU in float32; set device: cpu and half: false")
        if (options.stride_chunks or 1) > 1:
            raise ConfigError("backend: onnx computes one chunk at a time; leave stride_chunks at 1")
        run_on_onnx(networks, options.bundle / GRAPHS_DIR, torch.get_num_threads())
    config = StreamingConfig(
        overlap=not cuda
        and (torch.get_num_threads() >= OVERLAP_THREADS if options.overlap is None else options.overlap),
        max_utterances=options.max_utterances or (64 if cuda else 16),
        text_mode=TextMode(options.text_mode),
        first_tokens=options.first_tokens,
        stride_chunks=options.stride_chunks or (1 if cuda or options.backend == "onnx" else 2),
        context_tokens=options.context_tokens,
        max_passage_s=options.max_passage_s,
        pages=pages_of(networks, options.memory_gb),
        cached_voices=options.cached_voices,
        decode_batch=options.decode_batch or (64 if cuda else 16),
        render_batch=options.render_batch or (8 if cuda else 1),
        smooth_start=options.smooth_start,
        graphs=options.graphs and cuda,
    )
    stored = options.voices or options.bundle / VOICES_DIR
    voices = {**(more_voices or {}), **voices_of(bundle)}
    parts = Parts.build(networks, tokenizer, voices, config, stored=stored, enrolled=enrolled)
    return CosyVoiceEngine(parts, Model(bundle.config, tokenizer, config, script))


def usual_threads() -> int:
    """All cores but one, which answers the callers. PyTorch's threads wait for each other many times in a chunk, so one
    core too many, which others use as well, costs far more than it brings: 10 s instead of 0.15 s to a first sound."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores - 1)


def device_of(name: str) -> torch.device:
    """Raises ConfigError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: there is no CUDA device here; use auto or cpu")
    return device


def load_networks(bundle: Bundle, device: torch.device, *, half: bool) -> Networks:
    """``half``: the language model and the flow's estimator in bfloat16, whose range is that of float32. RMS norms,
    scores, the solver's state, the encoder and the vocoder stay in float32, the pitch in float64."""
    networks = Networks.load(bundle, device=device, lm_dtype=torch.bfloat16 if half else torch.float32)
    if half:
        networks.flow.estimator.to(torch.bfloat16)
        networks.flow.time_tables = networks.flow.time_tables.to(torch.bfloat16)
    return networks


def voices_of(bundle: Bundle) -> dict[str, Voice]:
    """The speakers that came with the model."""
    return bundled_voices(bundle.speaker_info, bundle.config) if bundle.speaker_info.is_file() else {}


def page_bytes(config: CosyVoiceConfig, dtype: torch.dtype) -> int:
    """Keys and values of one chunk of one utterance: every layer of the estimator in every guided solver step, and the
    encoder."""
    flow = config.flow
    frames = flow.chunk_tokens * flow.frames_per_token
    values = 0
    if flow.unet is not None:
        values = (flow.unet.mid_blocks + 2) * flow.unet.blocks * flow.unet.heads * flow.unet.head_dim
    elif flow.dit is not None:
        values = flow.dit.depth * flow.dit.heads * flow.dit.head_dim
    values *= (2 * flow.steps - 1) * frames
    if flow.encoder is not None:
        values += flow.encoder.output_size * (flow.encoder.layers * flow.chunk_tokens + flow.encoder.up_layers * frames)
    return 2 * values * dtype.itemsize


def pages_of(networks: Networks, memory_gb: float | None) -> int:
    """How many chunks fit. Raises ConfigError if that is too few to speak at all."""
    each = page_bytes(networks.config, networks.flow.time_tables.dtype)
    device = networks.flow.noise.device
    if memory_gb is not None:
        budget = memory_gb * 1e9
    elif device.type == "cuda":
        budget = torch.cuda.mem_get_info(device)[0] * CUDA_MEMORY_SHARE
    else:
        budget = CPU_MEMORY_GB * 1e9
    pages = min(int(budget / each), MOST_PAGES)
    if pages < LEAST_PAGES:
        raise ConfigError(
            f"memory_gb: {budget / 1e9:.1f} GB hold {pages} s of sound; this model needs at least "
            f"{LEAST_PAGES * each / 1e9:.1f} GB"
        )
    return pages
