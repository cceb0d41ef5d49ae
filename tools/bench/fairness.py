"""Cost of downloads to calls: a real server in a separate process, measured idle and beside downloads in one run.

A call is a WebSocket (``/v1/stream``); a download is a ``POST /v1/audio/speech`` whose client reads as fast as it can,
in a separate process (``downloads``). First audio is timed from sending the text to the first audio message. A call
plays from the first message on at the sample rate, by the time at which messages arrive at the machine
(``timed_connection``); an underrun is a gap of more than 5 ms, and unexplained unless the machine stalled
(``stall_monitor``). The calls speak for a while before the downloads begin; underruns in that time are not due to
downloads.

Each promise has a verdict: ``first_audio`` (median and 95th percentile beside downloads are at most twice those of the
idle worker plus one engine step), ``no_underrun`` of running calls, ``downloads_start`` (first byte of the last
download within two seconds), ``downloads_share`` (Jain's index of the received audio is at least 0.9) and
``downloads_proceed`` (every download receives audio in the second half of the run).
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from websockets.asyncio.client import connect

from tools.bench.calls import Calls, SpeakingCall, scrape, unexplained_underruns
from tools.bench.downloads import Download, DownloadProcess
from tools.bench.stall_monitor import StallMonitor
from tts_worker.errors import EngineFault
from tts_worker.features.bench.stats import Figure, Track, percentile, rounded_ms, untracked
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

CALL_TEXT = "A live caller speaks."
DOWNLOADS_START_S = 2.0
LEAST_SHARE_INDEX = 0.9

_BYTES_PER_S = BYTES_PER_SAMPLE * SAMPLE_RATE_HZ
_GAP_S = 0.2  # between two calls
ALONE_S = 5.0  # the calls speak this long before the downloads begin
_FIRST_BYTES_S = 60.0  # downloads without a first byte by then count as not started


def jain_index(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 for equal shares, 1/n if one of n has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


async def first_audio(address: str) -> float:
    """Return the seconds to the first audio of a new call."""
    async with connect(f"ws://{address}/v1/stream", compression=None) as socket:
        await socket.recv()
        began_s = monotonic()
        await socket.send(json.dumps({"type": "text", "text": CALL_TEXT, "end": True}))
        async for message in socket:
            if isinstance(message, bytes):
                return monotonic() - began_s
            event = json.loads(message)
            if event["type"] == "error":
                raise EngineFault(f"the server refused a call: {event.get('message', 'no reason given')}")
    raise EngineFault("the server closed a call without audio")


async def engine_metrics(address: str) -> dict[str, float]:
    """Return steps, busy seconds and the longest step, over all engines."""
    text = await scrape(address)
    found = re.findall(
        r"^(tts_engine_(?:steps|busy_seconds|slowest_step_seconds))(?:_total)?\{[^}]*\} (\S+)", text, re.M
    )
    figures: dict[str, float] = {}
    for name, value in found:
        figures[name] = figures.get(name, 0.0) + float(value)
    if len(figures) != 3:
        raise EngineFault("the server does not report the time of its engine steps")
    return figures


@dataclass(frozen=True)
class _Round:
    """Downloads that begin together beside the calls.

    Attributes:
        began_s: When the downloads began, on the monotonic clock.
        seconds: Until they were given up.
        downloads: Progress of each at the end.
        received: Audio of each, in bytes, while the new calls were made.
        first_audio_s: First-audio latency of the new calls.
    """

    began_s: float
    seconds: float
    downloads: Sequence[Download]
    received: Sequence[int]
    first_audio_s: Sequence[float]


async def measure_fairness(
    address: str,
    *,
    downloads: int,
    characters: int,
    callers: int,
    tries: int,
    rounds: int,
    lead_s: float,
    track: Track = untracked,
) -> dict[str, Figure]:
    """Measure the server at ``address`` (``host:port``), which must have no other clients.

    Args:
        downloads: Number of downloads that run beside the calls.
        characters: Text length of each download.
        callers: Calls that speak throughout, whose underruns count.
        tries: Number of new calls for first audio, idle and in each round.
        rounds: How often the downloads begin.
        lead_s: Playout lead of a call beyond one frame, to attribute underruns to machine stalls.
        track: Yields the rounds.

    Raises:
        EngineFault: The server refused a call or a download.
    """
    calls = Calls()
    async with StallMonitor() as monitor, contextlib.AsyncExitStack() as stack:
        idle_s = await _first_audio_times(address, tries)
        tasks = [asyncio.create_task(SpeakingCall(address, seed, calls).run()) for seed in range(callers)]
        stack.push_async_callback(_cancel, tasks)
        await asyncio.sleep(ALONE_S if callers else 0.0)
        alone = list(calls.underruns)
        calls.underruns.clear()
        before = await engine_metrics(address)
        measured = []
        for _ in track(range(rounds)):
            async with DownloadProcess(address, downloads, characters) as process:
                measured.append(await _measure_round(address, process, tries))
            _raise_faults(tasks)
        after = await engine_metrics(address)
    steps = after["tts_engine_steps"] - before["tts_engine_steps"]
    busy_s = after["tts_engine_busy_seconds"] - before["tts_engine_busy_seconds"]
    longest_step_s = after["tts_engine_slowest_step_seconds"]
    unexplained = unexplained_underruns(calls.underruns, monitor.stalls, lead_s)
    figures = _first_audio_figures(idle_s, [seconds for each in measured for seconds in each.first_audio_s])
    figures |= {
        "step_mean_ms": rounded_ms(busy_s / max(1.0, steps)),
        "step_max_ms": rounded_ms(longest_step_s),
        "call_audio_s": round(calls.audio_s, 1),
        "alone_s": ALONE_S if callers else 0.0,
        "underruns_alone": len(alone),
        "underruns_alone_unexplained": len(unexplained_underruns(alone, monitor.stalls, lead_s)),
        "beside_downloads_s": round(sum(each.seconds for each in measured), 1),
        "underruns": len(calls.underruns),
        "underruns_unexplained": len(unexplained),
        "rounds_with_unexplained_underruns": _count_rounds(measured, [at_s for at_s, _ in unexplained]),
        "underrun_max_ms": rounded_ms(max((gap_s for _, gap_s in calls.underruns), default=None)),
        "machine_stalls": len(monitor.stalls),
    }
    figures |= _download_figures(measured, downloads)
    last_first_byte_ms = figures["last_first_byte_ms"]
    idle_p50_s, idle_p95_s, p50_s, p95_s = (
        float(figures[name] or 0.0) / 1000
        for name in (
            *("idle_first_audio_p50_ms", "idle_first_audio_p95_ms"),
            *("first_audio_p50_ms", "first_audio_p95_ms"),
        )
    )
    promises = {
        "first_audio": p50_s <= 2 * idle_p50_s + longest_step_s and p95_s <= 2 * idle_p95_s + longest_step_s,
        "no_underrun": not unexplained,
        "downloads_start": not downloads
        or (last_first_byte_ms is not None and float(last_first_byte_ms) <= 1000 * DOWNLOADS_START_S),
        "downloads_share": float(figures["download_share_index"] or 0.0) >= LEAST_SHARE_INDEX,
        "downloads_proceed": all(size for each in measured for size in each.received),
    }
    verdicts: dict[str, Figure] = {f"promise_{name}": "pass" if holds else "fail" for name, holds in promises.items()}
    return figures | verdicts


async def _measure_round(address: str, process: DownloadProcess, tries: int) -> _Round:
    """Begin the downloads, wait for their first bytes and make new calls beside them."""
    began_s = monotonic()
    await process.begin()
    results = await process.progress()
    while monotonic() < began_s + _FIRST_BYTES_S and any(result.first_byte_s is None for result in results):
        await asyncio.sleep(0.05)
        results = await process.progress()
    at_start = [result.received_bytes for result in results]
    first_audio_s = await _first_audio_times(address, tries)
    results = await process.progress()
    received = [result.received_bytes - first for result, first in zip(results, at_start, strict=True)]
    return _Round(began_s, monotonic() - began_s, results, received, first_audio_s)


def _count_rounds(rounds: Sequence[_Round], times_s: Sequence[float]) -> int:
    """Count the rounds that contain at least one of the times; a round lasts until the next one begins."""
    return len({bisect.bisect([each.began_s for each in rounds], at_s) for at_s in times_s})


def _first_audio_figures(idle_s: Sequence[float], beside_s: Sequence[float]) -> dict[str, Figure]:
    idle_p50_s = percentile(idle_s, 50) or 0.0
    idle_p95_s = percentile(idle_s, 95) or 0.0
    p50_s = percentile(beside_s, 50) or 0.0
    p95_s = percentile(beside_s, 95) or 0.0
    return {
        "idle_first_audio_p50_ms": rounded_ms(idle_p50_s),
        "idle_first_audio_p95_ms": rounded_ms(idle_p95_s),
        "first_audio_p50_ms": rounded_ms(p50_s),
        "first_audio_p95_ms": rounded_ms(p95_s),
        "first_audio_max_ms": rounded_ms(max(beside_s)),
        "ratio_p50": round(p50_s / idle_p50_s, 2),
        "ratio_p95": round(p95_s / idle_p95_s, 2),
    }


def _download_figures(rounds: Sequence[_Round], downloads: int) -> dict[str, Figure]:
    """Return the figures of all rounds; the last first byte and the share are those of the worst round."""
    results = [result for each in rounds for result in each.downloads]
    firsts_s = [result.first_byte_s for result in results if result.first_byte_s is not None]
    have_all_started = bool(firsts_s) and len(firsts_s) == downloads * len(rounds)
    received = [size for each in rounds for size in each.received]
    return {
        "downloads_started": len(firsts_s),
        "downloads_running_at_end": sum(not result.ended for result in results),
        "last_first_byte_ms": rounded_ms(max(firsts_s) if have_all_started else None),
        "download_audio_s": round(sum(received) / _BYTES_PER_S, 1),
        "download_share_index": round(min(jain_index(each.received) if downloads else 1.0 for each in rounds), 4),
    }


async def _first_audio_times(address: str, tries: int) -> list[float]:
    times = []
    for _ in range(tries):
        times.append(await first_audio(address))
        await asyncio.sleep(_GAP_S)
    return times


def _raise_faults(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
