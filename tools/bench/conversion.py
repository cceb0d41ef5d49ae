"""First-audio latency of voice conversions of a recording, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter

from tts_worker.audio.decode import Recording, read_recording
from tts_worker.audio.pcm import to_pcm
from tts_worker.errors import as_exception
from tts_worker.features.bench.stats import Figure, Track, percentile, rounded_ms, untracked
from tts_worker.features.conversion.windows import MAX_SOURCE_S
from tts_worker.session.conversion import LiveSource, RecordedSource, Source
from tts_worker.settings import Settings
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Ended, PcmFrame, SessionOptions
from tts_worker.worker import Worker, running_worker

_FRAME_MS = 20


@dataclass(slots=True)
class _Times:
    first_audio_s: list[float] = field(default_factory=list)
    audio_s: float = 0.0


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
