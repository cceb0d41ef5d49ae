"""Batches of sequences of similar length, in an order that depends on the seed and the step only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from tools.train.speech_data import shuffled

T = TypeVar("T")


class Shuffled(Generic[T]):
    """Items in another order in each epoch.

    Args:
        items: What there is.

    Attributes:
        all: The items.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self.all = items
        self._epoch = -1
        self._order: list[int] = []

    def at(self, step: int, seed: int) -> T:
        """The item of a step."""
        epoch, index = divmod(step, len(self.all))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, shuffled(len(self.all), seed, epoch)
        return self.all[self._order[index]]


class Batches(Shuffled[list[int]]):
    """Numbers of the sequences of each batch, as ``by_length`` returns them."""

    def __init__(self, lengths: Sequence[int], limit: int) -> None:
        super().__init__(by_length(lengths, limit))


def by_length(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Group sequences by length.

    Args:
        lengths: Of the sequences.
        limit: Positions of a batch, with padding; a longer sequence is a batch alone.

    Returns:
        Numbers of the sequences of each batch.
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[number] > limit:
            batches.append(batch)
            batch = []
        batch.append(number)
    batches.append(batch)
    return batches
