"""The engine protocol. Single-threaded: every method is called on the engine thread.

An engine owns the state of its utterances. It never blocks on a client and never sleeps while it has work. The contract
tests check these guarantees for every engine:

* It emits at most the granted credit, exact to the sample, and buffers the rest.
* Audio events of an utterance are in order and gap-free, followed by exactly one Done or Failed unless it is cancelled.
* After Cancel no event carries the key, and all resources of the utterance are free.
* Between Hold and Release it spends no step on the utterance.
* Its output depends on the text, the parameters and the credit *amounts*, not on their timing or on other utterances.
* An exception from ``handle`` or ``step`` means that the engine is broken; a fault of one utterance is a Failed event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tts_worker.types import Command, EngineInfo, EngineReport, Event


class Engine(Protocol):
    """Synthesizes many utterances, one bounded step at a time."""

    @property
    def info(self) -> EngineInfo: ...

    def warm_up(self) -> None:
        """Run every code path once, so that the first utterance has no start-up cost.

        Raises:
            EngineFault: The engine cannot synthesize.
        """
        ...

    def handle(self, command: Command) -> None:
        """Apply a command without synthesizing. Commands with an unknown or ended key are ignored."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything. While False, the engine thread blocks until the next command."""
        ...

    def step(self, now_s: float) -> Sequence[Event]:
        """Do one bounded unit of work (some tens of milliseconds) for the most urgent utterances.

        Args:
            now_s: Monotonic time; it affects the order of work, never the audio.
        """
        ...

    def close(self) -> None:
        """Free all resources without emitting events."""
        ...


@runtime_checkable
class ReportingEngine(Protocol):
    """An engine that reports about its operation, for metrics."""

    def report(self) -> EngineReport:
        """Return how its computations ran, and what the last step did. Called after every step."""
        ...


@runtime_checkable
class WakingEngine(Protocol):
    """An engine for which other threads do some work, for example read files."""

    def on_work(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, from any thread, whenever ``has_work`` became True without a command."""
        ...

    @property
    def wait_limit_s(self) -> float | None:
        """After how long ``has_work`` must be asked although nothing woke the caller; None if that is not necessary."""
        ...


class SharedState(Protocol):
    """State that an engine reads and the server process changes at run time, such as enrolled voices. Picklable."""

    def on_change(self, callback: Callable[[object], None] | None) -> None:
        """Have ``callback`` called with every later change, which is picklable, from any thread. None ends it."""
        ...

    def apply(self, change: object) -> None:
        """Make a change that happened to another copy."""
        ...
