"""What goes with the accelerated paths of the CosyVoice engine: exported graphs, and checks of optional libraries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tts_worker.feature import Command, Extra, Feature

if TYPE_CHECKING:
    from tts_worker.finding import Finding


def _checks() -> Iterable[Finding]:
    from tts_worker.engine.cosyvoice.execution.settings import has_acceleration
    from tts_worker.finding import Finding, Status

    if not has_acceleration():
        detail = "not part of this installation: CosyVoice computes with PyTorch's operators, which is slower on a GPU"
        return [Finding("acceleration", Status.OPTIONAL, detail)]
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
