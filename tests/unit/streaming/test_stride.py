"""Several chunks of the mask at a time: cheaper, later, and the same sound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.unit.streaming.engines import FAMILIES, engine, networks, settings, speak
from tts_worker.engine.cosyvoice.chunks import GridPlan
from tts_worker.engine.cosyvoice.flow.stream import FlowPool
from tts_worker.engine.streaming.utterance import plain_segment

CHUNK = 25
AHEAD = 3


@examples(deadline=None, max_examples=200)
@given(
    prompt=st.integers(0, 130),
    stride=st.integers(1, 5),
    arrivals=st.lists(st.integers(0, 60), min_size=1, max_size=12),
)
def test_chunks_end_on_the_grid_and_say_everything_once(prompt: int, stride: int, arrivals: list[int]) -> None:
    plan = GridPlan(prompt, CHUNK, AHEAD, stride)
    done = 0
    available = 0
    for arrival in arrivals:
        available += arrival
        while (chunk := plan.next(available, False)) is not None:
            assert chunk.begin == done
            assert chunk.known <= available
            assert (prompt + chunk.end) % CHUNK == 0
            done = chunk.end
        assert done == plan.settled(available)  # what may have been heard is a matter of count
        assert available < done + plan.hop(done) + AHEAD
    last = plan.next(available, True)
    assert last is not None
    assert (last.begin, last.end, last.final) == (done, available, True)


def test_the_first_chunks_do_not_wait_for_a_stride() -> None:
    plan = GridPlan(42, CHUNK, AHEAD, 2)
    hops = []
    done = 0
    for _ in range(5):
        hops.append(plan.hop(done))
        done += hops[-1]
    assert hops == [8, 25, 25, 50, 50]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunks", [2, 3])
def test_a_pass_over_several_chunks_gives_the_frames_of_single_ones(family: str, chunks: int) -> None:
    """Also where the utterance ends within the pass, and whatever the pages are."""
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


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stride_sounds_the_same_and_computes_less(family: str) -> None:
    spoken = []
    frames = []
    for stride in (1, 2):
        config = settings(stride_chunks=stride, smooth_start=False)
        subject = engine(family, config, script=lambda key, run: [*range(100, 250), 6561])
        heard = speak(subject, (plain_segment("Hello"),))
        spoken.append(np.frombuffer(b"".join(audio.pcm for audio in heard.audio), "<i2").astype(np.int32))
        frames.append(subject.components.renderer.vocoder_frames)
        held = subject.components.pool.free_pages
        assert (
            held == subject.settings.pages - subject.components.voice_cache.prepared_voices
        )  # a page of the prompt is the voice's
    assert len(spoken[0]) == len(spoken[1]) == 150 * 960
    if family == "cosyvoice3":  # CosyVoice2's vocoder fades where a chunk ends: the seams are elsewhere
        assert np.abs(spoken[0] - spoken[1]).max() <= 33  # 0.001: the pitch's rounding adds up in the phase
    assert frames[1] < frames[0]
