"""Sessions of the worker protocol, which start and end by call and may run several utterances at a time.

A session holds one hub session from its start; concurrent utterances open further ones. Only the caller that started a
session can use it. A session without calls ends after an idle timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from tts_worker.errors import IllegalCommand, InvalidRequest, SessionClosed
from tts_worker.features.grpc.frames import StreamFormat
from tts_worker.features.grpc.synthesize import SynthesizeCall
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import SessionOptions, State

log = logging.getLogger(__name__)

MAX_ID_CHARS = 128


class WorkerSession:
    """One session of the worker protocol.

    Attributes:
        owner: Identity of the caller that started it (see ``calls.caller_identity``).
        calls: Running ``Synthesize`` calls, oldest first.
        closed: Whether the session has ended.
    """

    def __init__(
        self,
        session_id: str,
        owner: str,
        hub: SessionHub,
        primary_session: LocalSession,
        options: SessionOptions,
        stream_format: StreamFormat,
        idle_s: float,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.stream_format = stream_format
        self.closed = False
        self.calls: list[SynthesizeCall] = []
        self.voice = primary_session.params.voice
        self._primary_session = primary_session
        self._hub = hub
        self._options = options
        self._generation = 0
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._used_at_s = self._loop.time()
        self._timer = self._loop.call_later(idle_s, self._on_idle)

    @property
    def engine(self) -> str:
        """Name of the engine that speaks."""
        return self._primary_session.model

    def begin_call(self) -> SynthesizeCall:
        """Begin an utterance.

        Raises:
            SessionClosed: The session has ended.
            TTSWorkerError: A further hub session was needed and refused.
        """
        if self.closed or self._primary_session.state is State.CLOSED:
            raise SessionClosed("the session is closed")
        self._used_at_s = self._loop.time()
        free = self._primary_session.state is State.IDLE and all(
            other.session is not self._primary_session for other in self.calls
        )
        session = self._primary_session if free else self._hub.open(self._options)
        self._generation += 1
        try:
            call = SynthesizeCall(session, self.id, self._generation, self.stream_format)
        except BaseException:
            self._release(session)
            raise
        self.calls.append(call)
        return call

    def end_call(self, call: SynthesizeCall, reason: str) -> None:
        """Release ``call`` after it ended for any reason. Idempotent."""
        if call not in self.calls:
            return
        call.abandon(reason)
        self.calls.remove(call)
        self._release(call.session)
        self._used_at_s = self._loop.time()
        if self._hub.draining:
            self.close("drain")

    def calls_of(self, generation: int) -> list[SynthesizeCall]:
        """Running calls of one generation; 0 selects all."""
        self._used_at_s = self._loop.time()
        return [call for call in self.calls if not call.finished and generation in (0, call.generation)]

    @property
    def primary_session(self) -> LocalSession | None:
        """The hub session that it holds, None once it is closed."""
        return None if self.closed else self._primary_session

    @property
    def pause_timeout_s(self) -> float:
        """Time after which a pause without RESUME becomes a STOP."""
        config = self._hub.config
        configured_s = self._options.pause_timeout_s
        if configured_s is None:
            return config.timeouts.pause_s
        return min(configured_s, max(config.timeouts.pause_s, config.longest_pause_s))

    @property
    def state(self) -> State:
        """PAUSED or SPEAKING if any running call is."""
        if self.closed:
            return State.CLOSED
        states = {call.state for call in self.calls}
        return next((state for state in (State.PAUSED, State.SPEAKING) if state in states), State.IDLE)

    def close(self, reason: str) -> None:
        """End the session; running utterances end with an end marker. Idempotent."""
        self.closed = True
        self._timer.cancel()
        for call in self.calls:
            call.session.close(reason)
        self._primary_session.close(reason)

    def _release(self, session: LocalSession) -> None:
        if session is not self._primary_session:
            session.close("over")

    def _on_idle(self) -> None:
        """Close the session, or re-arm the timer: activity only updates a timestamp."""
        remaining_s = self._used_at_s + self._idle_s - self._loop.time()
        if self.calls or remaining_s > 0:
            self._timer = self._loop.call_later(max(remaining_s, 1.0), self._on_idle)
        else:
            log.info("session ended: idle for %.0f s", self._idle_s)
            self.close("idle_timeout")


class SessionTable:
    """Open sessions by id.

    Args:
        hub: Admits sessions.
        idle_s: Time without calls after which a session ends.
    """

    def __init__(self, hub: SessionHub, idle_s: float) -> None:
        self._hub = hub
        self._idle_s = idle_s
        self._sessions: dict[str, WorkerSession] = {}

    async def start(
        self, session_id: str, owner: str, options: SessionOptions, stream_format: StreamFormat
    ) -> WorkerSession:
        """Start a session, waiting for its model if it must be loaded. An idle session with the same id is replaced.

        Raises:
            InvalidRequest: The id is empty or too long.
            IllegalCommand: A session with this id is speaking or belongs to another caller.
            TTSWorkerError: The hub refused the session.
        """
        if not 1 <= len(session_id) <= MAX_ID_CHARS:
            raise InvalidRequest(f"session_id must have 1 to {MAX_ID_CHARS} characters")
        self._remove_closed()
        previous = self._replaceable(session_id, owner)
        primary_session = await self._hub.admit(
            options, replaces=None if previous is None else previous.primary_session
        )
        try:
            concurrent = self._replaceable(session_id, owner)
        except IllegalCommand:
            primary_session.close("refused")
            raise
        if concurrent is not None:
            concurrent.close("replaced")
        session = WorkerSession(session_id, owner, self._hub, primary_session, options, stream_format, self._idle_s)
        self._sessions[session_id] = session
        return session

    def _replaceable(self, session_id: str, owner: str) -> WorkerSession | None:
        """Return the session that a new one would replace, if any. Raises IllegalCommand if it must stay."""
        previous = self._sessions.get(session_id)
        if previous is not None and not previous.closed and (previous.owner != owner or previous.calls):
            raise IllegalCommand("that session_id is in use: end the session, or take another id")
        return previous

    def get(self, session_id: str, owner: str) -> WorkerSession:
        """Return an open session of this caller.

        Raises:
            InvalidRequest: The id is empty.
            SessionClosed: No such session, or it belongs to another caller.
        """
        if not session_id:
            raise InvalidRequest("session_id is missing")
        session = self._sessions.get(session_id)
        if session is None or session.closed or session.owner != owner:
            raise SessionClosed("no such session: call StartSession first")
        return session

    def end(self, session_id: str, owner: str) -> None:
        """End a session of this caller. Raises the errors of ``get``."""
        self.get(session_id, owner).close("end_session")
        del self._sessions[session_id]

    def close_idle_sessions(self) -> None:
        """Close sessions without running calls; a drain need not wait for them."""
        self._close([session for session in self._sessions.values() if not session.calls], "drain")

    def _close(self, sessions: Iterable[WorkerSession], reason: str) -> None:
        for session in sessions:
            session.close(reason)
        self._remove_closed()

    def _remove_closed(self) -> None:
        self._sessions = {name: session for name, session in self._sessions.items() if not session.closed}
