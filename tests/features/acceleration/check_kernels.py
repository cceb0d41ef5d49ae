"""Checks the Triton kernels without a GPU, in a separate process, and prints the names of the checked kernels.

    interpret FAMILY        compares them with PyTorch's operators, with the sizes of the tiny network
    edges                   lengths, pages, heads and masks at their limits, and memory that must not be read
    decode FAMILY           draws ids with and without them
    compile FAMILY ARCH     compiles them for a compute capability such as 90
    variants                compiles what is launched outside of graphs with the sizes that occur while calls speak

Triton decides on its import whether it interprets.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.features.acceleration.kernel_edges import check_pages, edge_cases
from tests.unit.cosyvoice.networks import full_config, networks
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.streams import HostStream
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.ops import audio, language_model
from tts_worker.engine.cosyvoice.tokens.decoder import Decoder, DecodeRow
from tts_worker.features.acceleration import kernels
from tts_worker.features.acceleration.kernels import Case
from tts_worker.features.acceleration.kernels.audio_cases import flow_cases, vocoder_cases
from tts_worker.features.acceleration.kernels.language_model_cases import language_model_cases

DTYPES = (torch.float32, torch.bfloat16)
CPU = torch.device("cpu")
SHARED_BYTES = 99 * 1024  # of a block on the smallest devices with bfloat16
SLOW_CHANNELS = 16
"""Channels of a convolution with many taps and groups, which the interpreter computes one by one."""


def mend_products() -> None:
    """Let Triton's interpreter multiply bfloat16. It keeps the bits in integers, and would multiply those."""
    import triton.language as tl
    from triton.runtime import interpreter

    create_dot = interpreter.InterpreterBuilder.create_dot

    def widened(self: Any, a: Any, b: Any, *others: Any) -> Any:
        a, b = (self.create_fp_to_fp(x, tl.float32, None) if x.dtype == tl.bfloat16 else x for x in (a, b))
        return create_dot(self, a, b, *others)

    interpreter.InterpreterBuilder.create_dot = widened


def interpret(family: str) -> set[str]:
    """Compare the kernels with their compositions, with the sizes of the tiny network."""
    checked = set()
    for dtype in DTYPES:
        for case in cases(networks(family).config, dtype):
            if case.operator is audio.causal_conv and case.args[0].shape[2] > SLOW_CHANNELS and case.args[5] > 1:
                continue  # in ``edges``, with fewer channels
            difference = kernels._difference(case)
            assert not difference, f"{case.operator.name}, {dtype}: {difference}"
            checked.add(case.operator.name)
    check_logarithm()
    return checked


def check_edges() -> set[str]:
    """Compare the kernels with their compositions at their limits."""
    checked = {"paged_attention"}
    for dtype in DTYPES:
        check_pages(dtype)
        for case in edge_cases(dtype):
            difference = kernels._difference(case)
            shapes = [tuple(arg.shape) if isinstance(arg, Tensor) else arg for arg in case.args]
            assert not difference, f"{case.operator.name}, {dtype}, {shapes}: {difference}"
            checked.add(case.operator.name)
    return checked


def cases(config: CosyVoiceConfig, dtype: torch.dtype) -> Iterator[Case]:
    yield from language_model_cases(config.lm, config.sampling, dtype, CPU)
    yield from flow_cases(config.flow, dtype, CPU)
    if dtype == torch.float32:
        yield from vocoder_cases(config.hift, CPU)


def draw_ids(family: str) -> list[list[int]]:
    """Return the ids that a decoder draws for three utterances, one of which ends early and one of which is forced."""
    loaded = networks(family)
    eos = loaded.config.lm.eos_id
    runner = EagerRunner(fixed_shapes=True)
    decoder = Decoder(loaded, slots=3, max_tokens=600, stream=HostStream(), runner=runner)
    items: list[list[Item]] = [[(Kind.SOS, 0), *[(Kind.TEXT, 5 + n)] * (1 + 2 * n), (Kind.TASK, 0)] for n in range(3)]
    slots = [decoder.acquire() for _ in items]
    fed = [decoder.start(slot, 7 + slot, each) for slot, each in zip(slots, items, strict=True)]
    rows = [DecodeRow(slots[0], eos, 99, 3), DecodeRow(slots[1], eos, 0, 99), DecodeRow(slots[2], eos, 99, 99, [1, 1])]
    drawn = decoder.prefill(rows, fed).wait().tolist()
    for steps in (3, 2):
        drawn += decoder.burst(rows, steps).wait().tolist()
    return drawn


def check_decoder(family: str) -> None:
    """Compare what a decoder draws with and without the kernels."""
    expected = draw_ids(family)
    with patch.object(ops.FusedOperator, "is_fused", lambda self, x: True):
        for operator in ops.OPERATORS.values():
            operator.define()
        assert draw_ids(family) == expected


def check_logarithm() -> None:
    """Compare the logarithm of the kernels with an exact one, for the numbers that draws take it of."""
    from tests.features.acceleration.logarithm_kernel import logarithms

    # All magnitudes, and every number next to 0 and 1.
    bits = torch.cat([torch.arange(0, 2**23, 2**9), torch.arange(2**14), torch.arange(2**23 - 2**15, 2**23)])
    numbers = ((bits + 0.5) * 2.0**-23).float()
    results = logarithms(numbers)
    exact = numbers.double().log()
    unit = torch.nextafter(exact.float().abs(), torch.tensor(torch.inf)).double() - exact.float().abs().double()
    assert float(((results.double() - exact).abs() / unit).max()) < 1.0


@contextmanager
def compiling(arch: int) -> Iterator[list[Any]]:
    """Compile kernels for a compute capability in place of launching them. Yields the compiled kernels."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Device:
        """A device that only compiles."""

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", arch, 32)

        def get_current_device(self) -> int:
            return arch  # kernels are cached by device

        def get_current_stream(self, device: int) -> int:
            return 0

    compiled: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        assert kernel.asm["cubin"]
        assert kernel.metadata.shared <= SHARED_BYTES, kernel.metadata.name
        compiled.append(kernel)
        return kernel

    driver.set_active(Device())
    with patch.object(JITFunction, "run", compile_only):
        yield compiled


def compile_for(family: str, arch: int) -> set[str]:
    """Compile the kernels with the official sizes, without launching them."""
    names = set()
    with compiling(arch) as compiled:
        for dtype in DTYPES:
            for case in cases(full_config(family), dtype):
                compiled.clear()
                case.operator.launch(*case.args)
                assert compiled, case.operator.name
                names.add(case.operator.name)
    return names


def plan_variants() -> set[str]:
    """Return the binaries of ``plan_draws`` for batches and bursts of every kind of size.

    It is the only kernel that is launched outside of graphs, so that no capture compiles it for all sizes in advance.
    """
    keys = torch.zeros(64, dtype=torch.long)
    remaining = torch.zeros(64, 1, dtype=torch.long)
    with compiling(90) as compiled:
        for batch, steps in itertools.product((1, 2, 5, 16, 64), (1, 2, 3, 8, 10, 16, 27, 40)):
            language_model.plan_draws.launch(torch.zeros(batch, 4 + steps, dtype=torch.long), keys, keys, remaining)
    return {kernel.hash for kernel in compiled}


def main(action: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    if action == "compile":
        family, arch = arguments
        print(*sorted(compile_for(family, int(arch))))
        return
    if action == "variants":
        print(*sorted(plan_variants()))
        return
    assert os.environ["TRITON_INTERPRET"] == "1"
    mend_products()
    if action == "interpret":
        print(*sorted(interpret(*arguments)))
    elif action == "edges":
        print(*sorted(check_edges()))
    else:
        check_decoder(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
