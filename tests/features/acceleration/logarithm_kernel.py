"""The logarithm of the sampling kernel as a kernel of its own. Needs triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tts_worker.features.acceleration.kernels.language_model_triton import _log

BLOCK = 1024


@triton.jit
def _logarithms(numbers, results, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # of the device
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(results + at, _log(tl.load(numbers + at)))


def logarithms(numbers: Tensor) -> Tensor:
    """``numbers``: a multiple of 1024 of them."""
    results = numbers.new_empty(numbers.shape)
    _logarithms[(len(numbers) // BLOCK,)](numbers, results, BLOCK=BLOCK)
    return results
