"""The LiveKit Agents plugin: ``TTS(url)`` speaks through a tts-worker, word times and all.

A thin client of ``tts_worker.client``: one session a stream, on a connection that stays warm. No engine is loaded in
the agent's process. Also importable as ``livekit.plugins.tts_worker``, which registers it with the framework. It knows
nothing of the wire; how the agent's pause reaches the worker is ``livekit_pause``'s affair.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio

from tts_worker.client import Client, ClientSettings, Session, SessionOptions, connect
from tts_worker.errors import InvalidRequest, MissingExtra, TTSWorkerError
from tts_worker.session.machine import State
from tts_worker.types import SAMPLE_RATE_HZ, Ended, Outcome

try:
    from livekit.agents import APIConnectOptions, APITimeoutError, tts, utils
    from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS
    from livekit.agents.voice import AgentSession
except ImportError:
    raise MissingExtra("the LiveKit plugin", "livekit") from None

from tts_worker.integrations.livekit_pause import follow_pauses
from tts_worker.integrations.livekit_speech import as_api_error, speak

log = logging.getLogger(__name__)

DEFAULT_URL = "ws://127.0.0.1:8080"

_PAUSE_TIMEOUT_S = 300.0
"""A user who talks on while the agent is paused: the agent decides what becomes of it, not the worker."""


@dataclass(slots=True)
class Counters:
    """What became of the streams so far. LiveKit's own metrics do not count those that were interrupted."""

    streams: int = 0
    finished: int = 0
    interrupted: int = 0
    failed: int = 0
    paused: int = 0


class TTS(tts.TTS[Literal["receipt"]]):
    """Speech for ``AgentSession(tts=...)``.

    ``url``: the worker (default: the environment's TTS_WORKER_URL, else ``ws://127.0.0.1:8080``); ``local:`` runs one
    in this process. ``api_key``: default TTS_WORKER_API_KEY. ``flush_after_ms``: silence of the language model after
    which words without punctuation are spoken (None: the worker's default; 0: never). ``max_ahead_s``: how far the
    worker may be ahead of the listener; what lies beyond a barge-in was never made. ``client``: speak through this one,
    which stays yours.

    Emits, beyond LiveKit's events, ``receipt`` with a ``tts_worker.types.Receipt`` for every stream that spoke, also
    for an interrupted one. ``counters`` counts.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        voice: str | None = None,
        speed: float = 1.0,
        language: str | None = None,
        instruct: str | None = None,
        seed: int = 0,
        flush_after_ms: float | None = None,
        max_ahead_s: float = 2.0,
        api_key: str | None = None,
        client: Client | None = None,
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=SAMPLE_RATE_HZ,
            num_channels=1,
        )
        if not 0 < max_ahead_s <= 10:
            raise InvalidRequest("max_ahead_s must be above 0 and at most 10")
        self.counters = Counters()
        self._options = SessionOptions(
            voice=voice,
            speed=speed,
            language=language,
            instruct=instruct,
            seed=seed,
            lead_ms=1_000 * max_ahead_s,
            pause_timeout_s=_PAUSE_TIMEOUT_S,
            flush_after_ms=flush_after_ms,
        )
        key = api_key or os.environ.get("TTS_WORKER_API_KEY")
        # Every attempt has the deadline that the agent gives it, so the client needs none of its own.
        settings = ClientSettings(api_key=key, connect_timeout_s=3_600.0)
        self._owned = client is None
        self._client = client or connect(url or os.environ.get("TTS_WORKER_URL", DEFAULT_URL), settings)
        self._live: set[Session] = set()
        self._warming: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        return self._options.voice or "default"

    @property
    def provider(self) -> str:
        return "tts-worker"

    def update_options(
        self,
        *,
        voice: str | None = None,
        speed: float | None = None,
        language: str | None = None,
        instruct: str | None = None,
        seed: int | None = None,
    ) -> None:
        """Change what is given. Takes effect with the next stream; those that speak already are not touched."""
        old = self._options
        self._options = replace(
            old,
            voice=old.voice if voice is None else voice,
            speed=old.speed if speed is None else speed,
            language=old.language if language is None else language,
            instruct=old.instruct if instruct is None else instruct,
            seed=old.seed if seed is None else seed,
        )

    def prewarm(self) -> None:
        """Dial the worker in the background. Returns at once, again is fine, and a worker that is not there yet is no
        error. Outside an event loop it does nothing: a connection belongs to a loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._warming is None or self._warming.done():
            self._warming = loop.create_task(self._warm(), name="tts-worker-prewarm")

    async def _warm(self) -> None:
        try:
            with anyio.move_on_after(10.0):
                await self._client.prewarm()
        except TTSWorkerError as error:
            log.debug("the worker is not there yet: %s", error.message)

    def attach(self, session: AgentSession[Any]) -> None:
        """Let the agent's pauses reach the worker: while the agent is interrupted and nobody knows yet whether in
        earnest, the worker makes nothing, and after a false interruption it goes on with the very next sample. Call it
        after ``await session.start(...)``. Raises InvalidRequest if the session has no audio output yet."""
        follow_pauses(session, self.pause, self.resume)

    def pause(self) -> None:
        """PAUSE every stream that speaks. Returns at once."""
        for session in self._live:
            if session.state is State.SPEAKING:
                session.pause()
                self.counters.paused += 1

    def resume(self) -> None:
        """RESUME every stream that is paused. Returns at once."""
        for session in self._live:
            if session.state is State.PAUSED:
                session.resume()

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        return SynthesizeStream(self, conn_options, self._options)

    def synthesize(self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> ChunkedStream:
        return ChunkedStream(self, text, conn_options, self._options)

    async def aclose(self) -> None:
        """End what is being said and close the connections (not those of a client that was given)."""
        if self._warming is not None:
            self._warming.cancel()
        for session in list(self._live):
            session.close("plugin_closed")
        if self._owned:
            await self._client.aclose()

    async def _open(self, options: SessionOptions, timeout_s: float) -> tuple[Session, bool]:
        try:
            with anyio.fail_after(timeout_s):
                opened = await self._client.open(options, audio_timeout_s=timeout_s)
        except TTSWorkerError as error:
            raise as_api_error(error.info, sent=False) from error
        except TimeoutError:
            raise APITimeoutError(f"the worker did not answer within {timeout_s:g} s") from None
        self._live.add(opened.session)
        return opened.session, opened.connection_reused

    def _close(self, session: Session) -> None:
        """Never waits: an interrupted stream is cancelled, and its agent stands still until this returns."""
        session.close("interrupted")
        self._live.discard(session)
        while (item := session.poll()) is not None:
            if isinstance(item, Ended):
                self._note(item)

    def _note(self, ended: Ended) -> None:
        if ended.outcome is Outcome.ERROR:
            self.counters.failed += 1
        elif ended.outcome is Outcome.STOPPED:
            self.counters.interrupted += 1
        else:
            self.counters.finished += 1
        self.emit("receipt", ended.receipt)


class SynthesizeStream(tts.SynthesizeStream):
    """Text in while it is being written, one utterance out. The options are those of the moment it began."""

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
        # The way to the worker is made while the language model still thinks.
        opening = asyncio.create_task(self._open())
        try:
            first = await self._first_text()
            if first is None:  # nothing to say: a turn that only calls tools
                return
            session = await opening
            output_emitter.start_segment(segment_id=session.id)
            self._plugin.counters.streams += 1
            self._mark_started()
            await speak(session, output_emitter, self._text(first), self._plugin._note)
        finally:
            if not opening.done():
                opening.cancel()
            opening.add_done_callback(self._opened)

    async def _open(self) -> Session:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        session, self._connection_reused = await self._plugin._open(self._session_options, self._conn_options.timeout)
        self._acquire_time = loop.time() - began_s
        return session

    def _opened(self, opening: asyncio.Task[Session]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._plugin._close(opening.result())

    async def _first_text(self) -> str | None:
        """What is written up to the first character that is no space; None if there is none."""
        blank = ""
        async for token in self._input_ch:
            if isinstance(token, str):
                blank += token
                if not token.isspace():
                    return blank
        return None

    async def _text(self, first: str) -> AsyncIterable[str]:
        yield first
        async for token in self._input_ch:
            if not isinstance(token, str):
                return  # a stream is one segment: its text ends with the flush
            yield token


class ChunkedStream(tts.ChunkedStream):
    """A text that is known from the beginning."""

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
            await speak(session, output_emitter, _once(self._input_text), self._plugin._note)
        finally:
            self._plugin._close(session)


async def _once(text: str) -> AsyncIterable[str]:
    yield text
