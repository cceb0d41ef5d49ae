"""``tts-worker say --url URL --mode vc --source FILE``: voice conversion by a running worker."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from time import perf_counter

from tts_worker.client.async_tts import AsyncTTS
from tts_worker.commands.common import open_sink
from tts_worker.commands.standard_input import stdin_parts
from tts_worker.types import BYTES_PER_SAMPLE


def run_conversion(args: argparse.Namespace) -> int:
    """Convert ``--source``, writing each part as soon as it is there. Raises as ``AsyncTTS.convert`` does."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    samples = 0
    first_at_s: float | None = None
    began_at_s = perf_counter()
    source = args.source if args.source_rate is None else stdin_parts()
    async with (
        AsyncTTS(args.url, api_key=os.environ.get("TTS_WORKER_API_KEY")) as tts,
        tts.convert(
            source, live_rate_hz=args.source_rate, voice=args.voice, speed=args.speed, seed=args.seed
        ) as conversion,
    ):
        first = await anext(conversion, b"")  # a refusal leaves no file
        sink, place = await open_sink(args)
        try:
            if first:
                first_at_s = perf_counter()
                samples = len(first) // BYTES_PER_SAMPLE
                await sink.write(first)
            async for part in conversion:
                samples += len(part) // BYTES_PER_SAMPLE
                await sink.write(part)
        except BaseException:
            await sink.abort()
            raise
        await sink.close()
        rate_hz = conversion.sample_rate_hz
    ended_at_s = perf_counter()
    summary = {
        "mode": args.mode,
        "audio_s": round(samples / rate_hz, 3),
        "first_audio_ms": round(1000 * ((first_at_s or ended_at_s) - began_at_s), 1),
        "wall_s": round(ended_at_s - began_at_s, 3),
    }
    if args.json:
        print(json.dumps(summary))
    elif not args.quiet:
        first_ms = summary["first_audio_ms"]
        print(f"{summary['audio_s']:.1f} s of speech, first audio after {first_ms:.0f} ms -> {place}", file=sys.stderr)
    return 0 if samples else 1
