"""Which sessions hold a slot: admission of sessions and of their utterances.

Pure book-keeping without a clock: ``now_s`` is always given, in seconds of one monotonic clock. A slot lets a session
speak. A session takes one when it opens and keeps it while it is silent, until another caller needs it. A silent
session whose slot was taken stays open, and takes a slot again when its next utterance begins.

Two rules decide who gives way, the session that has been silent longest first:

- A new session takes the slot of a session that has been silent for ``idle_s``. A caller between two turns keeps its
  slot for that long.
- An utterance of an open session takes the slot of any silent session. It is refused only while every slot belongs to a
  session that is speaking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _SessionState:
    has_slot: bool
    idle_since_s: float | None  # None while it speaks


class SlotTable:
    """The slots of one worker.

    Args:
        slots: Sessions that may speak at the same time.
        max_open: Sessions that may be open at the same time, at least ``slots``.
        idle_s: A new session may take the slot of a session that has been silent for this long.
        end_idle_s: At ``max_open`` a new session ends a session that has been silent for this long.
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
        """Sessions that speak now."""
        return sum(session.idle_since_s is None for session in self._sessions.values())

    def has_slot(self, name: str) -> bool:
        return self._sessions[name].has_slot

    def free(self, now_s: float) -> int:
        """Slots that new sessions could take now."""
        return self.slots - sum(
            session.has_slot and self._idle_for(session, now_s) < self._idle_s for session in self._sessions.values()
        )

    # -- sessions -----------------------------------------------------------------------------------------------------

    def has_free_slot(self, now_s: float) -> bool:
        """Whether a new session can have a slot."""
        return self.free(now_s) > 0

    def eviction_candidate(self, now_s: float) -> str | None:
        """The session that has to end so that one more can be open; None if none has to, or none may."""
        if len(self._sessions) < self.max_open:
            return None
        return self._longest_silent(now_s, self._end_idle_s)

    def open(self, name: str, now_s: float) -> None:
        """Add a session, silent and with a slot. ``has_free_slot`` must hold."""
        self._take(now_s, self._idle_s)
        self._sessions[name] = _SessionState(has_slot=True, idle_since_s=now_s)

    def replace(self, before: str, name: str, now_s: float) -> None:
        """A session takes over what another one held, which is gone with that."""
        held = self._sessions.pop(before, None)
        self._sessions[name] = _SessionState(has_slot=held is None or held.has_slot, idle_since_s=now_s)

    def close(self, name: str) -> None:
        """An unknown name is fine."""
        self._sessions.pop(name, None)

    # -- utterances ---------------------------------------------------------------------------------------------------

    def begin_utterance(self, name: str, now_s: float) -> bool:
        """An utterance of a silent session begins. False if every slot belongs to a session that is speaking."""
        session = self._sessions[name]
        if not session.has_slot:
            if not self._take(now_s, 0.0):
                return False
            session.has_slot = True
        session.idle_since_s = None
        return True

    def mark_idle(self, name: str, now_s: float) -> None:
        """A session falls silent. It keeps its slot for now."""
        if name in self._sessions:
            self._sessions[name].idle_since_s = now_s

    def _take(self, now_s: float, idle_s: float) -> bool:
        """Free a slot for a caller, if need be that of a silent session. Whether there is one now."""
        if sum(session.has_slot for session in self._sessions.values()) < self.slots:
            return True
        victim = self._longest_silent(now_s, idle_s, holding=True)
        if victim is None:
            return False
        self._sessions[victim].has_slot = False
        return True

    def _longest_silent(self, now_s: float, idle_s: float, *, holding: bool = False) -> str | None:
        silent = [
            (-self._idle_for(session, now_s), name)
            for name, session in self._sessions.items()
            if (session.has_slot or not holding) and self._idle_for(session, now_s) >= idle_s
        ]
        return min(silent, key=lambda item: item[0])[1] if silent else None

    @staticmethod
    def _idle_for(session: _SessionState, now_s: float) -> float:
        return -math.inf if session.idle_since_s is None else now_s - session.idle_since_s
