"""A worker process of the simulation, and the checks of what it holds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from tools.worker_simulator.engines import SimulatedFactory
from tools.worker_simulator.network import AbortedCall, SimulatedCall
from tools.worker_simulator.properties import CallCheck
from tts_worker import grpc_serving
from tts_worker.callers import set_caller
from tts_worker.features.fleet.registration import registrar_of
from tts_worker.features.fleet.settings import RegistrySettings
from tts_worker.features.grpc.converse import ConversationService
from tts_worker.server.limits import ApiLimits
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.settings.keys import ApiKey
from tts_worker.types import State
from tts_worker.worker import Worker

if TYPE_CHECKING:
    from tools.worker_simulator.view import WorldView

MAX_SESSIONS = 3
"""Sessions of the key "limited"."""
CHARACTERS_PER_MINUTE = 600.0
KEYS = (
    ApiKey(name="open", key=SecretStr("key-of-an-open-caller")),
    ApiKey(
        name="limited",
        key=SecretStr("key-of-a-limited-caller"),
        max_sessions=MAX_SESSIONS,
        characters_per_minute=CHARACTERS_PER_MINUTE,
    ),
)

_CALL_STARVES_S = 4.0
"""A call whose text is complete, whose client reads and whose engine is healthy gets audio within this time."""
_DOWNLOAD_STARVES_S = 20.0


class SimulatedWorker:
    """A worker process: a real ``Worker`` with its conversations and its registrar.

    Attributes:
        is_alive: It accepts calls.
        disturbed_until_s: Until then its utterances may wait.
    """

    def __init__(self, world: WorldView, name: str, address: str) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.is_alive = False
        self.is_draining = False
        self.disturbed_until_s = 0.0
        self.factories: dict[str, SimulatedFactory] = {}
        self.worker: Any = None
        self.service: Any = None
        self.registrar: Any = None
        self._stalls: dict[str, tuple[object, float]] = {}

    @property
    def hub(self) -> SessionHub:
        return self.worker.hub  # type: ignore[no-any-return]

    async def start(self) -> None:
        self.worker = Worker(self.world.settings(self.name))
        self.worker.keys.replace(KEYS)
        self.service = ConversationService(self.hub, ApiLimits.of(self.worker.settings))
        await self.worker.start()
        self.is_alive = True
        self.world.network.hosts[self.address] = self
        models = grpc_serving.model_catalog(self.worker)
        settings = self.worker.settings
        self.registrar = registrar_of(self.hub, settings, models, self.address, settings.section(RegistrySettings).url)
        self.registrar.start()
        self.world.spawn(self._watch_device(), f"{self.name}-device")

    async def _watch_device(self) -> None:
        await self.worker.lost.wait()
        if self.is_alive:
            self.world.reach("a device is lost")
            await self.world.replace(self, kills=True)

    def disturb(self, seconds: float = 8.0) -> None:
        """Something is done to the worker, so that its utterances may wait."""
        self.disturbed_until_s = max(self.disturbed_until_s, self.world.now_s + seconds)

    def accept(self, call: SimulatedCall) -> None:
        call.serve(self.world.spawn(self._serve(call), f"{self.name}-call"))

    async def _serve(self, call: SimulatedCall) -> None:
        await asyncio.sleep(0)  # until the call knows its task
        CallCheck(self.world, call)
        token = dict(call.metadata).get("authorization", "").removeprefix("Bearer ")
        caller = await self.worker.keys.authenticate(token or None, "grpc")
        if caller is None:
            call.refuse()
            return
        set_caller(caller)
        with suppress(AbortedCall):
            await self.service.Converse(call.context.requests(), call.context)

    async def drain(self) -> None:
        """End as a process does that was asked to."""
        self.is_draining = True
        self.disturb(60.0)
        self.world.reach("a drain begins with a batch", self.has_batch)
        draining = self.world.spawn(self.hub.drain(self.world.drain_s), f"{self.name}-drain")
        await asyncio.sleep(0)
        self.registrar.refresh()
        self.service.close_idle_sessions()
        await draining
        await self.registrar.stop()
        self.leave()
        await self.worker.stop()

    async def kill(self) -> None:
        """End as a process does that was killed: without a message."""
        self.world.reach("a killed worker had a batch", self.has_batch)
        self.leave()
        self.world.forget_text(self.hub._session_prefix)
        for store in (self.registrar._store, self.hub.quotas._store):  # type: ignore[attr-defined]
            store._redis.is_cut = True
        self.registrar._task.cancel()
        for call in list(self.world.network.calls):
            if call.host is self and not call.is_half_open:
                call.break_off()
        await self.worker.stop()

    def leave(self) -> None:
        self.is_alive = False
        self.disturb(3_600.0)
        if self.world.network.hosts.get(self.address) is self:
            del self.world.network.hosts[self.address]

    @property
    def has_batch(self) -> bool:
        """Whether an item of a batch is being spoken."""
        return any(batch.tasks for batch in self.worker.parts["batch"]._batches.values())

    @property
    def has_paused(self) -> bool:
        """Whether an utterance is paused."""
        return any(opened.session.state is State.PAUSED for opened in self.hub._sessions.values())

    # -- properties ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what always holds."""
        world, hub = self.world, self.hub
        sessions = {name: opened.session for name, opened in hub._sessions.items()}
        states = [session.state for session in sessions.values()]
        active = sum(state is not State.IDLE for state in states)
        if hub.slots.speaking > active:
            world.violate("slots are given back", f"{self.name}: {hub.slots.speaking} slots of {active} utterances")
        if len(hub.slots) != len(sessions):
            world.violate(
                "slots are given back", f"{self.name}: {len(hub.slots)} sessions have one, {len(sessions)} are open"
            )
        if hub.slots.speaking > world.max_sessions:
            world.violate("no more sessions speak than there are slots", f"{self.name}: {hub.slots.speaking}")
        if hub.quotas.is_away and not world.redis.was_disturbed:  # type: ignore[attr-defined]
            world.violate("quotas are shared while Redis answers", self.name)
        limited = sum(opened.caller.key == "limited" for opened in hub._sessions.values())
        if limited > MAX_SESSIONS:
            world.violate("a key has no more sessions than it may", f"{limited} on {self.name}")
        unpaced = sum(not session.paced and session.state is not State.IDLE for session in sessions.values())
        world.reach("a download beside calls", 0 < unpaced < active)
        self._check_credit()
        self._check_progress(sessions)

    def _check_credit(self) -> None:
        for handle in self.world.handles:
            loop = handle._owner
            for opened in self.hub._sessions.values():
                if self.worker.engines.get(opened.engine) is not loop:
                    continue
                for utterance in opened.session._machine._utterances:
                    credited = handle.credited_samples(utterance.key)
                    if credited is not None and credited != utterance.granted_engine_samples:
                        granted = utterance.granted_engine_samples
                        self.world.violate("no credit is lost", f"{utterance.key}: {credited} of {granted} samples")

    def _check_progress(self, sessions: dict[str, LocalSession]) -> None:
        world, now_s = self.world, self.world.now_s
        before, self._stalls = self._stalls, {}
        blocked = world.blocked_sessions()
        for name, session in sessions.items():
            machine = session._machine
            engine = self.worker.engines.get(session.model)
            underruns = session.pacer.underruns
            if session.state is not State.SPEAKING or name in blocked or engine is None or not engine.ready:
                world.reach("an underrun caused by the client", name in blocked and session.paced)
                continue
            head = machine._utterances[0]
            if now_s < self.disturbed_until_s or not head.text_read or machine._withheld:
                continue
            if world.waits_for_pages(head.key):
                continue  # that others hold and will return
            progress = (head.key, head.engine_samples, head.sent_samples, head.audio_phase, underruns)
            known, since_s = before.get(name, (None, now_s))
            if known != progress:
                since_s = now_s
            self._stalls[name] = (progress, since_s)
            waited_s = now_s - since_s
            if waited_s > (_CALL_STARVES_S if session.paced else _DOWNLOAD_STARVES_S):
                others = any(each is not session and each.state is State.SPEAKING for each in sessions.values())
                name_of_it = (
                    "a call is not starved" if session.paced and others else "an utterance that can go on goes on"
                )
                world.violate(name_of_it, f"{head.key} waits for {waited_s:.2f} s after {head.sent_samples} samples")

    def check_empty(self) -> None:
        """Check that nothing is left when no session speaks."""
        world, hub = self.world, self.hub
        if hub.live_sessions or len(hub.slots) or hub.slots.speaking:
            world.violate("slots are given back", f"{self.name}: {hub.live_sessions} sessions, {len(hub.slots)} slots")
        for name, engine in self.worker.engines.items():
            if engine.live_utterances:
                world.violate("sequences are freed", f"{self.name}: {engine.live_utterances} utterances of {name}")
        held = [lease for leases in hub.quotas._leases.values() for lease in leases]  # type: ignore[attr-defined]
        if held:
            world.violate("slots are given back", f"{self.name} holds {len(held)} sessions of a key")
