"""``AsyncTTS``: text in, speech out, over any connection of a client. ``client.tts`` is the same without ``await``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from tts_worker.client import Client, ClientSettings, VoiceInfo, connect
from tts_worker.client.arguments import whole_samples
from tts_worker.client.batches import BatchResult, BatchText, batch_options
from tts_worker.client.conversion import AsyncConversion, AudioSource
from tts_worker.client.iteration import iterate
from tts_worker.client.playback import PlayerSink
from tts_worker.client.speech import Speech, open_player
from tts_worker.errors import ConnectionLost, InvalidRequest, TTSWorkerError, as_exception
from tts_worker.protocol.messages import check_options
from tts_worker.protocol.session import Session, interruption_by_worker
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Acknowledged,
    Ended,
    Outcome,
    PcmFrame,
    Receipt,
    SessionOptions,
    State,
    UrlMode,
    Word,
    Words,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

TextSource = str | Iterable[str | bytes] | AsyncIterable[str | bytes]
"""A text, or its parts while they are being written: a generator, the deltas of a language model. Bytes are UTF-8 and
may be cut inside a character."""


class SpeechOptions(TypedDict, total=False):
    """How to speak; every option may be given to ``TTS`` for all texts and to ``speak`` and ``stream`` for one.

    Attributes:
        voice: Name of the voice; without it, the worker's default.
        model: Name of the engine.
        speed: Speaking rate, 0.5 to 2.0 with most voices.
        seed: Seed of the random numbers; the same seed gives the same audio.
        language: BCP-47 tag of the text; without it, detected.
        instruct: How to say it, for voices that take instructions.
        sample_rate: 8000, 16000, 22050, 24000 (the default), 44100 or 48000 Hz.
        lexicon: Word -> spelling, or /phonemes/; or the names of stored lexicons.
        markdown: Keep Markdown, emoji and URLs from being read aloud.
        urls: How URLs are read: "drop", "host" or "keep".
        normalize: Read numbers, dates and units as words.
        flush_after_ms: Pause of the text after which complete words are spoken; 0: only at punctuation and its end.
        realtime: Send audio at playback pace instead of as fast as it is generated.
        traceparent: W3C trace context that the utterance joins, if the worker exports traces.
    """

    voice: str | None
    model: str | None
    speed: float
    seed: int
    language: str | None
    instruct: str | None
    sample_rate: int | None
    lexicon: Mapping[str, Any] | str | None
    markdown: bool | None
    urls: str | None
    normalize: bool | None
    flush_after_ms: float | None
    realtime: bool
    traceparent: str | None


_Callable = TypeVar("_Callable", bound=Callable[..., object])


def documents_options(function: _Callable) -> _Callable:
    """Add the options of ``SpeechOptions`` to a docstring: ``help`` shows them as ``**options`` only."""
    if function.__doc__ is not None:  # with python -OO there is none
        options = inspect.cleandoc(SpeechOptions.__doc__ or "").partition("Attributes:\n")[2]
        function.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n\nOptions:\n{options}"
    return function


class AsyncTTS:
    """Speaks texts on one event loop. It connects (or loads the embedded voice) on first use.

        async with tts_worker.AsyncTTS() as tts:
            speech = await tts.speak("Hello there.")
            async for part in tts.stream(deltas_of_a_language_model()):
                send(part.pcm)

    Texts may be spoken at the same time; each has a separate session.
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
            url: ``local:`` for the embedded CPU voice, ``local:worker.yaml`` for a configuration, ``ws://host:port``
                (or ``http://``), ``grpc://host:port`` or ``redis://...`` for a worker or a fleet.
            api_key: The worker's API key; replaces that of ``settings``.
            settings: Time limits of the client.
            options: See ``SpeechOptions``.

        Raises:
            InvalidRequest: The URL or an option is invalid.
        """
        settings = ClientSettings() if settings is None else settings
        if api_key is not None and isinstance(settings, ClientSettings):  # ``connect`` refuses anything else
            settings = replace(settings, api_key=api_key)
        self._client = connect(url, settings)
        self._options = _with_options(SessionOptions(realtime=False, raw_chunks=True), options)

    @documents_options
    async def speak(self, text: TextSource, **options: Unpack[SpeechOptions]) -> Speech:
        """Synthesize all of ``text``.

        Example:
            ``speech = await tts.speak("Hello there.", voice="heart", speed=1.2)``

        Raises:
            UnknownVoice, InvalidRequest, TextTooLong, UnspeakableText: The request is invalid.
            OverCapacity, NotReady, Draining, ConnectionLost, ...: A later try may succeed (``retryable``).
        """
        async with self.stream(text, **options) as live:
            return await live.rest()

    @documents_options
    def stream(self, text: TextSource, **options: Unpack[SpeechOptions]) -> AsyncLiveSpeech:
        """Synthesize ``text`` while it is being written; iterate over the parts of its speech.

        Raises:
            InvalidRequest: An option is invalid. Other errors are raised by the iteration, as by ``speak``.
        """
        return AsyncLiveSpeech(self._client, text, _with_options(self._options, options))

    def convert(
        self,
        source: AudioSource,
        *,
        live_rate_hz: int | None = None,
        **options: Unpack[SpeechOptions],
    ) -> AsyncConversion:
        """Convert ``source`` to ``voice``; iterate over parts of s16le. See ``Client.convert``."""
        return self._client.convert(source, _with_options(self._options, options), live_rate_hz=live_rate_hz)

    async def batch(
        self,
        texts: Iterable[str | BatchText],
        *,
        response_format: str = "wav",
        **options: Unpack[SpeechOptions],
    ) -> AsyncGenerator[BatchResult, None]:
        """Have the worker synthesize many texts behind live calls; yield the results in order as they finish.

        A text that fails has an ``error`` instead of audio. A broken connection is continued. The batch is deleted at
        the end, and when the iteration is left early; ``client.batches`` leaves it on the worker.

        Args:
            texts: The texts, or ``BatchText`` for those with an id, a voice or other options.
            response_format: ``wav``, ``mp3``, ``opus``, ``flac``, ``pcm``, ``mulaw`` or ``alaw``.
            options: Voice, model, speed, seed, language, instruct, lexicon and sample rate; the others have no effect.

        Raises:
            InvalidRequest: The worker refuses the batch, or its URL is not ``ws://`` or ``wss://``.
            TTSWorkerError: As ``speak``.
        """
        batches = self._client.batches
        chosen = batch_options(_with_options(self._options, options), response_format)
        batch = await batches.submit(texts, **chosen)
        try:
            async with aclosing(batches.results(batch.id)) as results:
                async for result in results:
                    yield result
        finally:
            with suppress(TTSWorkerError):  # the worker deletes it later
                await batches.cancel(batch.id)

    async def voices(self) -> list[VoiceInfo]:
        """Return the voices that ``voice`` may name. Raises like ``speak``."""
        return await self._client.voices.list()

    async def prewarm(self) -> None:
        """Connect, or load the embedded voice, in advance."""
        await self._client.prewarm()

    async def aclose(self) -> None:
        """End all speech and close the connection, or unload the embedded voice. Idempotent."""
        await self._client.aclose()

    async def __aenter__(self) -> AsyncTTS:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncLiveSpeech:
    """Speech while it is being synthesized: an asynchronous iterator over its parts.

    It ends after the last part, or after ``stop``; ``report`` and ``outcome`` are then set. The iteration raises the
    worker's error if synthesis failed or the worker ended the speech (Draining), and the exception of the text if its
    iterator failed. Use it as a context manager, or call ``aclose``, if the iteration may be left early.
    """

    def __init__(self, client: Client, text: TextSource, options: SessionOptions) -> None:
        if isinstance(text, bytes) or not isinstance(text, str | Iterable | AsyncIterable):
            raise InvalidRequest("text must be a str or an iterable of str")
        self.report: Receipt | None = None
        self.outcome: Outcome | None = None
        self.words: list[Word] = []
        """All words so far; those of the last part begin in it."""
        self._client = client
        self._text = text
        self._options = options
        self._session: Session | None = None
        self._writer: asyncio.Task[None] | None = None
        self._has_text = False  # an utterance was begun, which ends with a report
        self._text_error: BaseException | None = None
        self._is_stopped = False
        self._new_words: list[Word] = []

    async def start(self) -> None:
        """Open the session and begin to read the text; the first part does it otherwise. Raises like ``speak``."""
        if self._session is None and not self._is_stopped:
            session = (await self._client.open(self._options)).session
            if self._is_stopped:  # meanwhile
                session.close("consumer_left")
                return
            self._session = session
            self._writer = asyncio.create_task(self._write(self._session), name=f"{self._session.id}-text")

    def __aiter__(self) -> AsyncIterator[Speech]:
        return self

    async def __anext__(self) -> Speech:
        await self.start()
        if self._session is None or self.outcome is not None:
            raise StopAsyncIteration
        try:
            part = await self._next_part(self._session)
        except BaseException:
            await self.aclose()
            raise
        if part is None:
            await self.aclose()
            raise StopAsyncIteration
        return part

    async def _next_part(self, session: Session) -> Speech | None:
        while (item := await session.next()) is not None:
            if isinstance(item, PcmFrame):
                words, self._new_words = tuple(self._new_words), []
                return Speech(item.pcm, session.sample_rate_hz, words, item.start_sample)
            if isinstance(item, Words):
                self._new_words.extend(item.words)
                self.words.extend(item.words)
            elif isinstance(item, Ended):
                self.report, self.outcome = item.receipt, item.outcome
                if self._text_error is not None:
                    raise self._text_error
                error = item.error or interruption_by_worker(item)
                if error is not None:
                    raise as_exception(error)
                return None
        if self._text_error is not None:
            raise self._text_error
        if self._is_stopped:
            return None
        raise ConnectionLost("the session was closed before the speech had ended")

    async def _write(self, session: Session) -> None:
        """Feed the text to the session until it ends or the speech was stopped."""
        try:
            async for part in _parts(self._text):
                if self._is_stopped or self.outcome is not None:
                    return
                self._speak(session, part)
            if not self._is_stopped and self.outcome is None:
                if not self._has_text:
                    self._speak(session, "")
                session.end_text()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._text_error = error
            if self._has_text:
                session.stop("text_failed")
            else:  # there is no utterance that would end
                session.close("text_failed")

    def _speak(self, session: Session, part: str | bytes) -> None:
        session.speak(part)
        self._has_text = True

    def pause(self) -> bool:
        """Deliver no more parts until ``resume``; return whether that changed anything."""
        session = self._open_session
        return session is not None and session.pause().applied

    def resume(self) -> bool:
        """Continue with the next sample; return whether that changed anything."""
        session = self._open_session
        return session is not None and session.resume().applied

    def stop(self, played_samples: int | None = None) -> Acknowledged | None:
        """End the speech now: no more parts are delivered, and ``report`` says what was spoken.

        Args:
            played_samples: How much of the audio the listener heard, if known; otherwise the delivered audio counts.

        Returns:
            The worker's acknowledgement; None if no text was sent yet, or the speech has ended.

        Raises:
            InvalidRequest: ``played_samples`` is no whole number.
        """
        if played_samples is not None:
            played_samples = whole_samples(played_samples)
        self._is_stopped = True
        session = self._open_session
        if self._has_text:
            return None if session is None else session.stop("stop", played_samples)
        if self.outcome is None and self._text_error is None:  # there is no utterance that would end with a report
            unread = self._text if isinstance(self._text, str) else ""
            self.report = Receipt("stop", 0, 0, None if played_samples is None else 0, "", unread)
            self.outcome = Outcome.STOPPED
        if session is not None:
            session.close("stop")
        return None

    @property
    def _open_session(self) -> Session | None:
        return None if self._session is None or self._session.state is State.CLOSED else self._session

    async def rest(self) -> Speech:
        """Wait for the end and return everything that was not delivered yet as one ``Speech``."""
        parts = [part async for part in self]
        pcm = b"".join(part.pcm for part in parts)
        rate_hz = self._options.sample_rate or SAMPLE_RATE_HZ
        if self._session is not None:
            rate_hz = self._session.sample_rate_hz
        words = tuple(word for part in parts for word in part.words) + tuple(self._new_words)
        start = parts[0].start_sample if parts else 0
        return Speech(pcm, rate_hz, words, start, self.report, self.outcome)

    async def play(self) -> Receipt | None:
        """Play the speech while it is being synthesized; return the playback report. Raises PlayerFailed."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.aclose)
            sink: PlayerSink | None = None
            try:
                async for part in self:
                    sink = sink or await open_player(part.sample_rate_hz)
                    await sink.write(part.pcm)
                if sink is not None and self.outcome is Outcome.DONE:
                    await sink.close()
            finally:
                if sink is not None:
                    await sink.abort()  # does nothing after ``close``
        return self.report

    async def aclose(self) -> None:
        """Free the session. Idempotent."""
        self._is_stopped = True
        if self._writer is not None:
            self._writer.cancel()
        if self._session is not None:
            self._session.close("consumer_left")

    async def __aenter__(self) -> AsyncLiveSpeech:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _parts(text: TextSource) -> AsyncIterator[str | bytes]:
    """Yield the parts of a text. Raises InvalidRequest for one that is no text."""
    if isinstance(text, str):
        yield text
        return
    async for part in iterate(text):
        if not isinstance(part, str | bytes):
            raise InvalidRequest(f"each part of the text must be str or bytes, not {type(part).__name__}")
        yield part


def _with_options(base: SessionOptions, options: SpeechOptions) -> SessionOptions:
    """Return ``base`` with the given options. Raises TypeError for an unknown one, InvalidRequest for a bad value."""
    unknown = options.keys() - SpeechOptions.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(SpeechOptions.__annotations__)}"
        )
    changes: dict[str, Any] = dict(options)
    if changes.get("realtime"):
        changes["raw_chunks"] = False
    chosen = replace(base, **changes)
    check_options(chosen)
    return chosen if chosen.urls is None else replace(chosen, urls=UrlMode(chosen.urls))
