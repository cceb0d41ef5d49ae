"""What the engine loop needs of an engine. Single-threaded: every method is called on the engine thread.

An engine owns all its utterances' state. It never blocks on a client, never sleeps while it has work, and knows
neither asyncio nor sessions. It must keep these promises, which the contract tests check for every engine:

* it emits at most the credit it was given, sample-exact, and remembers the rest;
* Audio events of an utterance are in order and gap-free; then exactly one Done or Failed, unless Cancel came first;
* after Cancel nothing carries that key again and everything the utterance held is free;
* between Hold and Release it spends no step on the utterance;
* what it emits depends on the text, params and credit *amounts*, never on when they arrived or who else is served;
* an exception from ``handle`` or ``step`` means that the engine itself is broken: faults of one utterance are Failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tts_worker.types import Command, EngineInfo, Event


class Engine(Protocol):
    @property
    def info(self) -> EngineInfo: ...

    def warm_up(self) -> None:
        """Touch every code path once, so that the first caller pays nothing. Raises EngineFault if it cannot speak."""
        ...

    def handle(self, command: Command) -> None:
        """Take a command. Cheap: no synthesis here. Unknown or retired keys are ignored."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything. False parks the engine thread until the next command."""
        ...

    def step(self, now_s: float) -> Sequence[Event]:
        """Do one bounded piece of work (some tens of milliseconds) for the most urgent utterances. ``now_s`` is a
        monotonic clock; it orders urgency and never changes what is said."""
        ...

    def close(self) -> None:
        """Free everything. No event is emitted."""
        ...
