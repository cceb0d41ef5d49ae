"""The player on the audio thread, quantum by quantum: no sample lost or repeated, no clicks, silence after a stop.

The audio is a constant level, so that the output is the gain, and a click is a step in it.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="package")]

RATE_HZ = 24_000
QUANTUM_SAMPLES = 128
FADE_SAMPLES = 120  # 5 ms
PREBUFFER_SAMPLES = 1_440  # 60 ms
LEVEL = 0.5

Step = list[Any]
BEGIN: Step = ["begin", {"utterance": 1}]


async def render(
    modules: Page, schedule: list[Step], signal: str = "Level"
) -> tuple[list[float], list[dict[str, Any]]]:
    result = await modules.evaluate(f"schedule => render{signal}(schedule)", schedule)
    return result["out"], result["events"]


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == name]


def biggest_step(out: list[float]) -> float:
    """The largest jump after the first sample; the start itself may be a jump, as speech has its own onset."""
    begun = next(i for i, x in enumerate(out) if x)
    return max((abs(b - a) for a, b in zip(out[begun:], out[begun + 1 :], strict=False)), default=0.0)


NO_CLICK = LEVEL / FADE_SAMPLES * 1.01

operations = st.lists(
    st.tuples(st.sampled_from(["push", "shift", "clear"]), st.integers(0, 70)).map(list), min_size=1, max_size=60
)


@settings(deadline=None, max_examples=15)
@given(capacity=st.integers(1, 50), operations=operations)
async def test_ring_buffer_is_a_queue_of_any_size(modules: Page, capacity: int, operations: list[Step]) -> None:
    assert await modules.evaluate("([c, o]) => ringAgainstArray(c, o)", [capacity, operations]) == []


async def test_playback_starts_after_the_prebuffer(modules: Page) -> None:
    out, events = await render(
        modules,
        [BEGIN, ["push", PREBUFFER_SAMPLES - 1], ["run", 4], ["push", 1], ["run", 4], ["end"], ["run", 20]],
        signal="Count",
    )
    assert not any(out[: 4 * QUANTUM_SAMPLES])
    heard = [round(x * 32768) for x in out[4 * QUANTUM_SAMPLES : 4 * QUANTUM_SAMPLES + PREBUFFER_SAMPLES]]
    assert heard == list(range(1, PREBUFFER_SAMPLES + 1)), "every sample, from the first one on, at full gain"
    assert not any(out[4 * QUANTUM_SAMPLES + PREBUFFER_SAMPLES :])
    assert [e["type"] for e in events if e["type"] != "position"] == ["first", "ended"]
    assert named(events, "ended")[0]["playedSamples"] == PREBUFFER_SAMPLES


async def test_less_than_the_prebuffer_is_played_after_end(modules: Page) -> None:
    out, events = await render(modules, [BEGIN, ["push", 30], ["run", 2], ["end"], ["run", 2]])
    assert sum(x != 0 for x in out) == 30
    assert named(events, "ended")[0]["playedSamples"] == 30


async def test_utterance_without_audio_ends_at_once(modules: Page) -> None:
    _, events = await render(modules, [BEGIN, ["end"]])
    assert named(events, "ended") == [{"type": "ended", "utterance": 1, "playedSamples": 0, "after": 0}]


steps = st.one_of(
    st.integers(1, 30).map(lambda quanta: ["run", quanta]),
    st.integers(1, 4_000).map(lambda samples: ["push", samples]),
    st.just(["pause"]),
    st.just(["resume"]),
)


@settings(deadline=None, max_examples=15)
@given(schedule=st.lists(steps, min_size=1, max_size=30))
async def test_every_sample_is_rendered_once_without_clicks(modules: Page, schedule: list[Step]) -> None:
    pushed = sum(step[1] for step in schedule if step[0] == "push")
    whole = [BEGIN, *schedule, ["resume"], ["end"], ["run", pushed // QUANTUM_SAMPLES + 4]]
    envelope, events = await render(modules, whole)
    assert named(events, "ended")[0]["playedSamples"] == pushed == sum(x != 0 for x in envelope)
    positions = [event["playedSamples"] for event in named(events, "position")]
    assert positions == sorted(set(positions))
    if pushed:
        last = max(i for i, x in enumerate(envelope) if x)
        assert biggest_step(envelope[: last + 1]) <= NO_CLICK
        assert len(named(events, "first")) == 1
    counted, _ = await render(modules, whole, signal="Count")
    samples = iter(range(pushed))
    for gain, value in zip(envelope, counted, strict=True):
        if gain:
            assert value * 32768 == pytest.approx((next(samples) % 32_000 + 1) * gain / LEVEL, abs=0.01)
        else:
            assert value == 0


async def test_pause_fades_and_resume_continues_at_the_next_sample(modules: Page) -> None:
    out, events = await render(
        modules, [BEGIN, ["push", 9_600], ["run", 20], ["pause"], ["run", 40], ["resume"], ["end"], ["run", 60]]
    )
    paused_at = 20 * QUANTUM_SAMPLES
    assert not any(out[paused_at + FADE_SAMPLES : paused_at + 40 * QUANTUM_SAMPLES])
    resting = [e for e in named(events, "position") if e["after"] <= paused_at + 40 * QUANTUM_SAMPLES][-1]
    assert resting["playedSamples"] == sum(x != 0 for x in out[: paused_at + 40 * QUANTUM_SAMPLES])
    assert named(events, "ended")[0]["playedSamples"] == 9_600


async def test_pause_before_the_first_audio_holds_all_of_it(modules: Page) -> None:
    out, events = await render(modules, [BEGIN, ["pause"], ["push", 4_800], ["run", 50], ["resume"], ["run", 10]])
    assert not any(out[: 50 * QUANTUM_SAMPLES])
    assert out[50 * QUANTUM_SAMPLES] == LEVEL
    assert len(named(events, "first")) == 1


async def test_underrun_is_reported_and_does_not_click(modules: Page) -> None:
    out, events = await render(
        modules, [BEGIN, ["push", 2_400], ["run", 30], ["push", 2_400], ["run", 5], ["end"], ["run", 30]]
    )
    assert len(named(events, "underrun")) == 1
    assert biggest_step(out[: 30 * QUANTUM_SAMPLES]) <= NO_CLICK
    assert named(events, "ended")[0]["playedSamples"] == 4_800


@settings(deadline=None, max_examples=15)
@given(before=st.integers(0, 60), paused=st.booleans(), pushed=st.integers(0, 9_600))
@example(before=20, paused=False, pushed=9_600)
async def test_stop_fades_within_5_ms_and_drops_the_rest(modules: Page, before: int, paused: bool, pushed: int) -> None:
    pause: list[Step] = [["pause"], ["run", 1]] if paused else []
    out, events = await render(
        modules,
        [
            BEGIN,
            ["push", pushed],
            ["run", before],
            *pause,
            ["stop", {"utterance": 1}],
            ["push", 5_000],  # what was still on its way
            ["run", 3],
            ["begin", {"utterance": 2}],
            ["push", 2_000],
            ["end"],
            ["run", 20],
        ],
    )
    stopped_at = (before + len(pause[1:])) * QUANTUM_SAMPLES
    second_at = stopped_at + 3 * QUANTUM_SAMPLES
    assert not any(out[stopped_at + FADE_SAMPLES + 1 : second_at])
    (cut,), (silent,) = named(events, "cut"), named(events, "silent")
    assert cut["after"] == stopped_at, "the position is reported at once"
    assert cut["playedSamples"] == sum(x != 0 for x in out[:second_at])
    assert silent["after"] <= stopped_at + QUANTUM_SAMPLES
    if any(out[:second_at]):
        assert biggest_step(out[:second_at]) <= NO_CLICK
    assert [round(x, 6) for x in out[second_at : second_at + 2_000]] == [LEVEL] * 2_000
    assert [e["utterance"] for e in named(events, "ended")] == [2]
    assert named(events, "ended")[0]["playedSamples"] == 2_000


async def test_utterance_may_begin_during_the_fade_of_the_last(modules: Page) -> None:
    out, events = await render(
        modules,
        [BEGIN, ["push", 4_800], ["run", 5], ["stop", {"utterance": 1}], ["begin", {"utterance": 2}], ["run", 10]],
    )
    assert 0 < sum(x != 0 for x in out[5 * QUANTUM_SAMPLES :]) <= FADE_SAMPLES
    assert [event["utterance"] for event in named(events, "silent")] == [1]


async def test_stop_of_another_utterance_is_ignored(modules: Page) -> None:
    out, events = await render(modules, [BEGIN, ["push", 4_800], ["run", 5], ["stop", {"utterance": 7}], ["run", 5]])
    assert all(out)
    assert not named(events, "cut")
