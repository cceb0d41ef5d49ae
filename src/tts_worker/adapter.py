"""The TTS worker protocol as a Python class: text chunks in, PCM out, ``control("PAUSE" | "RESUME" | "STOP")``.

For programs that embed the worker, such as orchestrators with TTS adapters. Every stream runs in a separate session, so
STOP ends the current speech but not the adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import anyio

from tts_worker.errors import ErrorInfo, InvalidRequest, TTSWorkerError
from tts_worker.session.host import WorkerHost
from tts_worker.session.session import LocalSession
from tts_worker.settings.sections import GrpcModelSettings
from tts_worker.types import Ended, Outcome, PcmFrame, Receipt, SessionOptions, State, UtteranceKey, Word, Words


class WorkerState(str, Enum):
    UNLOADED = "unloaded"  # no model
    IDLE = "idle"
    SYNTHESIZING = "synthesizing"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class SpeechChunk:
    """A frame of audio and its origin.

    Attributes:
        index: Number of the frame.
        pcm: 24 kHz s16le mono.
        text_start: First original character of the engine's chunk.
        text_end: End of its original characters.
        start_sample: Start of the frame in the utterance.
        end_sample: End of the frame in the utterance.
        wall_ms: Engine time of the chunk, on its first frame; 0 on later frames.
        words: Words that begin in this frame.
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
    """Synthesis failed. ``receipt`` reports what was delivered before."""

    def __init__(self, error: ErrorInfo, receipt: Receipt) -> None:
        super().__init__(error.message, retry_after_s=error.retry_after_s)
        self.code = error.code
        self.retryable = error.retryable
        self.receipt = receipt


class SpeechStream:
    """An asynchronous iterator over the chunks of one utterance.

    It ends after the last chunk, or after STOP; ``receipt`` and ``outcome`` are then set. It raises SpeechError if
    synthesis failed, and the exception of the text iterator if that failed. Leaving the iteration (break,
    cancellation, an exception, dropping the object) frees all resources immediately.
    """

    def __init__(self, session: LocalSession, text_chunks: AsyncIterable[str | bytes]) -> None:
        self.receipt: Receipt | None = None
        self.outcome: Outcome | None = None
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._words: list[Word] = []
        self._taken = asyncio.Event()
        key = session.speak("")  # begins the utterance: the engine prepares before the first word, and STOP can end it
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
        """Free all resources. Closing twice changes nothing."""
        self._session.close("consumer_left")
        self._writer.cancel()

    async def aclose(self) -> None:
        """Do the same as ``close``; the name that ``contextlib.aclosing`` expects."""
        self.close()

    def __del__(self) -> None:
        # The object was dropped without ``close`` (a plain ``break``); the collector may run on another thread.
        if not self._loop.is_closed() and self._session.state is not State.CLOSED:
            self._loop.call_soon_threadsafe(_abandon, self._session, self._writer)


def _abandon(session: LocalSession, writer: asyncio.Task[None]) -> None:
    session.close("consumer_left")
    writer.cancel()


_TEXT_FAILED = "text_failed"
_TEXT_AHEAD_CHARS = 2_000
"""Text read ahead of the audio: about two minutes of speech."""
_NO_AUDIO_S = 1.0
"""Wait for audio at most this long: unspoken text (a long code block) produces none."""


async def _write(
    session: LocalSession, key: UtteranceKey, text_chunks: AsyncIterable[str | bytes], taken: asyncio.Event
) -> None:
    """Feed one utterance at the rate it is spoken. Stops reading when the utterance has ended (STOP, an error)."""
    try:
        async for chunk in text_chunks:
            if session.writing != key:
                return
            session.speak(chunk)
            while session.unspoken_chars > _TEXT_AHEAD_CHARS:
                taken.clear()
                with anyio.move_on_after(_NO_AUDIO_S) as scope:
                    await taken.wait()
                if scope.cancelled_caught and session.state is not State.PAUSED and not session.buffered_samples:
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
    """The TTS worker protocol; created by ``tts_worker.create_worker``. Call all methods from one event loop.

    Args:
        models: The worker.
        options: Options of speech that is started without any.
        aliases: Further model ids, as of ``grpc.models``.
    """

    def __init__(
        self,
        models: WorkerHost,
        options: SessionOptions | None = None,
        aliases: Mapping[str, GrpcModelSettings] | None = None,
    ) -> None:
        self._models = models
        self._options = options or SessionOptions(realtime=False)
        self._aliases = aliases or {}
        self._live: list[LocalSession] = []
        self._model: str | None = None

    @property
    def state(self) -> WorkerState:
        """State over all streams of this object."""
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
        """Load and warm up a configured engine; its first voice, or that of the alias, becomes the default here.

        Loading a loaded engine does nothing.

        Raises:
            UnknownModel: There is no such engine or alias.
            TTSWorkerError: The engine failed to start.
        """
        await self._models.load(self._model_of(model_id).engine)
        self._model = model_id

    async def unload_model(self, model_id: str) -> None:
        """Unload an engine; unloading twice does nothing. Raises IllegalCommand while it has sessions."""
        await self._models.unload(self._model_of(model_id).engine)
        if self._model == model_id:
            self._model = None

    async def warm_up(self) -> None:
        """Synthesize a sentence and discard it. Loading a model does this once."""
        async for _ in self.synthesize_chunks(_once("Warming up: one, two, three.")):
            pass

    def synthesize_stream(
        self, text_chunks: AsyncIterable[str | bytes], options: SessionOptions | None = None
    ) -> AsyncIterator[bytes]:
        """Synthesize streaming text to 24 kHz s16le mono in frames of 20 ms (the last may be shorter).

        Frames come as fast as they are generated, or paced with the option ``realtime``. Raises as
        ``synthesize_chunks`` does.
        """
        return _PcmStream(self.synthesize_chunks(text_chunks, options))

    def synthesize_chunks(
        self, text_chunks: AsyncIterable[str | bytes], options: SessionOptions | None = None
    ) -> SpeechStream:
        """Synthesize streaming text to frames with metadata.

        Raises UnknownVoice, InvalidRequest, OverCapacity or NotReady before the first frame.
        """
        options = options or self._options
        if options.voice is None and self._model is not None:
            options = replace(options, voice=self._voice_of(self._model))
        session = self._models.hub.open(options)
        self._sessions().append(session)
        return SpeechStream(session, text_chunks)

    def _model_of(self, name: str) -> GrpcModelSettings:
        return self._aliases.get(name) or GrpcModelSettings(engine=name)

    def _voice_of(self, name: str) -> str | None:
        model = self._model_of(name)
        return model.voice or next((each.name for each in self._models.hub.voices if each.engine == model.engine), None)

    async def control(self, command: str, played_samples: int | None = None) -> bool:
        """Pause, resume or stop all streams of this object; return whether that changed anything.

        The command has taken effect on return: no buffered frame is returned after STOP. It is valid in every state.

        Args:
            command: ``PAUSE``, ``RESUME`` or ``STOP``.
            played_samples: For STOP: played audio of the current utterance, if known.

        Raises:
            InvalidRequest: The command is unknown.
        """
        sessions = self._sessions()
        match command:
            case "PAUSE":
                results = [session.pause() for session in sessions]
            case "RESUME":
                results = [session.resume() for session in sessions]
            case "STOP":
                results = [session.stop("stop", played_samples) for session in sessions]
            case _:
                raise InvalidRequest("control takes PAUSE, RESUME or STOP")
        return any(result.applied for result in results)


class _PcmStream:
    """The PCM of a speech stream, without metadata."""

    def __init__(self, stream: SpeechStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return (await self._stream.__anext__()).pcm

    async def aclose(self) -> None:
        """Free all resources."""
        self._stream.close()


async def _once(text: str) -> AsyncIterator[str]:
    yield text
