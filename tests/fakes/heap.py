"""Garbage collections that are not made: the heap of a test process has the objects of all test modules."""

from __future__ import annotations


class Heap:
    """Takes the place of the module ``gc`` in another module.

    Attributes:
        calls: What was called.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []

    def collect(self) -> int:
        self.calls.append("collect")
        return 0

    def freeze(self) -> None:
        self.calls.append("freeze")

    def unfreeze(self) -> None:
        self.calls.append("unfreeze")
