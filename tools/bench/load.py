"""Playback continuity under load: N real-time sessions, one utterance after another.

An underrun is a gap of a listener that starts playback with the first frame and plays only what was sent
(``session.pacer``). ``continuity_c50`` is the share of utterances whose longest underrun is at most 50 ms.
``underruns_unexplained`` excludes underruns caused by stalls of the machine (``stall_monitor``). An utterance counts
from its first frame. A session without a slot counts as refused and does not retry.
"""

from __future__ import annotations

import asyncio
import random
import resource
from dataclasses import dataclass, field
from time import perf_counter

from tools.bench.memory import rss_mb
from tools.bench.stall_monitor import StallMonitor, is_machine_stall
from tts_worker.errors import ErrorCode, OverCapacity
from tts_worker.features.bench.stats import Figure, percentile, rounded_ms
from tts_worker.features.bench.texts import paragraph
from tts_worker.session.session import LocalSession
from tts_worker.settings import Settings
from tts_worker.types import SAMPLE_RATE_HZ, Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker

STAGGER_S = 2.0
"""Sessions start spread over this time."""

_REFUSALS = (ErrorCode.OVER_CAPACITY, ErrorCode.OUT_OF_MEMORY)
"""Error codes of an engine without a free slot or memory."""


@dataclass(slots=True)
class _Totals:
    longest_underrun_s: list[float] = field(default_factory=list)  # per utterance
    first_audio_s: list[float] = field(default_factory=list)
    underruns: list[tuple[float, float]] = field(default_factory=list)  # end time and length of each
    audio_s: float = 0.0
    refused: int = 0  # sessions without a slot
    failed: int = 0  # utterances that ended with another error


async def measure_load(settings: Settings, sessions: int, seconds: float) -> dict[str, Figure]:
    """Run ``sessions`` sessions for ``seconds`` each; the utterance cut off at the end counts too."""
    totals = _Totals()
    async with StallMonitor() as monitor, running_worker(settings) as worker:
        cpu_before_s = _cpu_s(worker)
        began_s = perf_counter()
        await asyncio.gather(*(_run_session(worker, index, sessions, seconds, totals) for index in range(sessions)))
        cpu_s = _cpu_s(worker) - cpu_before_s
        wall_s = perf_counter() - began_s
        memory_mb = rss_mb() + sum(engine.stats.process_memory_bytes for engine in worker.engines.values()) / 1e6
    utterances = len(totals.longest_underrun_s)
    short_underruns = sum(gap_s <= 0.05 for gap_s in totals.longest_underrun_s)
    lead_s = max(0.0, settings.session.lead_ms - settings.session.frame_ms) / 1000
    machine_underruns = sum(
        is_machine_stall(monitor.stalls, gap_s, ended_s, lead_s) for ended_s, gap_s in totals.underruns
    )
    stalled_s = [stall.end_s - stall.begin_s for stall in monitor.stalls]
    return {
        "utterances": utterances,
        "utterances_failed": totals.failed,
        "sessions_refused": totals.refused,
        "audio_s": round(totals.audio_s, 1),
        "underruns": len(totals.underruns),
        "underruns_unexplained": len(totals.underruns) - machine_underruns,
        "underrun_p99_ms": rounded_ms(percentile(totals.longest_underrun_s, 99)),
        "continuity_c50": round(short_underruns / utterances, 4) if utterances else None,
        "first_audio_p50_ms": rounded_ms(percentile(totals.first_audio_s, 50)),
        "first_audio_p95_ms": rounded_ms(percentile(totals.first_audio_s, 95)),
        "machine_stalls": len(stalled_s),
        "machine_stall_max_ms": rounded_ms(max(stalled_s, default=None)),
        "cpu_percent": round(100 * cpu_s / wall_s, 1),
        "rss_mb": round(memory_mb, 1),
    }


def _cpu_s(worker: Worker) -> float:
    """Processor time of this process and of engine processes, which report it once a second."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    engines_s = sum(engine.stats.process_cpu_s for engine in worker.engines.values())
    return usage.ru_utime + usage.ru_stime + engines_s


async def _run_session(worker: Worker, index: int, sessions: int, seconds: float, totals: _Totals) -> None:
    rng = random.Random(index)
    await asyncio.sleep(STAGGER_S * index / sessions)
    try:
        session = worker.hub.open(SessionOptions(realtime=True, seed=index))
    except OverCapacity:
        totals.refused += 1
        return
    deadline_s = perf_counter() + seconds
    now_s = asyncio.get_running_loop().time
    try:
        while perf_counter() < deadline_s:
            if not await _play_utterance(session, paragraph(rng, 3), deadline_s, totals):
                totals.refused += 1
                return
            await asyncio.sleep(session.pacer.lead_at_s(now_s()))  # what is sent is heard before the next one begins
    finally:
        session.close()


async def _play_utterance(session: LocalSession, text: str, deadline_s: float, totals: _Totals) -> bool:
    """Play one utterance; return False if the engine had no slot for it."""
    pacer = session.pacer
    loop = asyncio.get_running_loop()
    began_s = perf_counter()
    session.speak(text)
    session.end_text()
    pacer.longest_underrun_s = 0.0
    underrun_s = pacer.underrun_s
    has_audio = False
    while not isinstance(item := await session.next(), Ended) and perf_counter() < deadline_s:
        if isinstance(item, PcmFrame):
            if item.index == 0:
                totals.first_audio_s.append(perf_counter() - began_s)
                has_audio = True
            totals.audio_s += item.samples / SAMPLE_RATE_HZ
            if pacer.underrun_s > underrun_s:
                totals.underruns.append((loop.time(), pacer.underrun_s - underrun_s))
                underrun_s = pacer.underrun_s
    if has_audio:
        totals.longest_underrun_s.append(pacer.longest_underrun_s)
    if isinstance(item, Ended) and item.error is not None:
        if item.error.code in _REFUSALS:
            return False
        totals.failed += 1
    return True
