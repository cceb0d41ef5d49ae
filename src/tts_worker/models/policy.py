"""Eviction policy for loaded models: pure functions over the resident models.

A model that is in use, pinned or younger than ``min_residency_s`` is never evicted, even at the cap. Times are seconds
of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """Rules for evicting models.

    Attributes:
        ttl_s: Idle time after which a model is evicted; None disables it.
        min_residency_s: Time after its load in which a model is never evicted.
        resident_cap: Largest number of loaded models; None for no limit.
    """

    ttl_s: float | None = 600.0
    min_residency_s: float = 120.0
    resident_cap: int | None = 3


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A model in memory.

    Attributes:
        name: Name of the model.
        loaded_at_s: Time of its load.
        used_at_s: Time of the last start or end of a session, or of its load.
        references: Sessions that use it or wait for it.
        pinned: Whether it is never evicted.
    """

    name: str
    loaded_at_s: float
    used_at_s: float
    references: int = 0
    pinned: bool = False


def is_evictable(model: ResidentModel, rules: EvictionRules, now_s: float) -> bool:
    """Whether the model may be evicted."""
    return not model.references and not model.pinned and now_s - model.loaded_at_s >= rules.min_residency_s


def select_expired(models: Iterable[ResidentModel], rules: EvictionRules, now_s: float) -> tuple[str, ...]:
    """Names of the evictable models that were idle for ``ttl_s``, longest idle first."""
    if rules.ttl_s is None:
        return ()
    idle = [m for m in models if is_evictable(m, rules, now_s) and now_s - m.used_at_s >= rules.ttl_s]
    return tuple(model.name for model in _longest_idle_first(idle))


def select_victims(
    models: Sequence[ResidentModel], incoming: int, rules: EvictionRules, now_s: float
) -> tuple[str, ...] | None:
    """Select the models to evict so that ``incoming`` more fit under the cap.

    Returns:
        Names, longest idle first; None if too few models are evictable, in which case none should be evicted.
    """
    if rules.resident_cap is None:
        return ()
    excess = len(models) + incoming - rules.resident_cap
    if excess <= 0:
        return ()
    candidates = _longest_idle_first(m for m in models if is_evictable(m, rules, now_s))
    return tuple(m.name for m in candidates[:excess]) if len(candidates) >= excess else None


def seconds_until_evictable(models: Sequence[ResidentModel], rules: EvictionRules, now_s: float) -> float | None:
    """Time until the first unpinned model has reached ``min_residency_s``; None if all are pinned."""
    waits = [max(0.0, m.loaded_at_s + rules.min_residency_s - now_s) for m in models if not m.pinned]
    return min(waits, default=None)


def _longest_idle_first(models: Iterable[ResidentModel]) -> list[ResidentModel]:
    return sorted(models, key=lambda model: (model.used_at_s, model.loaded_at_s, model.name))
