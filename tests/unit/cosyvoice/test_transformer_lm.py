"""The language model of CosyVoice-300M against numbers of the reference (``tools/record_first_generation.py``)."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.unit.cosyvoice.bundles import DATA, fullsize
from tts_worker.engine.cosyvoice.kv_cache import NoPast
from tts_worker.engine.cosyvoice.models.dims import TransformerLmDims
from tts_worker.engine.cosyvoice.models.transformer_lm import TransformerLm

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
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}

modes = pytest.mark.parametrize("mode", ["zero_shot", "instruct"])


class GrowingPast:
    """Keys and values of all positions so far."""

    def __init__(self) -> None:
        self._sites: dict[int, Tensor] = {}

    def left(self, site: int, x: Tensor) -> Tensor:
        raise NotImplementedError  # the network has no convolution

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        past = self._sites.get(site)
        self._sites[site] = kv if past is None else torch.cat([past, kv], dim=3)
        return self._sites[site][0], self._sites[site][1]


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(DATA / "golden" / "v1" / "llm.safetensors")


@pytest.fixture(scope="module")
def lm(golden: dict[str, Tensor]) -> TransformerLm:
    model = TransformerLm(SMALL).eval().requires_grad_(False)
    weights = {key.removeprefix("weights."): value for key, value in golden.items() if key.startswith("weights.")}
    model.load_state_dict(weights)
    model.prepare(64)
    return model


def encode(lm: TransformerLm, ids: Tensor) -> Tensor:
    return lm.encode_text(ids, torch.zeros(1, dtype=torch.long), ids.shape[1], NoPast([]))


def test_official_weights_have_the_keys_of_the_network() -> None:
    with torch.device("meta"):
        keys = TransformerLm(OFFICIAL).state_dict()
    assert {key: list(value.shape) for key, value in keys.items()} == fullsize()["cosyvoice1/llm"]


@modes
def test_encoded_text_matches_the_reference(lm: TransformerLm, golden: dict[str, Tensor], mode: str) -> None:
    torch.testing.assert_close(encode(lm, golden[f"{mode}.text"]), golden[f"{mode}.encoded"], **TOLERANCE)


def test_text_can_be_encoded_in_parts(lm: TransformerLm, golden: dict[str, Tensor]) -> None:
    ids = golden["zero_shot.text"]
    past = GrowingPast()
    parts = [
        lm.encode_text(ids[:, start : start + 3], torch.tensor([start]), min(start + 3, ids.shape[1]), past)
        for start in range(0, ids.shape[1], 3)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), golden["zero_shot.encoded"], **TOLERANCE)


@modes
def test_scores_of_each_draw_match_the_reference(lm: TransformerLm, golden: dict[str, Tensor], mode: str) -> None:
    expected = golden[f"{mode}.scores"]  # with the end of speech masked while the speech is too short
    embedding = golden[f"{mode}.embedding"]
    text = encode(lm, golden[f"{mode}.text"])
    x = lm.prompt(text, embedding if len(embedding) else None, golden[f"{mode}.speech"])
    past = GrowingPast()
    length = 0
    for step, row in enumerate(expected):
        hidden = lm.llm(x, torch.tensor([length]), length + x.shape[1], past)
        logp = lm.scores(hidden[0, -1]).log_softmax(dim=-1)
        torch.testing.assert_close(logp[: SMALL.speech_tokens], row[: SMALL.speech_tokens], **TOLERANCE)
        length += x.shape[1]
        if step < len(golden[f"{mode}.drawn"]):
            x = lm.speech_embedding(golden[f"{mode}.drawn"][step].reshape(1, 1))
    assert len(expected) > 5
