"""Preallocated memory: what was written comes back, in order, to its owner, and nothing else does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cosyvoice.networks import noise
from tts_worker.engine.cosyvoice.networks.kv_cache import NoPast, PagedMemory, SlotPool, SlotView
from tts_worker.errors import OutOfMemory

LAYERS = 2
HEADS = 2
DIM = 3


def append(pool: SlotPool, slot: int, kv: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Append ``kv [2, T, heads, dim]`` to a slot, and read layer 1."""
    begin = int(pool.lengths[slot])
    view = SlotView(pool, slot, begin, kv.shape[1], context, torch.cat([kv[0], kv[1]], dim=1))
    pool.lengths[slot] += kv.shape[1]
    return view.keys_values(1)


@settings(deadline=None, max_examples=30)
@given(
    appends=st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 3), min_size=1), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_slot_returns_its_tokens_in_order(appends: list[dict[int, int]], seed: int) -> None:
    pool = SlotPool(LAYERS, 4, HEADS, 18, DIM, checked=True)
    expected = torch.zeros(2, 4, HEADS, 18, DIM)
    for n, batch in enumerate(appends):
        for slot, count in batch.items():
            begin = int(pool.lengths[slot])
            new = noise(2, count, HEADS, DIM, seed=1000 * seed + 10 * n + slot)
            expected[:, slot, :, begin : begin + count] = new.transpose(1, 2)
            read = torch.stack(append(pool, slot, new, 18))
            assert torch.equal(read[:, 0], expected[:, slot])
        slots = torch.tensor(list(batch))
        assert torch.equal(torch.stack(pool.gather(1, slots, pool.lengths[slots], 18)), expected[:, slots])


def test_reading_unwritten_memory_gives_nan() -> None:
    pool = SlotPool(LAYERS, 2, HEADS, 4, DIM, checked=True)
    pool.lengths[0] = 2  # a lie
    one = torch.tensor([0])
    keys, _ = append(pool, 0, noise(2, 1, HEADS, DIM), 4)
    assert keys.isnan().any()
    keys, _ = pool.gather(1, one, pool.lengths[one], 4)
    assert keys.isnan().any()
    memory = PagedMemory(1, 1, HEADS, DIM, 2, [(3, 2)], pages=3, slots=1, checked=True)
    page = torch.tensor([[2]])
    _, values = memory.view(one, torch.tensor([[1, 2]]), page).keys_values(0, noise(2, 1, HEADS, 2, DIM))
    assert values[:, :, :2].isnan().all()  # page 1 was never written
    assert values[:, :, 2:].isfinite().all()
    assert memory.view(one, page, page).left(0, noise(1, 3, 4)).isnan().any()  # nor the slot's context


def test_writing_beyond_a_slot_raises() -> None:
    pool = SlotPool(LAYERS, 2, HEADS, 4, DIM)
    pool.lengths[1] = 4
    with pytest.raises(RuntimeError):
        append(pool, 1, noise(2, 2, HEADS, DIM), 4)


def test_reset_clears_a_slot() -> None:
    pool = SlotPool(1, 2, HEADS, 4, DIM, checked=True)
    pool.data[:, :, :, :, 0] = 1.0
    pool.lengths += 1
    pool.reset(torch.tensor([0]))
    assert pool.lengths.tolist() == [0, 1]
    assert pool.data[:, :, 0].isnan().all()
    assert pool.data[:, :, 1, :, 0].isfinite().all()


def test_erased_positions_are_zero() -> None:
    pool = SlotPool(LAYERS, 2, HEADS, 6, DIM)
    pool.data.fill_(torch.nan)
    pool.erase(1, 2, 4)
    assert pool.data[:, :, 1, :, 2:4].eq(0.0).all()
    assert int(pool.data.isfinite().sum()) == LAYERS * 2 * HEADS * 2 * DIM


@settings(deadline=None, max_examples=25)
@given(order=st.permutations(range(1, 7)), branches=st.integers(1, 2), seed=st.integers(0, 99))
def test_pages_follow_the_table_order(order: list[int], branches: int, seed: int) -> None:
    memory = PagedMemory(3, 2, HEADS, DIM, 2, [], pages=7, slots=2, checked=True)
    rows = slice(1, 1 + branches)
    tables = [order[:3], order[3:]]  # two utterances, three chunks each
    new = noise(3, 2, branches * 2, HEADS, 2, DIM, seed=seed)  # [chunk, k or v, R*utterances, heads, page, dim]
    for chunk in range(3):
        table = torch.tensor([pages[: chunk + 1] for pages in tables])
        view = memory.view(torch.tensor([0, 1]), table, table[:, -1:], rows)
        keys, values = view.keys_values(1, new[chunk])
    for which, got in enumerate((keys, values)):
        assert torch.equal(got, torch.cat([new[chunk, which] for chunk in range(3)], dim=2))


def test_short_page_tables_are_padded_and_pages_shared() -> None:
    memory = PagedMemory(1, 1, HEADS, DIM, 2, [(2, 1)], pages=4, slots=3, checked=True)
    voice = torch.tensor([0])
    prompt = torch.tensor([[1]])
    memory.reset(voice)
    given = noise(2, 1, HEADS, 2, DIM)
    view = memory.view(voice, prompt, prompt)
    view.keys_values(0, given)
    view.left(0, torch.full((1, 2, 3), 7.0))
    for slot in (1, 2):
        memory.copy_tails(0, slot)
    pair = torch.tensor([1, 2])
    table = torch.tensor([[1, 2], [1, 3]])
    more = noise(2, 2, HEADS, 2, DIM, seed=1)
    view = memory.view(pair, table, table[:, -1:])
    keys, _ = view.keys_values(0, more)
    assert torch.equal(keys, torch.cat([given[0].expand(2, -1, -1, -1), more[0]], dim=2))
    assert torch.equal(view.left(0, torch.zeros(2, 2, 1))[:, :, 0], torch.full((2, 2), 7.0))
    view = memory.view(voice, torch.tensor([[1, 0]]), torch.tensor([[2]]))
    assert torch.equal(view.keys_values(0, given)[0][:, :, 2:], torch.zeros(1, HEADS, 2, DIM))


def test_missing_past_is_zero() -> None:
    memory = NoPast([(2, 3)])
    x = noise(1, 2, 4)
    assert torch.equal(memory.left(0, x), torch.cat([torch.zeros(1, 2, 3), x], dim=2))
    kv = noise(2, 1, 2, 4, DIM)
    assert all(map(torch.equal, memory.keys_values(0, kv), kv))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_keeps_its_dtype(dtype: torch.dtype) -> None:
    memory = PagedMemory(1, 1, HEADS, DIM, 2, [(2, 1)], pages=2, slots=1, dtype=dtype)
    index = torch.tensor([[1]])
    view = memory.view(torch.tensor([0]), index, index)
    keys, _ = view.keys_values(0, noise(2, 1, HEADS, 2, DIM))
    assert (keys.dtype, memory.data.dtype) == (torch.float32, dtype)
    assert view.left(0, noise(1, 2, 2)).dtype == torch.float32


def test_memory_that_cannot_be_reserved_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match=r"1000000\.0 GB .*memory_gb"):
        PagedMemory(1, 1, 1, 1, 1, [], pages=125 * 10**12, slots=1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_committed_on_first_use(dtype: torch.dtype) -> None:
    """A server reserves gigabytes for what its callers may say."""

    def resident_mb() -> float:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6

    before_mb = resident_mb()
    memory = PagedMemory(3, 4, 4, 64, 50, [(64, 6)], pages=2048, slots=4, dtype=dtype)
    assert memory.data.nbytes > 1e9
    assert memory.data.dtype is dtype
    assert resident_mb() - before_mb < 100.0
    memory.data[:, :, :, :, 5] = 1.0
    assert float(memory.data[1, 3, 3, 2, 4:7].float().sum()) == 50 * 64, "zeros beside it"
