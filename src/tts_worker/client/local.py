"""``local:``: a worker in this process, behind the same face as one elsewhere.

``local:`` is the embedded CPU voice, ``local:worker.yaml`` what that file configures. Owns the worker's life (begun by
the first session or ``prewarm``, ended by ``aclose``) and the deadline, which a remote session has too. It composes, so
it imports ``app``, late: an agent that speaks through a worker elsewhere never loads an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tts_worker.client.base import ClientSettings, Opened
from tts_worker.client.deadline import SoundDeadline
from tts_worker.errors import ConnectionLost, DeadlineExceeded
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.types import Ended, Outcome, Output, PcmFrame, SynthesisParams, UtteranceKey


class HubHost(Protocol):
    """Who has the hub (``app.Worker``)."""

    @property
    def hub(self) -> SessionHub: ...


def connector(url: str, settings: ClientSettings) -> LocalConnector:
    """See ``base.SchemeModule``. Raises ConfigError when the worker begins, not here."""
    name = url.partition(":")[2].removeprefix("//")

    def worker() -> AbstractAsyncContextManager[HubHost]:
        from tts_worker.app import running_worker
        from tts_worker.settings import load_settings

        return running_worker(load_settings(Path(name) if name else None))

    return LocalConnector(worker)


class LocalConnector:
    """Sessions on the worker that ``begin()`` gives. See ``base.Connector``."""

    def __init__(self, begin: Callable[[], AbstractAsyncContextManager[HubHost]]) -> None:
        self._begin = begin
        self._stack = AsyncExitStack()
        self._beginning: asyncio.Task[SessionHub] | None = None
        self._sessions: set[DeadlineSession] = set()
        self._closed = False

    async def prewarm(self) -> None:
        await self._hub()

    async def open(self, options: SessionOptions, *, audio_timeout_s: float) -> Opened:
        reused = self._beginning is not None
        hub = await self._hub()
        session = DeadlineSession(await hub.admit(options), audio_timeout_s)
        self._sessions = {live for live in self._sessions if live.state is not State.CLOSED} | {session}
        return Opened(session, connection_reused=reused)

    async def _hub(self) -> SessionHub:
        """The hub of the one worker, however many ask at the same time; after a failure the next one tries again."""
        if self._closed:
            raise ConnectionLost("the client is closed")
        if self._beginning is None or (self._beginning.done() and self._beginning.exception() is not None):
            self._beginning = asyncio.create_task(self._start(), name="tts-local-worker")
        return await asyncio.shield(self._beginning)

    async def _start(self) -> SessionHub:
        return (await self._stack.enter_async_context(self._begin())).hub

    async def aclose(self) -> None:
        self._closed = True
        for session in self._sessions:
            session.close("client_closed")
        if self._beginning is not None:
            await asyncio.wait({self._beginning})
        await self._stack.aclose()


class DeadlineSession:
    """A local session whose sound has a deadline, like that of a remote one."""

    def __init__(self, session: LocalSession, audio_timeout_s: float) -> None:
        self.id = session.id
        self.sample_rate_hz = session.sample_rate_hz
        self._session = session
        self._writing: UtteranceKey | None = None
        self._owing: set[UtteranceKey] = set()  # text complete, not ended
        self._late: set[UtteranceKey] = set()
        self._deadline = SoundDeadline(audio_timeout_s, self._owed, self._on_deadline)

    @property
    def state(self) -> State:
        return self._session.state

    def speak(self, text: str | bytes) -> UtteranceKey:
        self._writing = self._session.speak(text)
        return self._writing

    def flush(self) -> None:
        self._session.flush()

    def end_text(self) -> None:
        self._session.end_text()
        if self._writing is not None:
            self._owing.add(self._writing)
            self._writing = None
            self._deadline.touch()

    def pause(self) -> None:
        self._session.pause()

    def resume(self) -> None:
        self._session.resume()
        self._deadline.touch()

    def stop(self, reason: str = "stop", played_samples: int | None = None) -> None:
        self._session.stop(reason, played_samples)
        self._owing.clear()
        self._writing = None

    def played(self, samples: int) -> None:
        self._session.played(samples)

    def configure(self, params: SynthesisParams) -> None:
        self._session.configure(params)

    def close(self, reason: str = "closed") -> None:
        self._session.close(reason)
        self._owing.clear()
        self._deadline.cancel()

    def _owed(self) -> bool:
        return bool(self._owing) and self._session.state is State.SPEAKING and not self._session.buffered_samples

    def _on_deadline(self) -> None:
        self._late |= self._owing
        self.stop("deadline")

    def poll(self) -> Output | None:
        item = self._session.poll()
        return None if item is None else self._noted(item)

    async def next(self) -> Output | None:
        item = await self._session.next()
        return None if item is None else self._noted(item)

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (item := await self.next()) is not None:
            yield item

    def _noted(self, item: Output) -> Output:
        if isinstance(item, PcmFrame):
            self._deadline.touch()
        elif isinstance(item, Ended):
            self._owing.discard(item.key)
            if item.key in self._late:
                self._late.discard(item.key)
                error = DeadlineExceeded(f"the worker made no sound for {self._deadline.timeout_s:g} s").info
                receipt = replace(item.receipt, reason=error.code.value)
                return replace(item, outcome=Outcome.ERROR, receipt=receipt, error=error)
        return item
