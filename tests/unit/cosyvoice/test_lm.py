"""The speech language model: one call for prefill, later text and decode; a crowd equals its members alone."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.cosyvoice.bundles import fullsize
from tests.unit.cosyvoice.networks import FAMILIES, apart, full_config, ids, networks
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM

LIMIT = 2e-5


def a_pool(family: str, slots: int, tokens: int = 64) -> SlotPool:
    dims = networks(family).config.lm
    return SlotPool(dims.layers, slots, dims.kv_heads, tokens, dims.head_dim, checked=True)


def inputs(family: str, count: int, seed: int = 0) -> Tensor:
    """``[1, count, D]``."""
    lm = networks(family).lm
    return lm.embed_speech(ids(count, networks(family).config.lm.speech_rows, seed))


def feed(family: str, pool: SlotPool, slot: int, x: Tensor) -> Tensor:
    """All of ``x [1, T, D]`` into one slot: scores ``[1, V]``."""
    slots = torch.tensor([slot])
    context = int(pool.lengths[slot]) + x.shape[1]
    with torch.inference_mode():
        return networks(family).lm(x, torch.tensor([x.shape[1]]), slots, pool, context)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_shapes_are_the_official_ones(family: str) -> None:
    with torch.device("meta"):
        lm = SpeechLM(full_config(family).lm)
    assert {key: list(value.shape) for key, value in lm.state_dict().items()} == fullsize()[f"{family}/llm"]
    assert lm.get_submodule("llm.model.lm_head").weight is lm.body.embed_tokens.weight


@pytest.mark.parametrize("family", FAMILIES)
def test_step_weights_are_stored_by_columns(family: str) -> None:
    lm = networks(family).lm
    # The embeddings are read by rows.
    products = [m for m in (*lm.body.layers.modules(), lm.llm_decoder) if isinstance(m, torch.nn.Linear)]
    assert len(products) == 4 * lm.dims.layers + 1
    assert all(product.weight.t().is_contiguous() for product in products)
    assert all(table.weight.is_contiguous() for table in (lm.body.embed_tokens, lm.speech_embedding))


@settings(deadline=None, max_examples=12)
@given(family=st.sampled_from(FAMILIES), cuts=st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_input_splits_do_not_change_scores(family: str, cuts: list[int]) -> None:
    x = inputs(family, sum(cuts), seed=len(cuts))
    pool = a_pool(family, 2)
    whole = feed(family, pool, 0, x)
    for piece in x.split(cuts, dim=1):
        pieced = feed(family, pool, 1, piece)
    assert apart(pieced, whole) < LIMIT


@settings(deadline=None, max_examples=8)
@given(
    family=st.sampled_from(FAMILIES),
    turns=st.lists(st.dictionaries(st.integers(0, 4), st.integers(1, 7), min_size=1), min_size=1, max_size=4),
)
def test_batch_equals_single_sequences(family: str, turns: list[dict[int, int]]) -> None:
    crowd = a_pool(family, 5)
    alone = a_pool(family, 5)
    lm = networks(family).lm
    for n, turn in enumerate(turns):
        given_to = {slot: inputs(family, count, seed=10 * n + slot) for slot, count in turn.items()}
        span = max(turn.values())
        x = torch.cat([torch.nn.functional.pad(v, (0, 0, 0, span - v.shape[1])) for v in given_to.values()])
        slots = torch.tensor(list(turn))
        new = torch.tensor(list(turn.values()))
        # The context may be longer than anyone needs: a graph has one for many.
        with torch.inference_mode():
            together = lm(x, new, slots, crowd, 40)
        for row, (slot, vectors) in enumerate(given_to.items()):
            assert apart(together[row : row + 1], feed(family, alone, slot, vectors)) < LIMIT
    assert torch.equal(crowd.lengths, alone.lengths)


@pytest.mark.parametrize("family", FAMILIES)
def test_reused_slot_is_independent(family: str) -> None:
    pool = a_pool(family, 1)
    first = feed(family, pool, 0, inputs(family, 9))
    pool.reset(torch.tensor([0]))
    feed(family, pool, 0, inputs(family, 20, seed=1))
    pool.reset(torch.tensor([0]))
    assert torch.equal(feed(family, pool, 0, inputs(family, 9)), first)


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_stays_close(family: str) -> None:
    lm = networks(family).lm
    dims = networks(family).config.lm
    small = copy.deepcopy(lm).to(torch.bfloat16)
    pool = SlotPool(dims.layers, 1, dims.kv_heads, 16, dims.head_dim, dtype=torch.bfloat16, checked=True)
    x = inputs(family, 12)
    with torch.inference_mode():
        scores = small(x.bfloat16(), torch.tensor([12]), torch.tensor([0]), pool, 12)
    assert scores.dtype == torch.float32  # what is drawn from is never rounded
    assert apart(scores, feed(family, a_pool(family, 1), 0, x)) < 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_special_rows_are_one_vector_each(family: str) -> None:
    lm = networks(family).lm
    dims = networks(family).config.lm
    rows = [lm.embed_special(row) for row in (dims.sos_row, dims.task_row)]
    assert [tuple(row.shape) for row in rows] == [(1, dims.hidden_size)] * 2
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(lm.embed_text(torch.tensor([3]))[0], lm.body.embed_tokens.weight[3])


class Calls(TorchDispatchMode):
    """Counts what is asked of PyTorch, views and all: each call lets go of Python's lock and waits for it."""

    count = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        self.count += not func.__name__.startswith("resolve_")  # part of ``tolist``, which keeps the lock
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_decode_step_calls_few_operators(family: str) -> None:
    dims = networks(family).config.lm
    slots = torch.tensor([0])
    one = torch.tensor([1])
    pool = SlotPool(dims.layers, 1, dims.kv_heads, 64, dims.head_dim)
    x = inputs(family, 1)
    with torch.inference_mode():
        networks(family).lm(x, one, slots, pool, 1)  # what is kept for good is made
        with Calls() as calls:
            networks(family).lm(x, one, slots, pool, 2)
    assert calls.count <= 23 * dims.layers + 34
