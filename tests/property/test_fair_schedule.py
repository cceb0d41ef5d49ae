"""Scheduling of downloads beside calls, as properties over step costs."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.fakes.fair_engine import Stream, run
from tts_worker.engine.scheduler import UNPACED_SHARE

SECOND_US = 1_000_000
step_costs = st.integers(1_000, 80_000)
chunk_lengths = st.sampled_from((100, 200, 500, 1_000))


def downloads(count: int, step_us: int, chunk_ms: int, first_steps: int = 2) -> list[Stream]:
    return [Stream(f"download{i:03}", False, step_us, chunk_ms, first_steps=first_steps) for i in range(count)]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), step_costs, step_costs, st.integers(1, 6), st.integers(0, SECOND_US), chunk_lengths)
def test_downloads_delay_a_first_chunk_by_one_step(
    count: int, download_us: int, step_us: int, first_steps: int, arrives_us: int, chunk_ms: int
) -> None:
    call = Stream("call", True, step_us, 200, arrives_us, first_steps, chunks=1)
    run([*downloads(count, download_us, chunk_ms), call], arrives_us + SECOND_US)
    idle_us = first_steps * step_us
    assert call.first_audio_us is not None
    # The running step, and the share of downloads while the call was scheduled.
    assert call.first_audio_us - arrives_us <= idle_us * (1 + 2 * UNPACED_SHARE) + max(download_us, 1_000)
    assert call.first_audio_us - arrives_us <= 2 * idle_us + max(download_us, 1_000)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(10, 75),
    st.sampled_from((200, 500, 1_000)),
    st.integers(5_000, 40_000),
    st.integers(0, SECOND_US),
)
def test_calls_beside_downloads_have_no_underrun(
    calls: int, count: int, load_percent: int, chunk_ms: int, download_us: int, within_us: int
) -> None:
    step_us = max(1, chunk_ms * 1_000 * load_percent // 100 // calls)
    talking = [Stream(f"call{i:02}", True, step_us, chunk_ms, i * within_us // calls) for i in range(calls)]
    run([*downloads(count, download_us, 1_000), *talking], 4 * SECOND_US)
    assert [call.underruns for call in talking] == [0] * calls


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 20), step_costs, chunk_lengths, st.booleans())
def test_downloads_share_evenly(count: int, step_us: int, chunk_ms: int, beside_a_call: bool) -> None:
    pool = downloads(count, step_us, chunk_ms)
    call = [Stream("call", True, 20_000, 200)] if beside_a_call else []
    run([*pool, *call], 60 * count * step_us)
    made = [download.chunks_made for download in pool]
    assert max(made) - min(made) <= 2


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(1_000, 40_000), chunk_lengths)
def test_first_bytes_of_downloads_come_in_one_round(count: int, step_us: int, chunk_ms: int) -> None:
    pool = downloads(count, step_us, chunk_ms, first_steps=2)
    run(pool, 10 * count * step_us)
    for place, download in enumerate(pool):
        assert download.first_audio_us == 2 * (place + 1) * step_us


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(5_000, 40_000), st.integers(5_000, 40_000))
def test_downloads_progress_beside_calls_beyond_capacity(
    calls: int, count: int, call_us: int, download_us: int
) -> None:
    # Each chunk costs more time than it plays: every call always needs more audio.
    talking = [Stream(f"call{i:02}", True, call_us, max(1, call_us // 2_000)) for i in range(calls)]
    pool = downloads(count, download_us, 1_000)
    settled_us = 2 * SECOND_US
    until_us = settled_us + 1_000 * call_us + 100 * download_us
    run([*pool, *talking], until_us)
    share = sum(download.busy_us for download in pool) / (until_us - settled_us)
    assert 0.6 * UNPACED_SHARE <= share <= 1.5 * UNPACED_SHARE
    assert all(download.first_audio_us is not None for download in pool)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 10), st.integers(1, 10), st.integers(2_000, 10_000))
def test_new_call_delays_downloads_briefly(older: int, newer: int, step_us: int) -> None:
    pool = downloads(older, step_us, 500)
    late = [Stream(f"late{i:02}", False, step_us, 500, SECOND_US) for i in range(newer)]
    run([*pool, *late], SECOND_US + 20 * (older + newer) * step_us)
    # The catch-up of a new call (3 s of audio, 6 steps and the first), and one round of all streams.
    bound_us = (8 * newer + older + newer) * step_us
    assert max(download.longest_wait_us for download in pool) <= bound_us


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 40), st.integers(5_000, 30_000), st.integers(1, 4))
def test_burst_is_served_in_order_of_arrival(count: int, step_us: int, first_steps: int) -> None:
    burst = [Stream(f"s{i:03}", True, step_us, 200, i, first_steps, chunks=20) for i in range(count)]
    run(burst, 20 * count * first_steps * step_us)
    starts = [stream.started_us for stream in burst]
    assert starts == sorted(starts)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(10, 75),
    st.sampled_from((200, 500, 1_000)),
    st.integers(5_000, 40_000),
)
def test_calls_beside_buffering_clients_have_no_underrun(
    calls: int, buffering: int, load_percent: int, chunk_ms: int, buffering_us: int
) -> None:
    step_us = max(1, chunk_ms * 1_000 * load_percent // 100 // calls)
    talking = [Stream(f"call{i:02}", True, step_us, chunk_ms) for i in range(calls)]
    clients = [Stream(f"client{i:02}", True, buffering_us, 1_000, buffers=True) for i in range(buffering)]
    # The load is below capacity if clients play in real time.
    assume(load_percent / 100 + buffering * buffering_us / SECOND_US <= 0.8)
    run([*clients, *talking], 4 * SECOND_US)
    assert [call.underruns for call in talking] == [0] * calls


def test_buffering_client_goes_before_downloads() -> None:
    client = Stream("client", True, 20_000, 200, arrives_us=SECOND_US, chunks=1, buffers=True)
    run([*downloads(20, 40_000, 1_000), client], 2 * SECOND_US)
    assert client.first_audio_us is not None
    assert client.first_audio_us - SECOND_US <= 2 * 20_000 + 40_000
