"""Properties of the eviction policy over random models, rules and times."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tts_worker.models.policy import (
    EvictionRules,
    ResidentModel,
    is_evictable,
    seconds_until_evictable,
    select_expired,
    select_victims,
)

MODELS = st.lists(
    st.builds(
        lambda loaded, used, references, pinned: (loaded, loaded + used, references, pinned),
        st.integers(0, 300),
        st.integers(0, 300),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=8,
).map(lambda rows: [ResidentModel(f"m{i}", *row) for i, row in enumerate(rows)])
RULES = st.builds(EvictionRules, st.none() | st.integers(0, 400), st.integers(0, 300), st.none() | st.integers(1, 8))
NOW_S = st.integers(600, 1_000)


def by_name(models: list[ResidentModel], names: tuple[str, ...]) -> list[ResidentModel]:
    return [model for name in names for model in models if model.name == name]


@settings(deadline=None)
@given(MODELS, RULES, NOW_S, st.integers(0, 3))
def test_protected_models_are_never_selected(
    models: list[ResidentModel], rules: EvictionRules, now_s: int, incoming: int
) -> None:
    for name in (*select_expired(models, rules, now_s), *(select_victims(models, incoming, rules, now_s) or ())):
        (model,) = by_name(models, (name,))
        assert model.references == 0
        assert not model.pinned
        assert now_s - model.loaded_at_s >= rules.min_residency_s


@settings(deadline=None)
@given(MODELS, RULES, NOW_S)
def test_exactly_the_evictable_idle_models_expire(
    models: list[ResidentModel], rules: EvictionRules, now_s: int
) -> None:
    victims = set(select_expired(models, rules, now_s))
    for model in models:
        idle_too_long = rules.ttl_s is not None and now_s - model.used_at_s >= rules.ttl_s
        assert (model.name in victims) == (idle_too_long and is_evictable(model, rules, now_s))


@settings(deadline=None)
@given(MODELS, RULES, NOW_S, st.integers(1, 3))
def test_eviction_frees_exactly_the_excess(
    models: list[ResidentModel], rules: EvictionRules, now_s: int, incoming: int
) -> None:
    victims = select_victims(models, incoming, rules, now_s)
    free = [model for model in models if is_evictable(model, rules, now_s)]
    if victims is None:
        assert rules.resident_cap is not None
        assert len(models) - len(free) + incoming > rules.resident_cap
        return
    if rules.resident_cap is None:
        assert victims == ()
        return
    assert len(models) - len(victims) + incoming <= rules.resident_cap or len(models) + incoming <= rules.resident_cap
    assert len(victims) == max(0, len(models) + incoming - rules.resident_cap)
    remaining_used_at_s = [model.used_at_s for model in free if model.name not in victims]
    assert all(
        model.used_at_s <= min(remaining_used_at_s, default=model.used_at_s) for model in by_name(models, victims)
    )


@settings(deadline=None)
@given(MODELS, RULES, NOW_S)
def test_a_model_is_evictable_after_the_returned_time(
    models: list[ResidentModel], rules: EvictionRules, now_s: int
) -> None:
    wait_s = seconds_until_evictable(models, rules, now_s)
    if wait_s is None:
        assert all(model.pinned for model in models)
        return
    idle = [ResidentModel(m.name, m.loaded_at_s, m.used_at_s, 0, m.pinned) for m in models]
    assert any(is_evictable(model, rules, now_s + wait_s) for model in idle)


def test_default_rules_follow_the_worker_protocol() -> None:
    assert EvictionRules() == EvictionRules(ttl_s=600, min_residency_s=120, resident_cap=3)
