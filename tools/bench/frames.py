"""Cost of a frame: processor time of a real server per 20 ms frame, with calls that speak all the time.

The calls are WebSockets (``/v1/stream``), or telephone calls, of this process; the server runs in another one, whose
processor time Linux reports. All of it counts: synthesis, events, sending. With the tone engine, whose audio costs
almost nothing, it is the cost of sessions, event loop and transport.

A baseline, the server of another version, is measured in turn with this one. The processors of a machine do not always
run at the same speed, so only figures of the same run are comparable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, process_time

from tools.bench.calls import AlwaysSpeaking, Calls, SpeakingCall, unexplained_underruns
from tools.bench.stall_monitor import StallMonitor
from tools.bench.telephone import TelephoneCall
from tts_worker.errors import EngineFault
from tts_worker.features.bench.server_process import server_process
from tts_worker.features.bench.stats import Figure, Track, no_garbage_collection, percentile, rounded_ms, untracked

SETTLE_S = 1.0
"""From the last beginning until the measurement."""


@dataclass(frozen=True)
class FrameCost:
    """Measurement of one server.

    Attributes:
        calls: Totals of the calls while they were measured.
        seconds: Length of the measurement.
        server_s: Processor time of the server in it.
        client_s: Processor time of the clients in it.
        unexplained: Underruns that no stall of the machine explains: end and length in seconds.
        at_start: Underruns before the measurement, while calls begin.
    """

    calls: Calls
    seconds: float
    server_s: float
    client_s: float
    unexplained: list[tuple[float, float]]
    at_start: list[tuple[float, float]]

    @property
    def frame_us(self) -> float:
        """Processor time of the server per frame, in microseconds."""
        return 1e6 * self.server_s / max(1, self.calls.frames)


async def measure_frames(
    arguments: list[str],
    sessions: int,
    seconds: float,
    *,
    lead_s: float,
    start_over_s: float,
    protocol: str = "websocket",
    voices: Sequence[str] = (),
    source: str | None = None,
) -> FrameCost:
    """Run a server with ``sessions`` calls and measure it for ``seconds``.

    Args:
        arguments: Arguments of ``tts-worker serve``.
        sessions: Number of calls.
        seconds: Length of the measurement.
        lead_s: Playout lead of a call beyond one frame, to attribute underruns to machine stalls.
        start_over_s: Time over which the calls begin, one after the other; the measurement follows.
        protocol: ``websocket`` or ``twilio``.
        voices: Voices of the calls over WebSockets, in turn; none are the default one.
        source: Folder of the package of the server, to measure another version; None is this one.

    Raises:
        EngineFault: The server did not start, or refused a call.
        UnknownVoice: It has no such voice.
    """
    calls = Calls()
    async with server_process(arguments, source=source) as (address, pid), contextlib.AsyncExitStack() as stack:
        stack.enter_context(no_garbage_collection())
        monitor = await stack.enter_async_context(StallMonitor())
        tasks = [
            asyncio.create_task(_call(protocol, address, seed, calls, start_over_s * seed / sessions, voices).run())
            for seed in range(sessions)
        ]
        stack.push_async_callback(_cancel, tasks)
        await asyncio.sleep(start_over_s + SETTLE_S)
        at_start = list(calls.underruns)
        calls.underruns.clear()
        calls.frames = 0
        calls.audio_s = 0.0
        began_s = monotonic()
        server_s = -_processor_time_s(pid)
        client_s = -process_time()
        await asyncio.sleep(seconds)
        server_s += _processor_time_s(pid)
        client_s += process_time()
        measured_s = monotonic() - began_s
        for task in tasks:
            if task.done():
                task.result()
        if calls.errors:
            raise EngineFault(f"{calls.errors} utterances ended with an error")
        underruns = list(calls.underruns)
    unexplained = unexplained_underruns(underruns, monitor.stalls, lead_s)
    return FrameCost(calls, measured_s, server_s, client_s, unexplained, at_start)


def _call(
    protocol: str, address: str, seed: int, calls: Calls, delay_s: float, voices: Sequence[str]
) -> AlwaysSpeaking:
    if protocol != "websocket":
        return TelephoneCall(address, seed, calls, delay_s)
    return SpeakingCall(address, seed, calls, delay_s, voices[seed % len(voices)] if voices else None)


async def compare_frames(
    arguments: list[str],
    sessions: int,
    seconds: float,
    repeats: int,
    *,
    lead_s: float,
    baseline: str | None,
    start_over_s: float,
    protocol: str = "websocket",
    voices: Sequence[str] = (),
    track: Track = untracked,
) -> dict[str, Figure]:
    """Measure this version, and ``baseline`` in turn with it, with its default voice; medians over ``repeats``."""
    costs: list[FrameCost] = []
    baselines: list[FrameCost] = []

    async def measure(source: str | None) -> FrameCost:
        return await measure_frames(
            arguments,
            sessions,
            seconds,
            lead_s=lead_s,
            start_over_s=start_over_s,
            protocol=protocol,
            voices=voices if source is None else (),
            source=source,
        )

    for _ in track(range(repeats)):
        if baseline is not None:
            baselines.append(await measure(baseline))
        costs.append(await measure(None))
    figures = _figures(costs)
    if baselines:
        figures |= {f"baseline_{name}": value for name, value in _figures(baselines).items()}
        ratios = [cost.frame_us / before.frame_us for cost, before in zip(costs, baselines, strict=True)]
        figures["frame_ratio"] = round(median(ratios), 3)
        figures["frame_ratio_max"] = round(max(ratios), 3)
    return figures


def _figures(costs: list[FrameCost]) -> dict[str, Figure]:
    underruns_s = [gap_s for cost in costs for _, gap_s in (*cost.at_start, *cost.calls.underruns)]
    first_audio_s = [time_s for cost in costs for time_s in cost.calls.first_audio_s]
    return {
        "frame_us": round(median(cost.frame_us for cost in costs), 1),
        "frames": sum(cost.calls.frames for cost in costs),
        "server_percent": round(median(100 * cost.server_s / cost.seconds for cost in costs), 1),
        "client_percent": round(median(100 * cost.client_s / cost.seconds for cost in costs), 1),
        "first_audio_p50_ms": rounded_ms(percentile(first_audio_s, 50)),
        "first_audio_p95_ms": rounded_ms(percentile(first_audio_s, 95)),
        "first_audio_max_ms": rounded_ms(max(first_audio_s, default=None)),
        "underruns_at_start": sum(len(cost.at_start) for cost in costs),
        "underruns": sum(len(cost.calls.underruns) for cost in costs),
        "underruns_unexplained": sum(len(cost.unexplained) for cost in costs),
        "underrun_max_ms": rounded_ms(max(underruns_s, default=None)),
    }


def _processor_time_s(pid: int) -> float:
    """Return the processor time of a process and its threads."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        raise EngineFault("the processor time of another process can be read on Linux only") from None
    # The fields after the name in parentheses: utime and stime are the fields 14 and 15 (proc_pid_stat(5)).
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
