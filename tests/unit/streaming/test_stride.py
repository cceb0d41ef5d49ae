"""Several chunks of the mask per pass: the same audio with less work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.unit.streaming.engines import ONE_FAMILY, engine, networks, settings, synthesize
from tts_worker.engine.cosyvoice.audio.chunks import GridPlan
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.types import Segment

CHUNK = 25
AHEAD = 3


@examples(deadline=None, max_examples=200)
@given(
    prompt=st.integers(0, 130),
    stride=st.integers(1, 5),
    arrivals=st.lists(st.integers(0, 60), min_size=1, max_size=12),
)
def test_chunks_end_on_the_grid_and_cover_all_tokens(prompt: int, stride: int, arrivals: list[int]) -> None:
    plan = GridPlan(prompt, CHUNK, AHEAD, stride)
    done = 0
    available = 0
    for arrival in arrivals:
        available += arrival
        while (chunk := plan.next(done, available, False)) is not None:
            assert chunk.begin == done
            assert chunk.known <= available
            assert (prompt + chunk.end) % CHUNK == 0
            done = chunk.end
        assert done == plan.settled(available)  # depends on the token count only
        assert available < done + plan.hop(done) + AHEAD
    last = plan.next(done, available, True)
    assert last is not None
    assert (last.begin, last.end, last.final) == (done, available, True)


def test_first_chunks_ignore_the_stride() -> None:
    plan = GridPlan(42, CHUNK, AHEAD, 2)
    hops = []
    done = 0
    for _ in range(5):
        hops.append(plan.hop(done))
        done += hops[-1]
    assert hops == [8, 25, 25, 50, 50]


@pytest.mark.parametrize("family", ONE_FAMILY)
@pytest.mark.parametrize("chunks", [2, 3])
def test_multi_chunk_pass_equals_single_chunk_passes(family: str, chunks: int) -> None:
    """Also if the segment ends within the pass, and with any pages."""
    flow = networks(family).flow
    pool = FlowPool(flow, slots=3, pages=4 * chunks + 2, max_chunks=8, checked=True)
    ids = torch.arange(3, 3 + CHUNK * (chunks + 1) + AHEAD)[None]
    spk = torch.linspace(-1, 1, flow.dims.mel)[None]
    frames = CHUNK * flow.dims.frames_per_token
    cond = torch.zeros(1, frames, flow.dims.mel)
    for known in (CHUNK * chunks + AHEAD, CHUNK * (chunks - 1) + 7):
        one = pool.open()
        wide = pool.open()
        pool.advance([one], ids[:, : CHUNK + AHEAD], [CHUNK + AHEAD], spk, cond)
        pool.advance([wide], ids[:, : CHUNK + AHEAD], [CHUNK + AHEAD], spk, cond)
        rest = ids[:, CHUNK:].clone()
        rest[:, known:] = 0
        single = [
            pool.advance(
                [one], rest[:, i * CHUNK : (i + 1) * CHUNK + AHEAD], [min(known - i * CHUNK, CHUNK + AHEAD)], spk, cond
            )
            for i in range(chunks)
        ]
        together = pool.advance([wide], rest, [known], spk, cond.repeat(1, chunks, 1))
        exist = min(known, chunks * CHUNK) * flow.dims.frames_per_token
        assert torch.allclose(together[:, :exist], torch.cat(single, dim=1)[:, :exist], atol=2e-5)
        assert one.tokens == wide.tokens
        pool.close(one)
        pool.close(wide)
    assert (pool.free_pages, pool.free_slots) == (4 * chunks + 2, 3)


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_stride_gives_same_audio_with_less_work(family: str) -> None:
    pcm = []
    frames = []
    for stride in (1, 2):
        config = settings(stride_chunks=stride, smooth_start=False)
        subject = engine(family, config, script=lambda key, run: [*range(100, 250), 6561])
        output = synthesize(subject, (Segment.whole("Hello"),))
        pcm.append(np.frombuffer(b"".join(audio.pcm for audio in output.audio), "<i2").astype(np.int32))
        frames.append(subject.components.renderer.vocoder_frames)
        held = subject.components.pool.free_pages
        assert (
            held == subject.settings.pages - subject.components.voice_cache.prepared_voices
        )  # a page of the prompt is the voice's
    assert len(pcm[0]) == len(pcm[1]) == 150 * 960
    if family == "cosyvoice3":  # CosyVoice2's vocoder cross-fades at chunk ends, which differ here
        assert np.abs(pcm[0] - pcm[1]).max() <= 33  # 0.001: rounding of the pitch accumulates in the phase
    assert frames[1] < frames[0]
