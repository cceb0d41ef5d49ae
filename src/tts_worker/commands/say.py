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
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from tts_worker.adapter import SpeechChunk, SpeechStream
from tts_worker.audio.encoders import FileSigner
from tts_worker.client.async_tts import AsyncLiveSpeech, AsyncTTS
from tts_worker.client.playback import PlayerSink, Sink
from tts_worker.client.speech import Speech
from tts_worker.commands.common import (
    add_settings_arguments,
    given_text,
    open_sink,
    quiet_logs,
    run_event_loop,
    settings_from,
)
from tts_worker.commands.progress import Bar
from tts_worker.commands.standard_input import stdin_parts
from tts_worker.errors import InvalidRequest
from tts_worker.feature import find_file_signer, say_modules
from tts_worker.front_end.instruction import END_OF_PROMPT, split_instruction
from tts_worker.settings import Settings, read_yaml
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, Outcome, Receipt, SessionOptions, Word
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
    parser.add_argument(
        "--lexicon",
        metavar="FILE",
        help="YAML: word: spelling, or word: /phonemes/; or the name of a lexicon that the worker stores",
    )
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
    for module in say_modules():
        module.add_arguments(parser)
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    if args.text and args.file is not None:
        raise InvalidRequest("give the text or --file, not both")
    if args.json and args.out == "-":
        raise InvalidRequest("--json and --out - both use standard output; choose one")
    take_instruction(args)
    for module in say_modules():
        if (exit_code := module.run(args)) is not None:
            return exit_code
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


def take_instruction(args: argparse.Namespace) -> None:
    """Use what precedes ``<|endofprompt|>`` as ``--instruct``. Raises InvalidRequest."""
    text = given_text(args)
    if text is not None and END_OF_PROMPT in text:
        spoken, args.instruct = split_instruction(text, args.instruct)
        args.text, args.file = [spoken], None


class _Source:
    """Text in portions. ``total_chars`` is None if the length is not known in advance."""

    def __init__(self, text: str | None) -> None:
        self._text = text
        self.total_chars = None if text is None else len(text)
        self.is_interactive = text is None and sys.stdin.isatty()
        self.first_at_s: float | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Source:
        return cls(given_text(args))

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


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that a session and a client have."""
    return {
        "voice": args.voice,
        "speed": args.speed,
        "seed": args.seed,
        "language": args.language,
        "instruct": args.instruct,
        "lexicon": _lexicon(args.lexicon),
        "markdown": False if args.plain else None,
        "flush_after_ms": args.flush_after_ms,
    }


def _lexicon(given: str | None) -> dict[str, Any] | str | None:
    """Return the entries in a file, or else the name of a stored lexicon. Raises ConfigError."""
    is_file = given is not None and (Path(given).exists() or Path(given).suffix in (".yaml", ".yml", ".json"))
    return read_yaml(Path(given)) if given is not None and is_file else given


async def _speak(args: argparse.Namespace, settings: Settings, source: _Source) -> int:
    """Speak in this process."""
    options = SessionOptions(**_options(args), realtime=False, raw_chunks=True)
    signer = find_file_signer(settings)
    called_at_s = perf_counter()
    async with AsyncExitStack() as stack:
        with Bar(shown=sys.stderr.isatty() and not (args.quiet or args.json)) as bar:
            bar.update("starting the engine")
            adapter = await stack.enter_async_context(running_adapter(settings))
        engine_start_s = perf_counter() - called_at_s
        stream = adapter.synthesize_chunks(source.portions(), options)
        chunks: list[SpeechChunk] = []

        def note(chunk: SpeechChunk) -> int:
            chunks.append(replace(chunk, pcm=b""))
            return chunk.text_end

        target, times = await _play(args, source, stream, partial(adapter.control, "STOP"), note, signer)
    assert stream.receipt is not None
    words = [word for chunk in chunks for word in chunk.words]
    spoken = _Spoken(stream.receipt, stream.outcome, words, chunks[-1].end_sample if chunks else 0)
    summary = {"voice": stream.session.params.voice, **_summary(spoken, source, times)}
    audio_s = spoken.samples / SAMPLE_RATE_HZ
    summary["rtf"] = round(sum(chunk.wall_ms for chunk in chunks) / 1000 / audio_s, 4) if audio_s else None
    summary["chunks"] = [
        {key: value for key, value in asdict(chunk).items() if key not in ("pcm", "words")} for chunk in chunks
    ]
    summary["engine_start_s"] = round(engine_start_s, 3)
    return _report(args, spoken, summary, target)


async def _speak_remotely(args: argparse.Namespace, source: _Source) -> int:
    """Speak with the worker at ``--url``."""
    samples = 0
    async with (
        AsyncTTS(args.url, api_key=os.environ.get("TTS_WORKER_API_KEY"), **_options(args)) as tts,
        tts.stream(source.portions()) as live,
    ):
        await live.start()  # a refusal leaves no file

        async def stop(played_samples: int | None) -> None:
            live.stop(played_samples)

        def note(part: Speech) -> int:
            nonlocal samples
            samples += len(part.pcm) // BYTES_PER_SAMPLE
            return live.words[-1].end_char if live.words else 0

        target, times = await _play(args, source, live, stop, note)
    assert live.report is not None
    spoken = _Spoken(live.report, live.outcome, live.words, samples)
    return _report(args, spoken, _summary(spoken, source, times), target)


async def _play(
    args: argparse.Namespace,
    source: _Source,
    live: SpeechStream | AsyncLiveSpeech,
    stop: Callable[[int | None], Awaitable[object]],
    note: Callable[[Any], int],
    signer: FileSigner | None = None,
) -> tuple[str, tuple[float, float]]:
    """Write all parts where ``--out`` says.

    Args:
        args: The arguments.
        source: The text.
        live: The speech.
        stop: See ``_stop_on_interrupt``.
        note: Takes a part; returns the characters spoken so far.
        signer: Signs the file.

    Returns:
        Where the speech went, and when the first part arrived and the last was written.
    """
    first_at_s: float | None = None
    sink, target = await open_sink(args, signer)
    if source.is_interactive and not args.quiet:
        print("Type text; each sentence is spoken as you finish it. Ctrl-D ends, Ctrl-C stops.", file=sys.stderr)
    total = source.total_chars or 0
    shown = total > _LONG_TEXT_CHARS and sys.stderr.isatty() and not (args.quiet or args.json)
    with _stop_on_interrupt(stop, sink), Bar(shown=shown, unit=f"of {total} characters") as bar:
        try:
            async for part in live:
                first_at_s = first_at_s or perf_counter()
                await sink.write(part.pcm)
                bar.update("speaking", note(part), total)
        except BaseException:
            await sink.abort()
            raise
        await (sink.abort() if live.outcome is Outcome.STOPPED else sink.close())
    ended_at_s = perf_counter()
    return target, (first_at_s or ended_at_s, ended_at_s)


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


@dataclass(frozen=True, slots=True)
class _Spoken:
    """What was spoken."""

    report: Receipt
    outcome: Outcome | None
    words: Sequence[Word]
    samples: int


def _summary(spoken: _Spoken, source: _Source, times: tuple[float, float]) -> dict[str, Any]:
    assert spoken.outcome is not None
    first_at_s, ended_at_s = times
    began_at_s = source.first_at_s or ended_at_s
    return {
        "outcome": spoken.outcome.value,
        "reason": spoken.report.reason,
        "audio_s": round(spoken.samples / SAMPLE_RATE_HZ, 3),
        "first_audio_ms": round(1000 * (first_at_s - began_at_s), 1),
        "wall_s": round(ended_at_s - began_at_s, 3),
        "chars_spoken": len(spoken.report.text_spoken),
        "chars_remaining": source.remaining_chars(spoken.report),
        "skipped": [asdict(run) for run in spoken.report.skipped],
        "alignment": spoken.report.alignment.value,
        "words": [asdict(word) for word in spoken.words],
    }


def _report(args: argparse.Namespace, spoken: _Spoken, summary: dict[str, Any], target: str) -> int:
    """Print the summary and return the exit code."""
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    elif not args.quiet:
        _print_summary(summary, target)
    if spoken.outcome is Outcome.STOPPED:
        return _INTERRUPTED
    return 0 if spoken.samples else 1


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
    if skipped := sum(run["end"] - run["start"] for run in summary["skipped"]):
        print(f"The voice cannot speak {skipped} characters: they were skipped.", file=sys.stderr)
    if summary["outcome"] in ("stopped", "truncated"):
        remaining = summary["chars_remaining"]
        print(f"{summary['outcome']} ({summary['reason']}): {remaining} characters were not spoken", file=sys.stderr)
