"""The language model of CosyVoice-300M against numbers of the reference (``tools/record_v1.py``)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tests.unit.cosyvoice.bundles import GOLDEN, fullsize, tiny
from tts_worker.engine.cosyvoice.networks.dims import TransformerLmDims
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks.lm_inputs import Kind
from tts_worker.engine.cosyvoice.v1.transformer_lm import TransformerLm

SMALL = TransformerLmDims(
    text_size=12,
    hidden_size=16,
    intermediate_size=24,
    heads=2,
    text_layers=2,
    layers=2,
    text_vocab=40,
    speech_tokens=30,
    spk_embed=8,
)
OFFICIAL = TransformerLmDims(
    text_size=512,
    hidden_size=1024,
    intermediate_size=4096,
    heads=16,
    text_layers=6,
    layers=14,
    text_vocab=51866,
    speech_tokens=4096,
    spk_embed=192,
)
POSITIONS = 63
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}

modes = pytest.mark.parametrize("mode", ["zero_shot", "instruct"])


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN["cosyvoice1"] / "llm.safetensors")


@pytest.fixture(scope="module")
def lm() -> TransformerLm:
    model = TransformerLm(SMALL).eval().requires_grad_(False)
    model.load_state_dict(torch.load(tiny("cosyvoice1") / "llm.pt", weights_only=True))
    model.prepare(POSITIONS + 1)
    return model


def cache(lm: TransformerLm) -> SlotPool:
    dims = lm.dims
    return SlotPool(dims.cache_layers, 3, dims.kv_heads, POSITIONS, dims.head_dim, checked=True)


def items(golden: dict[str, Tensor], mode: str) -> tuple[Tensor, Tensor]:
    """Ids and kinds ``[1, T]`` of the inputs before the first draw."""
    sequence = [(Kind.SOS, 0), *[(Kind.SPEAKER, 0)] * (mode == "zero_shot")]
    sequence += [(Kind.TEXT, i) for i in golden[f"{mode}.text"][0].tolist()]
    sequence += [(Kind.TASK, 0), *((Kind.SPEECH, i) for i in golden[f"{mode}.speech"][0].tolist())]
    return torch.tensor([[i for _, i in sequence]]), torch.tensor([[kind for kind, _ in sequence]])


def speakers(lm: TransformerLm, golden: dict[str, Tensor], mode: str) -> Tensor:
    table = torch.zeros(3, lm.dims.hidden_size)
    if mode == "zero_shot":
        table[:] = lm.speaker(golden["zero_shot.embedding"])
    return table


def assert_scores(actual: Tensor, golden: dict[str, Tensor], mode: str, step: int) -> None:
    torch.testing.assert_close(actual.log_softmax(dim=-1), golden[f"{mode}.scores"][step], **TOLERANCE)


def test_official_weights_have_the_keys_of_the_network() -> None:
    with torch.device("meta"):
        keys = TransformerLm(OFFICIAL).state_dict()
    assert {key: list(value.shape) for key, value in keys.items()} == fullsize()["cosyvoice1/llm"]


@modes
@pytest.mark.parametrize("pieces", [[99], [1, 2, 3, 1, 99]])
def test_scores_of_each_draw_match_the_reference(
    lm: TransformerLm, golden: dict[str, Tensor], mode: str, pieces: list[int]
) -> None:
    pool = cache(lm)
    slot = torch.tensor([1])
    table = speakers(lm, golden, mode)
    ids, kinds = items(golden, mode)
    for part in torch.arange(ids.shape[1]).split([min(n, ids.shape[1] - sum(pieces[:-1])) for n in pieces]):
        context = int(part[-1]) + 1
        scores = lm.score_items(ids[:, part], kinds[:, part], slot * len(part), slot, pool, context, table)
    assert_scores(scores[0], golden, mode, 0)
    drawn = golden[f"{mode}.drawn"].tolist()
    for step, token in enumerate(drawn, 1):
        end = ids.shape[1] + step
        position = torch.tensor([[end - 1]])
        scores = lm.step_logits(lm.speech_table[token][None], position, torch.tensor([end]), slot, pool, end)
        if step < len(golden[f"{mode}.scores"]):
            assert_scores(scores[0], golden, mode, step)
    assert len(drawn) > 5


def test_sequences_of_both_modes_share_a_pass(lm: TransformerLm, golden: dict[str, Tensor]) -> None:
    pool = cache(lm)
    rows = [items(golden, mode) for mode in ("zero_shot", "instruct")]
    longest = max(ids.shape[1] for ids, _ in rows)
    ids, kinds = (
        torch.cat([F.pad(row[which], (0, longest - row[which].shape[1])) for row in rows]) for which in range(2)
    )
    new = torch.tensor([row[0].shape[1] for row in rows])
    table = speakers(lm, golden, "zero_shot")
    slots = torch.tensor([2, 0])
    table[0] = 0.0
    scores = lm.score_items(ids, kinds, new, slots, pool, longest + 3, table)
    steps = torch.tensor([golden[f"{mode}.drawn"][0] for mode in ("zero_shot", "instruct")])
    after = lm.step_logits(lm.speech_table[steps], new[:, None], new + 1, slots, pool, longest + 3)
    for row, mode in enumerate(("zero_shot", "instruct")):
        assert_scores(scores[row], golden, mode, 0)
        assert_scores(after[row], golden, mode, 1)
