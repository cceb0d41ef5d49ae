"""The decode step is one graph for ``torch.compile``: nothing in it depends on values or leaves PyTorch."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.unit.cosyvoice.networks import FAMILIES, networks
from tts_worker.engine.cosyvoice.backends.graphs import EagerRunner
from tts_worker.engine.cosyvoice.backends.streams import HostStream
from tts_worker.engine.cosyvoice.decoder import Decoder, DecodeRow


@pytest.mark.parametrize("family", FAMILIES)
def test_decode_step_traces_without_a_break(family: str) -> None:
    runner = EagerRunner(fixed_shapes=True)
    decoder = Decoder(networks(family), slots=2, max_tokens=128, stream=HostStream(), runner=runner)
    rows = [DecodeRow(slot, networks(family).config.lm.eos_id, 0, 9) for slot in (decoder.acquire(), decoder.acquire())]
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's compiler
        (plan,) = decoder._plan_draws(rows, 1)
        step = decoder._decode_step(128)
        state = (decoder._remaining, decoder._draws.recent, decoder._draws.steps, decoder._pool.lengths)
        before = [each.clone() for each in state]
        expected = step(plan)[0]
        after = [each.clone() for each in state]
        for each, value in zip(state, before, strict=True):
            each.copy_(value)
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        assert torch.equal(compiled(plan)[0], expected)
        assert all(map(torch.equal, state, after))
