"""Checks the Triton kernels without a GPU, in a process of its own: ``interpret FAMILY`` or ``compile FAMILY ARCH..``.

``interpret`` compares them with PyTorch's operators; Triton decides on its import whether it interprets. ``compile``
compiles them for compute capabilities such as 90. Prints the names of the checked kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from tests.unit.cosyvoice.networks import full_config, networks
from tts_worker.engine.cosyvoice.backends import kernels
from tts_worker.engine.cosyvoice.backends.graphs import EagerRunner
from tts_worker.engine.cosyvoice.backends.kernels import Case, audio, language_model
from tts_worker.engine.cosyvoice.backends.streams import HostStream
from tts_worker.engine.cosyvoice.chunks import Item, Kind
from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.decoder import Decoder, DecodeRow

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CPU = torch.device("cpu")
SHARED_BYTES = 99 * 1024  # of a block on the smallest devices with bfloat16
PRODUCTS = {
    "slot_attention",
    "paged_attention",
    "causal_conv",
    "conv_norm_mish",
    "conv_norm_mish_add_norm",
    "linear_gelu",
}
"""Kernels with matrix products. Triton's interpreter multiplies bfloat16 as if it were integers."""


def interpret(family: str) -> set[str]:
    """Compare the kernels with their compositions, with the sizes of the tiny network."""
    checked = set()
    for dtype in DTYPES:
        for case in cases(networks(family).config, dtype):
            if dtype == torch.bfloat16 and case.operator.name in PRODUCTS:
                continue
            difference = kernels._difference(case)
            assert not difference, f"{case.operator.name}, {dtype}: {difference}"
            checked.add(case.operator.name)
    check_decoder(family)
    check_logarithm()
    return checked


def cases(config: CosyVoiceConfig, dtype: torch.dtype) -> Iterator[Case]:
    yield from language_model.cases(config.lm, config.sampling, dtype, CPU)
    yield from audio.flow_cases(config.flow, dtype, CPU)
    if dtype == torch.float32:
        yield from audio.vocoder_cases(config.hift, CPU)


def draw_ids(family: str) -> list[list[int]]:
    """Return the ids that a decoder draws for three utterances, one of which ends early and one of which is forced."""
    loaded = networks(family)
    eos = loaded.config.lm.eos_id
    runner = EagerRunner(fixed_shapes=True)
    decoder = Decoder(loaded, slots=3, max_tokens=600, stream=HostStream(), runner=runner)
    items: list[list[Item]] = [
        [(Kind.SOS, 0), *[(Kind.TEXT, 5 + n)] * (8 + 2 * n), (Kind.TASK, 0), (Kind.SPEECH, n)] for n in range(3)
    ]
    slots = [decoder.acquire() for _ in items]
    fed = [decoder.start(slot, 7 + slot, each) for slot, each in zip(slots, items, strict=True)]
    rows = [DecodeRow(slots[0], eos, 99, 3), DecodeRow(slots[1], eos, 0, 99), DecodeRow(slots[2], eos, 99, 99, [1, 1])]
    drawn = decoder.prefill(rows, fed).wait().tolist()
    for steps in (5, 3):
        drawn += decoder.burst(rows, steps).wait().tolist()
    return drawn


def check_decoder(family: str) -> None:
    """Compare what a decoder draws with and without the kernels."""
    expected = draw_ids(family)
    with patch.object(kernels.FusedOperator, "is_fused", lambda self, x: True):
        for operator in kernels.OPERATORS.values():
            operator.define()
        assert draw_ids(family) == expected


def check_logarithm() -> None:
    """Compare the logarithm of the kernels with an exact one, for the numbers that draws take it of."""
    from tests.unit.cosyvoice.logarithm_kernel import logarithms

    # All magnitudes, and every number next to 0 and 1.
    bits = torch.cat([torch.arange(0, 2**23, 2**9), torch.arange(2**14), torch.arange(2**23 - 2**15, 2**23)])
    numbers = ((bits + 0.5) * 2.0**-23).float()
    results = logarithms(numbers)
    exact = numbers.double().log()
    unit = torch.nextafter(exact.float().abs(), torch.tensor(torch.inf)).double() - exact.float().abs().double()
    assert float(((results.double() - exact).abs() / unit).max()) < 1.0


def compile_for(family: str, arch: int) -> set[str]:
    """Compile the kernels with the official sizes, without launching them."""
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

    compiled: list[str] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        assert kernel.asm["cubin"]
        assert kernel.metadata.shared <= SHARED_BYTES, kernel.metadata.name
        compiled.append(kernel.metadata.name)
        return kernel

    driver.set_active(Device())
    names = set()
    with patch.object(JITFunction, "run", compile_only):
        for dtype in DTYPES[:2]:
            for case in cases(full_config(family), dtype):
                compiled.clear()
                case.operator.launch(*case.args)
                assert compiled, case.operator.name
                names.add(case.operator.name)
    return names


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "interpret":
        assert os.environ["TRITON_INTERPRET"] == "1"
        print(*sorted(interpret(sys.argv[2])))
    else:
        for arch in sys.argv[3:]:
            print(*sorted(compile_for(sys.argv[2], int(arch))))
