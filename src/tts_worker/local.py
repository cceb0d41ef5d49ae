"""Connector for ``local:``: a worker in this process, with the same interface as a remote one.

``local:`` runs the embedded CPU voice, ``local:worker.yaml`` the configuration in that file. The first session or
``prewarm`` starts the worker, ``aclose`` stops it. ``client.base`` imports this module by its name, so that clients
of remote workers load no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path

from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.client.arguments import check_key, check_str, check_text, whole_samples
from tts_worker.client.base import OpenedSession
from tts_worker.client.batches import ONLY_HTTP, BatchAccess
from tts_worker.client.conversion import ConversionAccess, SourceAudio
from tts_worker.client.deadline import AudioDeadline
from tts_worker.client.settings import ClientSettings
from tts_worker.client.voices import VoiceAccess
from tts_worker.errors import ConnectionLost, DeadlineExceeded, InvalidRequest
from tts_worker.protocol.messages import ConfigureMessage, ExpressMessage, check_params
from tts_worker.protocol.session import OutputReader
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload
from tts_worker.server.rendering import converted
from tts_worker.session.conversion import LiveSource, RecordedSource
from tts_worker.session.host import WorkerHost
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.settings import load_settings
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Acknowledged,
    Ended,
    Expression,
    Outcome,
    Output,
    PcmFrame,
    SessionOptions,
    State,
    SynthesisParams,
    UtteranceKey,
)
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.upload import NewVoice
from tts_worker.worker import running_worker


def connector(url: str, settings: ClientSettings) -> LocalConnector:
    """See ``base.SchemeModule``. A ConfigError is raised when the worker starts, not here."""
    name = url.partition(":")[2].removeprefix("//")

    def worker() -> AbstractAsyncContextManager[WorkerHost]:
        return running_worker(load_settings(Path(name) if name else None))

    return LocalConnector(worker)


class LocalConnector:
    """Connector to the worker that ``start_worker()`` runs. See ``base.Connector``."""

    def __init__(self, start_worker: Callable[[], AbstractAsyncContextManager[WorkerHost]]) -> None:
        self._start_worker = start_worker
        self._stack = AsyncExitStack()
        self._starting: asyncio.Task[SessionHub] | None = None
        self._sessions: set[DeadlineSession] = set()
        self._closed = False

    async def prewarm(self) -> None:
        await self._hub()

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> OpenedSession:
        reused = self._starting is not None
        hub = await self._hub()
        admitted = await hub.admit(options)

        def configure(params: SynthesisParams) -> None:
            hub.configure(admitted, ConfigureMessage.of(params).apply(options))

        session = DeadlineSession(admitted, audio_timeout_s, configure)
        self._sessions = {live for live in self._sessions if live.state is not State.CLOSED} | {session}
        return OpenedSession(session, connection_reused=reused)

    async def voice_access(self) -> VoiceAccess:
        return LocalVoices(await self._hub())

    async def conversion_access(self) -> ConversionAccess:
        return LocalConversion(await self._hub())

    async def batch_access(self) -> BatchAccess:
        raise InvalidRequest(ONLY_HTTP)

    async def _hub(self) -> SessionHub:
        """Start the worker once and return its hub. Concurrent calls share the start; a failed start is retried."""
        if self._closed:
            raise ConnectionLost("the client is closed")
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.create_task(self._start(), name="tts-local-worker")
        return await asyncio.shield(self._starting)

    async def _start(self) -> SessionHub:
        return (await self._stack.enter_async_context(self._start_worker())).hub

    async def aclose(self) -> None:
        self._closed = True
        for session in self._sessions:
            session.close("client_closed")
        if self._starting is not None:
            await asyncio.wait({self._starting})
        await self._stack.aclose()


class LocalConversion:
    """See ``conversion.ConversionAccess``."""

    def __init__(self, hub: SessionHub) -> None:
        self._hub = hub

    async def convert(self, source: SourceAudio, options: SessionOptions) -> AsyncGenerator[bytes, None]:
        """See ``conversion.ConversionAccess``."""
        audio = source.audio
        given = RecordedSource(audio) if isinstance(audio, bytes) else LiveSource(audio, source.live_rate_hz or 0)
        encoder = open_encoder(AudioFormat.PCM, options.sample_rate or SAMPLE_RATE_HZ)
        async with aclosing(converted(self._hub, options, given, encoder)) as parts:
            async for part in parts:
                yield part


class LocalVoices:
    """See ``voices.VoiceAccess``."""

    def __init__(self, hub: SessionHub) -> None:
        self._hub = hub

    async def list(self) -> list[VoiceInfo]:
        await self._hub.library.refresh()
        return [self._describe(voice) for voice in self._hub.voices]

    async def get(self, voice: str) -> VoiceInfo:
        await self._hub.library.refresh()
        return self._describe(self._hub.voices.get(voice))

    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo:
        library = self._hub.library
        new = NewVoice.parse(upload.fields())
        return self._describe(await (library.mix(new) if audio is None else library.add(new, audio)))

    async def delete(self, voice: str) -> None:
        await self._hub.library.delete(voice)

    def _describe(self, voice: VoiceDescription) -> VoiceInfo:
        return voice.for_clients(self._hub.voices.default)


class DeadlineSession(OutputReader):
    """A local session with the audio deadline of a remote one."""

    def __init__(
        self, session: LocalSession, audio_timeout_s: float, configure: Callable[[SynthesisParams], None]
    ) -> None:
        self.id = session.id
        self.sample_rate_hz = session.sample_rate_hz
        self.encoding = session.encoding
        self.model = session.model
        self._session = session
        self._configure = configure
        self._writing: UtteranceKey | None = None
        self._audio_due: set[UtteranceKey] = set()  # utterances with complete text, not ended
        self._timed_out: set[UtteranceKey] = set()
        self._deadline_stop: Acknowledged | None = None  # of a STOP that the caller did not send
        self._deadline = AudioDeadline(audio_timeout_s, self._is_audio_due, self._on_deadline)

    @property
    def state(self) -> State:
        return self._session.state

    def speak(self, text: str | bytes) -> UtteranceKey:
        check_text(text)
        self._writing = self._session.speak(text)
        return self._writing

    def flush(self) -> None:
        self._session.flush()

    def end_text(self) -> None:
        self._session.end_text()
        if self._writing is not None:
            self._audio_due.add(self._writing)
            self._writing = None
            self._deadline.touch()

    def pause(self) -> Acknowledged:
        return self._session.pause()

    def resume(self) -> Acknowledged:
        acknowledged = self._session.resume()
        self._deadline.touch()
        return acknowledged

    def stop(
        self, reason: str = "stop", played_samples: int | None = None, key: UtteranceKey | None = None
    ) -> Acknowledged:
        check_str(reason, "reason")
        check_key(key)
        if played_samples is not None:
            played_samples = whole_samples(played_samples)
        self._audio_due.clear()
        self._writing = None
        return self._session.stop(reason, played_samples, key)

    def played(self, samples: int, key: UtteranceKey | None = None) -> None:
        check_key(key)
        self._session.played(whole_samples(samples), key)

    def express(self, expression: Expression) -> None:
        self._session.express(ExpressMessage.of(expression).expression)

    def configure(self, params: SynthesisParams) -> None:
        check_params(params)
        self._configure(params)

    def close(self, reason: str = "closed") -> None:
        check_str(reason, "reason")
        self._session.close(reason)
        self._audio_due.clear()
        self._deadline.cancel()

    def _is_audio_due(self) -> bool:
        return bool(self._audio_due) and self._session.state is State.SPEAKING and not self._session.buffered_samples

    def _on_deadline(self) -> None:
        self._timed_out |= self._audio_due
        self._deadline_stop = self.stop("deadline")

    def poll(self) -> Output | None:
        while (item := self._session.poll()) is not None and item is self._deadline_stop:
            pass
        return None if item is None else self._observe(item)

    async def wait(self) -> None:
        await self._session.wait()

    def _observe(self, item: Output) -> Output:
        if isinstance(item, PcmFrame):
            self._deadline.touch()
        elif isinstance(item, Ended):
            self._audio_due.discard(item.key)
            if item.key in self._timed_out:
                self._timed_out.discard(item.key)
                error = DeadlineExceeded(f"the worker generated no audio for {self._deadline.timeout_s:g} s").info
                receipt = replace(item.receipt, reason=error.code.value)
                return replace(item, outcome=Outcome.ERROR, receipt=receipt, error=error)
        return item
