"""Optional ways to execute the networks of CosyVoice: fused kernels, CUDA graphs, the compiler, ONNX Runtime, TensorRT.

``engine.cosyvoice.execution.plan`` finds them through ``accelerator``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tts_worker.feature import Command, Extra, Feature

if TYPE_CHECKING:
    from tts_worker.finding import Finding


def _checks() -> Iterable[Finding]:
    from tts_worker.features.acceleration.checks import findings

    return findings()


FEATURE = Feature(
    docs="cosyvoice.md",
    checks=_checks,
    commands={
        "export": Command(
            "export ONNX graphs of a CosyVoice model directory", "tts_worker.features.acceleration.export"
        )
    },
    extras={
        "tensorrt": Extra(("torch", "tokenizers", "tensorrt"), "CosyVoice on TensorRT"),
        "export": Extra(("onnx",), "writing ONNX graphs"),
    },
)
