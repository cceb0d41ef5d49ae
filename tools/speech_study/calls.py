"""Calls of a worker in this process: spoken alone, at once, with a pause, or stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tts_worker import create_worker
from tts_worker.adapter import SpeechChunk, SpeechStream, TTSWorker
from tts_worker.settings import load_settings
from tts_worker.types import BYTES_PER_SAMPLE, Outcome, Receipt, SessionOptions, State, Word

T = TypeVar("T")


@dataclass(frozen=True)
class Said:
    """An utterance as its client received it.

    Attributes:
        text: What was to be said.
        pcm: Audio that was sent, 24 kHz s16le mono.
        words: Words of the playback report.
        chunk_starts: Samples at which the engine's chunks begin.
        receipt: The playback report.
        outcome: How it ended.
    """

    text: str
    pcm: bytes
    words: tuple[Word, ...]
    chunk_starts: tuple[int, ...]
    receipt: Receipt
    outcome: Outcome

    @property
    def samples(self) -> int:
        return len(self.pcm) // BYTES_PER_SAMPLE


class Calls:
    """Speaks through sessions of one worker; the text arrives letter by letter."""

    def __init__(self, worker: TTSWorker) -> None:
        self._worker = worker

    async def speak(self, text: str, seed: int = 0, speed: float = 1.0) -> Said:
        """Speak without interruption."""
        stream = self._open(text, seed, speed)
        return _said(text, [chunk async for chunk in stream], stream)

    async def speak_all(self, texts: Sequence[str]) -> list[Said]:
        """Speak all texts at once, each with its number as the seed."""
        return await asyncio.gather(*(self.speak(text, seed) for seed, text in enumerate(texts)))

    async def speak_with_pause(self, text: str, at_sample: int, meanwhile: str, seed: int = 0) -> tuple[Said, bool]:
        """Pause before the frame that holds ``at_sample``, speak ``meanwhile`` as another call, and resume.

        Returns:
            What was said, and whether a frame came during the pause.
        """
        stream = self._open(text, seed)
        session = stream.session
        chunks: list[SpeechChunk] = []
        while not chunks or chunks[-1].end_sample <= at_sample:
            chunks.append(await anext(stream))
        session.pause()
        assert session.state is State.PAUSED
        following = asyncio.ensure_future(_next_or_none(stream))
        await self.speak(meanwhile, seed)
        came_early = following.done()
        session.resume()
        while (chunk := await following) is not None:
            chunks.append(chunk)
            following = asyncio.ensure_future(_next_or_none(stream))
        return _said(text, chunks, stream), came_early

    async def speak_until(self, text: str, samples: int, seed: int = 0) -> Said:
        """STOP once ``samples`` were sent, all of which count as played."""
        stream = self._open(text, seed)
        chunks: list[SpeechChunk] = []
        async for chunk in stream:
            chunks.append(chunk)
            if chunk.end_sample >= samples and stream.session.state is State.SPEAKING:
                stream.session.stop("stop", chunk.end_sample)
        return _said(text, chunks, stream)

    def _open(self, text: str, seed: int, speed: float = 1.0) -> SpeechStream:
        async def letters() -> AsyncIterator[str]:
            for letter in text:
                yield letter

        return self._worker.synthesize_chunks(letters(), SessionOptions(realtime=False, seed=seed, speed=speed))


@asynccontextmanager
async def open_calls(bundle: Path | None, **options: Any) -> AsyncIterator[Calls]:
    """Run a worker.

    Args:
        bundle: Model directory; None: the CPU voice.
        options: Other settings of a CosyVoice engine.
    """
    engine = {"kind": "hibari"} if bundle is None else {"kind": "cosyvoice", "bundle": str(bundle), **options}
    async with create_worker(load_settings(None, {"engines": {"voice": engine}}, replaced=("engines",))) as worker:
        yield Calls(worker)


class Worker:
    """Runs work with the calls of a worker that stays loaded; a context manager.

    Args: as of ``open_calls``.
    """

    def __init__(self, bundle: Path | None, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._opened = open_calls(bundle, **options)
        self._calls: Calls | None = None

    def __enter__(self) -> Worker:
        self._calls = self._loop.run_until_complete(self._opened.__aenter__())
        return self

    def run(self, work: Callable[[Calls], Coroutine[Any, Any, T]]) -> T:
        assert self._calls is not None
        return self._loop.run_until_complete(work(self._calls))

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._opened.__aexit__(*error))
        self._loop.close()


async def _next_or_none(stream: SpeechStream) -> SpeechChunk | None:
    return await anext(stream, None)


def _said(text: str, chunks: Sequence[SpeechChunk], stream: SpeechStream) -> Said:
    assert stream.receipt is not None
    assert stream.outcome is not None
    return Said(
        text,
        b"".join(chunk.pcm for chunk in chunks),
        stream.receipt.words,
        tuple(chunk.start_sample for chunk in chunks if chunk.wall_ms),
        stream.receipt,
        stream.outcome,
    )
