"""First-audio latency of one session at a time, whose whole text arrives at once.

Times start at ``speak``. ``first_audio`` is the first frame; ``first_audible`` is the frame with the first sample above
-50 dBFS plus the position of that sample; ``first_chunk`` is the engine time for the first chunk.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from time import perf_counter

from tts_worker.features.bench.listener import first_audible
from tts_worker.features.bench.stats import Figure, Track, percentile, rounded_ms, untracked
from tts_worker.features.bench.texts import SENTENCES
from tts_worker.settings import Settings
from tts_worker.types import SAMPLE_RATE_HZ, Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker


@dataclass(slots=True)
class _Times:
    first_audio_s: list[float] = field(default_factory=list)
    first_audible_s: list[float] = field(default_factory=list)
    first_chunk_ms: list[float] = field(default_factory=list)
    engine_s: float = 0.0
    audio_s: float = 0.0


async def measure_latency(settings: Settings, turns: int, *, track: Track = untracked) -> dict[str, Figure]:
    """Measure ``turns`` sentences, one after another, each in a new session."""
    times = _Times()
    rng = random.Random(1)
    async with running_worker(settings) as worker:
        for turn in track(range(turns)):
            await _turn(worker, SENTENCES[turn % len(SENTENCES)], rng.randrange(1_000), times)
    return {
        "turns": turns,
        "first_audio_p50_ms": rounded_ms(percentile(times.first_audio_s, 50)),
        "first_audio_p95_ms": rounded_ms(percentile(times.first_audio_s, 95)),
        "first_audio_p99_ms": rounded_ms(percentile(times.first_audio_s, 99)),
        "first_audible_p95_ms": rounded_ms(percentile(times.first_audible_s, 95)),
        "first_chunk_ms": round(percentile(times.first_chunk_ms, 50) or 0.0, 3),
        "rtf": round(times.engine_s / times.audio_s, 5),
    }


async def _turn(worker: Worker, text: str, seed: int, times: _Times) -> None:
    session = worker.hub.open(SessionOptions(realtime=False, seed=seed))
    began_s = perf_counter()
    session.speak(text)
    session.end_text()
    audible = False
    try:
        async for item in session:
            now_s = perf_counter()
            if isinstance(item, Ended):
                return
            if not isinstance(item, PcmFrame):
                continue
            if item.index == 0:
                times.first_audio_s.append(now_s - began_s)
                times.first_chunk_ms.append(item.meta.wall_ms)
            if not audible and (position := first_audible(item.pcm)) is not None:
                audible = True
                times.first_audible_s.append(now_s - began_s + position / SAMPLE_RATE_HZ)
            times.audio_s += item.samples / SAMPLE_RATE_HZ
            if item.start_sample <= item.meta.start_sample < item.start_sample + item.samples:
                times.engine_s += item.meta.wall_ms / 1000
    finally:
        session.close()
