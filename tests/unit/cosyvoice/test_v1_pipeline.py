"""The reference's path of CosyVoice-300M beside the engine's. ``tests/parity`` compares it with the reference."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.unit.cosyvoice.bundles import GOLDEN, tiny
from tests.unit.cosyvoice.networks import apart
from tests.unit.cosyvoice.test_v1_flow import config
from tools.reference.algorithms import V1Draws
from tools.reference.v1_pipeline import V1Pipeline
from tts_worker.engine.cosyvoice.audio.chunks import Chunk
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPrompt, UnpagedPool
from tts_worker.engine.cosyvoice.audio.renderer import RenderRequest, RenderState
from tts_worker.engine.cosyvoice.audio.v1_renderer import V1Renderer
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.streams import streams_for
from tts_worker.engine.cosyvoice.v1.flow import V1Flow
from tts_worker.engine.cosyvoice.voices.speaker import Request
from tts_worker.errors import InvalidRequest


@lru_cache
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN["cosyvoice1"] / "speech.safetensors")


@lru_cache
def networks() -> Networks:
    """Shared: tests must not change it."""
    return Networks.load(Bundle(tiny("cosyvoice1"), config()))


def ids(name: str) -> tuple[int, ...]:
    return tuple(golden()[name][0].tolist())


def request() -> Request:
    prompt_mel = golden()["prompt_speech_feat"][0]
    return Request((), golden()["embedding"][0], flow_prompt=ids("flow_prompt_speech_token"), prompt_mel=prompt_mel)


class EngineDraws(V1Draws):
    """The initial states that the engine gives to the frames of an utterance."""

    def __init__(self, flow: V1Flow, prompt_frames: int) -> None:
        self._flow = flow
        self._prompt_frames = prompt_frames
        self._start = 0

    def state(self, frames: int, mel: int) -> Tensor:
        count = frames - self._prompt_frames
        noise = self._flow.noise_at(self._prompt_frames, self._start, count)
        self._start += count - self._flow.overlap_frames
        return noise


def test_engine_renders_the_mel_of_the_reference() -> None:
    """The pipeline gives the reference's numbers, so the renderer does with the same initial states."""
    flow = networks().flow
    assert isinstance(flow, V1Flow)
    spoken = request()
    tokens = ids("source")
    expected = list(
        V1Pipeline(networks(), EngineDraws(flow, len(spoken.prompt_mel))).render(spoken, tokens, stream=True)
    )
    streams = streams_for(torch.device("cpu"))
    pool = UnpagedPool(flow.dims.chunk_tokens, flow.device)
    renderer = V1Renderer(networks(), pool, streams, EagerRunner())
    spk = flow.speaker(spoken.embedding[None])
    voice = FlowPrompt(prompt=spoken.flow_prompt, prompt_mel=spoken.prompt_mel, spk=spk)
    state = RenderState(voice, 1)
    for chunk in (Chunk(0, 100, 120, False), Chunk(100, 130, 130, True)):
        (frames,) = renderer.flow([RenderRequest(state, chunk, tokens[: chunk.known])]).result().frames
        part = expected[chunk.final]
        assert (part.first_token, part.end_token) == (chunk.begin, chunk.end)
        assert apart(frames[0], part.mel) < 1e-4


def test_speed_changes_the_duration_of_whole_utterances() -> None:
    pipeline = V1Pipeline(networks())
    tokens = ids("source")[:30]
    plain, fast = (next(pipeline.render(request(), tokens, speed=speed)) for speed in (1.0, 2.0))
    assert len(fast.samples) == plain.frames // 2 * 256
    with pytest.raises(InvalidRequest, match="disable streaming"):
        next(pipeline.render(request(), tokens, stream=True, speed=2.0))
    assert list(pipeline.render(request(), [])) == []
