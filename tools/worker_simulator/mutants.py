"""Faults of the product, planted one at a time to see that the simulator finds them. Each was made once, or nearly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tts_worker.client.fleet import FleetConnector
from tts_worker.client.registry.store import RedisStore, _in_task
from tts_worker.engine import scheduler
from tts_worker.engine.loop import EngineLoop
from tts_worker.engine.scheduler import Candidate, slack_samples
from tts_worker.engine.shell import EngineShell
from tts_worker.errors import ConnectionLost
from tts_worker.features.batch.runner import Batch
from tts_worker.session import factory
from tts_worker.session.hub import SessionHub
from tts_worker.session.machine import SessionMachine
from tts_worker.session.session import LocalSession
from tts_worker.session.utterance import Utterance
from tts_worker.timeouts import fail_after
from tts_worker.types import Cancel, Command, Credit, Done, Ended, Event, Failed, PcmFrame, State

Replacement = tuple[Any, str, Any]
"""Object, name of its attribute, and what takes its place."""


@dataclass(frozen=True)
class Mutant:
    """A planted fault.

    Attributes:
        name: Its name.
        fault: What is wrong.
        replacements: Returns what it replaces.
        seed: A seed that finds it.
    """

    name: str
    fault: str
    replacements: Callable[[], Sequence[Replacement]]
    seed: int

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the fault inside the block."""
        patches = [patch.object(where, name, value) for where, name, value in self.replacements()]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in reversed(patches):
                each.stop()


def _starved_call() -> Sequence[Replacement]:
    def by_urgency(candidates: Sequence[Candidate], now_us: int) -> list[Candidate]:
        return sorted(candidates, key=lambda each: (each.paced, slack_samples(each, now_us), each.waiting_since_us))

    return [(scheduler, "by_urgency", by_urgency)]


def _kept_slot() -> Sequence[Replacement]:
    def note_idle(session: Any) -> None:
        if session._is_active and session.state is State.CLOSED:
            session._is_active = False
            session._hooks.on_idle(session.id)

    return [(LocalSession, "_note_idle", note_idle)]


def _double_end() -> Sequence[Replacement]:
    stop_all = SessionMachine.stop_all

    def stop(machine: Any, reason: str) -> tuple[Ended, ...]:
        generated = [each for each in machine._utterances if each.is_generated]
        ended = stop_all(machine, reason)
        if machine.state is State.IDLE and generated:
            generated[0].drop_audio()
            machine._utterances.append(generated[0])
            machine._advance()
        return ended

    return [(SessionMachine, "stop_all", stop)]


def _old_audio() -> Sequence[Replacement]:
    handle_event = SessionMachine.on_engine

    def on_events(loop: Any, handle: object, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Done | Failed):
                loop._live.discard(event.key)
            loop._dispatch(event)

    def on_engine(machine: Any, event: Event) -> None:
        keys = [each.key for each in machine._utterances]
        if keys and event.key not in keys and not machine._utterances[0].is_generated:
            event = replace(event, key=keys[0])
        handle_event(machine, event)

    return [(EngineLoop, "on_events", on_events), (SessionMachine, "on_engine", on_engine)]


def _lost_credit() -> Sequence[Replacement]:
    def take_frame(machine: Any, utterance: Utterance, samples: int) -> PcmFrame:
        frame = utterance.take_frame(samples)
        config = machine._config
        uncredited = utterance.uncredited_engine_samples
        enough = uncredited >= config.credit_quantum_samples
        if enough and uncredited < config.large_credit_samples:
            enough = 2 * utterance.unsent_engine_samples < config.window_samples
        enough = enough or utterance.is_drained
        if not utterance.is_generated and uncredited and enough:
            machine._commands.append(Credit(utterance.key, uncredited))
            utterance.granted_engine_samples += uncredited
            utterance.uncredited_engine_samples = 0
        if utterance.is_drained:
            machine._advance()
        return frame

    return [(SessionMachine, "_take_frame", take_frame), (factory, "_WINDOW_MARGIN_MS", -10_000)]


def _stale_connection() -> Sequence[Replacement]:
    fetch = FleetConnector._fetch

    async def fetch_more(connector: Any) -> None:
        before = connector._workers
        await fetch(connector)
        known = {worker.address for worker in connector._workers}
        connector._workers = [*connector._workers, *(worker for worker in before if worker.address not in known)]

    return [(FleetConnector, "_fetch", fetch_more)]


def _stale_redis_connection() -> Sequence[Replacement]:
    async def run(store: Any, command: Callable[[], Awaitable[Any]], timeout_s: float | None = None) -> Any:
        try:
            async with fail_after(2.0 if timeout_s is None else timeout_s):
                return await _in_task(command)
        except (store._error, OSError, TimeoutError) as error:
            raise ConnectionLost(f"{store.name} fails ({type(error).__name__})") from None

    return [(RedisStore, "_run", run)]


def _batch_item_twice() -> Sequence[Replacement]:
    begin = Batch.__post_init__

    def forget_results(batch: Any) -> None:
        batch.results = {}
        begin(batch)

    return [(Batch, "__post_init__", forget_results)]


def _over_claim() -> Sequence[Replacement]:
    def played(utterance: Any, samples: int) -> None:
        utterance.played_samples = max(utterance.played_samples or 0, samples)

    return [(Utterance, "played", played)]


def _quota_bypass() -> Sequence[Replacement]:
    begin = SessionHub._begin_utterance

    def begin_utterance(hub: Any, session: str, queued: bool) -> Any:
        return None if queued else begin(hub, session, queued)

    return [(SessionHub, "_begin_utterance", begin_utterance)]


def _leaked_sequence() -> Sequence[Replacement]:
    handle: Callable[[Any, Command], None] = EngineShell.handle

    def handle_command(engine: Any, command: Command) -> None:
        if isinstance(command, Cancel) and command.key in engine.sequences and command.key not in engine._active:
            return  # it is held
        handle(engine, command)

    return [(EngineShell, "handle", handle_command)]


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("starved-call", "downloads are scheduled before calls", _starved_call, 67),
        Mutant("kept-slot", "a slot is given back by the end of the session only", _kept_slot, 0),
        Mutant("double-end", "a STOP forgets to remove an utterance that is generated", _double_end, 0),
        Mutant("old-audio", "audio of a stopped utterance counts as that of the next", _old_audio, 1),
        Mutant("lost-credit", "no credit is returned for a rest that fills no frame", _lost_credit, 16),
        Mutant("stale-connection", "workers that have left the registry stay in the list", _stale_connection, 0),
        Mutant("stale-redis", "connections to a Redis that is a replica now are kept", _stale_redis_connection, 4),
        Mutant("batch-item-twice", "a process that takes over a batch forgets its results", _batch_item_twice, 0),
        Mutant("over-claim", "a reported position is not capped at what was sent", _over_claim, 0),
        Mutant("quota-bypass", "queued utterances are not checked against the quota", _quota_bypass, 72),
        Mutant("leaked-sequence", "an utterance that is stopped while paused stays in the engine", _leaked_sequence, 3),
    )
}
"""The planted faults by name."""
