"""Which models may go, and when: pure decisions over what is resident.

Owns the rules (use, pins, least residency, idle time, the cap) and nothing else: no clock, no task, no engine. Times
are seconds of the caller's monotonic clock; ``now_s`` is always given. What a rule protects is never given up, whatever
another rule wants: what is in use, pinned or younger than the least residency stays, also when the cap is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvictionRules:
    """``ttl_s``: idle for so long, a model goes (None: never for that reason). ``min_residency_s``: it stays at least
    so long after it was loaded. ``resident_cap``: so many at the same time (None: any number)."""

    ttl_s: float | None = 600.0
    min_residency_s: float = 120.0
    resident_cap: int | None = 3


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A model in memory. ``references``: sessions that use it; ``used_at_s``: when a session last began or ended, or it
    was loaded; ``pinned``: stays for ever."""

    name: str
    loaded_at_s: float
    used_at_s: float
    references: int = 0
    pinned: bool = False


def evictable(model: ResidentModel, rules: EvictionRules, now_s: float) -> bool:
    """Whether any rule may take it."""
    return not model.references and not model.pinned and now_s - model.loaded_at_s >= rules.min_residency_s


def expired(models: Iterable[ResidentModel], rules: EvictionRules, now_s: float) -> tuple[str, ...]:
    """Those that were idle for too long, longest idle first."""
    if rules.ttl_s is None:
        return ()
    idle = [m for m in models if evictable(m, rules, now_s) and now_s - m.used_at_s >= rules.ttl_s]
    return tuple(model.name for model in _longest_idle_first(idle))


def select_victims(
    models: Sequence[ResidentModel], incoming: int, rules: EvictionRules, now_s: float
) -> tuple[str, ...] | None:
    """Who goes so that ``incoming`` more fit under the cap, longest idle first. None if not enough of them may go; then
    nobody should."""
    if rules.resident_cap is None:
        return ()
    too_many = len(models) + incoming - rules.resident_cap
    if too_many <= 0:
        return ()
    candidates = _longest_idle_first(m for m in models if evictable(m, rules, now_s))
    return tuple(m.name for m in candidates[:too_many]) if len(candidates) >= too_many else None


def evictable_in_s(models: Sequence[ResidentModel], rules: EvictionRules, now_s: float) -> float | None:
    """After how long one of them will be old enough to go, if its sessions end by then. None if all are pinned."""
    waits = [max(0.0, m.loaded_at_s + rules.min_residency_s - now_s) for m in models if not m.pinned]
    return min(waits, default=None)


def _longest_idle_first(models: Iterable[ResidentModel]) -> list[ResidentModel]:
    return sorted(models, key=lambda model: (model.used_at_s, model.loaded_at_s, model.name))
