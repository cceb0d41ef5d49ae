"""LiveKit Agents plugin: ``TTS(url)`` synthesizes with a tts-worker and provides word timestamps.

Each stream is one session of ``tts_worker.client`` on a pooled connection; no engine runs in the agent's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from livekit.agents import APIConnectOptions, APITimeoutError, tts, utils
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
from livekit.agents.utils import is_given
from livekit.agents.voice import AgentSession, SpeechHandle
from livekit.agents.voice.io import PlaybackFinishedEvent

from livekit.plugins.tts_worker.log import logger
from livekit.plugins.tts_worker.playback import current_speech, follow_playback
from livekit.plugins.tts_worker.speech import as_api_error, run_utterance
from tts_worker.client import Client, ClientSettings, Session, SessionOptions, VoiceInfo
from tts_worker.client.agent import PluginOptions, check_sample_rate, connect_agent, with_plugin_options
from tts_worker.errors import TTSWorkerError
from tts_worker.text.spoken_words import cut_at
from tts_worker.timeouts import fail_after
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Outcome, Receipt, State

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PAUSE_TIMEOUT_S = 300.0
"""Long, because the agent decides how long a pause lasts while the user speaks, not the worker."""
_VOICES_TIMEOUT_S = 10.0
_UNPLAYED = PlaybackFinishedEvent(playback_position=0.0, interrupted=True)


@dataclass(slots=True)
class Counters:
    """Number of streams by outcome. LiveKit's own metrics omit interrupted streams."""

    streams: int = 0
    finished: int = 0
    interrupted: int = 0
    failed: int = 0
    paused: int = 0


class TTSOptions(PluginOptions, total=False):
    """Options of ``TTS``.

    Attributes:
        realtime: Receive audio at playback pace, so that a barge-in wastes little. False receives it as fast as it is
            generated, behind all calls: for recordings and greetings that are played later.
    """

    realtime: bool


class TTS(tts.TTS[Literal["receipt"]]):
    """TTS for ``AgentSession(tts=...)``.

    Besides LiveKit's events it emits ``receipt`` with a ``tts_worker.types.Receipt`` (playback report) for every stream
    that was started, including interrupted ones.

    Args:
        url: The worker; defaults to TTS_WORKER_URL, else ``ws://127.0.0.1:8080``. ``local:`` runs a worker in this
            process.
        sample_rate: 8000, 16000, 22050, 24000, 44100 or 48000 Hz, resampled on the worker.
        api_key: Defaults to TTS_WORKER_API_KEY.
        client: Use this client. The caller closes it.
        options: See ``TTSOptions``.

    Attributes:
        counters: Number of streams by outcome.

    Raises:
        InvalidRequest: An option or the URL is invalid. What only the worker can know (a voice, a model, a lexicon
            entry, the range of a number) is an ``APIStatusError`` of the stream.
    """

    class Markup(tts.TTS.Markup):
        """LiveKit's expressive mode: the worker reads Cartesia's tags, into which LiveKit writes its own."""

        def _provider_key(self) -> str:
            return "cartesia"

    def __init__(
        self,
        url: str | None = None,
        *,
        sample_rate: int = SAMPLE_RATE_HZ,
        api_key: str | None = None,
        client: Client | None = None,
        **options: Unpack[TTSOptions],
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=check_sample_rate(sample_rate),
            num_channels=1,
        )
        self.counters = Counters()
        self.options = with_plugin_options(
            SessionOptions(sample_rate=sample_rate, pause_timeout_s=_PAUSE_TIMEOUT_S),
            {"max_ahead_s": 2.0, **options},
        )
        self._speaking_model = ""
        self._owns_client = client is None
        # Each attempt has the agent's deadline, so the client's own timeout is disabled.
        self._client = client or connect_agent(url, api_key, ClientSettings(connect_timeout_s=3_600.0))
        self._live: set[Session] = set()
        self._is_attached = False
        self._segments: dict[Session, _Segment] = {}  # streams whose playback has not ended, in order
        self.prewarming: asyncio.Task[None] | None = None  # the last ``prewarm``

    @property
    def model(self) -> str:
        """The option ``model``, else the engine of the last stream; ``unknown`` before the first one."""
        return self.options.model or self._speaking_model or "unknown"

    @property
    def provider(self) -> str:
        return "tts-worker"

    async def list_voices(self) -> list[VoiceInfo]:
        """Return the voices of the worker. Raises APIError."""
        try:
            async with fail_after(_VOICES_TIMEOUT_S):
                return await self._client.voices.list()
        except TTSWorkerError as error:
            raise as_api_error(error.info, sent=False) from error
        except TimeoutError:
            raise APITimeoutError(f"the worker did not answer within {_VOICES_TIMEOUT_S:g} s") from None

    def update_options(self, **options: Unpack[TTSOptions]) -> None:
        """Change the given options. They apply to the next stream; running streams are not affected.

        Raises:
            InvalidRequest: An option is invalid; then nothing has changed.
        """
        changes = {name: value for name, value in options.items() if is_given(value)}
        self.options = with_plugin_options(self.options, changes)

    def prewarm(self) -> None:
        """Connect to the worker in the background and return at once. Idempotent.

        An unreachable worker is no error. Without a running event loop this does nothing, since a connection is bound
        to a loop.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self.prewarming is None or self.prewarming.done():
            self.prewarming = loop.create_task(self._warm(), name="tts-worker-prewarm")

    async def _warm(self) -> None:
        try:
            async with fail_after(10.0):
                await self._client.prewarm()
        except (TTSWorkerError, TimeoutError) as error:
            logger.debug("prewarm: the worker cannot be reached yet: %s", error)

    def attach(self, session: AgentSession[Any]) -> None:
        """Follow the agent's playback. Call it after ``await session.start(...)``.

        While the agent decides whether an interruption is real, the worker generates nothing; after a false
        interruption it resumes with the very next sample. The receipt of a stream tells what was played, not what was
        sent ahead; it is emitted when its playback, or the speech without one, has ended.

        Raises:
            InvalidRequest: The session has no audio output yet.
        """
        follow_playback(session, self.pause, self.resume, self._on_played)
        self._is_attached = True

    def pause(self) -> None:
        """Pause every speaking stream. Returns at once."""
        for session in self._live:
            if session.state is State.SPEAKING:
                session.pause()
                self.counters.paused += 1

    def resume(self) -> None:
        """Resume every paused stream. Returns at once."""
        for session in self._live:
            if session.state is State.PAUSED:
                session.resume()

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        return SynthesizeStream(self, conn_options, self.options)

    def synthesize(
        self,
        text: str,
        *,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        realtime: bool | None = None,
    ) -> ChunkedStream:
        """Synthesize a complete text.

        Args:
            text: The text.
            conn_options: Retries and timeout.
            realtime: Overrides the option for this text. ``await voice.synthesize(text, realtime=False).collect()``
                renders a greeting in a fraction of its duration.
        """
        options = self.options if realtime is None else replace(self.options, realtime=realtime)
        return ChunkedStream(self, text, conn_options, options)

    async def aclose(self) -> None:
        """Stop all streams and close the connections, except those of a client passed by the caller."""
        if self.prewarming is not None:
            self.prewarming.cancel()
        for session in list(self._live):
            session.close("plugin_closed")
        for segment in self._segments.values():
            if segment.receipt is not None:
                self.emit("receipt", segment.receipt)
        self._segments.clear()
        if self._owns_client:
            await self._client.aclose()

    async def _open(self, options: SessionOptions, timeout_s: float) -> tuple[Session, bool]:
        try:
            async with fail_after(timeout_s):
                opened = await self._client.open(options, audio_timeout_s=timeout_s)
        except TTSWorkerError as error:
            raise as_api_error(error.info, sent=False) from error
        except TimeoutError:
            raise APITimeoutError(f"the worker did not answer within {timeout_s:g} s") from None
        self._speaking_model = opened.session.model
        self._live.add(opened.session)
        return opened.session, opened.connection_reused

    def _close(self, session: Session) -> None:
        """Close without waiting: the agent is blocked while an interrupted stream is cancelled."""
        session.close("interrupted")
        self._live.discard(session)
        while (item := session.poll()) is not None:
            if isinstance(item, Ended):
                self._record_end(session, item)

    def _begin_segment(self, session: Session) -> None:
        """Note a stream that becomes a segment of the agent's playback; one outside of a speech does not."""
        speech = current_speech() if self._is_attached else None
        if speech is not None:
            self._segments[session] = _Segment(speech)
            speech.add_done_callback(self._end_speech)

    def _record_end(self, session: Session, ended: Ended) -> None:
        if ended.outcome is Outcome.ERROR:
            self.counters.failed += 1
        elif ended.outcome is Outcome.STOPPED:
            self.counters.interrupted += 1
        else:
            self.counters.finished += 1
        segment = self._segments.get(session)
        if segment is None or not ended.receipt.samples_sent:
            self._segments.pop(session, None)
            self.emit("receipt", ended.receipt)
        else:
            segment.receipt = ended.receipt
            self._settle(session, segment)

    def _on_played(self, speech: SpeechHandle | None, event: PlaybackFinishedEvent) -> None:
        """Assign the end of a playback to the first stream of its speech without one: they are played in order."""
        for session, segment in self._segments.items():
            if segment.speech is speech and segment.played is None:
                segment.played = event
                self._settle(session, segment)
                return

    def _end_speech(self, speech: SpeechHandle) -> None:
        """Settle the streams of a speech that has ended: those without a playback will have none."""
        for session, segment in list(self._segments.items()):
            if segment.speech is speech and segment.played is None:
                segment.played = _UNPLAYED
                self._settle(session, segment)

    def _settle(self, session: Session, segment: _Segment) -> None:
        """Emit the receipt of a stream, cut at what was played, once both are known; either may come first."""
        receipt, played = segment.receipt, segment.played
        if receipt is None or played is None:
            return
        del self._segments[session]
        if played.interrupted:
            samples = min(round(played.playback_position * self.sample_rate), receipt.samples_sent)
            receipt = replace(cut_at(receipt, samples), samples_played=samples)
        self.emit("receipt", receipt)


@dataclass(slots=True)
class _Segment:
    """A stream as a segment of a speech of the agent: how it ended, and how its playback did."""

    speech: SpeechHandle
    receipt: Receipt | None = None
    played: PlaybackFinishedEvent | None = None


class SynthesizeStream(tts.SynthesizeStream):
    """Streaming text input, one utterance of audio. It uses the options at the time of its construction."""

    def __init__(self, plugin: TTS, conn_options: APIConnectOptions, options: SessionOptions) -> None:
        super().__init__(tts=plugin, conn_options=conn_options)
        self._plugin = plugin
        self._session_options = options

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid("tts_"),
            sample_rate=self._plugin.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        # Connect while the language model is still working.
        opening = asyncio.create_task(self._open())
        try:
            first = await self._first_text()
            if first is None:  # no text, for example a tool-only turn
                return
            session = await opening
            output_emitter.start_segment(segment_id=session.id)
            self._plugin.counters.streams += 1
            self._mark_started()
            self._plugin._begin_segment(session)
            on_end = partial(self._plugin._record_end, session)
            await run_utterance(session, output_emitter, self._text(first), on_end)
        finally:
            if not opening.done():
                opening.cancel()
            opening.add_done_callback(self._close_opened)

    async def _open(self) -> Session:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        session, self._connection_reused = await self._plugin._open(self._session_options, self._conn_options.timeout)
        self._acquire_time = loop.time() - began_s
        return session

    def _close_opened(self, opening: asyncio.Task[Session]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._plugin._close(opening.result())

    async def _first_text(self) -> str | None:
        """The text up to the first token that is not blank; None if there is none."""
        text = ""
        async for token in self._input_ch:
            if isinstance(token, str):
                text += token
                if not token.isspace():
                    return text
        return None

    async def _text(self, first: str) -> AsyncIterable[str]:
        yield first
        async for token in self._input_ch:
            if not isinstance(token, str):
                return  # a stream is one LiveKit segment: a flush ends its text
            yield token


class ChunkedStream(tts.ChunkedStream):
    """Audio of a complete text."""

    def __init__(self, plugin: TTS, text: str, conn_options: APIConnectOptions, options: SessionOptions) -> None:
        super().__init__(tts=plugin, input_text=text, conn_options=conn_options)
        self._plugin = plugin
        self._session_options = options

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid("tts_"),
            sample_rate=self._plugin.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
        )
        if not self._input_text.strip():
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        session, self._connection_reused = await self._plugin._open(self._session_options, self._conn_options.timeout)
        self._acquire_time = loop.time() - began_s
        self._plugin.counters.streams += 1
        try:
            on_end = partial(self._plugin._record_end, session)
            await run_utterance(session, output_emitter, _single(self._input_text), on_end)
        finally:
            self._plugin._close(session)


async def _single(text: str) -> AsyncIterable[str]:
    yield text
