"""Attribution of underruns to the worker or to stalls of the machine."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tools.bench import stall_monitor as stall_monitor_module
from tools.bench.stall_monitor import INTERVAL_S, Stall, StallMonitor, detect_stalls, is_machine_stall


def test_late_wakeup_is_a_stall() -> None:
    now_s = 100.0
    late_s = iter([0.0, 0.001, 0.12, 0.0])

    def sleep(seconds: float) -> None:
        nonlocal now_s
        assert seconds == INTERVAL_S
        now_s += seconds + next(late_s)

    found = detect_stalls(lambda: now_s, sleep)
    stall = next(found)
    assert stall.end_s - stall.begin_s == pytest.approx(0.12)
    assert stall.begin_s == pytest.approx(100.0 + 3 * INTERVAL_S + 0.001)
    with pytest.raises(RuntimeError):  # the fourth wakeup is in time; there is no fifth
        next(found)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200)), max_size=5), st.integers(0, 300), st.integers(0, 200)
)
@settings(deadline=None)
def test_underrun_mostly_covered_by_stalls_is_the_machines(
    observed: list[tuple[int, int]], gap_ms: int, lead_ms: int
) -> None:
    """Recomputed in whole milliseconds. Simultaneous stalls of several processors count once."""
    ended_ms = 400
    window = range(ended_ms - gap_ms - lead_ms, ended_ms)
    stalled_ms = [ms for ms in window if any(begin <= ms < begin + length for begin, length in observed)]
    assume(2 * len(stalled_ms) != len(window))
    found = [Stall(begin / 1000, (begin + length) / 1000) for begin, length in observed]
    assert is_machine_stall(found, gap_ms / 1000, ended_ms / 1000, lead_ms / 1000) == (
        2 * len(stalled_ms) > len(window)
    )


def test_underrun_without_a_stall_is_the_workers() -> None:
    assert not is_machine_stall([], 0.01, 5.0, 0.02)


async def test_monitor_process_ends_with_its_context() -> None:
    async with StallMonitor() as monitor:
        assert monitor.process.returncode is None
        assert all(stall.end_s > stall.begin_s for stall in monitor.stalls)
    assert monitor.process.returncode is not None


def test_each_stall_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is ended while its threads write; half a line would break the reader."""
    writes: list[tuple[int, bytes]] = []
    monkeypatch.setattr(os, "write", lambda file, line: writes.append((file, line)))
    monkeypatch.setattr(stall_monitor_module, "detect_stalls", lambda *_: [Stall(1.5, 2.0), Stall(3.0, 3.25)])
    stall_monitor_module.watch(None, 0.01)
    assert writes == [(1, b"1.5 2.0\n"), (1, b"3.0 3.25\n")]


def test_ready_is_written_before_any_stall(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a busy machine a processor may stall before the others are monitored."""

    class Thread:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            assert capsys.readouterr().out in ("ready\n", "")
            started.append(self)

    started: list[Thread] = []
    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    stall_monitor_module.monitor(0.01)
    assert started
    assert capsys.readouterr().out == ""
