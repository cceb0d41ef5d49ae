"""Batches of sequences of similar length, in an order that depends on the seed and the step only."""

from __future__ import annotations

from collections.abc import Sequence

from tools.train.speech_data import shuffled


class Batches:
    """Groups sequences by length.

    Args:
        lengths: Of the sequences.
        limit: Positions of a batch, with padding; a longer sequence is a batch alone.

    Attributes:
        all: Numbers of the sequences of each batch.
    """

    def __init__(self, lengths: Sequence[int], limit: int) -> None:
        self.all: list[list[int]] = []
        batch: list[int] = []
        for number in sorted(range(len(lengths)), key=lambda i: lengths[i]):
            if batch and (len(batch) + 1) * lengths[number] > limit:
                self.all.append(batch)
                batch = []
            batch.append(number)
        self.all.append(batch)
        self._epoch = -1
        self._order: list[int] = []

    def at(self, step: int, seed: int) -> list[int]:
        """The batch of a step."""
        epoch, index = divmod(step, len(self.all))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, shuffled(len(self.all), seed, epoch)
        return self.all[self._order[index]]
