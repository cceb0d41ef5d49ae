"""Golden files and the comparison with them.

``Golden`` tracks which of its tensors were compared, so that none is skipped silently; ``CheckList`` collects the
results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.parity.report import Check, Status
from tts_worker.engine.cosyvoice.bundle.tensor_files import read_safetensors

# Largest absolute differences: log-probabilities, mu and mel, front-end features, one network on recorded inputs
SCORES = 1e-4
MEL = 1e-4
FEATURES = 1e-4
NETWORK = 2e-5
PITCH_HZ = 1e-3
DECODE = 1e-5
SHORT_WAVE = 1e-3
LONG_WAVE_DB = 45.0
SHORT_WAVE_S = 1.0


class Golden:
    """One golden file: tensors on ``device`` and the JSON of its header (``meta``)."""

    def __init__(self, path: Path, device: torch.device | str = "cpu") -> None:
        self.path = path
        self.name = path.stem
        tensors, header = read_safetensors(path)
        self._tensors = {key: tensor.to(device) for key, tensor in tensors.items()}
        self.meta: dict[str, Any] = json.loads(header.get("meta", "{}"))
        self._unused = set(self._tensors)

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def __getitem__(self, key: str) -> Tensor:
        self._unused.discard(key)
        return self._tensors[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def peek(self, key: str) -> Tensor:
        """Read a tensor without counting it as compared."""
        return self._tensors[key]

    def ids(self, key: str) -> tuple[int, ...]:
        """Read a tensor of ids as a tuple; empty if it is missing."""
        return tuple(self[key].flatten().tolist()) if key in self else ()

    @property
    def unused(self) -> list[str]:
        return sorted(self._unused)


class CheckList:
    """Collects checks.

    Args:
        rate_hz: Sample rate, which separates short waveforms from long ones.

    Attributes:
        relative_limit: Largest relative error (root mean square) in place of the limits of ``close``, for what is
            computed in less than float32; None: the limits hold.
    """

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self.entries: list[Check] = []
        self.relative_limit: float | None = None

    def add(self, file: str, name: str, passed: bool, note: str = "") -> None:
        self.entries.append(Check(file, name, Status.PASS if passed else Status.FAIL, note=note))

    def info(self, file: str, name: str, note: str) -> None:
        """Add a result that is not binding, with the reason."""
        self.entries.append(Check(file, name, Status.INFO, note=note))

    def fail(self, file: str, name: str, note: str) -> None:
        self.entries.append(Check(file, name, Status.FAIL, note=note))

    def equal(self, file: str, name: str, got: object, expected: object) -> None:
        """Compare ids, sizes or schedules for equality."""
        note = "" if got == expected else _difference(got, expected)
        self.entries.append(Check(file, name, Status.FAIL if note else Status.PASS, note=note or "identical"))

    def ids(self, golden: Golden, key: str, got: Sequence[int]) -> None:
        self.equal(golden.name, key, list(got), golden[key].flatten().tolist())

    def close(self, golden: Golden, key: str, got: Tensor, limit: float, unit: str = "") -> None:
        """Compare by the largest absolute difference. Equal infinities count as equal."""
        self.measure(golden.name, key, got, golden[key], limit, unit)

    def nearest(self, golden: Golden, key: str, candidates: Sequence[Tensor], limit: float) -> None:
        """Compare the nearest of several valid results, where the reference's choice depends on the processor."""
        expected = golden[key]
        self.close(golden, key, min(candidates, key=lambda candidate: _largest(candidate, expected)), limit)

    def measure(self, file: str, name: str, got: Tensor, expected: Tensor, limit: float, unit: str = "") -> None:
        if got.shape != expected.shape:
            return self.fail(file, name, f"shape {list(got.shape)}, expected {list(expected.shape)}")
        if self.relative_limit is not None:
            error = _relative(got, expected)
            limit = self.relative_limit
            unit = "relative"
        else:
            error = _largest(got, expected)
        passed = error <= limit  # False for NaN
        self.entries.append(Check(file, name, Status.PASS if passed else Status.FAIL, error, limit, unit))

    def wave(self, golden: Golden, key: str, got: Tensor, stride: int = 1) -> None:
        """Compare a short waveform by its largest difference, a long one by its signal-to-difference ratio in dB.

        The accumulated phase amplifies rounding errors with time. Every ``stride``-th sample is recorded.
        """
        expected = golden[key].cpu().flatten()
        got = got.detach().cpu().flatten()[::stride]
        if got.shape != expected.shape or len(expected) * stride < SHORT_WAVE_S * self.rate_hz:
            return self.measure(golden.name, key, got, expected, SHORT_WAVE)
        noise = float((got.double() - expected.double()).square().sum())
        signal = float(expected.double().square().sum())
        ratio_db = math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)  # NaN stays NaN and fails
        status = Status.PASS if ratio_db > LONG_WAVE_DB else Status.FAIL
        self.entries.append(Check(golden.name, key, status, ratio_db, LONG_WAVE_DB, "dB"))

    def finish(self, golden: Golden) -> None:
        """Fail every tensor of the file that no stage compared."""
        for key in golden.unused:
            self.fail(golden.name, key, "no stage compares this tensor")


def _largest(got: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; infinite for different shapes, NaN if a value is NaN."""
    if got.shape != expected.shape:
        return math.inf
    difference = _difference_of(got, expected)
    return float(difference.abs().max()) if difference.numel() else 0.0


def _relative(got: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference relative to that of the finite values expected."""
    difference = _difference_of(got, expected)
    scale = expected.cpu().double()
    scale = scale[scale.isfinite()].square().mean().sqrt() if scale.isfinite().any() else torch.ones(())
    return float(difference.square().mean().sqrt() / scale.clamp(min=1e-9)) if difference.numel() else 0.0


def _difference_of(got: Tensor, expected: Tensor) -> Tensor:
    """Difference in float64 on the CPU; 0 for equal infinities."""
    got = got.detach().cpu().double()
    expected = expected.cpu().double()
    return torch.where(got == expected, 0.0, got - expected)


def _difference(got: object, expected: object) -> str:
    if isinstance(got, list) and isinstance(expected, list):
        if len(got) != len(expected):
            return f"{len(got)} entries, expected {len(expected)}"
        first = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
        return f"differs from entry {first} on"
    return f"got {got!r:.80}, expected {expected!r:.80}"
