"""One run: workers, clients and faults in virtual time, all of it drawn from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
from tests.fakes.clock import VirtualTimeLoop

from tools.worker_simulator.callers import SimulatedCaller, make_text
from tools.worker_simulator.engines import SIMULATED_MS_PER_CHAR, SimulatedFactory, SimulatedHandle, is_waiting
from tools.worker_simulator.network import Network, SimulatedCall
from tools.worker_simulator.patches import logging_to, replaced_parts
from tools.worker_simulator.process import CHARACTERS_PER_MINUTE, KEYS, MAX_SESSIONS, SimulatedWorker
from tools.worker_simulator.properties import SOMETIMES, Violation
from tools.worker_simulator.redis import RedisMode, SimulatedRedis
from tts_worker.callers import acting_as
from tts_worker.client.fleet import FleetConnector
from tts_worker.client.fleet import connector as fleet_connector
from tts_worker.client.registry.entry import parse_entry
from tts_worker.client.registry.signature import verify_entry
from tts_worker.client.registry.store import RedisStore
from tts_worker.client.settings import ClientSettings
from tts_worker.engine import factory
from tts_worker.errors import TTSWorkerError
from tts_worker.features.batch.request import BatchItem, BatchRequest
from tts_worker.features.batch.runner import Batch
from tts_worker.features.batch.store import BatchFolder
from tts_worker.features.fleet.quotas import RedisQuotas
from tts_worker.features.fleet.settings import RegistrySettings
from tts_worker.session.session import LocalSession
from tts_worker.settings import load_settings
from tts_worker.types import Ended, UtteranceKey

SECRET = "a secret of the simulated fleet"
_TICK_S = 0.25
_OPENING_S = 6.0
"""A client may still try the workers of a list that was replaced while it opened a session."""
_CHARGING_S = 3.0
"""Time after which all workers know what another one has charged to a key."""
_CALM_S = 150.0
"""Time in which everything must end once nothing fails any more."""


@dataclass
class SimulationResult:
    """What a run has shown.

    Attributes:
        seed: Its seed.
        violations: What did not hold; the run ends with the first.
        reached: The states of ``SOMETIMES`` that it was in.
        steps: Steps of all engines.
        virtual_s: Its length in virtual time.
        digest: Hash of all that the clients received and when: the same for the same seed.
    """

    seed: int
    violations: list[Violation] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    steps: int = 0
    virtual_s: float = 0.0
    digest: str = ""


class _Task(asyncio.Task[Any]):
    """A task that has the same hash in every run, since some are in sets whose order matters."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class World:
    """One run.

    Args:
        seed: Decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.result = SimulationResult(seed)
        self.is_calm = False
        self.steps = 0
        self.reloads = 0
        self.handles: list[SimulatedHandle] = []
        self.heard_numbers: set[int | None] = set()
        self.starting: list[SimulatedWorker] = []
        self._loop: Any = asyncio.get_running_loop()
        self._calm = asyncio.Event()
        self._failed = asyncio.Event()
        self._numbers: dict[UtteranceKey, int] = {}
        self._keys: dict[int, UtteranceKey] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._digest = hashlib.sha256()
        self._ended: set[UtteranceKey] = set()
        self._first: dict[str, int] = {}
        self._finished_items: set[tuple[str, int]] = set()
        self._batches: dict[str, int] = {}
        self._unrecorded: set[str] = set()
        self._disk_is_full = False
        self._characters: list[tuple[float, str, int]] = []
        self._addresses = itertools.count(7_000)
        self.chance = self.chance_of("world")
        self.engine_chance = self.chance_of("faults of engines")
        self.network = Network(self._loop.time, self.chance_of("network"))
        self.network.on_call = self._check_registered
        self.redis = SimulatedRedis(self._loop.time, self.chance_of("redis"))
        self._configure()
        self.workers: list[SimulatedWorker] = []
        self.connectors: list[FleetConnector] = []
        self._lists: dict[FleetConnector, tuple[set[str], dict[str, float]]] = {}

    def _configure(self) -> None:
        chance = self.chance
        self.max_sessions = chance.choice((2, 4, 8))
        self.drain_s = chance.choice((0.5, 3.0, 20.0))
        self.has_tone = chance.random() < 0.7
        self.has_simulated = not self.has_tone or chance.random() < 0.6
        self.loads_on_demand = self.has_tone and self.has_simulated and chance.random() < 0.5
        self.directory = Path()
        self.voices = [
            *(("tone", "tone-low") if self.has_tone else ()),
            *(("simulated",) if self.has_simulated else ()),
        ]
        self.download_share = chance.choice((0.1, 0.3, 0.7))
        self.faults = [fault for fault in FAULTS if chance.random() < 0.4]
        if chance.random() < 0.15:
            self.faults = []
        self.end_idle_s = chance.choice((0.5, 5.0))
        self.window_ms = chance.choice((100, 300, 1_500))
        self._session = {
            "max_sessions": self.max_sessions,
            "max_open_sessions": self.max_sessions * chance.choice((1, 2, 8)),
            "slot_idle_s": chance.choice((0.2, 2.0)),
            "frame_ms": chance.choice((20, 60, 100)),
            "lead_ms": chance.choice((0, 60, 200)),
            "loudness": "off",
            "pause_timeout_s": 4.0,
        }

    # -- for all parts ------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return float(self._loop.time())

    def chance_of(self, name: str) -> random.Random:
        """Return the random numbers of a part of the world, which do not depend on those that others draw."""
        return random.Random(f"{self.seed}/{name}")

    async def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until the world is calm."""
        if seconds <= 0 or self.is_calm:
            await asyncio.sleep(0 if seconds <= 0 else 0.02)
            return
        with anyio.move_on_after(seconds):
            await self._calm.wait()

    def spawn(self, job: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine in a task. An exception of it is a violation."""
        task: asyncio.Task[Any] = self._loop.create_task(job, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violate("no internal error", f"{task.get_name()}: {error!r}")

    def violate(self, name: str, details: str) -> None:
        """Note that a property does not hold."""
        if not self._failed.is_set():
            self.result.violations.append(Violation(name, details, self.now_s))
            self._failed.set()

    def reach(self, name: str, condition: bool = True) -> None:
        """Note that a rare state was reached."""
        if condition:
            assert name in SOMETIMES, name
            self.result.reached.add(name)

    def note(self, line: str) -> None:
        """Add a line to what the digest covers."""
        self._digest.update(f"{self.now_s:.6f} {line}\n".encode())

    def number_of(self, key: UtteranceKey) -> int:
        """Return the number that the audio of an utterance carries."""
        if key not in self._numbers:
            number = self._numbers[key] = len(self._numbers) + 1
            self._keys[number] = key
        return self._numbers[key]

    def key_of(self, number: int | None) -> UtteranceKey | None:
        """Return the utterance whose audio carries a number."""
        return None if number is None else self._keys.get(number)

    def blocked_sessions(self) -> set[str]:
        """Return the sessions whose client is behind."""
        blocked = set()
        for call in self.network.calls:
            if call.to_client.blocked_since_s is not None or call.is_half_open or call.to_client.is_dead:
                blocked.add(call.context.on_write.__self__.session)  # type: ignore[attr-defined]
        return blocked

    def waits_for_pages(self, key: UtteranceKey) -> bool:
        """Whether an utterance waits for pages that others of its engine hold."""
        engines = [handle.engine for handle in self.handles if key in handle.engine.sequences]
        return any(is_waiting(engine.sequences[key]) and len(engine.sequences) > 1 for engine in engines)

    def on_deadline(self, details: str) -> None:
        """A client has waited in vain for audio."""
        if not self.faults:
            self.violate("an utterance that can go on goes on", f"{details}: the client has waited for 10 s")

    @property
    def fails_batches(self) -> bool:
        """Whether passes of engines over several utterances fail at times."""
        return World.fail_utterances in self.faults and not self.is_calm

    # -- parts --------------------------------------------------------------------------------------------------------

    def settings(self, name: str) -> Any:
        """Return the settings of a worker."""
        engines: dict[str, Any] = {}
        slots = self.max_sessions
        if self.has_tone:
            engines["tone"] = {"kind": "tone", "max_utterances": slots, "ms_per_char": 50}
        if self.has_simulated:
            engines["simulated"] = {
                "kind": "tone",
                "max_utterances": slots,
                "ms_per_char": SIMULATED_MS_PER_CHAR,
            }
        models: dict[str, Any] = {}
        if self.loads_on_demand:
            models = {"preload": ["tone"], "on_demand": True, "ttl_s": 2.0}
        return load_settings(
            flags={
                "engines": engines,
                "models": models,
                "session": self._session,
                "server": {"drain_s": self.drain_s, "send_timeout_s": 5.0},
                "batch": {"directory": str(self.directory), "parallel": 2},
                "grpc": {"enabled": True},
                "registry": {"url": f"redis://{name}:6379", "secret": SECRET, "heartbeat_s": 3.0, "name": name},
            }
        )

    def factory(self, settings: Any, *_: Any) -> SimulatedFactory:
        """Stands for ``EngineFactory``."""
        made = SimulatedFactory(self, settings)
        name = "simulated" if settings.ms_per_char == SIMULATED_MS_PER_CHAR else "tone"
        for each in (*self.workers, *self.starting):
            if any(settings is known for known in each.worker.settings.engines.values()):
                each.factories[name] = made
        return made

    @staticmethod
    def info(name: str, settings: Any) -> Any:
        """Stands for ``info_before_loading``, which knows no engine with modeled stages."""
        info = factory.info_before_loading(name, settings)
        return replace(info, voices=("simulated",)) if settings.ms_per_char == SIMULATED_MS_PER_CHAR else info

    def quotas(self, settings: Any) -> RedisQuotas:
        """Stands for ``worker._quotas``, with the clock of the simulation."""
        registry = settings.section(RegistrySettings)
        store = RedisStore(registry.url.get_secret_value(), "the Redis of the quotas")
        return RedisQuotas(store, registry.prefix, self._loop.time)

    async def run(self) -> None:
        """Run until all is over, or a property does not hold."""
        running = self.spawn(self._run(), "world")
        failing = self.spawn(self._failed.wait(), "failure")
        await asyncio.wait({running, failing}, return_when=asyncio.FIRST_COMPLETED)
        self.result.steps = self.steps
        self.result.virtual_s = self.now_s
        self.result.digest = self._digest.hexdigest()[:16]

    async def _run(self) -> None:
        chance = self.chance
        for number in range(chance.choice((1, 2, 2, 3))):
            await self._start_worker(f"worker-{number}", f"127.0.0.1:{next(self._addresses)}")
        for key in (KEYS[0], KEYS[0], KEYS[1]):
            assert key.key is not None
            client = ClientSettings(
                api_key=key.key.get_secret_value(), registry_secret=SECRET, read_ahead_s=chance.choice((0.2, 5.0))
            )
            self.connectors.append(fleet_connector(f"redis://client-{len(self.connectors)}:6379", client))
        callers = [SimulatedCaller(self, number) for number in range(chance.choice((4, 8, 12)))]
        tasks = [self.spawn(caller.run(), caller.name) for caller in callers]
        tasks.append(self.spawn(self._submit_batches(), "batches"))
        self.spawn(self._tick(), "tick")
        disturbing = self.spawn(self._disturb(), "faults")
        await asyncio.wait(tasks, timeout=chance.choice((10.0, 20.0, 30.0)))
        await self._calm_down(disturbing)
        begun_s = self.now_s
        pending = [task for task in tasks if not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=_CALM_S)
        for caller, task in zip(callers, tasks, strict=False):
            if not task.done():
                self.violate("every utterance ends", f"{caller.name} {caller.activity} since {begun_s:.1f} s")
        await self._end()

    async def _calm_down(self, disturbing: asyncio.Task[Any]) -> None:
        self.is_calm = True
        self._calm.set()
        await asyncio.wait({disturbing})
        self.redis.set_mode(RedisMode.UP)
        self.redis.lost_answers = 0.0
        self.network.slow_until_s = 0.0
        self._disk_is_full = False
        for each in self.workers:
            for made in each.factories.values():
                made.faults.slowness, made.faults.failing_share = 1.0, 0.0

    async def _end(self) -> None:
        await self._finish_batches()
        for connector in self.connectors:
            await connector.aclose()
        await asyncio.sleep(Network.WORKER_KEEPALIVE_S + 2.0)  # also for half-open connections
        # An item that a full disk has kept from being recorded may be spoken again.
        while any(each.has_batch for each in self.serving):  # noqa: ASYNC110  (in virtual time)
            await asyncio.sleep(_TICK_S)
        for handle in self.handles:
            handle.check_empty()
        for each in self.workers:
            if each.is_alive and not each.is_draining:
                each.check_empty()
        for each in self.workers:
            if each.is_alive and not each.is_draining:
                await each.drain()

    # -- workers ------------------------------------------------------------------------------------------------------

    async def _start_worker(self, name: str, address: str) -> None:
        made = SimulatedWorker(self, name, address)
        self.starting.append(made)
        await made.start()
        self.starting.remove(made)
        self.workers.append(made)

    @property
    def serving(self) -> list[SimulatedWorker]:
        """The workers that have not begun to end."""
        return [each for each in self.workers if each.is_alive and not each.is_draining]

    async def replace(self, old: SimulatedWorker, *, kills: bool) -> None:
        """End a worker and start another one, at the same address or at a new one."""
        if old not in self.serving:
            return
        if kills:
            await old.kill()
        else:
            await old.drain()
        await asyncio.sleep(self.chance.uniform(0.05, 2.0))
        address = old.address if self.chance.random() < 0.5 else f"127.0.0.1:{next(self._addresses)}"
        await self._start_worker(old.name, address)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            for each in self.workers:
                if each.is_alive:
                    each.check()
            if not self.redis.was_disturbed:
                # Leases of killed workers count on, so that this is the most there can be.
                opened = [each for one in self.workers if one.is_alive for each in one.hub._sessions.values()]
                limited = sum(each.caller.key == "limited" for each in opened)
                if limited > MAX_SESSIONS:
                    self.violate("a key has no more sessions than it may", f"{limited} on all workers")

    # -- faults -------------------------------------------------------------------------------------------------------

    async def _disturb(self) -> None:
        chance = self.chance_of("disturbances")
        jobs: list[asyncio.Task[Any]] = []
        while not self.is_calm and self.faults:
            await self.sleep(chance.expovariate(0.7))
            if not self.is_calm:
                jobs.append(self.spawn(chance.choice(self.faults)(self, chance), "fault"))
        if jobs:
            await asyncio.wait(jobs)

    def _some_worker(
        self, chance: random.Random, seconds: float = 8.0, preferred: Sequence[SimulatedWorker] = ()
    ) -> SimulatedWorker | None:
        """Choose a worker that serves, often one of ``preferred`` or one with a batch."""
        if not self.serving:
            return None
        preferred = preferred or [each for each in self.serving if each.has_batch]
        chosen = chance.choice(preferred if preferred and chance.random() < 0.6 else self.serving)
        chosen.disturb(seconds)
        return chosen

    def _some_faults(self, chance: random.Random, seconds: float = 8.0) -> tuple[Any, SimulatedFactory] | None:
        chosen = self._some_worker(chance, seconds)
        if chosen is None or not chosen.worker.engines:
            return None
        name = chance.choice(sorted(chosen.worker.engines))
        return chosen.worker.engines[name], chosen.factories[name]

    async def kill_engine(self, chance: random.Random) -> None:
        if (found := self._some_faults(chance)) is not None:
            self.reach("an engine dies with calls", found[0].live_utterances > 0)
            found[1].faults.dies = True

    async def hang_engine(self, chance: random.Random) -> None:
        if (found := self._some_faults(chance, 14.0)) is not None:
            self.reach("an engine hangs with calls", found[0].live_utterances > 0)
            found[1].faults.hangs = True

    async def lose_device(self, chance: random.Random) -> None:
        if chance.random() < 0.3 and (found := self._some_faults(chance)) is not None:
            found[1].faults.loses_device = True

    async def slow_engine(self, chance: random.Random) -> None:
        if (found := self._some_faults(chance, 14.0)) is not None:
            found[1].faults.slowness = chance.uniform(3, 20)
            await self.sleep(chance.uniform(0.5, 3))
            found[1].faults.slowness = 1.0

    async def fail_utterances(self, chance: random.Random) -> None:
        if (found := self._some_faults(chance)) is not None:
            found[1].faults.failing_share = chance.choice((0.02, 0.2, 0.5))
            await self.sleep(chance.uniform(1, 6))
            found[1].faults.failing_share = 0.0

    async def reload_model(self, chance: random.Random) -> None:
        paused = [each for each in self.serving if each.has_paused]
        chosen = self._some_worker(chance, 40.0, paused)
        if chosen is None or not chosen.worker.engines:
            return
        frees_first = chance.random() < 0.4
        self.reach("a model is reloaded with its memory freed first", frees_first)
        with suppress(TTSWorkerError):
            await chosen.worker.models.reload(chance.choice(sorted(chosen.worker.engines)), free_first=frees_first)
            self.reloads += 1

    async def restart_worker(self, chance: random.Random) -> None:
        if (chosen := self._some_worker(chance, 60.0)) is not None:
            await self.replace(chosen, kills=False)

    async def kill_worker(self, chance: random.Random) -> None:
        if (chosen := self._some_worker(chance, 60.0)) is not None:
            await self.replace(chosen, kills=True)

    async def disturb_redis(self, chance: random.Random) -> None:
        self.redis.set_mode(chance.choice((RedisMode.DOWN, RedisMode.HUNG, RedisMode.READ_ONLY)))
        self.reach("Redis refuses to write", self.redis.mode is RedisMode.READ_ONLY)
        self.reach("Redis does not answer", self.redis.mode is not RedisMode.READ_ONLY)
        await self.sleep(chance.uniform(0.2, 8))
        self.redis.set_mode(RedisMode.UP)

    async def restart_redis(self, chance: random.Random) -> None:
        self.redis.lose_data()
        self.reach("Redis loses its data")

    async def fail_over_redis(self, chance: random.Random) -> None:
        self.redis.epoch += 1
        self.reach("Redis fails over")

    async def lose_answers(self, chance: random.Random) -> None:
        self.redis.lost_answers = 0.3
        await self.sleep(chance.uniform(0.5, 5))
        self.redis.lost_answers = 0.0

    async def break_connection(self, chance: random.Random) -> None:
        if calls := [call for call in self.network.calls if call.host is not None and not call.has_ended]:
            chance.choice(calls).break_off()

    async def half_open(self, chance: random.Random) -> None:
        if calls := [call for call in self.network.calls if call.host is not None and not call.has_ended]:
            chance.choice(calls).become_half_open()
            self.reach("a connection is half-open")

    async def slow_network(self, chance: random.Random) -> None:
        self.network.slow_until_s = self.now_s + chance.uniform(0.5, 3)

    async def fill_disk(self, chance: random.Random) -> None:
        self._disk_is_full = True
        await self.sleep(chance.uniform(0.5, 4))
        self._disk_is_full = False

    # -- batches ------------------------------------------------------------------------------------------------------

    async def _submit_batches(self) -> None:
        chance = self.chance_of("batches")
        for number in range(chance.choice((0, 1, 2, 4))):
            await self.sleep(chance.uniform(0, 6))
            if self.is_calm:
                return
            texts = [
                " ".join(make_text(chance) for _ in range(chance.choice((1, 6)))) for _ in range(chance.randint(1, 5))
            ]
            request = BatchRequest(
                items=tuple(BatchItem(input=f"{text} word") for text in texts),
                response_format=chance.choice(("wav", "pcm")),
                voice=chance.choice(self.voices),
            )
            key = chance.choice((KEYS[0], *KEYS)).name
            names = [await self._submit(chance, request, key, number)]
            if chance.random() < 0.4:
                self.reach("a batch is submitted twice")
                await self.sleep(chance.uniform(0, 1))
                names.append(await self._submit(chance, request, key, number))
            if len({name for name in names if name is not None}) > 1:
                self.violate("a batch item ends once", "a repeated request began another batch")

    async def _submit(self, chance: random.Random, request: BatchRequest, key: str, number: int) -> str | None:
        chosen = chance.choice(self.serving) if self.serving else None
        if chosen is None:
            return None
        caller = chosen.worker.keys.caller_named(key, "http")
        try:
            with acting_as(caller):
                batch: Batch = await chosen.worker.parts["batch"].submit(request, f"batch-{number}")
        except TTSWorkerError as error:
            self.note(f"batch refused: {error.code.value}")
            return None
        self._batches[batch.stored.id] = len(request.items)
        return batch.stored.id

    async def _finish_batches(self) -> None:
        """Wait until all batches are finished; a limited key may have to wait for its characters."""
        for _ in range(600):
            if all(self._is_recorded(name) for name in self._batches):
                return
            await asyncio.sleep(1.0)
        missing = [name for name in self._batches if not self._is_recorded(name)]
        self.violate("a batch is finished", f"{len(missing)} of {len(self._batches)} are not")

    def _is_recorded(self, name: str) -> bool:
        if name in self._unrecorded:
            return True
        folder = BatchFolder(self.directory, name)
        return all(folder.result(index) is not None for index in range(self._batches[name]))

    def before_item(self, batch: str) -> None:
        """A process is about to record an item. Raises OSError while the disk is full."""
        if self._disk_is_full:
            self.reach("a disk is full")
            self._unrecorded.add(batch)
            raise OSError(28, "injected: no space left on device")

    def on_item(self, batch: str, index: int) -> None:
        """A process has recorded an item."""
        if (batch, index) in self._finished_items:
            self.violate("a batch item ends once", f"item {index} of {batch}")
        self._finished_items.add((batch, index))

    # -- observed calls -----------------------------------------------------------------------------------------------

    def _check_registered(self, call: SimulatedCall) -> None:
        """A client calls only workers of the list that it has read last, or of one that was replaced meanwhile."""
        for addresses, replaced_s in self._lists.values():
            if call.address in addresses or self.now_s < replaced_s.get(call.address, 0.0) + _OPENING_S:
                return
        self.violate("a call goes to a registered worker", f"{call.address} is in no list that was read last")

    def on_workers_read(self, connector: FleetConnector, entries: dict[str, bytes]) -> set[str]:
        """A client has read the registry; return the addresses in it."""
        addresses = set()
        for raw in entries.values():
            with suppress(TTSWorkerError):
                addresses.add(parse_entry(verify_entry(raw, SECRET, "worker:")).addr.removeprefix("grpc://"))
        before, replaced_s = self._lists.get(connector, (set(), {}))
        replaced_s |= dict.fromkeys(before - addresses, self.now_s)
        self._lists[connector] = addresses, replaced_s
        return addresses

    def on_utterance_ended(self, event: Ended) -> None:
        """A session of a worker has ended an utterance."""
        if event.key in self._ended:
            self.violate("an utterance has one terminal event", f"{event.key} (worker)")
        self._ended.add(event.key)

    def on_session_opened(self, session: LocalSession) -> None:
        self._first[session.id] = session.generation + 1

    def on_session_closed(self, session: LocalSession) -> None:
        for generation in range(self._first.pop(session.id, 0), session.generation + 1):
            if UtteranceKey(session.id, generation) not in self._ended:
                self.violate("every utterance ends", f"{session.id}/{generation} (worker)")

    def on_text(self, worker_prefix: str, chars: int) -> None:
        """A worker has accepted text of the limited key."""
        self._characters.append((self.now_s, worker_prefix, chars))

    def forget_text(self, worker_prefix: str) -> None:
        """A worker was killed: what it has accepted within the last seconds may be charged nowhere."""
        recent_s = self.now_s - _CHARGING_S
        self._characters = [each for each in self._characters if each[1] != worker_prefix or each[0] < recent_s]

    def check_characters(self, worker_prefix: str) -> None:
        """An utterance of the limited key begins: it must not have used more characters than it may."""
        if self.redis.was_disturbed:
            return
        level, at_s = CHARACTERS_PER_MINUTE, 0.0
        for charged_s, where, chars in self._characters:
            if where != worker_prefix and self.now_s - charged_s < _CHARGING_S:
                continue  # this worker may not know it yet
            level = min(CHARACTERS_PER_MINUTE, level + (charged_s - at_s) * CHARACTERS_PER_MINUTE / 60) - chars
            at_s = charged_s
        level = min(CHARACTERS_PER_MINUTE, level + (self.now_s - at_s) * CHARACTERS_PER_MINUTE / 60)
        if level < 0.9:
            self.violate("a key speaks no more characters than it may", f"an utterance begins with {level:.1f} left")


Fault = Callable[[World, random.Random], Coroutine[Any, Any, None]]
FAULTS: tuple[Fault, ...] = (
    *(World.kill_engine, World.hang_engine, World.lose_device, World.slow_engine, World.fail_utterances),
    *(
        World.reload_model,
        World.reload_model,
        World.restart_worker,
        World.kill_worker,
        World.disturb_redis,
        World.restart_redis,
        World.fail_over_redis,
    ),
    *(World.lose_answers, World.break_connection, World.half_open, World.slow_network, World.fill_disk),
)


def simulate(seed: int) -> SimulationResult:
    """Run the world of a seed."""
    _Task._numbers = itertools.count()
    loop = VirtualTimeLoop()
    loop.set_task_factory(lambda made_by, job, **kwargs: _Task(job, loop=made_by, **kwargs))
    shared = Path("/dev/shm")
    directory = tempfile.mkdtemp(prefix="tts-worker-simulation-", dir=shared if os.access(shared, os.W_OK) else None)
    try:
        return loop.run_until_complete(_simulate(seed, Path(directory), loop))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        loop.close()


async def _simulate(seed: int, directory: Path, loop: Any) -> SimulationResult:
    world = World(seed)
    world.directory = directory
    me = asyncio.current_task()
    with logging_to(world), replaced_parts(world):
        await world.run()
        remaining = [task for task in asyncio.all_tasks() if task is not me]
        world._failed.set()  # what is cancelled violates nothing
        for _ in range(3):
            for task in remaining:
                task.cancel()
            if remaining:
                await asyncio.wait(remaining, timeout=5.0)
            remaining = [task for task in asyncio.all_tasks() if task is not me]
        loop._scheduled.clear()
    return world.result
