"""``tts-worker say``: speaks text from the command line, a file or a pipe while it is still being read.

The whole worker runs in this process, so the audio takes the same path as in any session. Standard output carries audio
(``--out -``) or JSON (``--json``); messages go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from tts_worker.adapter import SpeechChunk, SpeechStream
from tts_worker.client.async_tts import AsyncTTS, SpeechOptions
from tts_worker.client.playback import FileSink, PlayerSink, Sink, StdoutSink, find_player
from tts_worker.commands import speak_converted, speak_offline
from tts_worker.commands.common import (
    GIVE_OUT,
    OFFLINE_ENGINE,
    add_settings_arguments,
    quiet_logs,
    run_event_loop,
    settings_from,
)
from tts_worker.commands.progress import Bar
from tts_worker.commands.standard_input import stdin_parts
from tts_worker.errors import InvalidRequest
from tts_worker.settings import Settings, read_yaml
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Outcome, Receipt, SessionOptions
from tts_worker.worker import running_adapter

_LONG_TEXT_CHARS = 400
_PORTION_CHARS = 1_000
_INTERRUPTED = 130
_MAX_TEXT_CHARS = 20_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="text to speak; without it, standard input is read as it arrives")
    parser.add_argument("--file", type=Path, help="read the text from this file (-: standard input)")
    parser.add_argument("--voice", help="voice, one of those listed by `tts-worker voices`")
    parser.add_argument(
        "--url", help="speak with a running worker, such as ws://127.0.0.1:8080 (API key: TTS_WORKER_API_KEY)"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="0.5 to 2.0 (default 1.0)")
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed; the same seed gives the same audio (default 0)"
    )
    parser.add_argument("--language", help="language of the text, such as en")
    parser.add_argument("--instruct", help="how to say it, for voices that take instructions")
    parser.add_argument("--lexicon", type=Path, metavar="FILE", help="YAML: word: spelling, or word: /phonemes/")
    parser.add_argument(
        "--flush-after-ms",
        type=float,
        metavar="MS",
        help="speak words without punctuation after this pause on standard input (0: never; default 400)",
    )
    parser.add_argument("--plain", action="store_true", help="read Markdown and URLs literally")
    parser.add_argument(
        "--out", help="file to write (.wav .flac .mp3 .opus .pcm), or - for raw s16le on standard output"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with times, chunks and words")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    speak_offline.add_arguments(parser)
    add_settings_arguments(parser, offline=True)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.text and args.file is not None:
        raise InvalidRequest("give the text or --file, not both")
    if args.bundle is not None or args.engine == OFFLINE_ENGINE:
        return speak_offline.run(args)
    if args.mode == speak_offline.CONVERSION or args.source is not None:
        if args.url is None:
            raise InvalidRequest("--mode vc needs a worker (--url) or a model directory (--bundle) that converts")
        return speak_converted.run(args)
    if args.json and args.out == "-":
        raise InvalidRequest("--json and --out - both use standard output; choose one")
    if args.url is not None and (args.config is not None or args.engine is not None or args.set):
        raise InvalidRequest("--url uses a running worker, whose settings --config, --engine and --set cannot change")
    source = _Source.of(args)
    code = _INTERRUPTED

    async def speak() -> None:
        nonlocal code
        if args.url is not None:
            code = await _speak_remotely(args, source)
        else:
            limits = {"max_utterance_chars": _MAX_TEXT_CHARS, "text_idle_timeout_s": 3_600}
            code = await _speak(args, settings_from(args, session=limits), source)

    run_event_loop(speak())
    return code


# -- text -------------------------------------------------------------------------------------------------------------


class _Source:
    """Text in portions. ``total_chars`` is None if the length is not known in advance."""

    def __init__(self, text: str | None) -> None:
        self._text = text
        self.total_chars = None if text is None else len(text)
        self.is_interactive = text is None and sys.stdin.isatty()
        self.first_at_s: float | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Source:
        if args.text:
            return cls(" ".join(args.text))
        if args.file is None or str(args.file) == "-":
            return cls(None)
        try:
            return cls(args.file.read_bytes().decode("utf-8", errors="replace"))
        except OSError as error:
            raise InvalidRequest(f"cannot read {args.file}: {error.strerror}") from None

    def remaining_chars(self, report: Receipt) -> int:
        """Return the characters that were not spoken, including text that was not sent to the session yet."""
        if self.total_chars is None:
            return len(report.text_remaining)
        return self.total_chars - len(report.text_spoken)

    async def portions(self) -> AsyncIterator[str | bytes]:
        if self._text is None:
            async for data in stdin_parts():
                self.first_at_s = self.first_at_s or perf_counter()
                yield data
        else:
            self.first_at_s = perf_counter()
            for start in range(0, len(self._text), _PORTION_CHARS):
                yield self._text[start : start + _PORTION_CHARS]


# -- speaking ---------------------------------------------------------------------------------------------------------


async def _open_sink(args: argparse.Namespace) -> tuple[Sink, str]:
    if args.out == "-":
        return StdoutSink(), "standard output"
    if args.out is not None:
        return FileSink(Path(args.out)), args.out
    player = find_player()
    if player is not None:
        return await PlayerSink.open(player, advice=GIVE_OUT), player
    return FileSink(Path("speech.wav")), "speech.wav (no audio player found; use --out FILE)"


async def _speak(args: argparse.Namespace, settings: Settings, source: _Source) -> int:
    options = SessionOptions(
        voice=args.voice,
        speed=args.speed,
        seed=args.seed,
        language=args.language,
        instruct=args.instruct,
        lexicon=read_yaml(args.lexicon) if args.lexicon is not None else None,
        markdown=False if args.plain else None,
        realtime=False,
        raw_chunks=True,
        flush_after_ms=args.flush_after_ms,
    )
    called_at_s = perf_counter()
    async with AsyncExitStack() as stack:
        with Bar(shown=sys.stderr.isatty() and not (args.quiet or args.json)) as bar:
            bar.update("starting the engine")
            adapter = await stack.enter_async_context(running_adapter(settings))
        started_at_s = perf_counter()
        stream = adapter.synthesize_chunks(source.portions(), options)
        sink, target = await _open_sink(args)
        if source.is_interactive and not args.quiet:
            print("Type text; each sentence is spoken as you finish it. Ctrl-D ends, Ctrl-C stops.", file=sys.stderr)
        with _stop_on_interrupt(partial(adapter.control, "STOP"), sink):
            chunks, first_at_s = await _play(stream, sink, _Progress(source, args.quiet or args.json))
    ended_at_s = perf_counter()
    stopped = stream.outcome is Outcome.STOPPED
    began_at_s = source.first_at_s or ended_at_s
    summary = _summary(stream, source, chunks, (first_at_s or ended_at_s) - began_at_s, ended_at_s - began_at_s)
    summary["engine_start_s"] = round(started_at_s - called_at_s, 3)
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    elif not args.quiet:
        _print_summary(summary, target)
    if stopped:
        return _INTERRUPTED
    return 0 if chunks else 1


@contextlib.contextmanager
def _stop_on_interrupt(stop: Callable[[int | None], Awaitable[object]], sink: Sink) -> Iterator[None]:
    """Turn the first Ctrl-C into a STOP, which still yields the playback report; the second is an ordinary Ctrl-C.

    Args:
        stop: Stops the speech; takes the samples played so far, if known.
        sink: Where the speech goes.
    """
    loop = asyncio.get_running_loop()
    stopping: set[asyncio.Task[None]] = set()

    async def stop_speech() -> None:
        await stop(sink.played_samples)
        if isinstance(sink, PlayerSink):
            await sink.abort()  # it buffers seconds of audio, and a write may block on it

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stopping.add(loop.create_task(stop_speech()))

    with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the program
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


async def _speak_remotely(args: argparse.Namespace, source: _Source) -> int:
    """Speak with the worker at ``--url``."""
    options = SpeechOptions(
        voice=args.voice,
        speed=args.speed,
        seed=args.seed,
        language=args.language,
        instruct=args.instruct,
        lexicon=read_yaml(args.lexicon) if args.lexicon is not None else None,
        markdown=False if args.plain else None,
        flush_after_ms=args.flush_after_ms,
    )
    samples = 0
    first_at_s: float | None = None
    async with (
        AsyncTTS(re.sub("^http", "ws", args.url), api_key=os.environ.get("TTS_WORKER_API_KEY"), **options) as tts,
        tts.stream(source.portions()) as live,
    ):
        await live.start()
        sink, target = await _open_sink(args)

        async def stop(played_samples: int | None) -> None:
            live.stop(played_samples)

        try:
            with _stop_on_interrupt(stop, sink):
                async for part in live:
                    first_at_s = first_at_s or perf_counter()
                    samples += len(part.pcm) // BYTES_PER_SAMPLE
                    await sink.write(part.pcm)
        except BaseException:
            await sink.abort()
            raise
        await (sink.abort() if live.outcome is Outcome.STOPPED else sink.close())
    ended_at_s = perf_counter()
    began_at_s = source.first_at_s or ended_at_s
    assert live.report is not None
    assert live.outcome is not None
    summary = {
        "outcome": live.outcome.value,
        "reason": live.report.reason,
        "audio_s": round(samples / SAMPLE_RATE_HZ, 3),
        "first_audio_ms": round(1000 * ((first_at_s or ended_at_s) - began_at_s), 1),
        "wall_s": round(ended_at_s - began_at_s, 3),
        "chars_spoken": len(live.report.text_spoken),
        "chars_remaining": source.remaining_chars(live.report),
        "alignment": live.report.alignment.value,
        "words": [asdict(word) for word in live.words],
    }
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    elif not args.quiet:
        _print_summary(summary, target)
    if live.outcome is Outcome.STOPPED:
        return _INTERRUPTED
    return 0 if samples else 1


async def _play(stream: SpeechStream, sink: Sink, progress: _Progress) -> tuple[list[SpeechChunk], float | None]:
    """Write all chunks to the sink; return them without their audio, and when the first one arrived."""
    chunks: list[SpeechChunk] = []
    first_at_s: float | None = None
    try:
        with progress:
            async for chunk in stream:
                first_at_s = first_at_s or perf_counter()
                await sink.write(chunk.pcm)
                progress.update(chunk)
                chunks.append(_without_audio(chunk))
    except BaseException:
        await sink.abort()
        raise
    if stream.outcome is Outcome.STOPPED:
        await sink.abort()
    else:
        await sink.close()
    return chunks, first_at_s


def _without_audio(chunk: SpeechChunk) -> SpeechChunk:
    return SpeechChunk(
        chunk.index,
        b"",
        chunk.text_start,
        chunk.text_end,
        chunk.start_sample,
        chunk.end_sample,
        chunk.wall_ms,
        chunk.words,
    )


def _summary(
    stream: SpeechStream, source: _Source, chunks: list[SpeechChunk], first_s: float, wall_s: float
) -> dict[str, Any]:
    assert stream.receipt is not None
    assert stream.outcome is not None
    audio_s = chunks[-1].end_sample / SAMPLE_RATE_HZ if chunks else 0.0
    engine_s = sum(chunk.wall_ms for chunk in chunks) / 1000
    return {
        "voice": stream.session.params.voice,
        "outcome": stream.outcome.value,
        "reason": stream.receipt.reason,
        "audio_s": round(audio_s, 3),
        "first_audio_ms": round(1000 * first_s, 1),
        "wall_s": round(wall_s, 3),
        "rtf": round(engine_s / audio_s, 4) if audio_s else None,
        "chars_spoken": len(stream.receipt.text_spoken),
        "chars_remaining": source.remaining_chars(stream.receipt),
        "alignment": stream.receipt.alignment.value,
        "words": [asdict(word) for chunk in chunks for word in chunk.words],
        "chunks": [
            {key: value for key, value in asdict(chunk).items() if key not in ("pcm", "words")} for chunk in chunks
        ],
    }


def _print_summary(summary: dict[str, Any], target: str) -> None:
    if summary["reason"] == "nothing_to_speak":
        print("There is nothing in this text that can be spoken.", file=sys.stderr)
        return
    times = f"first audio after {summary['first_audio_ms']:.0f} ms"
    if "engine_start_s" in summary:
        times = f"engine started in {summary['engine_start_s']:.1f} s, {times}"
    if "rtf" in summary:
        times += f", real-time factor {summary['rtf'] or 0:.3f}"
    print(f"{summary['audio_s']:.1f} s of speech, {times} -> {target}", file=sys.stderr)
    if summary["outcome"] in ("stopped", "truncated"):
        remaining = summary["chars_remaining"]
        print(f"{summary['outcome']} ({summary['reason']}): {remaining} characters were not spoken", file=sys.stderr)


class _Progress:
    """A progress bar over the characters of a long text, on a terminal only."""

    def __init__(self, source: _Source, quiet: bool) -> None:
        self._total = source.total_chars
        shown = not quiet and sys.stderr.isatty() and (self._total or 0) > _LONG_TEXT_CHARS
        self._bar = self._task = None
        if shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("speaking"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %  {task.fields[audio_s]:.0f} s of speech"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("speaking", total=self._total, audio_s=0.0)

    def __enter__(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, chunk: SpeechChunk) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=chunk.text_end, audio_s=chunk.end_sample / SAMPLE_RATE_HZ)
