"""Runs computations of fixed shapes, one by one as PyTorch does or as ``acceleration`` has prepared them.

A computation is a function of tensors. Its key fixes everything else (shapes, batch, context) and begins with the name
of the computation. ``EagerRunner`` calls it and counts the calls.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tts_worker.types import ComputationCounts

Tensors = tuple[Tensor, ...]
Compute = Callable[..., Tensors]
Key = tuple[Hashable, ...]
"""The name of a computation (``decode``, ``flow`` and so on) and its shape."""


_RECENT_KEYS = 8  # keys without a graph that are remembered for a report


class GraphRunner(Protocol):
    """Runs keyed computations.

    Attributes:
        fixed_shapes: Whether callers should round batches and contexts up, so that there are few shapes.
    """

    fixed_shapes: bool

    def run(self, key: Key, compute: Compute, inputs: Tensors) -> Tensors:
        """Return ``compute(*inputs)``. In-place changes have the same effect as in a direct call.

        Args:
            key: Determines ``compute`` and all shapes.
            compute: The computation.
            inputs: Everything that differs from call to call.
        """
        ...

    def capture(self, key: Key, compute: Compute, inputs: Tensors) -> None:
        """Prepare ``run`` for a key: run the computation once on ``inputs``, which must not affect any utterance."""
        ...

    def clear(self) -> None:
        """Release all captured graphs and what they refer to."""
        ...


class Compiler(Protocol):
    """Compiles computations before they are captured.

    Attributes:
        faults: Why computations are not compiled, by name.
        shapes: Number of compiled shapes, by name.
    """

    faults: dict[str, str]
    shapes: dict[str, int]

    def compile(
        self,
        key: Key,
        compute: Compute,
        inputs: Sequence[Tensor | None],
        state: Sequence[Tensor] = (),
        tolerance: float = 0.0,
    ) -> Compute:
        """Return ``compute``, compiled if that succeeds and gives the same numbers.

        Args:
            key: Name and shape of the computation.
            compute: The computation.
            inputs: Representative inputs. It must not affect any utterance.
            state: What it changes in place, other than by writing the same values again. Restored afterwards.
            tolerance: Largest difference of the results, as part of the largest value. Without it, floating-point
                results may differ by rounding only, and integers must be equal.
        """
        ...


def padded_rows(rows: int) -> int:
    """Return the rows that a batch of ``rows`` is padded to where shapes are fixed: a power of two."""
    return 1 << (rows - 1).bit_length()


def captured_rows(batch: int) -> list[int]:
    """Return the rows of the passes to capture for batches of up to ``batch``, the most first: others reuse memory."""
    return [1 << power for power in reversed(range(padded_rows(batch).bit_length()))]


@dataclass
class _Counts:
    captured: int = 0
    refused: int = 0
    replays: int = 0
    eager_calls: int = 0


class CountingRunner:
    """Base of runners that count how often each computation ran.

    Attributes:
        eager_keys: How often each key ran without what was prepared for others, since ``reset_counts``. Empty where
            nothing is prepared.
        recent_eager_keys: The last of these keys, for reports; the caller clears it.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self.eager_keys: Counter[Key] = Counter()
        self.recent_eager_keys: deque[Key] = deque(maxlen=_RECENT_KEYS)

    @property
    def computations(self) -> tuple[ComputationCounts, ...]:
        """How often each computation ran, by name."""
        return tuple(
            ComputationCounts(name, counts.captured, counts.refused, counts.replays, counts.eager_calls)
            for name, counts in sorted(self._counts.items())
        )

    @property
    def replays(self) -> int:
        return sum(counts.replays for counts in self._counts.values())

    @property
    def eager_calls(self) -> int:
        return sum(counts.eager_calls for counts in self._counts.values())

    def reset_counts(self) -> None:
        """Set the counts of replays and calls to zero, after the warm-up."""
        for counts in self._counts.values():
            counts.replays = counts.eager_calls = 0
        self.eager_keys.clear()

    def _counts_of(self, key: Key) -> _Counts:
        name = str(key[0])
        if name not in self._counts:
            self._counts[name] = _Counts()
        return self._counts[name]


class EagerRunner(CountingRunner):
    """Calls every computation directly.

    Args:
        fixed_shapes: Whether callers should round shapes up: on CUDA, a new shape costs a search for kernels.
    """

    def __init__(self, *, fixed_shapes: bool = False) -> None:
        super().__init__()
        self.fixed_shapes = fixed_shapes

    def run(self, key: Key, compute: Compute, inputs: Tensors) -> Tensors:
        self._counts_of(key).eager_calls += 1
        return compute(*inputs)

    def capture(self, key: Key, compute: Compute, inputs: Tensors) -> None:
        compute(*inputs)  # lets the libraries choose kernels for the shape

    def clear(self) -> None:
        pass
