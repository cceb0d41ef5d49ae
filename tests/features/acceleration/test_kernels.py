"""Fused operators: the composition without CUDA, the kernel with it, and a fallback that says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes.cuda.launches import count, fake_cuda
from tests.unit.cosyvoice.networks import full_config, networks, noise
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.execution.settings import CompileMode, StreamingConfig
from tts_worker.engine.cosyvoice.ops import FusedOperator, audio, language_model
from tts_worker.errors import DeviceLost
from tts_worker.features.acceleration import accelerator, kernels
from tts_worker.features.acceleration.accelerator import missing_packages, use_kernels
from tts_worker.features.acceleration.kernels import Case
from tts_worker.features.acceleration.kernels.language_model_cases import language_model_cases


def add_scaled(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """Adds in place and returns the sum of the squares."""
    y.add_(x * scale)
    return (y * y).sum(-1)


@pytest.fixture
def operator() -> Iterator[FusedOperator[..., Tensor]]:
    decorate = ops.fused_operator("a.module", mutates={"y"})
    yield decorate(add_scaled)
    del ops.OPERATORS["add_scaled"]


def with_kernel(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    monkeypatch.setattr(ops, "import_module", lambda name: SimpleNamespace(add_scaled=kernel))


def inputs() -> tuple[Tensor, Tensor, float]:
    return torch.arange(6.0).view(2, 3), torch.ones(2, 3), 0.5


def test_the_composition_runs_without_cuda(operator: FusedOperator[..., Tensor]) -> None:
    x, y, scale = inputs()

    assert operator(x, y, scale).tolist() == [7.25, 27.5]
    assert y[1].tolist() == [2.5, 3.0, 3.5]


def test_a_fused_operator_is_one_operator_on_cuda(operator: FusedOperator[..., Tensor]) -> None:
    with fake_cuda():
        x = torch.zeros(4, 8)
        out, counter = count(operator, x, torch.zeros(4, 8), 0.5)
        assert out.shape == (4,)
        assert counter.operators == {"add_scaled": 1}

        operator.fault = "it differs"
        _, counter = count(operator, x, torch.zeros(4, 8), 0.5)
        assert "add_scaled" not in counter.operators
    with fake_cuda(fused=False):
        assert not operator.is_fused(torch.zeros(1))


def test_a_correct_kernel_passes_the_check(
    operator: FusedOperator[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernel(monkeypatch, add_scaled)
    x, y, scale = inputs()

    assert kernels.check([Case(operator, (x, y, scale), 0.0)]) == {}
    assert y.eq(1.0).all(), "the arguments of a check are copied"


class OnSecondGpu(Tensor):
    """A tensor that claims to be on ``cuda:1``."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def test_a_kernel_is_launched_on_the_device_of_its_tensors(
    operator: FusedOperator[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton launches on the current device, which cannot read the memory of another one."""
    current: list[object] = []

    @contextmanager
    def device_of(tensor: object) -> Iterator[None]:
        current.append(tensor)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    during: list[object] = []
    with_kernel(monkeypatch, lambda x, y, scale: during.extend(current))
    x, y, scale = inputs()
    on_gpu = x.as_subclass(OnSecondGpu)

    operator.launch(on_gpu, y, scale)
    assert during == [on_gpu]
    operator.launch(x, y, scale)
    assert len(during) == 1, "without CUDA there is no device to choose"


def _raises(x: Tensor, y: Tensor, scale: float) -> Tensor:
    raise RuntimeError("no kernel image is available")


def _leaves_the_argument(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return add_scaled(x, y.clone(), scale)


def _is_not_finite(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return add_scaled(x, y, scale) / 0.0


def _has_another_shape(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return add_scaled(x, y, scale)[:1]


def _is_inexact(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return add_scaled(x, y, scale) * 1.001


@pytest.mark.parametrize(
    "kernel", [_raises, _leaves_the_argument, _is_not_finite, _has_another_shape, _is_inexact], ids=lambda k: k.__name__
)
def test_a_faulty_kernel_is_switched_off(
    operator: FusedOperator[..., Tensor], kernel: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_kernel(monkeypatch, kernel)
    case = Case(operator, inputs(), 1e-4)

    assert [*kernels.check([case, case])] == ["add_scaled"]
    assert [*kernels.check([case])] == ["add_scaled"], "another engine of the device hears of it"
    assert len(caplog.messages) == 1
    assert "add_scaled is not used" in caplog.text


def test_missing_triton_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    kernels.triton_problem.cache_clear()
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)

    assert not kernels.enable()
    assert "triton is not installed" in caplog.text
    kernels.triton_problem.cache_clear()


class _Driver:
    """Triton's, on a machine without a compiler."""

    @property
    def active(self) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable\nand more")


def test_triton_without_a_compiler_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before anything is launched: otherwise each kernel fails its check with the same words."""
    kernels.triton_problem.cache_clear()
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(kernels, "import_module", lambda name: SimpleNamespace(driver=_Driver()))

    assert not kernels.enable()
    (missing,) = missing_packages("cosyvoice3", torch.device("cuda"), StreamingConfig())

    assert len(caplog.messages) == 1
    for text in (caplog.text, missing):
        assert "RuntimeError: Failed to find C compiler. Please specify via CC environment variable)" in text
        assert "python3-dev" in text
        assert "TRITON_CACHE_DIR" in text
    kernels.triton_problem.cache_clear()


@pytest.mark.parametrize(
    ("family", "device", "config", "is_degraded"),
    [
        ("cosyvoice3", "cuda", StreamingConfig(), True),
        ("cosyvoice1", "cuda:1", StreamingConfig(graphs=True), True),  # it has no fused kernels, but would be compiled
        ("cosyvoice1", "cuda", StreamingConfig(graphs=False), False),
        ("cosyvoice3", "cuda", StreamingConfig(kernels=False, compile=CompileMode.OFF), False),
        ("cosyvoice3", "cpu", StreamingConfig(), False),
    ],
)
def test_engine_without_triton_is_degraded(
    family: str, device: str, config: StreamingConfig, is_degraded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = StreamingConfig(pages=12, lm_tokens=128)
    part = Components.build(networks("cosyvoice3"), None, {}, small)  # type: ignore[arg-type]
    assert part.degraded == ()
    for is_installed in (True, False):
        problem = "" if is_installed else "triton is not installed"
        monkeypatch.setattr(kernels, "triton_problem", lambda problem=problem: problem)
        part.missing = missing_packages(family, torch.device(device), config)
        assert any("triton is not installed" in reason for reason in part.degraded) == (
            is_degraded and not is_installed
        )


def tf32(x: Tensor) -> Tensor:
    """Round to ten bits of mantissa."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def triple_product(a: Tensor, b: Tensor) -> Tensor:
    """A float32 product by three products of TensorFloat-32."""
    a_high, b_high = tf32(a), tf32(b)
    a_low, b_low = tf32(a - a_high), tf32(b - b_high)
    return (a_high @ b_low + a_low @ b_high) + a_high @ b_high


def attention_on_tensor_cores(
    queries: Tensor, cache: Tensor, layer: int, slots: Tensor, positions: Tensor, ends: Tensor, splits: int
) -> Tensor:
    """``slot_attention`` in float32 as PyTorch computes it on CUDA: CUTLASS multiplies on tensor cores."""
    batch, span = positions.shape
    heads, dim = cache.shape[3], cache.shape[5]
    at = torch.arange(cache.shape[4])
    keys, values = cache[layer].index_select(1, slots)
    visible = ((at <= positions[:, :, None]) & (at < ends[:, None, None]))[:, None, :, None]  # [B, 1, T, 1, P]
    query = queries.view(batch, span, heads, -1, dim).transpose(1, 2)  # [B, K, T, G, d]
    scores = triple_product(query * dim**-0.5, keys[:, :, None].transpose(3, 4)).masked_fill(~visible, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    out = triple_product(weights, values[:, :, None]) / weights.sum(-1, keepdim=True)
    return out.transpose(1, 2).reshape(batch * span, -1)


@pytest.mark.usefixtures("clean_operators")
def test_check_of_attention_allows_tensor_cores_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the kernel is compared with such an attention, which is no error of either."""
    config = full_config("cosyvoice3")
    found = language_model_cases(config.lm, config.sampling, torch.float32, torch.device("cpu"))
    attentions = [case for case in found if case.operator is language_model.slot_attention]
    namespace = SimpleNamespace(slot_attention=attention_on_tensor_cores)
    monkeypatch.setattr(ops, "import_module", lambda name: namespace)

    assert len(attentions) == 5
    assert kernels.check(attentions) == {}


@pytest.fixture
def clean_operators() -> Iterator[None]:
    yield
    ops.disable()
    for operator in ops.OPERATORS.values():
        operator.fault = ""


@pytest.mark.usefixtures("clean_operators")
def test_engine_checks_kernels_on_its_device(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libcuda.so.1 is missing")

    monkeypatch.setattr(kernels, "triton_problem", str)
    monkeypatch.setattr(ops, "import_module", broken)
    device = torch.device("cpu")
    assert not use_kernels(networks("cosyvoice3"), device, StreamingConfig(kernels=False))

    faults = use_kernels(networks("cosyvoice3"), device, StreamingConfig())

    operators = [name for name, op in ops.OPERATORS.items() if op.module.endswith("language_model_triton")]
    assert len(operators) == 7
    assert {*faults} >= {*operators}
    assert sum("libcuda.so.1" in message for message in caplog.messages) >= 7
    part = Components.build(networks("cosyvoice3"), None, {}, StreamingConfig(pages=12, lm_tokens=128))  # type: ignore
    assert not part.degraded, "an engine on the CPU has no kernels"
    part.kernel_faults = faults
    assert "draw_ids: the kernel is not used" in part.degraded


@pytest.mark.usefixtures("clean_operators")
def test_kernel_that_breaks_the_device_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process would check the kernels again, and lose the device again."""

    def check(cases: object) -> dict[str, str]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(kernels, "triton_problem", str)
    monkeypatch.setattr(kernels, "check", check)
    monkeypatch.setattr(accelerator, "device_responds", lambda device: False)
    with pytest.raises(DeviceLost, match=r"illegal memory access.*acceleration: off"):
        use_kernels(networks("cosyvoice3"), torch.device("cpu"), StreamingConfig())


@pytest.mark.parametrize("has_gate", [False, True])
def test_residual_stream_is_float32_in_half_precision(has_gate: bool) -> None:
    x, y, gate = noise(2, 5, 8), noise(2, 5, 8, seed=1).bfloat16(), noise(8, seed=2)
    total, norm = audio.add_norm.composition(x, y, gate if has_gate else None, gate, gate, 1e-6)
    assert torch.equal(total, torch.addcmul(x, gate, y.float()) if has_gate else x + y.float())
    assert norm.dtype == torch.bfloat16
