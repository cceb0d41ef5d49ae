"""Builds the components of an engine from networks and settings: memory, streams, graph runners and voices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from tts_worker.audio.prompt import MAX_PROMPT_S
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool, UnpagedPool
from tts_worker.engine.cosyvoice.audio.renderer import Renderer
from tts_worker.engine.cosyvoice.audio.v1_renderer import V1Renderer
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import Compiler, CountingRunner, GraphRunner
from tts_worker.engine.cosyvoice.execution.plan import BackendState, Execution, plan_execution, timed
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams, streams_for
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.v1.flow import V1Flow
from tts_worker.engine.cosyvoice.voices.cache import VoiceCache
from tts_worker.engine.cosyvoice.voices.enrolled import EnrolledVoices
from tts_worker.types import ComputationCounts
from tts_worker.voices.files import Voice

log = logging.getLogger(__name__)


def max_flow_chunks(config: CosyVoiceConfig, max_segment_s: int) -> int:
    """Return the most flow chunks of an audio segment, the voice's prompt included."""
    longest_s = int(MAX_PROMPT_S) + max_segment_s + 2
    return -(-longest_s * config.token_rate_hz // config.flow.chunk_tokens)


PAGE_BUCKET = 8  # chunks; page tables are rounded up to a multiple of it where passes are captured


@dataclass
class Components:
    """Everything with tensors in it.

    Attributes:
        networks: The networks.
        decoder: Slots and decode steps of the language model.
        renderer: Flow and vocoder.
        pool: Memory of the flow.
        voice_cache: Voices and their prepared prompts.
        streams: Execution streams of the device.
        graph_runners: Those of the language model and of the audio networks.
        backend: What runs flow and vocoder.
        compiler: Compiles computations before they are captured; ``None``: nothing is compiled.
        missing: What is slower because something is missing or failed its check, in words.
        kernel_faults: Why fused kernels are not used on the device, by operator.
        start_s: What the parts of the start took, by name, the warm-up included.
    """

    networks: Networks
    decoder: Decoder
    renderer: Renderer
    pool: FlowPool | UnpagedPool
    voice_cache: VoiceCache
    streams: ExecutionStreams
    graph_runners: tuple[GraphRunner, GraphRunner]
    backend: BackendState
    compiler: Compiler | None
    missing: tuple[str, ...]
    kernel_faults: Mapping[str, str]
    start_s: dict[str, float]

    @classmethod
    def build(
        cls,
        networks: Networks,
        tokenizer: TextTokenizer,
        voices: Mapping[str, Voice],
        settings: StreamingConfig,
        *,
        stored: Path | None = None,
        enrolled: EnrolledVoices | None = None,
        backend: BackendState | None = None,
        graph_runners: tuple[GraphRunner, GraphRunner] | None = None,
        streams: ExecutionStreams | None = None,
    ) -> Components:
        """Allocate memory and build all components.

        Args:
            networks: Loaded networks; their device is used for everything.
            tokenizer: Text tokenizer of the model.
            voices: Voices of the model directory, by name.
            settings: Settings of the engine.
            stored: Directory of stored voices.
            enrolled: Voices enrolled at run time.
            backend: What runs flow and vocoder; None: PyTorch.
            graph_runners: Replace those of the device, for tests.
            streams: Replaces the streams of the device, for tests.
        """
        device = networks.device
        streams = streams or streams_for(device, overlap=settings.overlap)
        execution = plan_execution(networks, streams, settings, graph_runners)
        start_s = dict(execution.start_s)
        decoder = Decoder(
            networks,
            slots=settings.max_utterances,
            max_tokens=settings.lm_tokens,
            stream=streams.tokens,
            runner=execution.runners[0],
            checked=settings.checked,
        )
        with timed(start_s, "attention"):
            pool, renderer = _audio_parts(networks, settings, streams, execution)
        voice_cache = VoiceCache(
            networks.config,
            tokenizer,
            voices,
            stored=stored,
            first_tokens=settings.first_tokens,
            cached=settings.cached_voices,
            enrolled=enrolled,
        )
        if device.type == "cuda":  # weights and cleared memory must be in place before other streams use them
            torch.cuda.synchronize(device)
        return cls(
            networks,
            decoder,
            renderer,
            pool,
            voice_cache,
            streams,
            execution.runners,
            backend or BackendState(),
            execution.compiler,
            missing=execution.missing,
            kernel_faults=execution.kernel_faults,
            start_s=start_s,
        )

    def capture(self, settings: StreamingConfig) -> bool:
        """Capture all computations of fixed shapes. Call it once, after one utterance has run.

        Returns:
            Whether there was anything to capture.
        """
        tokens, audio = self.graph_runners
        if tokens.fixed_shapes:
            with self.timed("capture_tokens"):
                self.decoder.capture(settings.decode_batch, self.compiler)
        if audio.fixed_shapes and isinstance(self.pool, FlowPool):
            with self.timed("capture_flow"), self.streams.flow:
                self.pool.capture(settings.render_batch, range(1, settings.stride_chunks + 1), self.compiler)
            with self.timed("capture_vocoder"):
                self.renderer.capture(settings.render_batch, self.compiler)
        return tokens.fixed_shapes or audio.fixed_shapes

    def timed(self, part: str) -> AbstractContextManager[None]:
        """Add the time of a ``with`` block to ``start_s``."""
        return timed(self.start_s, part)

    def reset_counts(self) -> None:
        """Start to count computations, after the warm-up."""
        for runner in self.graph_runners:
            if isinstance(runner, CountingRunner):
                runner.reset_counts()
        self.take_eager_names()

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is slower than it should be, in words."""
        refused = tuple(
            f"{counts.name}: {counts.refused} of {counts.refused + counts.captured} CUDA graphs could not be captured"
            for counts in self.computations
            if counts.refused
        )
        unfused = tuple(f"{name}: the kernel is not used" for name in self.kernel_faults)
        faults = () if self.compiler is None else tuple(self.compiler.faults)
        uncompiled = tuple(f"{name}: it is not compiled" for name in faults)
        return self.backend.degraded + self.missing + refused + unfused + uncompiled

    @property
    def computations(self) -> tuple[ComputationCounts, ...]:
        """How often each computation ran, and how."""
        counting = [runner for runner in self.graph_runners if isinstance(runner, CountingRunner)]
        return tuple(counts for runner in counting for counts in runner.computations)

    @property
    def eager_keys(self) -> dict[str, int]:
        """How often each computation and shape ran without a graph, where graphs are captured."""
        counting = [runner for runner in self.graph_runners if isinstance(runner, CountingRunner)]
        return {" ".join(map(str, key)): n for runner in counting for key, n in runner.eager_keys.most_common()}

    def take_eager_names(self) -> tuple[str, ...]:
        """Return the computations that ran without their graph since the last call."""
        names: dict[str, None] = {}
        for runner in self.graph_runners:
            if isinstance(runner, CountingRunner):
                names.update((str(key[0]), None) for key in runner.recent_eager_keys)
                runner.recent_eager_keys.clear()
        return tuple(names)

    def close(self) -> None:
        """Wait for submitted work and release captured graphs."""
        self.streams.close()
        self.voice_cache.close()
        for runner in self.graph_runners:
            runner.clear()


def _audio_parts(
    networks: Networks, settings: StreamingConfig, streams: ExecutionStreams, execution: Execution
) -> tuple[FlowPool | UnpagedPool, Renderer]:
    """Build the memory of the flow, and what runs flow and vocoder."""
    flow = networks.flow
    runner = execution.runners[1]
    if isinstance(flow, V1Flow):
        unpaged = UnpagedPool(flow.dims.chunk_tokens, flow.device)
        return unpaged, V1Renderer(networks, unpaged, streams, runner)
    pool = FlowPool(
        flow,
        slots=2 * settings.max_utterances + settings.cached_voices,
        pages=settings.pages,
        max_chunks=max_flow_chunks(networks.config, settings.max_segment_s),
        dtype=flow.dtype,
        checked=settings.checked,
        runner=runner,
        page_bucket=PAGE_BUCKET if runner.fixed_shapes else 1,
        library=execution.library,
    )
    return pool, Renderer(networks, pool, streams, runner, settings.stride_chunks, settings.first_tokens)
