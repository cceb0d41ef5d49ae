"""Cost of downloads to calls: a real server in a separate process, measured idle and beside downloads in one run.

A call is a WebSocket (``/v1/stream``); a download is a ``POST /v1/audio/speech`` whose client reads as fast as it can.
First audio is timed from sending the text to the first audio message. A call plays from the first message on at the
sample rate; an underrun is a gap of more than 5 ms, and unexplained unless the machine stalled (``stall_monitor``).
The calls speak for a while before the downloads begin; underruns in that time are not due to downloads.

Each promise has a verdict: ``first_audio`` (median and 95th percentile beside downloads are at most twice those of the
idle worker plus one engine step), ``no_underrun`` of running calls, ``downloads_start`` (first byte of the last
download within two seconds), ``downloads_share`` (Jain's index of the received audio is at least 0.9) and
``downloads_proceed`` (every download receives audio in the second half of the run).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

import h11
from websockets.asyncio.client import connect

from tts_worker.benchmarks.stall_monitor import StallMonitor, is_machine_stall
from tts_worker.benchmarks.stats import Figure, percentile, rounded_ms
from tts_worker.benchmarks.texts import SENTENCES, paragraph
from tts_worker.errors import EngineFault
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

CALL_TEXT = "A live caller speaks."
DOWNLOADS_START_S = 2.0
LEAST_SHARE_INDEX = 0.9

_UNDERRUN_S = 0.005
_BYTES_PER_S = BYTES_PER_SAMPLE * SAMPLE_RATE_HZ
_GAP_S = 0.2  # between two calls
_ALONE_S = 5.0  # the calls speak this long before the downloads begin
_FIRST_BYTES_S = 60.0  # downloads without a first byte by then count as not started
_READ_BYTES = 65_536


@dataclass
class Download:
    """Progress of one download.

    Attributes:
        received_bytes: Audio received so far.
        first_byte_s: Seconds from the request to the first byte.
        ended: Whether the response is complete.
    """

    received_bytes: int = 0
    first_byte_s: float | None = None
    ended: bool = False


@dataclass
class Calls:
    """Totals over all calls.

    Attributes:
        first_audio_s: First-audio latency per call.
        underruns: End (monotonic clock) and length of every underrun, in seconds.
        audio_s: Audio received.
    """

    first_audio_s: list[float] = field(default_factory=list)
    underruns: list[tuple[float, float]] = field(default_factory=list)
    audio_s: float = 0.0


def jain_index(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 for equal shares, 1/n if one of n has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


async def download(address: str, characters: int, seed: int, result: Download) -> None:
    """Read one long response to its end.

    Raises:
        EngineFault: The server refused the request.
    """
    host, _, port = address.rpartition(":")
    rng = random.Random(seed)
    text = ""
    while len(text) < characters:
        text += rng.choice(SENTENCES) + " "
    body = json.dumps({"input": text[:characters].rstrip(), "response_format": "pcm"}).encode()
    began_s = monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        http = h11.Connection(h11.CLIENT)
        headers = [("Host", address), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method="POST", target="/v1/audio/speech", headers=headers)
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        await writer.drain()
        async for message in _events(http, reader):
            if isinstance(message, h11.Response) and message.status_code != 200:
                raise EngineFault(f"the server answered a download with status {message.status_code}")
            if isinstance(message, h11.Data):
                if result.first_byte_s is None:
                    result.first_byte_s = monotonic() - began_s
                result.received_bytes += len(message.data)
        result.ended = True
    finally:
        writer.close()


async def _events(http: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[object]:
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return
        else:
            yield event


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


async def run_call(address: str, seed: int, calls: Calls) -> None:
    """Run a call that speaks one utterance after another until the task is cancelled."""
    rng = random.Random(seed)
    async with connect(f"ws://{address}/v1/stream", compression=None) as socket:
        await socket.recv()
        while True:
            await socket.send(json.dumps({"type": "text", "text": paragraph(rng, 4), "end": True}))
            playing_until_s: float | None = None
            async for message in socket:
                now_s = monotonic()
                if isinstance(message, bytes):
                    if playing_until_s is not None and now_s > playing_until_s + _UNDERRUN_S:
                        calls.underruns.append((now_s, now_s - playing_until_s))
                    seconds = len(message) / _BYTES_PER_S
                    playing_until_s = max(now_s, playing_until_s or 0.0) + seconds
                    calls.audio_s += seconds
                elif json.loads(message)["type"] in ("done", "truncated", "error"):
                    break


async def engine_metrics(address: str) -> dict[str, float]:
    """Return steps, busy seconds and the longest step, over all engines."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        text = (await reader.read(-1)).decode(errors="replace")
    finally:
        writer.close()
    found = re.findall(
        r"^(tts_engine_(?:steps|busy_seconds|slowest_step_seconds))(?:_total)?\{[^}]*\} (\S+)", text, re.M
    )
    figures: dict[str, float] = {}
    for name, value in found:
        figures[name] = figures.get(name, 0.0) + float(value)
    if len(figures) != 3:
        raise EngineFault("the server does not report the time of its engine steps")
    return figures


async def measure_fairness(
    address: str, *, downloads: int, characters: int, callers: int, tries: int, lead_s: float
) -> dict[str, Figure]:
    """Measure the server at ``address`` (``host:port``), which must have no other clients.

    Args:
        downloads: Number of downloads that run beside the calls.
        characters: Text length of each download.
        callers: Calls that speak throughout, whose underruns count.
        tries: Number of new calls for first audio, idle and beside downloads.
        lead_s: Playout lead of a call beyond one frame, to attribute underruns to machine stalls.

    Raises:
        EngineFault: The server refused a call or a download.
    """
    calls = Calls()
    results = [Download() for _ in range(downloads)]
    async with StallMonitor() as monitor, contextlib.AsyncExitStack() as stack:
        idle_s = await _first_audio_times(address, tries)
        tasks = [asyncio.create_task(run_call(address, seed, calls)) for seed in range(callers)]
        stack.push_async_callback(_cancel, tasks)
        await asyncio.sleep(_ALONE_S if callers else 0.0)
        alone = list(calls.underruns)
        calls.underruns.clear()
        began_s = monotonic()
        before = await engine_metrics(address)
        tasks += [
            asyncio.create_task(download(address, characters, seed, result)) for seed, result in enumerate(results)
        ]
        waited_s = 0.0
        while waited_s < _FIRST_BYTES_S and any(result.first_byte_s is None for result in results):
            _raise_faults(tasks)
            await asyncio.sleep(0.05)
            waited_s += 0.05
        at_start = [result.received_bytes for result in results]
        beside_s = await _first_audio_times(address, tries)
        _raise_faults(tasks)
        received = [result.received_bytes - first for result, first in zip(results, at_start, strict=True)]
        beside_downloads_s = monotonic() - began_s
        running = sum(not result.ended for result in results)
        after = await engine_metrics(address)
    steps = after["tts_engine_steps"] - before["tts_engine_steps"]
    mean_step_s = (after["tts_engine_busy_seconds"] - before["tts_engine_busy_seconds"]) / max(1.0, steps)
    longest_step_s = after["tts_engine_slowest_step_seconds"]
    machine_underruns = sum(is_machine_stall(monitor.stalls, gap_s, at_s, lead_s) for at_s, gap_s in calls.underruns)
    machine_underruns_alone = sum(is_machine_stall(monitor.stalls, gap_s, at_s, lead_s) for at_s, gap_s in alone)
    firsts = [result.first_byte_s for result in results if result.first_byte_s is not None]
    last_first_byte_s = max(firsts) if len(firsts) == downloads and firsts else None
    idle_p50 = percentile(idle_s, 50) or 0.0
    idle_p95 = percentile(idle_s, 95) or 0.0
    beside_p50 = percentile(beside_s, 50) or 0.0
    beside_p95 = percentile(beside_s, 95) or 0.0
    share_index = jain_index(received) if received else 1.0
    figures: dict[str, Figure] = {
        "idle_first_audio_p50_ms": rounded_ms(idle_p50),
        "idle_first_audio_p95_ms": rounded_ms(idle_p95),
        "first_audio_p50_ms": rounded_ms(beside_p50),
        "first_audio_p95_ms": rounded_ms(beside_p95),
        "first_audio_max_ms": rounded_ms(max(beside_s)),
        "ratio_p50": round(beside_p50 / idle_p50, 2),
        "ratio_p95": round(beside_p95 / idle_p95, 2),
        "step_mean_ms": rounded_ms(mean_step_s),
        "step_max_ms": rounded_ms(longest_step_s),
        "call_audio_s": round(calls.audio_s, 1),
        "alone_s": _ALONE_S if callers else 0.0,
        "underruns_alone": len(alone),
        "underruns_alone_unexplained": len(alone) - machine_underruns_alone,
        "beside_downloads_s": round(beside_downloads_s, 1),
        "underruns": len(calls.underruns),
        "underruns_unexplained": len(calls.underruns) - machine_underruns,
        "underrun_max_ms": rounded_ms(max((gap_s for _, gap_s in calls.underruns), default=None)),
        "machine_stalls": len(monitor.stalls),
        "downloads_started": len(firsts),
        "downloads_running_at_end": running,
        "last_first_byte_ms": rounded_ms(last_first_byte_s),
        "download_audio_s": round(sum(received) / _BYTES_PER_S, 1),
        "download_share_index": round(share_index, 4),
    }
    promises = {
        "first_audio": beside_p50 <= 2 * idle_p50 + longest_step_s and beside_p95 <= 2 * idle_p95 + longest_step_s,
        "no_underrun": len(calls.underruns) == machine_underruns,
        "downloads_start": (last_first_byte_s is not None and last_first_byte_s <= DOWNLOADS_START_S) or not downloads,
        "downloads_share": share_index >= LEAST_SHARE_INDEX,
        "downloads_proceed": all(received),
    }
    verdicts: dict[str, Figure] = {f"promise_{name}": "pass" if holds else "fail" for name, holds in promises.items()}
    return figures | verdicts


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
