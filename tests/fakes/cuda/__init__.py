"""CUDA without a device: tensors claim to be on one, and the code for CUDA runs on a CPU.

``device`` has values: the networks speak, and races between streams are errors. ``launches`` has shapes only: the
networks have their official sizes, and what they would launch is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tts_worker.engine.cosyvoice import ops
from tts_worker.features.acceleration import kernels


class _Compositions:
    """In place of the modules of kernels."""

    def __getattr__(self, name: str) -> Any:
        return ops.OPERATORS[name].composition


_COMPOSITIONS = _Compositions()


@contextmanager
def claimed_cuda(*, fused: bool = True) -> Iterator[None]:
    """Let all tensors claim to be on CUDA.

    Args:
        fused: Use fused operators, which compute their compositions.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "is_cuda", True, raising=False)
        patch.setattr(ops, "import_module", lambda name: _COMPOSITIONS)
        patch.setattr(torch.cuda, "device_of", lambda tensor: nullcontext())
        patch.setattr(kernels, "triton_problem", str)
        if fused:
            kernels.enable()
        try:
            yield
        finally:
            ops.disable()
