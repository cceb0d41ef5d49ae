"""Changes of a phase, the one state of an object that lives through several.

The phases of a class are an ``Enum``, and a table says which one may follow which:

    self.phase = change_phase(self.phase, Phase.ENDED, TRANSITIONS)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

P = TypeVar("P", bound=Enum)


def change_phase(phase: P, following: P, transitions: Mapping[P, frozenset[P]]) -> P:
    """Return ``following``.

    Raises:
        ValueError: ``transitions`` does not allow it after ``phase``, which is an error of the engine.
    """
    if following not in transitions[phase]:
        raise ValueError(f"{type(phase).__name__}: cannot change from {phase.value!r} to {following.value!r}")
    return following
