"""Kernels are compiled for several block sizes: an engine checks all that it uses, before a graph or a call needs one.

Needs neither a GPU nor Triton: the functions that launch kernels run for a stand-in that takes notes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.fakes.cuda.launches import META, FakeCudaStream, fake_cuda, fake_networks, once_per_shapes
from tests.unit.cosyvoice.networks import full_config
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.audio.vocoder_windows import VocoderWindows, window_sizes
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.settings import LM_TOKENS
from tts_worker.engine.cosyvoice.ops import FusedOperator
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder
from tts_worker.features.acceleration import kernels
from tts_worker.features.acceleration.kernels.audio_cases import flow_cases, vocoder_cases
from tts_worker.features.acceleration.kernels.language_model_cases import language_model_cases

CPU = torch.device("cpu")
RENDER_BATCH = 8  # of an engine on CUDA
STRIDES = (1, 2)
Variant = tuple[object, ...]
"""Name of a kernel, data types of its tensors, and what it is compiled for."""


class _Kernel:
    """Notes what a kernel is launched with."""

    def __init__(self, name: str, launched: set[Variant]) -> None:
        self._name = name
        self._launched = launched

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*args: object, **constants: object) -> None:
            dtypes = tuple(str(arg.dtype) for arg in args if isinstance(arg, Tensor))
            self._launched.add((self._name, dtypes, *sorted(constants.items())))

        return launch


@contextmanager
def launches() -> Iterator[set[Variant]]:
    """Yield a set that takes every kernel variant that is launched."""
    launched: set[Variant] = set()

    def jit(function: Any = None, **_: object) -> Any:
        return _Kernel(function.__name__, launched) if function is not None else jit

    triton, language = ModuleType("triton"), ModuleType("triton.language")
    vars(triton).update(
        jit=jit,
        language=language,
        cdiv=lambda a, b: -(-a // b),
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
    )
    vars(language).update(constexpr=lambda value: value)
    names = [f"{kernels.__name__}.{part}_triton" for part in ("audio", "language_model")]
    with pytest.MonkeyPatch.context() as modules:
        modules.setitem(sys.modules, "triton", triton)
        modules.setitem(sys.modules, "triton.language", language)
        for name in names:
            modules.delitem(sys.modules, name, raising=False)
        launchers = {name: import_module(name) for name in names}
    with pytest.MonkeyPatch.context() as modules:  # without the stand-in, which PyTorch must not find
        for name, launcher in launchers.items():
            modules.setitem(sys.modules, name, launcher)
        yield launched


def checked_variants(family: str, dtype: torch.dtype) -> set[Variant]:
    """What an engine checks when it is loaded."""
    config = full_config(family)
    with launches() as launched:
        for cases in (
            language_model_cases(config.lm, config.sampling, dtype, CPU),
            flow_cases(config.chunked_flow, dtype, CPU, STRIDES[-1]),
            vocoder_cases(config.hift, CPU),
        ):
            for case in cases:
                case.operator.launch(*case.args)
    return launched


def launch_and_compose(operator: FusedOperator[..., Any], *args: Any) -> Any:
    """In place of an operator: launch the kernel for the notes, and return results of the right shapes."""
    if operator.is_fused(args[0]):
        operator.launch(*args)
    return once_per_shapes(operator.composition, *args)


def used_variants(family: str, *, half: bool) -> set[Variant]:
    """What its warm-up captures, in networks with one of each kind of layer."""
    with launches() as launched, fake_cuda(), patch.object(FusedOperator, "__call__", launch_and_compose):
        networks = fake_networks(family, layers=1, half=half)
        flow, hift = networks.chunked_flow, networks.hift
        runner, stream = EagerRunner(fixed_shapes=True), FakeCudaStream()
        with (
            patch.object(torch.cuda, "device_of", lambda tensor: stream),
            patch.object(ops, "import_module", import_module),
        ):
            if family == "cosyvoice3":  # the language model of both
                Decoder(networks, slots=4, max_tokens=LM_TOKENS, stream=stream, runner=runner).capture(2)
            pool = FlowPool(
                flow, slots=1, pages=1, max_chunks=2, dtype=flow.dtype, runner=runner, page_bucket=STRIDES[-1]
            )
            pool.capture(RENDER_BATCH, STRIDES)
            if half:  # the vocoder does not depend on it
                dims = networks.config.flow
                sizes = {size for stride in STRIDES for size in window_sizes(hift, dims, first_tokens=8, stride=stride)}
                VocoderWindows(hift, stream, runner, sorted(sizes), META).capture(1)
    return launched


@pytest.mark.parametrize(
    ("family", "half"),
    [
        ("cosyvoice3", True),
        pytest.param("cosyvoice2", False, marks=pytest.mark.long),
        pytest.param("cosyvoice2", True, marks=pytest.mark.long),
        pytest.param("cosyvoice3", False, marks=pytest.mark.long),
    ],
)
def test_every_kernel_variant_in_use_is_checked(family: str, half: bool) -> None:
    used = used_variants(family, half=half)
    checked = checked_variants(family, torch.bfloat16 if half else torch.float32)

    assert len(used) > 4
    assert used - checked == set()


def test_stand_in_takes_note_of_every_operator() -> None:
    names = {"conv_norm_mish", "conv_norm_mish_add_norm", "causal_conv"}  # one kernel
    kernel_names = {str(name) for name, *_ in checked_variants("cosyvoice2", torch.bfloat16)}
    assert {f"_{name}" for name in ops.OPERATORS if name not in names | {"add_snake"}} <= kernel_names
