"""How many sessions play without a hole: N listeners in real time, one utterance after another.

Holes are those that a listener hears who begins to play with the first frame and has nothing but what was sent
(``session.pacer``). ``continuity_c50``: the share of utterances whose longest hole is at most 50 ms.
``underruns_unexplained``: holes while the machine did not stand still for everybody (``bystander``).
An utterance counts from its first frame. A session without a slot is refused, counted as such, and does not come back.
"""

from __future__ import annotations

import asyncio
import random
import resource
from dataclasses import dataclass, field
from time import perf_counter

from tts_worker.app import Worker, running_worker
from tts_worker.benchmarks.bystander import Bystander, explains
from tts_worker.benchmarks.stats import Figure, percentile, rounded_ms, rss_mb
from tts_worker.benchmarks.texts import paragraph
from tts_worker.errors import ErrorCode, OverCapacity
from tts_worker.session.hub import SessionOptions
from tts_worker.session.session import LocalSession
from tts_worker.settings import Settings
from tts_worker.types import SAMPLE_RATE_HZ, Ended, PcmFrame

_STAGGER_S = 2.0
"""Calls do not begin in the same millisecond."""

_REFUSALS = (ErrorCode.OVER_CAPACITY, ErrorCode.OUT_OF_MEMORY)
"""What an engine says whose slots, or whose memory, are all taken."""


@dataclass(slots=True)
class _Heard:
    longest_hole_s: list[float] = field(default_factory=list)  # per utterance
    first_audio_s: list[float] = field(default_factory=list)
    holes: list[tuple[float, float]] = field(default_factory=list)  # when it ended, how long it was
    audio_s: float = 0.0
    refused: int = 0  # sessions without a slot
    failed: int = 0  # utterances that ended with another error


async def measure_load(settings: Settings, sessions: int, seconds: float) -> dict[str, Figure]:
    """``sessions`` listeners for ``seconds`` each; the utterance that is cut off at the end counts too."""
    heard = _Heard()
    async with Bystander() as bystander, running_worker(settings) as worker:
        cpu_before_s = _cpu_s()
        began_s = perf_counter()
        await asyncio.gather(*(_listen(worker, index, sessions, seconds, heard) for index in range(sessions)))
        cpu_s = _cpu_s() - cpu_before_s
        wall_s = perf_counter() - began_s
        memory_mb = rss_mb()
    utterances = len(heard.longest_hole_s)
    short_holes = sum(hole_s <= 0.05 for hole_s in heard.longest_hole_s)
    spare_s = max(0.0, settings.session.lead_ms - settings.session.frame_ms) / 1000
    by_machine = sum(explains(bystander.stalls, hole_s, ended_s, spare_s) for ended_s, hole_s in heard.holes)
    stalled_s = [stall.end_s - stall.begin_s for stall in bystander.stalls]
    return {
        "utterances": utterances,
        "utterances_failed": heard.failed,
        "sessions_refused": heard.refused,
        "audio_s": round(heard.audio_s, 1),
        "underruns": len(heard.holes),
        "underruns_unexplained": len(heard.holes) - by_machine,
        "underrun_p99_ms": rounded_ms(percentile(heard.longest_hole_s, 99)),
        "continuity_c50": round(short_holes / utterances, 4) if utterances else None,
        "first_audio_p50_ms": rounded_ms(percentile(heard.first_audio_s, 50)),
        "first_audio_p95_ms": rounded_ms(percentile(heard.first_audio_s, 95)),
        "machine_stalls": len(stalled_s),
        "machine_stall_max_ms": rounded_ms(max(stalled_s, default=None)),
        "cpu_percent": round(100 * cpu_s / wall_s, 1),
        "rss_mb": round(memory_mb, 1),
    }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _listen(worker: Worker, index: int, sessions: int, seconds: float, heard: _Heard) -> None:
    rng = random.Random(index)
    await asyncio.sleep(_STAGGER_S * index / sessions)
    try:
        session = worker.hub.open(SessionOptions(realtime=True, seed=index))
    except OverCapacity:
        heard.refused += 1
        return
    until_s = perf_counter() + seconds
    try:
        while perf_counter() < until_s:
            if not await _utterance(session, paragraph(rng, 3), until_s, heard):
                heard.refused += 1
                return
    finally:
        session.close()


async def _utterance(session: LocalSession, text: str, until_s: float, heard: _Heard) -> bool:
    """Listen to one utterance. Returns False if the engine had no slot for it."""
    pacer = session.pacer
    loop = asyncio.get_running_loop()
    began_s = perf_counter()
    session.speak(text)
    session.end_text()
    pacer.longest_underrun_s = 0.0
    silent_s = pacer.underrun_s
    is_heard = False
    while not isinstance(item := await session.next(), Ended) and perf_counter() < until_s:
        if isinstance(item, PcmFrame):
            if item.index == 0:
                heard.first_audio_s.append(perf_counter() - began_s)
                is_heard = True
            heard.audio_s += item.samples / SAMPLE_RATE_HZ
            if pacer.underrun_s > silent_s:
                heard.holes.append((loop.time(), pacer.underrun_s - silent_s))
                silent_s = pacer.underrun_s
    if is_heard:
        heard.longest_hole_s.append(pacer.longest_underrun_s)
    if isinstance(item, Ended) and item.error is not None:
        if item.error.code in _REFUSALS:
            return False
        heard.failed += 1
    return True
