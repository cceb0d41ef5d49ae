"""``TTS``: the client without ``await``. It runs ``AsyncTTS`` on an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from tts_worker.client import ClientSettings, VoiceInfo
from tts_worker.client.async_tts import AsyncLiveSpeech, AsyncTTS, SpeechOptions, TextSource, documents_options
from tts_worker.client.batches import BatchResult, BatchText
from tts_worker.client.conversion import AsyncConversion, AudioSource
from tts_worker.client.speech import Speech
from tts_worker.errors import ConnectionLost, IllegalCommand
from tts_worker.types import Outcome, Receipt, Word

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Result = TypeVar("_Result")


class TTS:
    """Speaks texts with the embedded voice or a worker. All methods may be called from any thread.

    It connects (or loads the embedded voice) on first use, and closes at the end of the block, at ``close``, or with
    the program. Notebooks can use it: it runs on a separate thread.

    Examples:
        >>> tts = TTS()  # or TTS("ws://127.0.0.1:8080", voice="heart")
        >>> speech = tts.speak("Hello there.")
        >>> speech.save("hello.wav").name
        'hello.wav'
        >>> speech.samples.dtype, [word.text for word in speech.words]
        (dtype('float32'), ['Hello', 'there.'])
        >>> with tts.stream(["Text while it ", "is being written."]) as live:  # the deltas of a language model
        ...     sizes = [len(part.pcm) for part in live]  # s16le
        >>> live.report.text_spoken
        'Text while it is being written.'
        >>> tts.close()
    """

    @documents_options
    def __init__(
        self,
        url: str = "local:",
        *,
        api_key: str | None = None,
        settings: ClientSettings | None = None,
        **options: Unpack[SpeechOptions],
    ) -> None:
        """Choose the worker and the options of all texts.

        Args:
            url: As for ``AsyncTTS``: ``local:``, ``ws://host:port`` (or ``http://``), ``grpc://...``, ``redis://...``.
            api_key: The worker's API key; replaces that of ``settings``.
            settings: Time limits of the client.
            options: See ``SpeechOptions``.

        Raises:
            InvalidRequest: The URL or an option is invalid.
        """
        self._tts = AsyncTTS(url, api_key=api_key, settings=settings, **options)
        self._thread = _LoopThread(self._tts)
        self._closing = weakref.finalize(self, self._thread.close)

    @documents_options
    def speak(self, text: TextSource, **options: Unpack[SpeechOptions]) -> Speech:
        """Synthesize all of ``text`` and return its speech.

        Example:
            ``tts.speak("Hello there.", voice="heart", speed=1.2).save("hello.wav")``

        Raises:
            UnknownVoice, InvalidRequest, TextTooLong, UnspeakableText: The request is invalid.
            OverCapacity, NotReady, Draining, ConnectionLost, ...: A later try may succeed (``retryable``).
        """
        return self._thread.run(self._tts.speak(text, **options))

    @documents_options
    def stream(self, text: TextSource, **options: Unpack[SpeechOptions]) -> LiveSpeech:
        """Synthesize ``text`` while it is being written; iterate over the parts of its speech.

        Iterables run on another thread, asynchronous ones on the loop of this object.

        Raises:
            InvalidRequest: An option is invalid. Other errors are raised by the iteration, as by ``speak``.
        """
        return LiveSpeech(self._tts.stream(text, **options), self._thread, self)

    @documents_options
    def play(self, text: TextSource, **options: Unpack[SpeechOptions]) -> Receipt | None:
        """Speak ``text`` through this machine's player while it is synthesized; return the playback report.

        Ctrl-C stops the speech.

        Raises:
            PlayerFailed: There is no player program, or it failed.
            UnknownVoice, InvalidRequest, OverCapacity, ...: As ``speak``.
        """
        with self.stream(text, **options) as live:
            return live.play()

    def convert(
        self, source: AudioSource, *, live_rate_hz: int | None = None, **options: Unpack[SpeechOptions]
    ) -> Speech:
        """Return the speech of ``source`` in ``voice``, for engines that convert voices.

        Args:
            source: A WAV, FLAC, Ogg, MP3, AIFF, CAF, M4A, AAC or WebM file, or its content, or live audio: parts of
                s16le mono.
            live_rate_hz: Sample rate of live audio.
            options: Voice, model, speed, seed and sample rate; those of texts have no effect.

        Raises:
            InvalidRequest: The recording cannot be read, or the voice's engine does not convert.
            TTSWorkerError: As ``speak``.
        """
        conversion = self._tts.convert(source, live_rate_hz=live_rate_hz, **options)
        return Speech(b"".join(self._iterate(_parts(conversion))), conversion.sample_rate_hz)

    def convert_stream(
        self, source: AudioSource, *, live_rate_hz: int | None = None, **options: Unpack[SpeechOptions]
    ) -> Iterator[bytes]:
        """Convert ``source`` while it arrives; yield parts of s16le. Takes the arguments of ``convert``."""
        return self._iterate(_parts(self._tts.convert(source, live_rate_hz=live_rate_hz, **options)))

    def batch(
        self, texts: Iterable[str | BatchText], *, response_format: str = "wav", **options: Unpack[SpeechOptions]
    ) -> Iterator[BatchResult]:
        """Have the worker synthesize many texts behind live calls; yield the results in order as they finish.

        Takes the arguments of ``AsyncTTS.batch`` and raises like it.
        """
        return self._iterate(self._tts.batch(texts, response_format=response_format, **options))

    def _iterate(self, items: AsyncGenerator[_Result, None]) -> Iterator[_Result]:
        """Yield what an asynchronous generator yields on the loop, and close it at the end."""
        try:
            while (item := self._thread.run(anext(items, None))) is not None:
                yield item
        finally:
            with contextlib.suppress(ConnectionLost):  # closed with this object
                self._thread.run(items.aclose())

    def voices(self) -> list[VoiceInfo]:
        """Return the voices that ``voice`` may name. Raises like ``speak``."""
        return self._thread.run(self._tts.voices())

    def prewarm(self) -> None:
        """Connect, or load the embedded voice, in advance. Raises like ``speak``."""
        self._thread.run(self._tts.prewarm())

    def close(self) -> None:
        """End all speech and close the connection, or unload the embedded voice. Idempotent."""
        self._closing()

    def __enter__(self) -> TTS:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LiveSpeech:
    """Speech while it is being synthesized: an iterator over its parts. See ``AsyncLiveSpeech``.

    ``pause``, ``resume`` and ``stop`` may be called from any thread while another one iterates.
    """

    def __init__(self, live: AsyncLiveSpeech, thread: _LoopThread, owner: TTS) -> None:
        self._live = live
        self._thread = thread
        self._owner = owner  # keeps the connection while this object lives

    @property
    def report(self) -> Receipt | None:
        """The playback report, once the speech has ended."""
        return self._live.report

    @property
    def outcome(self) -> Outcome | None:
        """How the speech ended; None before that."""
        return self._live.outcome

    @property
    def words(self) -> tuple[Word, ...]:
        """All words so far, with their positions in text and audio."""
        return tuple(self._live.words)

    def __iter__(self) -> Iterator[Speech]:
        return self

    def __next__(self) -> Speech:
        part = self._thread.run(anext(self._live, None))
        if part is None:
            raise StopIteration
        return part

    def rest(self) -> Speech:
        """Wait for the end and return everything that was not delivered yet as one ``Speech``."""
        return self._thread.run(self._live.rest())

    def play(self) -> Receipt | None:
        """Play the speech while it is being synthesized; return the playback report. Raises PlayerFailed."""
        return self._thread.run(self._live.play())

    def pause(self) -> bool:
        """Deliver no more parts until ``resume``; return whether that changed anything."""
        return self._thread.call(self._live.pause)

    def resume(self) -> bool:
        """Continue with the next sample; return whether that changed anything."""
        return self._thread.call(self._live.resume)

    def stop(self, played_samples: int | None = None) -> None:
        """End the speech now; the iteration ends, and ``report`` says what was spoken.

        Args:
            played_samples: How much of the audio the listener heard, if known; otherwise the delivered audio counts.
        """
        self._thread.call(lambda: self._live.stop(played_samples))

    def close(self) -> None:
        """Free the session. Idempotent."""
        with contextlib.suppress(ConnectionLost):  # closed with its ``TTS``
            self._thread.run(self._live.aclose())

    def __enter__(self) -> LiveSpeech:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._thread.post(self._live.aclose)


async def _parts(conversion: AsyncConversion) -> AsyncGenerator[bytes, None]:
    async with conversion:
        async for part in conversion:
            yield part


class _LoopThread:
    """An event loop on a daemon thread, started on first use; ``close`` closes ``tts`` on it and ends it."""

    def __init__(self, tts: AsyncTTS) -> None:
        self._tts = tts
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the loop and wait for its result; an interrupted wait cancels it.

        Raises:
            ConnectionLost: ``close`` was called.
            IllegalCommand: The caller is on the loop's own thread and would wait for itself.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        except BaseException:
            coroutine.close()
            raise
        return _wait(future)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on the loop and return its result. Raises like ``run``."""

        async def call() -> _Result:
            return function()

        return self.run(call())

    def post(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a coroutine function on the loop without waiting, if the loop runs."""
        loop = self._loop
        if loop is not None and not self._is_closed:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(lambda: loop.create_task(function()))

    def _running(self) -> asyncio.AbstractEventLoop:
        if threading.current_thread() is self._thread:
            raise IllegalCommand("this is the thread of the speech itself: use AsyncTTS in asynchronous code")
        with self._lock:
            if self._is_closed:
                raise ConnectionLost("the TTS object is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="tts-loop", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if not is_first or self._loop is None or self._thread is None:
            return
        try:
            _wait(asyncio.run_coroutine_threadsafe(self._tts.aclose(), self._loop))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _wait(future: Future[_Result]) -> _Result:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
