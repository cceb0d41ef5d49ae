"""First-audio latency of one session at a time, whose whole text arrives at once.

Times start at ``speak``. ``first_audio`` is the first frame; ``first_audible`` is the frame with the first sample above
-50 dBFS plus the position of that sample; ``first_chunk`` is the engine time for the first chunk.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.pcm import to_pcm
from tts_worker.audio.window import MAX_SOURCE_S
from tts_worker.benchmarks.stats import Figure, Track, percentile, rounded_ms, untracked
from tts_worker.benchmarks.texts import SENTENCES
from tts_worker.errors import as_exception
from tts_worker.session.conversion import LiveSource, RecordedSource, Source
from tts_worker.settings import Settings
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker

_AUDIBLE = 104  # of 32768: -50 dBFS
_FRAME_MS = 20


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


async def measure_conversions(
    settings: Settings, source: bytes, voice: str | None, turns: int, *, live: bool = False, track: Track = untracked
) -> dict[str, Figure]:
    """Convert a recording ``turns`` times, one after another.

    One before them, which loads the speech tokenizer, does not count. Times start with the whole recording at hand;
    with ``live``, before its first frame, and the frames come at the pace of speech.

    Raises:
        TTSWorkerError: The recording cannot be read, or no engine converts it.
    """
    times = _Times()
    options = SessionOptions(voice=voice, realtime=False, raw_chunks=True)
    wall_s = 0.0
    recording = read_recording(source, MAX_SOURCE_S) if live else None
    async with running_worker(settings) as worker:
        await _convert(worker, options, RecordedSource(source), _Times())  # loads the speech tokenizer
        for _ in track(range(turns)):
            given = RecordedSource(source) if recording is None else _live_source(recording)
            wall_s += await _convert(worker, options, given, times)
    return {
        "turns": turns,
        "first_audio_p50_ms": rounded_ms(percentile(times.first_audio_s, 50)),
        "first_audio_p95_ms": rounded_ms(percentile(times.first_audio_s, 95)),
        "audio_s": round(times.audio_s, 3),
        "wall_per_audio_s": round(wall_s / times.audio_s, 5),
    }


async def _convert(worker: Worker, options: SessionOptions, source: Source, times: _Times) -> float:
    """Convert; add the first audio and the duration to ``times``. Returns the seconds that it took."""
    began_s = perf_counter()
    conversion = await worker.hub.convert(options, source)
    async with aclosing(conversion.outputs()) as items:
        async for item in items:
            if isinstance(item, PcmFrame):
                if item.index == 0:
                    times.first_audio_s.append(perf_counter() - began_s)
                times.audio_s += item.samples / SAMPLE_RATE_HZ
            elif isinstance(item, Ended) and item.error is not None:
                raise as_exception(item.error)
    return perf_counter() - began_s


def _live_source(recording: Recording) -> LiveSource:
    async def frames() -> AsyncIterator[bytes]:
        pcm = to_pcm(recording.samples)
        size = BYTES_PER_SAMPLE * (recording.rate_hz * _FRAME_MS // 1_000)
        began_s = perf_counter()
        for end in range(size, len(pcm) + size, size):
            spoken_s = min(end, len(pcm)) / BYTES_PER_SAMPLE / recording.rate_hz
            await asyncio.sleep(began_s + spoken_s - perf_counter())
            yield pcm[end - size : end]

    return LiveSource(frames(), recording.rate_hz)


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
            loud = np.flatnonzero(np.abs(np.frombuffer(item.pcm, "<i2").astype(np.int32)) > _AUDIBLE)
            if len(loud) and not audible:
                audible = True
                times.first_audible_s.append(now_s - began_s + int(loud[0]) / SAMPLE_RATE_HZ)
            times.audio_s += item.samples / SAMPLE_RATE_HZ
            if item.start_sample <= item.meta.start_sample < item.start_sample + item.samples:
                times.engine_s += item.meta.wall_ms / 1000
    finally:
        session.close()
