"""The TTS worker protocol as a Python class: text chunks in, PCM out, ``control("PAUSE" | "RESUME" | "STOP")``.

For programs that embed the worker or drive it as orchestrators drive a TTS adapter. Every stream is a session of its
own, so a STOP ends what is being spoken and never the adapter. It knows sessions and the hub, no engine and no socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import anyio

from tts_worker.errors import ErrorInfo, InvalidRequest, TTSWorkerError
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.types import Ended, Outcome, PcmFrame, Receipt, UtteranceKey, Word, Words


class ModelHost(Protocol):
    """Who loads engines (``app.Worker``)."""

    @property
    def hub(self) -> SessionHub: ...
    def is_loaded(self, name: str) -> bool: ...
    async def load(self, name: str) -> None: ...
    async def unload(self, name: str) -> None: ...


class WorkerState(str, Enum):
    UNLOADED = "unloaded"  # no model
    IDLE = "idle"
    SYNTHESIZING = "synthesizing"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class SpeechChunk:
    """A frame of sound and where it comes from.

    ``text_start, text_end``: original characters that were being said (of the engine's chunk this frame lies in);
    ``start_sample, end_sample``: position in the utterance; ``wall_ms``: the engine's time for that chunk, 0 on its
    later frames; ``words``: words that begin in this frame.
    """

    index: int
    pcm: bytes
    text_start: int
    text_end: int
    start_sample: int
    end_sample: int
    wall_ms: float
    words: tuple[Word, ...] = ()


class SpeechError(TTSWorkerError):
    """An utterance that failed. ``receipt`` says what was delivered before."""

    def __init__(self, error: ErrorInfo, receipt: Receipt) -> None:
        super().__init__(error.message, retry_after_s=error.retry_after_s)
        self.code = error.code
        self.retryable = error.retryable
        self.receipt = receipt


class SpeechStream:
    """An utterance being spoken: iterate over its chunks. Ends after the last one, also after a STOP; ``receipt`` and
    ``outcome`` are then there. Raises SpeechError if synthesis failed, and whatever the text iterator raised.

    Leaving the iteration (break, cancellation, an exception, dropping the object) frees everything at once.
    """

    def __init__(self, session: LocalSession, text_chunks: AsyncIterable[str | bytes]) -> None:
        self.receipt: Receipt | None = None
        self.outcome: Outcome | None = None
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._words: list[Word] = []
        self._taken = asyncio.Event()
        key = session.speak("")  # the utterance begins: the engine prepares before the first word, and STOP can end it
        self._writer = self._loop.create_task(_write(session, key, text_chunks, self._taken), name=f"{session.id}-text")

    @property
    def session(self) -> LocalSession:
        return self._session

    def __aiter__(self) -> AsyncIterator[SpeechChunk]:
        return self

    async def __anext__(self) -> SpeechChunk:
        try:
            while (item := await self._session.next()) is not None:
                if isinstance(item, PcmFrame):
                    self._taken.set()
                    return self._chunk(item)
                if isinstance(item, Words):
                    self._words.extend(item.words)
                elif isinstance(item, Ended):
                    self._end(item)
                    break
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopAsyncIteration

    def _chunk(self, frame: PcmFrame) -> SpeechChunk:
        words = tuple(self._words)
        self._words = []
        meta = frame.meta
        end = frame.start_sample + frame.samples
        return SpeechChunk(
            index=frame.index,
            pcm=frame.pcm,
            text_start=meta.text_start,
            text_end=meta.text_end,
            start_sample=frame.start_sample,
            end_sample=end,
            wall_ms=meta.wall_ms if frame.start_sample <= meta.start_sample < end else 0.0,
            words=words,
        )

    def _end(self, ended: Ended) -> None:
        self.receipt = ended.receipt
        self.outcome = ended.outcome
        if ended.receipt.reason == _TEXT_FAILED and self._writer.done() and not self._writer.cancelled():
            error = self._writer.exception()
            if error is not None:
                raise error
        if ended.error is not None:
            raise SpeechError(ended.error, ended.receipt)

    def close(self) -> None:
        """Free everything, now. Closing twice changes nothing."""
        self._session.close("consumer_left")
        self._writer.cancel()

    async def aclose(self) -> None:
        """``close`` under the name that asynchronous iterators have for it."""
        self.close()

    def __del__(self) -> None:
        # Dropped without being closed (a plain ``break``), perhaps by the garbage collector on another thread.
        if not self._loop.is_closed() and self._session.state is not State.CLOSED:
            self._loop.call_soon_threadsafe(_abandon, self._session, self._writer)


def _abandon(session: LocalSession, writer: asyncio.Task[None]) -> None:
    session.close("consumer_left")
    writer.cancel()


_TEXT_FAILED = "text_failed"
_TEXT_AHEAD_CHARS = 2_000
"""How far text is pulled ahead of the sound: about two minutes of speech."""
_NO_SOUND_S = 1.0
"""Text without any sound in it (a long code block) makes no progress that could be waited for."""


async def _write(
    session: LocalSession, key: UtteranceKey, text_chunks: AsyncIterable[str | bytes], taken: asyncio.Event
) -> None:
    """Feed one utterance, no faster than it is spoken. It may end before its text does (STOP, an error): the rest is
    then not wanted."""
    try:
        async for chunk in text_chunks:
            if session.writing != key:
                return
            session.speak(chunk)
            while session.unspoken_chars > _TEXT_AHEAD_CHARS:
                taken.clear()
                with anyio.move_on_after(_NO_SOUND_S) as waited:
                    await taken.wait()
                if waited.cancelled_caught and session.state is not State.PAUSED and not session.buffered_samples:
                    break
        if session.writing == key:
            session.end_text()
    except asyncio.CancelledError:
        raise
    except BaseException:
        if session.writing == key:
            session.stop(_TEXT_FAILED)
        raise


class TTSWorker:
    """The protocol. Build it with ``tts_worker.create_worker``; all methods belong to one event loop."""

    def __init__(self, models: ModelHost, options: SessionOptions | None = None) -> None:
        self._models = models
        self._options = options or SessionOptions(realtime=False)
        self._live: list[LocalSession] = []
        self._model: str | None = None

    @property
    def state(self) -> WorkerState:
        """What is going on, over all streams of this object."""
        states = {session.state for session in self._sessions()}
        if State.PAUSED in states:
            return WorkerState.PAUSED
        if State.SPEAKING in states:
            return WorkerState.SYNTHESIZING
        return WorkerState.IDLE if self._models.hub.ready else WorkerState.UNLOADED

    def _sessions(self) -> list[LocalSession]:
        self._live = [session for session in self._live if session.state is not State.CLOSED]
        return self._live

    async def load_model(self, model_id: str) -> None:
        """Load an engine of the settings and warm it up; its first voice becomes the default of this object. Loading it
        again is fine. Raises UnknownModel and what its start raises."""
        await self._models.load(model_id)
        self._model = model_id

    async def unload_model(self, model_id: str) -> None:
        """Free an engine. Raises IllegalCommand while something is being spoken with it; unloading twice is fine."""
        await self._models.unload(model_id)
        if self._model == model_id:
            self._model = None

    async def warm_up(self) -> None:
        """Speak a sentence and throw it away. Loading a model has done as much once."""
        async for _ in self.synthesize_chunks(_once("Warming up: one, two, three.")):
            pass

    def synthesize_stream(
        self, text_chunks: AsyncIterable[str | bytes], options: SessionOptions | None = None
    ) -> AsyncIterator[bytes]:
        """Speak text while it is being written: 24 kHz s16le mono, in frames of 20 ms (the last may be shorter). As
        fast as it is made, or paced if the options say ``realtime``. Raises as ``synthesize_chunks`` does."""
        return _PcmOnly(self.synthesize_chunks(text_chunks, options))

    def synthesize_chunks(
        self, text_chunks: AsyncIterable[str | bytes], options: SessionOptions | None = None
    ) -> SpeechStream:
        """The same with metadata. Raises UnknownVoice, InvalidRequest, OverCapacity or NotReady at once."""
        options = options or self._options
        if options.voice is None and self._model is not None:
            options = replace(options, voice=self._voice_of(self._model))
        session = self._models.hub.open(options)
        self._sessions().append(session)
        return SpeechStream(session, text_chunks)

    def _voice_of(self, model: str) -> str | None:
        return next((voice.name for voice in self._models.hub.voices if voice.engine == model), None)

    async def control(self, command: str, played_samples: int | None = None) -> bool:
        """``PAUSE``, ``RESUME`` or ``STOP`` for everything this object speaks; returns whether it changed anything.

        It has taken effect when it returns: no old frame comes out after a STOP. In no state is it an error. Raises
        InvalidRequest for another command.
        """
        sessions = self._sessions()
        if command == "PAUSE":
            acted = [session for session in sessions if session.state is State.SPEAKING]
            for session in acted:
                session.pause()
        elif command == "RESUME":
            acted = [session for session in sessions if session.state is State.PAUSED]
            for session in acted:
                session.resume()
        elif command == "STOP":
            acted = [session for session in sessions if session.state in (State.SPEAKING, State.PAUSED)]
            for session in acted:
                session.stop("stop", played_samples)
        else:
            raise InvalidRequest("control takes PAUSE, RESUME or STOP")
        return bool(acted)


class _PcmOnly:
    """The sound of a stream without its metadata."""

    def __init__(self, stream: SpeechStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return (await self._stream.__anext__()).pcm

    async def aclose(self) -> None:
        """Free everything, now."""
        self._stream.close()


async def _once(text: str) -> AsyncIterator[str]:
    yield text
