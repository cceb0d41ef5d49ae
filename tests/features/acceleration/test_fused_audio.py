"""Flow and vocoder with fused operators, which run their compositions here: the numbers of the plain networks."""

from __future__ import annotations

from functools import lru_cache
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.fakes.cuda import claimed_cuda
from tests.unit.cosyvoice.networks import ONE_FAMILY, apart, networks, tiny_bundle
from tests.unit.cosyvoice.test_flow import CHUNK, LIMIT, MEL, RATIO, Speech, advance
from tests.unit.cosyvoice.test_hift import a_mel, hashed
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.loader import load_networks

families = pytest.mark.parametrize("family", ONE_FAMILY)


@lru_cache
def fused_networks(family: str, *, half: bool = False) -> Networks:
    with claimed_cuda():
        return load_networks(tiny_bundle(family), torch.device("cpu"), half=half)


def pool_of(family: str, *, half: bool = False, max_chunks: int = 8) -> FlowPool:
    flow = fused_networks(family, half=half).flow
    return FlowPool(flow, slots=4, pages=24, max_chunks=max_chunks, dtype=flow.dtype, page_bucket=4)


@families
def test_fused_flow_equals_the_plain_one(family: str) -> None:
    """Utterances of other lengths, with prompts of a shared voice, one of which ends in the middle of a chunk."""
    speeches = [Speech(family, 70, 40, 1), Speech(family, 38, 0, 2), Speech(family, 60, 40, 3)]
    expected = [speech.offline() for speech in speeches]
    with claimed_cuda():
        pool = pool_of(family)
        voice = pool.open()
        advance(pool, [voice], speeches[:1])
        states = [pool.open(voice), pool.open(), pool.open()]
        mels: list[list[Tensor]] = [[expected[0][:, : RATIO * CHUNK]], [], []]
        for turn in range(3):
            now = [i for i in range(3) if states[i].tokens < speeches[i].count and (i < 2 or turn)]
            for i, mel in zip(now, advance(pool, [states[i] for i in now], [speeches[i] for i in now]), strict=True):
                mels[i].append(mel)
    for i in range(2):
        assert apart(torch.cat(mels[i], dim=1), expected[i]) < LIMIT
    got = torch.cat(mels[2], dim=1)
    assert apart(got, expected[2][:, : got.shape[1]]) < LIMIT


@families
def test_fused_pass_of_two_chunks_equals_two_passes(family: str) -> None:
    speech = Speech(family, 53, 10, 4)
    with claimed_cuda():
        pool = pool_of(family)
        state = pool.open()
        tokens = speech.tokens
        cond = torch.zeros(1, 2 * RATIO * CHUNK, MEL)
        cond[:, : speech.prompt.shape[1]] = speech.prompt
        got = pool.advance([state], tokens, [tokens.shape[1]], speech.spk, cond)
    assert apart(got, speech.offline()[:, : 2 * RATIO * CHUNK]) < LIMIT


@families
def test_half_precision_changes_the_mel_a_little(family: str) -> None:
    """Norms, the residual stream and the solver state stay float32."""
    speech = Speech(family, 53, 10, 5)
    expected = speech.offline()[:, : 2 * RATIO * CHUNK]
    with claimed_cuda():
        pool = pool_of(family, half=True)
        state = pool.open()
        got = torch.cat([*advance(pool, [state], [speech]), *advance(pool, [state], [speech])], dim=1)
    error = float((got - expected).norm() / expected.norm())
    assert 1e-6 < error < 2 * torch.finfo(torch.bfloat16).eps


@families
def test_solver_state_is_float32_in_half_precision(family: str) -> None:
    """Without a velocity it stays the initial noise, which bfloat16 would round."""
    speech = Speech(family, 53, 10, 5)
    flow = fused_networks(family, half=True).chunked_flow

    def still(inputs: Tensor, *_: object) -> Tensor:
        return torch.zeros_like(inputs[..., :MEL])

    with claimed_cuda(), patch.object(flow.estimator, "velocity", still):
        pool = pool_of(family, half=True)
        (got,) = advance(pool, [pool.open()], [speech])
    assert torch.equal(got[0], flow.noise[: RATIO * CHUNK])


@families
def test_estimator_keeps_norms_and_tables_in_float32(family: str) -> None:
    flow = fused_networks(family, half=True).flow
    assert flow.dtype == torch.bfloat16
    assert flow.time_tables.dtype == torch.float32
    dtypes = {name.rpartition(".")[0]: each.dtype for name, each in flow.estimator.named_parameters()}
    for name, module in flow.estimator.named_modules():
        if name in dtypes:
            expected = torch.float32 if isinstance(module, torch.nn.LayerNorm) else torch.bfloat16
            assert dtypes[name] == expected, name


@families
@pytest.mark.parametrize("frames", [[30, 30], [30, 17]])
def test_fused_vocoder_equals_the_plain_one(family: str, frames: list[int]) -> None:
    """Two streams in a window, one of which may end before it."""
    plain = networks(family).hift
    mel = a_mel(30, batch=2)
    for row, count in enumerate(frames):
        mel[row, :, count:] = 0.0
    f0 = torch.ones(2, 30)
    state = plain.start(2)
    tail = torch.zeros(2, 0 if plain.dims.causal else 960)
    plan = [plain.plan_window(0, 0, 0, count, False, final) for count, final in zip(frames, (True, True), strict=True)]
    rows = torch.tensor([[row.frames, row.known, row.emitted, row.end, row.drop, row.fade] for row in plan])
    arguments = (mel, f0, state.phase, tail, rows, state.start, hashed(family, 3, 4), True)
    expected = plain.window(*arguments)
    with claimed_cuda():
        got = fused_networks(family).hift.window(*arguments)
    for row, count in enumerate(frames):
        assert apart(got[0][row, : count * 480], expected[0][row, : count * 480]) < 1e-5
        assert apart(got[1][row, :count], expected[1][row, :count]) < 1e-4
    assert apart(got[2], expected[2]) < 1e-9
