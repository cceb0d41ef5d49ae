"""What the simulation puts in the place of clock, network, Redis, disk and chance, and what it observes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tools.worker_simulator.engines import SimulatedHandle
from tts_worker import worker
from tts_worker.client.fleet import FleetConnector
from tts_worker.client.registry.store import RedisStore
from tts_worker.engine.loop import EngineLoop
from tts_worker.errors import ErrorInfo, QuotaExceeded, SendTimeout, TTSWorkerError
from tts_worker.features.batch.runner import BatchRunner
from tts_worker.features.batch.store import BatchFolder
from tts_worker.features.grpc.converse import ConverseCall
from tts_worker.metrics import Metrics
from tts_worker.models.manager import ModelManager, ModelState
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import Ended

if TYPE_CHECKING:
    from tools.worker_simulator.view import WorldView

Replace = Callable[..., None]
"""Takes an object, the name of its attribute and what stands there during the run; or a dotted name and that."""


@contextmanager
def replaced_parts(world: WorldView) -> Iterator[None]:
    """Replace the surroundings of the real parts inside the block, and observe these."""
    tokens = world.chance_of("tokens")
    wall = SimpleNamespace(time=lambda: 1.7e9 + world.now_s)

    async def call(function: Callable[..., Any], *args: Any, **_: Any) -> Any:
        return function(*args)

    async def measure_nothing(self: Any) -> None:
        await asyncio.sleep(3_600)

    with ExitStack() as stack:

        def replace_in(where: object, name: str, value: Any) -> None:
            target = patch(f"{where}.{name}", value) if isinstance(where, str) else patch.object(where, name, value)
            stack.enter_context(target)

        replace_in("tts_worker.client.registry.directory", "time", wall)
        replace_in("tts_worker.features.fleet.registrar", "time", wall)
        replace_in("tts_worker.engine.loop", "ThreadHandle", SimulatedHandle)
        replace_in("tts_worker.engine.tone", "_render", lambda note, samples, seed: bytes(2 * samples))
        replace_in("tts_worker.worker", "EngineFactory", world.factory)
        replace_in("tts_worker.worker", "info_before_loading", world.info)
        replace_in("tts_worker.worker", "_quotas", world.quotas)
        replace_in("tts_worker.worker", "read_voicepacks", lambda directory: ())
        replace_in("tts_worker.worker", "gc", SimpleNamespace(collect=int, freeze=int, unfreeze=int))
        replace_in(Metrics, "measure_loop_lag", measure_nothing)  # virtual time has none
        _shorten_times(world, replace_in)
        replace_in("grpc.aio", "insecure_channel", world.network.channel)
        replace_in("redis.asyncio", "Redis", world.redis.client_type())
        replace_in("anyio.to_thread", "run_sync", call)
        replace_in("secrets", "token_hex", lambda size=16: f"{tokens.getrandbits(8 * size):0{2 * size}x}")
        replace_in("tts_worker.client.fleet", "random", world.chance_of("ties"))
        replace_in("os", "fsync", lambda descriptor: None)
        _observe_hubs(world, replace_in)
        _observe_clients(world, replace_in)
        _observe_models(world, replace_in)
        _observe_batches(world, replace_in)
        yield


def _shorten_times(world: WorldView, replace_in: Replace) -> None:
    """Replace what is the same for every worker and would take too long, or try too little."""
    hub_config, manager_config = worker._hub_config, worker._manager_config

    def manage(settings: Any) -> Any:
        config = manager_config(settings)
        return replace(config, check_interval_s=1.0, rules=replace(config.rules, min_residency_s=0.0))

    def serve(settings: Any) -> Any:
        return replace(hub_config(settings), end_idle_s=world.end_idle_s, window_ms=world.window_ms)

    replace_in(worker, "_hub_config", serve)
    replace_in(worker, "_manager_config", manage)
    replace_in(worker, "EngineLoop", partial(EngineLoop, hang_timeout_s=3.0))


class _Observer:
    """Passes measurements on, and tells the simulation of ended utterances."""

    def __init__(self, world: WorldView, inner: Any) -> None:
        self._world = world
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def ended(self, event: Ended, sample_rate_hz: int) -> None:
        self._world.on_utterance_ended(event)
        self._inner.ended(event, sample_rate_hz)


def _observe_hubs(world: WorldView, replace_in: Replace) -> None:
    """Note sessions, utterances and text of the hubs."""
    opened, closed, taken = SessionHub._open, SessionHub._on_closed, SessionHub._take_slot
    begun, charged, observer = SessionHub._begin_utterance, SessionHub._charge_text, Metrics.session_observer

    def open_session(self: Any, *args: Any) -> LocalSession:
        session = opened(self, *args)
        world.on_session_opened(session)
        return session

    def on_closed(self: Any, session: str) -> None:
        known = self.find(session)
        closed(self, session)
        if known is not None:
            world.on_session_closed(known)

    def begin(self: Any, session: str, queued: bool) -> ErrorInfo | None:
        known = self._sessions.get(session)
        had_slot = known is None or self.slots.has_slot(session)
        error = begun(self, session, queued)
        if known is not None and error is None:
            world.reach("an idle session loses its slot and speaks again", not had_slot)
            if known.caller.key == "limited":
                world.check_characters(self._session_prefix)
        world.reach("a key has spoken all of its characters", error is not None and error.code is QuotaExceeded.code)
        return error

    def charge(self: Any, session: str, chars: int) -> None:
        known = self._sessions.get(session)
        if known is not None and known.caller.key == "limited":
            world.on_text(self._session_prefix, chars)
        charged(self, session, chars)

    def take_slot(self: Any, name: str, replaces: Any) -> None:
        before = len(self._sessions)
        taken(self, name, replaces)
        world.reach("an idle session is evicted", replaces is None and len(self._sessions) < before)

    replace_in(SessionHub, "_open", open_session)
    replace_in(SessionHub, "_on_closed", on_closed)
    replace_in(SessionHub, "_begin_utterance", begin)
    replace_in(SessionHub, "_charge_text", charge)
    replace_in(SessionHub, "_take_slot", take_slot)
    replace_in(Metrics, "session_observer", lambda self, *args: _Observer(world, observer(self, *args)))


def _observe_clients(world: WorldView, replace_in: Replace) -> None:
    """Note what clients read in the registry, failovers, and clients that the worker gives up."""
    read, fetched, opened = RedisStore.read, FleetConnector._fetch, FleetConnector._open_stream
    failed = ConverseCall.fail

    async def read_entries(self: Any, prefix: str, max_bytes: int) -> AsyncIterator[dict[str, bytes]]:
        self.simulated_entries = {}
        async with aclosing(read(self, prefix, max_bytes)) as pages:
            async for entries in pages:
                self.simulated_entries |= entries
                yield entries

    async def fetch(self: Any) -> None:
        store = self._directory._store
        store.simulated_entries = None
        await fetched(self)
        if store.simulated_entries is None or self._registry_error is not None:
            return
        addresses = world.on_workers_read(self, store.simulated_entries)
        unused = {
            address for address, each in self._connectors.items() if each._channel is not None and not each.sessions
        }
        if gone := sorted(unused - addresses):
            world.violate("a connection to a worker that is gone is closed", f"{gone}")

    async def open_stream(self: Any, options: Any) -> Any:
        found = await opened(self, options)
        task = asyncio.current_task()
        is_failover = task is not None and task.get_name() == "tts-client-failover"
        world.reach("an utterance moves to another worker", is_failover)
        return found

    def fail(self: Any, error: TTSWorkerError) -> None:
        world.reach("a client reads nothing for too long", isinstance(error, SendTimeout))
        failed(self, error)

    replace_in(RedisStore, "read", read_entries)
    replace_in(FleetConnector, "_fetch", fetch)
    replace_in(FleetConnector, "_open_stream", open_stream)
    replace_in(ConverseCall, "fail", fail)


def _observe_models(world: WorldView, replace_in: Replace) -> None:
    """Note models that are loaded by a session, and evicted."""
    waited, unloaded = ModelManager.wait, Metrics.model_unloaded

    async def wait(self: Any, name: str) -> None:
        is_cold = self.state(name) is ModelState.COLD
        await waited(self, name)
        world.reach("a session loads a model", is_cold)

    def model_unloaded(self: Any, name: str, reason: str) -> None:
        world.reach("a model is evicted", reason in ("idle", "made_room"))
        unloaded(self, name, reason)

    replace_in(ModelManager, "wait", wait)
    replace_in(Metrics, "model_unloaded", model_unloaded)


def _observe_batches(world: WorldView, replace_in: Replace) -> None:
    """Note finished items and batches that go on elsewhere; fill the disk when the world says so."""
    adopted, finished = BatchRunner._adopt, BatchFolder.finish

    async def adopt(self: Any, name: str, now_s: float, *, may_expire: bool) -> None:
        await adopted(self, name, now_s, may_expire=may_expire)
        batch = self._batches.get(name)
        world.reach("a batch goes on in another process", batch is not None and not batch.is_done)

    def finish(self: Any, result: Any) -> None:
        world.before_item(self.path.name)
        finished(self, result)
        world.on_item(self.path.name, result.index)

    replace_in(BatchRunner, "_adopt", adopt)
    replace_in(BatchFolder, "finish", finish)


class _Log(logging.Handler):
    """Takes errors that a log event shows and nothing else."""

    def __init__(self, world: WorldView) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return
        causes = f"{error!r} {error.__cause__!r}"
        if not any(known in causes for known in ("Injected", "injected", "_Hang")):
            self._world.violate("no internal error", f"{record.getMessage()}: {error!r}")


@contextmanager
def logging_to(world: WorldView) -> Iterator[None]:
    """Take the errors of the package's and of asyncio's log; print nothing."""
    handler = _Log(world)
    loggers = [logging.getLogger(name) for name in ("tts_worker", "asyncio")]
    before = [(logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, (propagate, level) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)
