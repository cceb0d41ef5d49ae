"""Admission as a state machine: slots are never exceeded and never wasted."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from tts_worker.session.slots import SlotTable

SLOTS = 3
MAX_OPEN = 6
IDLE_S = 2.0
END_IDLE_S = 60.0


class Admission(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(SLOTS, MAX_OPEN, IDLE_S, END_IDLE_S)
        self.now_s = 0.0
        self.names = 0
        self.open: set[str] = set()
        self.speaking: set[str] = set()
        self.silent_since_s: dict[str, float] = {}

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(target=sessions)
    def admit(self) -> str:
        self.names += 1
        name = f"s{self.names}"
        long_silent = [n for n in self.open - self.speaking if self.now_s - self.silent_since_s[n] >= IDLE_S]
        holders = [n for n in self.open if self.table.has_slot(n)]
        expected = len(holders) < SLOTS or any(n in holders for n in long_silent)
        assert self.table.has_free_slot(self.now_s) is expected, "a slot is free or its holder is idle"
        if (candidate := self.table.eviction_candidate(self.now_s)) is not None:
            assert len(self.open) >= MAX_OPEN
            assert self.now_s - self.silent_since_s[candidate] >= END_IDLE_S
            self._forget(candidate)
            self.table.close(candidate)
        if expected and len(self.open) < MAX_OPEN:
            self.table.open(name, self.now_s)
            self.open.add(name)
            self.silent_since_s[name] = self.now_s
            assert self.table.has_slot(name)
        return name

    @rule(name=sessions)
    def begin_utterance(self, name: str) -> None:
        if name not in self.open or name in self.speaking:
            return
        taken = self.table.begin_utterance(name, self.now_s)
        assert taken is (len(self.speaking) < SLOTS), "refused exactly while others speak in every slot"
        if taken:
            self.speaking.add(name)

    @rule(name=sessions)
    def mark_idle(self, name: str) -> None:
        if name in self.speaking:
            self.table.mark_idle(name, self.now_s)
            self.speaking.discard(name)
            self.silent_since_s[name] = self.now_s

    @rule(name=consumes(sessions))
    def close(self, name: str) -> None:
        self.table.close(name)
        self._forget(name)

    @precondition(lambda self: self.open - self.speaking)
    @rule(target=sessions, data=st.data())
    def replace(self, data: st.DataObject) -> str:
        before = data.draw(st.sampled_from(sorted(self.open - self.speaking)))
        self.names += 1
        name = f"s{self.names}"
        held = self.table.has_slot(before)
        self.table.replace(before, name, self.now_s)
        self._forget(before)
        self.open.add(name)
        self.silent_since_s[name] = self.now_s
        assert self.table.has_slot(name) is held
        return name

    def _forget(self, name: str) -> None:
        self.open.discard(name)
        self.speaking.discard(name)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.table) == len(self.open) <= MAX_OPEN
        assert self.table.speaking == len(self.speaking) <= SLOTS
        assert sum(self.table.has_slot(name) for name in self.open) <= SLOTS
        assert all(self.table.has_slot(name) for name in self.speaking), "a session that speaks keeps its slot"
        assert 0 <= self.table.free(self.now_s) <= SLOTS


TestAdmission = Admission.TestCase
