"""Sessions of the worker protocol: they begin and end by call, and several utterances may sound in one at a time.

A session holds a place in the hub from its start, so that a turn of an admitted session is not refused; what more sound
at the same time take further places. It belongs to who started it: for anybody else it does not exist. One that nobody
uses for a while ends by itself. Knows no message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from tts_worker.errors import IllegalCommand, InvalidRequest, SessionClosed
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.transports.grpc.frames import StreamFormat
from tts_worker.transports.grpc.speaking import Speaking

log = logging.getLogger(__name__)

MAX_ID_CHARS = 128


class WorkerSession:
    """``owner``: who may use it. ``speaking``: what sounds now, oldest first."""

    def __init__(
        self,
        session_id: str,
        owner: str,
        hub: SessionHub,
        place: LocalSession,
        options: SessionOptions,
        form: StreamFormat,
        idle_s: float,
    ) -> None:
        self._place = place
        self.id = session_id
        self.owner = owner
        self.form = form
        self.closed = False
        self.speaking: list[Speaking] = []
        self._hub = hub
        self._options = options
        self._generation = 0
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._used_at_s = self._loop.time()
        self.voice = self._place.params.voice
        self._timer = self._loop.call_later(idle_s, self._on_idle)

    def begin(self) -> Speaking:
        """An utterance. Raises SessionClosed, and what the hub says where a further place is needed and there is
        none."""
        if self.closed or self._place.state is State.CLOSED:
            raise SessionClosed("the session is closed")
        self._used_at_s = self._loop.time()
        free = self._place.state is State.IDLE and all(other.session is not self._place for other in self.speaking)
        session = self._place if free else self._hub.open(self._options)
        self._generation += 1
        try:
            speaking = Speaking(session, self.id, self._generation, self.form)
        except BaseException:
            self._free(session)
            raise
        self.speaking.append(speaking)
        return speaking

    def end(self, speaking: Speaking, reason: str) -> None:
        """Its call is over, however it ended. Again is fine."""
        if speaking not in self.speaking:
            return
        speaking.leave(reason)
        self.speaking.remove(speaking)
        self._free(speaking.session)
        self._used_at_s = self._loop.time()
        if self._hub.draining:
            self.close("drain")

    def of_generation(self, generation: int) -> list[Speaking]:
        """What sounds now; 0 means all of it."""
        self._used_at_s = self._loop.time()
        return [s for s in self.speaking if not s.finished and generation in (0, s.generation)]

    @property
    def place(self) -> LocalSession | None:
        """What it holds in the hub, until it is closed."""
        return None if self.closed else self._place

    @property
    def pause_timeout_s(self) -> float:
        """After this a pause that nobody resumes is a STOP."""
        given_s = self._options.pause_timeout_s
        return self._hub.config.timeouts.pause_s if given_s is None else given_s

    @property
    def state(self) -> State:
        if self.closed:
            return State.CLOSED
        states = {speaking.state for speaking in self.speaking}
        return next((state for state in (State.PAUSED, State.SPEAKING) if state in states), State.IDLE)

    def close(self, reason: str) -> None:
        """What it says ends with an end marker. Again is fine."""
        self.closed = True
        self._timer.cancel()
        for speaking in self.speaking:
            speaking.session.close(reason)
        self._place.close(reason)

    def _free(self, session: LocalSession) -> None:
        if session is not self._place:
            session.close("over")

    def _on_idle(self) -> None:
        """Re-armed lazily: use only moves a time stamp."""
        left_s = self._used_at_s + self._idle_s - self._loop.time()
        if self.speaking or left_s > 0:
            self._timer = self._loop.call_later(max(left_s, 1.0), self._on_idle)
        else:
            log.info("session ended: nobody used it for %.0f s", self._idle_s)
            self.close("idle_timeout")


class SessionTable:
    """The sessions that live, by id. ``idle_s``: see ``WorkerSession``."""

    def __init__(self, hub: SessionHub, idle_s: float) -> None:
        self._hub = hub
        self._idle_s = idle_s
        self._sessions: dict[str, WorkerSession] = {}

    async def start(self, session_id: str, owner: str, options: SessionOptions, form: StreamFormat) -> WorkerSession:
        """A session; waits for its model if that has to be loaded. The same id again begins it anew while it is silent.

        Raises InvalidRequest, IllegalCommand (it is speaking, or somebody else's), and what the hub says.
        """
        if not 1 <= len(session_id) <= MAX_ID_CHARS:
            raise InvalidRequest(f"session_id must have 1 to {MAX_ID_CHARS} characters")
        self._sweep()
        before = self._free(session_id, owner)
        place = await self._hub.admit(options, replaces=None if before is None else before.place)
        try:
            meanwhile = self._free(session_id, owner)
        except IllegalCommand:
            place.close("refused")
            raise
        if meanwhile is not None:
            meanwhile.close("replaced")
        session = WorkerSession(session_id, owner, self._hub, place, options, form, self._idle_s)
        self._sessions[session_id] = session
        return session

    def _free(self, session_id: str, owner: str) -> WorkerSession | None:
        """The session that may be replaced, None if there is none. Raises IllegalCommand where one must stay."""
        before = self._sessions.get(session_id)
        if before is not None and not before.closed and (before.owner != owner or before.speaking):
            raise IllegalCommand("that session_id is in use: end the session, or take another id")
        return before

    def get(self, session_id: str, owner: str) -> WorkerSession:
        """Raises InvalidRequest without an id, SessionClosed for one that is not there or not the caller's."""
        if not session_id:
            raise InvalidRequest("session_id is missing")
        session = self._sessions.get(session_id)
        if session is None or session.closed or session.owner != owner:
            raise SessionClosed("there is no such session: StartSession first")
        return session

    def end(self, session_id: str, owner: str) -> None:
        """Raises as ``get`` does."""
        self.get(session_id, owner).close("end_session")
        del self._sessions[session_id]

    def close_silent(self) -> None:
        """A drain begins: sessions that say nothing need not be waited for."""
        self._close([session for session in self._sessions.values() if not session.speaking], "drain")

    def close_all(self) -> None:
        self._close(list(self._sessions.values()), "closed")

    def _close(self, sessions: Iterable[WorkerSession], reason: str) -> None:
        for session in sessions:
            session.close(reason)
        self._sweep()

    def _sweep(self) -> None:
        self._sessions = {name: session for name, session in self._sessions.items() if not session.closed}
