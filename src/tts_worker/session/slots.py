"""The slot table: admission of sessions and of their utterances. The clock is a parameter (``now_s``, monotonic).

A session needs a slot to speak. It takes one when it opens and keeps it while idle until another session needs it. An
idle session that lost its slot stays open and takes a slot again when its next utterance begins.

A slot is taken from the session that has been idle longest:

- A new session takes the slot of a session that has been idle for ``idle_s``, so a caller keeps its slot between two
  utterances.
- An utterance of an open session takes the slot of any idle session. It is rejected only while every slot belongs to a
  speaking session.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _SessionState:
    has_slot: bool
    idle_since_s: float | None  # None while speaking


class SlotTable:
    """The slots of one worker.

    Args:
        slots: Sessions that may speak at the same time; may change later.
        max_open: Sessions that may be open at the same time, at least ``slots``.
        idle_s: A new session may take the slot of a session that has been idle for this long.
        end_idle_s: At ``max_open`` a new session ends a session that has been idle for this long.
    """

    def __init__(self, slots: int, max_open: int, idle_s: float, end_idle_s: float) -> None:
        self.slots = slots
        self.max_open = max(max_open, slots)
        self._idle_s = idle_s
        self._end_idle_s = end_idle_s
        self._sessions: dict[str, _SessionState] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def speaking(self) -> int:
        """Number of speaking sessions."""
        return sum(session.idle_since_s is None for session in self._sessions.values())

    def has_slot(self, name: str) -> bool:
        return self._sessions[name].has_slot

    def free(self, now_s: float) -> int:
        """Slots that new sessions could take now."""
        taken = sum(
            session.has_slot and self._idle_for(session, now_s) < self._idle_s for session in self._sessions.values()
        )
        return max(0, self.slots - taken)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def has_free_slot(self, now_s: float) -> bool:
        """Whether a new session can take a slot."""
        return self.free(now_s) > 0

    def eviction_candidate(self, now_s: float) -> str | None:
        """The session to end so that another one can be opened; None if none must end or none may."""
        if len(self._sessions) < self.max_open:
            return None
        return self._longest_idle(now_s, self._end_idle_s)

    def open(self, name: str, now_s: float) -> None:
        """Add a session, idle and with a slot. ``has_free_slot`` must hold."""
        self._take(now_s, self._idle_s)
        self._sessions[name] = _SessionState(has_slot=True, idle_since_s=now_s)

    def replace(self, before: str, name: str, now_s: float) -> None:
        """Replace a session by another one, which takes over its slot."""
        replaced = self._sessions.pop(before, None)
        self._sessions[name] = _SessionState(has_slot=replaced is None or replaced.has_slot, idle_since_s=now_s)

    def close(self, name: str) -> None:
        """Remove a session; an unknown name is ignored."""
        self._sessions.pop(name, None)

    # -- utterances ---------------------------------------------------------------------------------------------------

    def begin_utterance(self, name: str, now_s: float) -> bool:
        """Begin an utterance of an idle session. Returns False if every slot belongs to a speaking session."""
        session = self._sessions[name]
        if not session.has_slot:
            if not self._take(now_s, 0.0):
                return False
            session.has_slot = True
        session.idle_since_s = None
        return True

    def mark_idle(self, name: str, now_s: float) -> None:
        """Mark a session as idle. It keeps its slot until another session needs it."""
        if name in self._sessions:
            self._sessions[name].idle_since_s = now_s

    def _take(self, now_s: float, idle_s: float) -> bool:
        """Free a slot, if necessary that of an idle session. Returns whether a slot is free."""
        if sum(session.has_slot for session in self._sessions.values()) < self.slots:
            return True
        victim = self._longest_idle(now_s, idle_s, with_slot=True)
        if victim is None:
            return False
        self._sessions[victim].has_slot = False
        return True

    def _longest_idle(self, now_s: float, idle_s: float, *, with_slot: bool = False) -> str | None:
        idle = [
            (-self._idle_for(session, now_s), name)
            for name, session in self._sessions.items()
            if (session.has_slot or not with_slot) and self._idle_for(session, now_s) >= idle_s
        ]
        return min(idle, key=lambda item: item[0])[1] if idle else None

    @staticmethod
    def _idle_for(session: _SessionState, now_s: float) -> float:
        return -math.inf if session.idle_since_s is None else now_s - session.idle_since_s
