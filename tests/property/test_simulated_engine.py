"""The scheduler over modeled stages: fairness, no starvation, no underruns below capacity, isolation of faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tools.bench.simulate import SimulatedCall, SimulatedListener, Simulation
from tools.engine_simulator.config import (
    CHUNK_TOKENS,
    SAMPLES_PER_TOKEN,
    TOKEN_RATE_HZ,
    PassFails,
    SimulationConfig,
    never_fails,
)
from tools.engine_simulator.engine import SimulatedEngine
from tools.engine_simulator.stage_times import Execution, StageTime, StageTimes, VirtualClock
from tts_worker.engine.scheduler import UNPACED_SHARE, Need
from tts_worker.types import SAMPLE_RATE_HZ, Boundary, Segment, Span, UtteranceKey

SECOND_US = 1_000_000
CHUNK_S = CHUNK_TOKENS * SAMPLES_PER_TOKEN / SAMPLE_RATE_HZ
CONFIG = SimulationConfig(max_utterances=64, pages=4_000, decode_batch=64, prompt_tokens=60)

executions = st.sampled_from(list(Execution))


def key(number: int) -> UtteranceKey:
    return UtteranceKey(f"call-{number:02}", 1)


def sentences(*tokens: int) -> tuple[tuple[int, Segment], ...]:
    """Sentences of so many tokens each, all at once. The default script draws two tokens per letter."""
    made = []
    for index, count in enumerate(tokens):
        boundary = Boundary.END if index == len(tokens) - 1 else Boundary.SENTENCE
        made.append((0, Segment(index, (Span("a" * (count // 2), index, index + 1),), index, index + 1, boundary)))
    return tuple(made)


@st.composite
def stage_times(draw: st.DrawFn, second_us: st.SearchStrategy[int]) -> StageTimes:
    """Stages that together need ``second_us`` for a second of audio of one call, in random shares."""
    total_us = draw(second_us)
    parts = [draw(st.integers(1, 20)) for _ in range(3)]
    decode_us, flow_us, vocoder_us = (total_us * part / sum(parts) for part in parts)
    return StageTimes(
        draw(executions),
        prefill=StageTime.linear(decode_us / 2),
        decode=StageTime.linear(decode_us / CHUNK_TOKENS),
        flow=StageTime.linear(0.0, flow_us),
        vocoder=StageTime.linear(0.0, vocoder_us),
    )


def audio_samples(tokens: Sequence[int]) -> int:
    """Samples of ``sentences(*tokens)``."""
    return sum(count // 2 * 2 for count in tokens) * SAMPLES_PER_TOKEN


def work_us(times: StageTimes, *tokens: int) -> float:
    """Time that the stages need for these sentences alone, with a margin for rests of chunks."""
    total = 0.0
    for count in tokens:
        chunks = count // CHUNK_TOKENS + 2
        total += (
            times.prefill.us(1) + (count + 1) * times.decode.us(1) + times.flow.us(chunks) + times.vocoder.us(chunks)
        )
    return total


@dataclass
class Run:
    """A finished simulation."""

    listeners: dict[UtteranceKey, SimulatedListener]
    passes: list[tuple[int, Need, tuple[UtteranceKey, ...]]]
    engine: SimulatedEngine

    def of(self, number: int) -> SimulatedListener:
        return self.listeners[key(number)]


def simulate(
    times: StageTimes,
    calls: Sequence[SimulatedCall],
    *,
    until_s: float = 600.0,
    config: SimulationConfig = CONFIG,
    fails: PassFails = never_fails,
) -> Run:
    clock = VirtualClock()
    passes: list[tuple[int, Need, tuple[UtteranceKey, ...]]] = []

    def record(operation: Need, members: tuple[UtteranceKey, ...]) -> bool:
        passes.append((clock.now_us, operation, members))
        return fails(operation, members)

    engine = SimulatedEngine(times, config, clock=clock, pass_fails=record)
    simulation = Simulation(engine, clock, calls).run(round(until_s * SECOND_US))
    return Run(simulation.listeners, passes, engine)


STAGES = {
    "prefill": StageTime.linear(7_000),
    "decode": StageTime.linear(1_000),
    "flow": StageTime.linear(0, 20_000),
    "vocoder": StageTime.linear(0, 10_000),
}
"""In microseconds. The sums that the tests expect follow from them."""


def test_first_audio_is_the_sum_of_its_stages() -> None:
    times = StageTimes(
        Execution.SERIAL,
        **STAGES,
    )
    run = simulate(times, [SimulatedCall(key(0), 0, sentences(100))], config=replace(CONFIG, smooth_start=False))
    listener = run.of(0)

    # 11 tokens: the prefill draws the first. The first chunk completes a chunk of the flow. The vocoder holds the audio
    # of 4 of its 8 tokens until it knows what follows.
    assert listener.received[0] == ((7_000 + 10 * 1_000 + 20_000 + 10_000 * 8 // 25) / SECOND_US, 4 * SAMPLES_PER_TOKEN)
    assert (listener.outcome, listener.samples) == ("done", 100 * SAMPLES_PER_TOKEN)
    assert not run.engine.sequences


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(1, 3))
def test_first_chunk_on_device_saves_what_the_host_adds(launch_us: int, step_us: int, calls: int) -> None:
    """The device works as long in both cases, but fewer steps of the host come between."""
    times = StageTimes(
        Execution.STREAMS,
        **STAGES,
        launch_prefill=StageTime.linear(launch_us),
        launch_decode=StageTime.linear(launch_us),
        launch_flow=StageTime.linear(launch_us),
        launch_vocoder=StageTime.linear(launch_us),
        step=StageTime.linear(step_us),
    )

    def run(on_device: bool, tokens: int) -> Run:
        config = replace(CONFIG, smooth_start=False, first_chunk_on_device=on_device, render_batch=calls)
        return simulate(times, [SimulatedCall(key(n), 0, sentences(tokens)) for n in range(calls)], config=config)

    first_s = [run(on_device, 100).of(0).received[0][0] for on_device in (True, False)]
    device_s = (7_000 + 10 * 1_000 + 20_000 * calls + 10_000 * calls * 8 // 25) / SECOND_US
    assert device_s <= first_s[0] <= first_s[1]
    if step_us and calls == 1:
        assert first_s[0] < first_s[1]
    assert [run(True, 100).of(n).samples for n in range(calls)] == [100 * SAMPLES_PER_TOKEN] * calls
    # Speech that may end within its first chunk takes the other way.
    assert run(True, 10).of(0).received == run(False, 10).of(0).received


# -- fairness ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(stage_times(st.integers(20_000, 900_000)), st.integers(2, 6), st.booleans())
def test_equal_streams_get_equal_shares(times: StageTimes, count: int, paced: bool) -> None:
    """Beyond capacity this holds for downloads only: a first chunk never precedes a call that is close to underrun."""
    assume(not paced or count * work_us(times, 250) / 10 <= 0.9 * SECOND_US)
    calls = [SimulatedCall(key(n), 0, sentences(200), paced=paced) for n in range(count)]
    run = simulate(times, calls)

    audio_s = [0.0] * count
    arrivals = sorted((at_s, n, samples) for n in range(count) for at_s, samples in run.of(n).received)
    for _, n, samples in arrivals:
        audio_s[n] += samples / SAMPLE_RATE_HZ
        started = [s for s in audio_s if s]
        assert max(started) - min(started) <= 2 * CHUNK_S + 1e-6, audio_s
    assert [run.of(n).outcome for n in range(count)] == ["done"] * count


calls_over_time = st.lists(
    st.tuples(st.integers(0, 8 * SECOND_US), st.lists(st.integers(20, 150), min_size=1, max_size=3)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=30)
@given(stage_times(st.integers(20_000, 2_000_000)), calls_over_time)
def test_no_call_starves(times: StageTimes, planned: list[tuple[int, list[int]]]) -> None:
    """A call that waits has an engine that works: it hears something before all work could be done."""
    calls = [SimulatedCall(key(n), at_us, sentences(*tokens)) for n, (at_us, tokens) in enumerate(planned)]
    run = simulate(times, calls)

    all_work_s = sum(work_us(times, *tokens) for _, tokens in planned) / SECOND_US
    for n, (_, tokens) in enumerate(planned):
        listener = run.of(n)
        assert listener.playback.first_s - listener.opened_s <= all_work_s
        assert (listener.outcome, listener.samples) == ("done", audio_samples(tokens))


@settings(deadline=None, max_examples=15)
@given(stage_times(st.integers(600_000, 1_500_000)), st.integers(1, 3), st.integers(1, 3))
def test_downloads_finish_beside_saturating_calls(times: StageTimes, count: int, downloads: int) -> None:
    calls = [SimulatedCall(key(n), 0, sentences(*[250] * 12)) for n in range(count)]
    tokens = 50
    calls += [SimulatedCall(key(count + n), SECOND_US, sentences(tokens), paced=False) for n in range(downloads)]
    run = simulate(times, calls)

    share_s = downloads * work_us(times, tokens) / UNPACED_SHARE / SECOND_US
    for n in range(downloads):
        listener = run.of(count + n)
        assert listener.outcome == "done"
        assert listener.ended_s is not None
        assert listener.ended_s - listener.opened_s <= 1.0 + 2 * share_s


# -- underruns ---------------------------------------------------------------------------------------------------------


def next_chunk_us(times: StageTimes) -> float:
    """Time from one chunk to the next: tokens in whole bursts, flow, vocoder with its context."""
    return times.prefill.us(1) + 36 * times.decode.us(1) + times.flow.us(1) + times.vocoder.us(2)


@settings(deadline=None, max_examples=30)
@given(stage_times(st.integers(10_000, 120_000)), calls_over_time, st.integers(0, 3))
def test_no_underrun_below_capacity(times: StageTimes, planned: list[tuple[int, list[int]]], downloads: int) -> None:
    """The next chunk of every call, after a pass that cannot be interrupted, fits into the audio of a first chunk."""
    first_chunk_us = CONFIG.first_tokens * SECOND_US // TOKEN_RATE_HZ
    longest_us = max(times.flow.us(1) + times.vocoder.us(2), 8 * times.decode.us(1), times.prefill.us(1))
    assume(len(planned) * next_chunk_us(times) + 2 * longest_us <= first_chunk_us)
    calls = [SimulatedCall(key(n), at_us, sentences(*tokens)) for n, (at_us, tokens) in enumerate(planned)]
    calls += [SimulatedCall(key(len(planned) + n), 0, sentences(100), paced=False) for n in range(downloads)]
    run = simulate(times, calls)

    assert [run.of(n).playback.underrun_s for n in range(len(planned))] == [0.0] * len(planned)


@st.composite
def busy_stages(draw: st.DrawFn, calls: int) -> StageTimes:
    """Stages of which flow and vocoder, which share no work here, spend 60 to 80 % of the time on so many calls."""
    chunk_us = draw(st.integers(600_000, 800_000)) * CHUNK_S / calls
    flow_us = chunk_us * draw(st.integers(40, 90)) / 100
    vocoder_chunks = (CHUNK_TOKENS + CONFIG.vocoder_context_tokens) / CHUNK_TOKENS
    return StageTimes(
        draw(executions),
        prefill=StageTime.linear(draw(st.integers(500, 2_000))),
        decode=StageTime.linear(draw(st.integers(50, 200))),
        flow=StageTime.linear(0.0, flow_us),
        vocoder=StageTime.linear(0.0, (chunk_us - flow_us) / vocoder_chunks),
    )


@settings(deadline=None, max_examples=15)
@given(st.data(), st.integers(8, 14), st.integers(1, 3))
def test_downloads_take_only_what_calls_leave(data: st.DataObject, count: int, downloads: int) -> None:
    """The downloads are opened before the calls, and most of their text arrives while all calls speak."""
    times = data.draw(busy_stages(count))
    all_speak_us = count * SECOND_US // 2 + SECOND_US
    (_, short), (_, long) = sentences(CHUNK_TOKENS, 10 * CHUNK_TOKENS)
    text = ((0, short), (all_speak_us, long))
    calls = [SimulatedCall(key(count + n), 0, text, paced=False) for n in range(downloads)]
    calls += [SimulatedCall(key(n), n * SECOND_US // 2, sentences(12 * CHUNK_TOKENS)) for n in range(count)]
    # A long first chunk, so that the start of a call is not what decides.
    run = simulate(times, calls, config=replace(CONFIG, first_tokens=CHUNK_TOKENS))

    assert [run.of(n).playback.underrun_s for n in range(count)] == [0.0] * count


@settings(deadline=None, max_examples=15)
@given(st.data(), st.integers(22, 30))
def test_burst_of_calls_does_not_interrupt_a_call(data: st.DataObject, count: int) -> None:
    """The others are opened when it has 160 ms of audio.

    Its next chunk, after three passes that begin before its tokens are there, takes less; all first chunks take longer.
    """
    times = data.draw(busy_stages(1 + count))
    config = replace(CONFIG, smooth_start=False)
    speaks = SimulatedCall(key(0), 0, sentences(4 * CHUNK_TOKENS))
    first_s, _ = simulate(times, [speaks], config=config).of(0).received[0]
    burst = [SimulatedCall(key(1 + n), round(first_s * SECOND_US), sentences(2 * CHUNK_TOKENS)) for n in range(count)]
    run = simulate(times, [speaks, *burst], config=config)

    assert run.of(0).playback.underrun_s == 0.0


# -- faults, stops, pauses ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(stage_times(st.integers(20_000, 900_000)), calls_over_time, st.data())
def test_faults_change_no_other_outcome(
    times: StageTimes, planned: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    calls = [SimulatedCall(key(n), at_us, sentences(*tokens)) for n, (at_us, tokens) in enumerate(planned)]
    operations = data.draw(st.sets(st.sampled_from([Need.PREFILL, Need.DECODE, Need.RENDER]), min_size=1))
    faulty = {key(n) for n in data.draw(st.sets(st.sampled_from(range(len(calls)))))}

    def fails(operation: Need, members: tuple[UtteranceKey, ...]) -> bool:
        return operation in operations and not faulty.isdisjoint(members)

    config = replace(CONFIG, render_batch=4)
    healthy = simulate(times, calls, config=config)
    run = simulate(times, calls, config=config, fails=fails)

    for n in range(len(calls)):
        listener = run.of(n)
        if key(n) in faulty:
            assert listener.error == "synthesis_failed"
        else:
            assert (listener.outcome, listener.samples) == ("done", healthy.of(n).samples)
    assert not run.engine.sequences
    assert run.engine.free_pages == healthy.engine.free_pages


@settings(deadline=None, max_examples=30)
@given(stage_times(st.integers(20_000, 900_000)), calls_over_time, st.data())
def test_transient_faults_of_batches_fail_no_call(
    times: StageTimes, planned: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    calls = [SimulatedCall(key(n), at_us, sentences(*tokens)) for n, (at_us, tokens) in enumerate(planned)]
    failing = data.draw(st.sets(st.integers(0, 40), max_size=8))
    passes = iter(range(1_000_000))

    def fails(operation: Need, members: tuple[UtteranceKey, ...]) -> bool:
        return next(passes) in failing and len(members) > 1

    run = simulate(times, calls, config=replace(CONFIG, render_batch=4), fails=fails)

    for n, (_, tokens) in enumerate(planned):
        assert (run.of(n).outcome, run.of(n).samples) == ("done", audio_samples(tokens))


@settings(deadline=None, max_examples=30)
@given(stage_times(st.integers(20_000, 900_000)), calls_over_time, st.data())
def test_stopped_stream_never_gets_another_step(
    times: StageTimes, planned: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    stops_us = [data.draw(st.none() | st.integers(0, 6 * SECOND_US)) for _ in planned]
    calls = [
        SimulatedCall(key(n), at_us, sentences(*tokens), stop_us=stop_us)
        for n, ((at_us, tokens), stop_us) in enumerate(zip(planned, stops_us, strict=True))
    ]
    run = simulate(times, calls, config=replace(CONFIG, render_batch=4))

    ended_s = {key(n): run.of(n).ended_s for n in range(len(calls)) if run.of(n).outcome == "stopped"}
    for at_us, _, members in run.passes:
        for member in members:
            stopped_s = ended_s.get(member)
            assert stopped_s is None or at_us / SECOND_US <= stopped_s
    for member, stopped_s in ended_s.items():
        assert stopped_s is not None
        assert all(at_s <= stopped_s for at_s, _ in run.listeners[member].received)
    assert not run.engine.sequences
    assert run.engine.free_pages == SimulatedEngine(times, CONFIG).free_pages


@settings(deadline=None, max_examples=20)
@given(stage_times(st.integers(20_000, 900_000)), st.integers(0, 4 * SECOND_US), st.integers(1, 4 * SECOND_US))
def test_held_stream_gets_no_step(times: StageTimes, after_us: int, length_us: int) -> None:
    held = (after_us, after_us + length_us)
    calls = [SimulatedCall(key(0), 0, sentences(150), hold_us=held), SimulatedCall(key(1), 0, sentences(150))]
    run = simulate(times, calls)

    longest_us = max(times.flow.us(3) + times.vocoder.us(3), times.prefill.us(1), 8 * times.decode.us(1))
    served = [at_us for at_us, _, members in run.passes if key(0) in members]
    assert not [at_us for at_us in served if held[0] + longest_us < at_us < held[1]]
    assert [run.of(n).samples for n in range(2)] == [150 * SAMPLES_PER_TOKEN] * 2


@settings(deadline=None, max_examples=15)
@given(stage_times(st.integers(20_000, 500_000)), st.integers(2, 8), st.integers(12, 40))
def test_scarce_pages_delay_calls_without_failing_them(times: StageTimes, count: int, pages: int) -> None:
    calls = [SimulatedCall(key(n), n * SECOND_US // 4, sentences(75, 75)) for n in range(count)]
    run = simulate(times, calls, config=replace(CONFIG, pages=pages))

    assert [run.of(n).outcome for n in range(count)] == ["done"] * count
    assert run.engine.free_pages == SimulatedEngine(times, replace(CONFIG, pages=pages)).free_pages
