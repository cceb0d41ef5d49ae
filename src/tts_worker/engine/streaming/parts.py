"""Builds what the engine works with from networks and settings: memory, lanes, recordings, voices.

Owns the order of building and what is recorded while warming up. It must not know files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tts_worker.audio.prompt import MAX_PROMPT_S
from tts_worker.engine.cosyvoice.flow.stream import FlowPool
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.tokenizer import TextTokenizer
from tts_worker.engine.streaming.config import StreamingConfig
from tts_worker.engine.streaming.decode import Decoder
from tts_worker.engine.streaming.enrolled_voices import EnrolledVoices
from tts_worker.engine.streaming.graphs import EagerRunner, GraphRunner, RecordingRunner, Runner, single
from tts_worker.engine.streaming.lanes import CudaLane, Lanes, lanes_for
from tts_worker.engine.streaming.render import Renderer
from tts_worker.engine.streaming.voices import VoiceBook
from tts_worker.voicepack.voice_file import Voice

PAGE_BUCKET = 8  # chunks; page tables are rounded up to it where passes are recorded


@dataclass
class Parts:
    """Everything with tensors in it."""

    networks: Networks
    decoder: Decoder
    renderer: Renderer
    pool: FlowPool
    book: VoiceBook
    lanes: Lanes
    runners: tuple[Runner, Runner]  # of tokens, of sound

    @classmethod
    def build(
        cls,
        networks: Networks,
        tokenizer: TextTokenizer,
        voices: Mapping[str, Voice],
        config: StreamingConfig,
        *,
        stored: Path | None = None,
        enrolled: EnrolledVoices | None = None,
        runners: tuple[Runner, Runner] | None = None,
        lanes: Lanes | None = None,
    ) -> Parts:
        """``runners`` and ``lanes`` replace what the device would get: tests rehearse recordings and slow devices."""
        device = networks.flow.noise.device
        flow = networks.config.flow
        lanes = lanes or lanes_for(device, overlap=config.overlap)
        if runners is None:
            runners = (EagerRunner(), EagerRunner())
            if config.graphs and isinstance(lanes.tokens, CudaLane) and isinstance(lanes.flow, CudaLane):
                runners = GraphRunner(lanes.tokens.stream), GraphRunner(lanes.flow.stream)
        decoder = Decoder(
            networks,
            slots=config.max_utterances,
            max_tokens=config.lm_tokens,
            lane=lanes.tokens,
            runner=runners[0],
            checked=config.checked,
        )
        longest_s = int(MAX_PROMPT_S) + config.max_passage_s + 2
        pool = FlowPool(
            networks.flow,
            slots=2 * config.max_utterances + config.cached_voices,
            pages=config.pages,
            max_chunks=-(-longest_s * networks.config.token_rate_hz // flow.chunk_tokens),
            dtype=networks.flow.time_tables.dtype,
            checked=config.checked,
            run=single(runners[1]),
            page_bucket=PAGE_BUCKET if runners[1].fixed_shapes else 1,
        )
        book = VoiceBook(
            networks.config,
            tokenizer,
            voices,
            stored=stored,
            first_tokens=config.first_tokens,
            cached=config.cached_voices,
            enrolled=enrolled,
        )
        renderer = Renderer(networks, pool, lanes, runners[1], config.stride_chunks)
        if device.type == "cuda":  # what was loaded and cleared so far is there before a lane looks at it
            torch.cuda.synchronize(device)
        return cls(networks, decoder, renderer, pool, book, lanes, runners)

    def record(self, config: StreamingConfig) -> None:
        """Everything has been run once: record what recurs, for every batch. Nothing is recorded afterwards."""
        for runner in self.runners:
            if isinstance(runner, RecordingRunner):
                runner.recording = True
        if self.runners[0].fixed_shapes:
            self.decoder.record_bursts(config.decode_batch)
        if self.runners[1].fixed_shapes:
            with self.lanes.flow:
                self.pool.capture_passes(config.render_batch)
            self.renderer.record_shapes(config.render_batch)
        for runner in self.runners:
            if isinstance(runner, RecordingRunner):
                runner.recording = False

    def close(self) -> None:
        """What was begun is waited for; what was recorded is forgotten."""
        self.lanes.close()
        for runner in self.runners:
            runner.forget()
