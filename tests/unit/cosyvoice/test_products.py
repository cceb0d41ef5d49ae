"""Products by oneDNN: the numbers of PyTorch's, only where they are allowed and faster."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.cosyvoice.networks import FAMILIES, apart, noise
from tests.unit.cosyvoice.test_flow import LIMIT, Speech, advance, pool_of
from tts_worker.engine.cosyvoice.networks import blocks
from tts_worker.engine.cosyvoice.networks import linear as linear_module
from tts_worker.engine.cosyvoice.networks.blocks import attention
from tts_worker.engine.cosyvoice.networks.linear import Linear, linear, onednn_product, pointwise, store_by_columns

EPSILON = torch.finfo(torch.float32).eps

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN for this processor"
)


def _forget() -> None:
    onednn_product.cache_clear()
    blocks._product.cache_clear()


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test choose the processor."""
    _forget()
    yield monkeypatch
    monkeypatch.undo()
    _forget()


def _be_amd(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(linear_module, "is_amd", lambda: True)
    patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


def use_onednn(patch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Go on as on a processor of AMD with AVX-512. Returns the shapes of the rows of all products by oneDNN to come."""
    _be_amd(patch)
    _forget()
    product = onednn_product()
    assert product is not None
    shapes: list[tuple[int, ...]] = []

    def record(x: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
        assert weight.is_contiguous() or weight.t().is_contiguous()  # oneDNN takes a thousand times as long for others
        shapes.append(tuple(x.shape))
        return product(x, weight, *arguments)

    patch.setattr(linear_module, "onednn_product", lambda: record)
    patch.setattr(blocks, "_product", lambda: record)
    return shapes


@pytest.fixture
def amd(processor: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    return use_onednn(processor)


@needs_onednn
@torch.inference_mode()
@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=3).filter(lambda shape: torch.Size(shape).numel() > 1),
    sizes=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    has_bias=st.booleans(),
    is_by_columns=st.booleans(),
    seed=st.integers(0, 99),
)
def test_product_is_exact_up_to_rounding(
    rows: list[int], sizes: tuple[int, int], has_bias: bool, is_by_columns: bool, seed: int
) -> None:
    product = torch.ops.mkldnn._linear_pointwise.default
    width, outputs = sizes
    x = noise(*rows, width, seed=seed)
    weight = noise(outputs, width, seed=seed + 1)
    bias = noise(outputs, seed=seed + 2) if has_bias else None
    result = product(x, weight.t().contiguous().t() if is_by_columns else weight, bias, "none", [], "")
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    # Each of the I additions rounds once, by at most half a unit of the sum of magnitudes.
    magnitude = F.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())
    assert ((result - exact).abs() <= (width + 1) * EPSILON * magnitude).all()


@needs_onednn
@torch.inference_mode()
def test_rows_go_to_onednn_and_a_single_row_does_not(amd: list[tuple[int, ...]]) -> None:
    layer = Linear(6, 5)
    rows = noise(2, 3, 6)
    torch.testing.assert_close(layer(rows), F.linear(rows, layer.weight, layer.bias))
    layer(rows[:1, :1])
    layer(rows[:0])
    assert amd == [(2, 3, 6)]


@needs_onednn
@torch.inference_mode()
def test_convolution_of_width_1_is_a_product(amd: list[tuple[int, ...]]) -> None:
    conv, x = torch.nn.Conv1d(6, 5, 1), noise(2, 6, 4)
    torch.testing.assert_close(pointwise(conv, x), conv(x))
    assert amd == [(2, 4, 6)]


@needs_onednn
def test_training_keeps_operators_with_a_gradient(amd: list[tuple[int, ...]]) -> None:
    layer = Linear(6, 5)
    layer(noise(4, 6)).sum().backward()
    assert layer.weight.grad is not None
    assert amd == []


@needs_onednn
@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_keep_their_product(amd: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    linear(noise(4, 6).to(dtype), noise(5, 6).to(dtype))
    assert amd == []


@needs_onednn
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")  # the exporter of ONNX calls it
@torch.no_grad()
def test_exported_layer_has_standard_operators(amd: list[tuple[int, ...]]) -> None:
    traced = torch.jit.trace(Linear(6, 5), noise(4, 6), check_trace=False)  # type: ignore[attr-defined,no-untyped-call]
    assert "mkldnn" not in str(traced.graph)
    assert amd == []


def test_other_processors_keep_mkl(processor: pytest.MonkeyPatch) -> None:
    processor.setattr(linear_module, "is_amd", lambda: False)
    assert onednn_product() is None


def test_products_of_all_processors_are_mkls(processor: pytest.MonkeyPatch) -> None:
    processor.setattr(linear_module, "is_amd", lambda: True)
    processor.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")  # ATEN_CPU_CAPABILITY=default
    assert onednn_product() is None


def test_pytorch_without_the_operator_keeps_mkl(processor: pytest.MonkeyPatch) -> None:
    _be_amd(processor)
    processor.setattr(torch.ops, "mkldnn", SimpleNamespace())
    assert onednn_product() is None


def test_operator_with_wrong_numbers_is_not_used(processor: pytest.MonkeyPatch) -> None:
    _be_amd(processor)
    operator = SimpleNamespace(default=lambda x, weight, *arguments: x @ weight.t())  # ignores the bias
    processor.setattr(torch.ops, "mkldnn", SimpleNamespace(_linear_pointwise=operator))
    assert onednn_product() is None


def test_weights_by_columns_are_the_same_numbers() -> None:
    layer = Linear(6, 5)
    before = layer.weight.detach().clone()
    store_by_columns(layer)
    assert torch.equal(layer.weight, before)
    assert layer.weight.t().is_contiguous()


@needs_onednn
@torch.inference_mode()
@pytest.mark.parametrize("mask", ["none", "shown", "added", "one for each"])
def test_attention_by_heads_equals_pytorchs(
    amd: list[tuple[int, ...]], processor: pytest.MonkeyPatch, mask: str
) -> None:
    processor.setattr(blocks, "_MIN_SCORES", 0)
    q, k, v = noise(4, 3, 5, 8), noise(4, 3, 7, 8, seed=1), noise(4, 3, 7, 8, seed=2)
    shown = torch.arange(7) <= torch.arange(2, 7)[:, None]  # [5, 7]
    masks = {
        "none": None,
        "shown": shown[None, None],
        "added": torch.zeros(1, 1, 5, 7).masked_fill(~shown, -torch.inf),
        "one for each": torch.stack([shown, shown | True, shown, shown.roll(1, 1)])[:, None],
    }
    expected = F.scaled_dot_product_attention(q, k, v, masks[mask]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(q, k, v, masks[mask]), expected)
    assert len(amd) == 2 * 4 * 3


@needs_onednn
@torch.inference_mode()
def test_heads_next_to_each_other_are_taken_apart(amd: list[tuple[int, ...]], processor: pytest.MonkeyPatch) -> None:
    processor.setattr(blocks, "_MIN_SCORES", 0)
    q, k, v = noise(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)  # rows of a key have those of other heads between them
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(q, k, v, None), expected)


@needs_onednn
@torch.inference_mode()
def test_attention_over_few_keys_stays_with_pytorch(amd: list[tuple[int, ...]]) -> None:
    attention(noise(1, 2, 5, 8), noise(1, 2, 7, 8), noise(1, 2, 7, 8), None)
    assert amd == []


@needs_onednn
@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_streaming_by_onednn_equals_offline_by_mkl(processor: pytest.MonkeyPatch, family: str) -> None:
    processor.setattr(linear_module, "is_amd", lambda: False)
    speeches = [Speech(family, 60, 30, 1), Speech(family, 60, 0, 2)]
    expected = [speech.offline() for speech in speeches]
    shapes = use_onednn(processor)
    processor.setattr(blocks, "_MIN_SCORES", 0)
    pool = pool_of(family)
    states = [pool.open() for _ in speeches]
    chunks = [advance(pool, states, speeches) for _ in range(3)]
    for i, mel in enumerate(expected):
        assert apart(torch.cat([chunk[i] for chunk in chunks], dim=1), mel) < LIMIT
    assert shapes
