"""Loads models when they are wanted and gives them up when nobody needs them.

Owns what state each model is in, one transition at a time, and the clock that policy.py is asked with. A model is
loaded once however many want it; it is counted from the moment its load begins; sessions, not callers of ``load``, are
its references. It must not know what an engine, a session or a setting is: ``EngineActions`` does what it decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import anyio

from tts_worker.errors import IllegalCommand, NotReady, OverCapacity, TTSWorkerError, UnknownModel, error_info
from tts_worker.models.policy import EvictionRules, ResidentModel, evictable_in_s, expired, select_victims

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
_RETRY_AFTER_S = 2.0


class ModelState(str, Enum):
    COLD = "cold"
    LOADING = "loading"
    RESIDENT = "resident"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class EngineActions:
    """What the manager can do to an engine. ``start``: build, warm up, offer its voices. ``withdraw``: take its voices
    from new sessions, now; raises IllegalCommand while sessions use it. ``stop``: free what it holds. ``references``:
    sessions that use it."""

    start: Callable[[str], Awaitable[None]]
    withdraw: Callable[[str], None]
    stop: Callable[[str], Awaitable[None]]
    references: Callable[[str], int]


class ModelObserver(Protocol):
    """Who wants to know, for metrics."""

    def model_loaded(self, name: str, seconds: float) -> None: ...
    def model_failed(self, name: str, code: str) -> None: ...
    def model_unloaded(self, name: str, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """``default`` is loaded at the start and never evicted. ``preload``: loaded at the start; None: every model, and
    none is ever evicted. ``on_demand``: a session for a model that is not there loads it, waiting ``load_wait_s`` at
    most; so many may wait for one model at the same time: ``max_waiting``."""

    default: str
    preload: tuple[str, ...] | None = None
    on_demand: bool = False
    load_wait_s: float = 20.0
    check_interval_s: float = 30.0
    max_parallel_loads: int = 1
    max_waiting: int = 64
    rules: EvictionRules = field(default_factory=EvictionRules)


@dataclass(slots=True)
class _Model:
    name: str
    pinned: bool
    state: ModelState = ModelState.COLD
    task: asyncio.Task[None] | None = None  # the transition under way
    loaded_at_s: float = 0.0
    used_at_s: float = 0.0
    has_slot: bool = False  # takes a place under the cap
    waiting: int = 0
    backoff_s: float = FIRST_BACKOFF_S
    retry_at_s: float = 0.0


class ModelManager:
    """See the module. All methods belong to one event loop. ``clock`` is monotonic, in seconds."""

    def __init__(
        self,
        names: Iterable[str],
        actions: EngineActions,
        observer: ModelObserver,
        config: ManagerConfig,
        clock: Callable[[], float],
    ) -> None:
        self._models = {name: _Model(name, pinned=config.preload is None or name == config.default) for name in names}
        self._actions = actions
        self._observer = observer
        self._config = config
        self._clock = clock
        self._loads = asyncio.Semaphore(config.max_parallel_loads)
        self._eviction_task: asyncio.Task[None] | None = None
        self._closed = False
        self.started = False
        """Whether the models to be loaded at start are resident, or have failed."""

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def resident(self) -> tuple[str, ...]:
        """Models that sessions can use now."""
        return tuple(model.name for model in self._models.values() if model.state is ModelState.RESIDENT)

    @property
    def on_demand(self) -> bool:
        """Whether a session brings about that its model is loaded."""
        return self._config.on_demand

    def state(self, name: str) -> ModelState:
        """Raises UnknownModel."""
        return self._model(name).state

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            known = ", ".join(self._models)
            raise UnknownModel(f'there is no engine "{name[:64]}" in the settings; there are: {known}')
        return self._models[name]

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is there from the beginning, the default model first, and watch from then on.

        Raises what its load raises; the others of ``preload`` may fail, which is logged.
        """
        config = self._config
        await self.load(config.default)
        for name in self._models if config.preload is None else config.preload:
            try:
                await self.load(name)
            except TTSWorkerError as error:
                if config.preload is None:
                    raise
                log.error("model %s is not there from the beginning: %s", name, error.message)
        self.started = True
        self._eviction_task = asyncio.create_task(self._evict_periodically(), name="model-eviction")

    async def close(self) -> None:
        """Load and evict no more; wait for what is under way. What is resident stays: the owner stops the engines."""
        self._closed = True
        tasks = [model.task for model in self._models.values() if model.task is not None]
        for task in (*tasks, *([self._eviction_task] if self._eviction_task is not None else [])):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- loading ------------------------------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Load it unless it is resident; everybody who asks meanwhile waits for the same load. Whoever stops waiting
        does not end it.

        Raises UnknownModel, OverCapacity (the cap is reached and nothing may go), and what its start raises.
        """
        model = self._model(name)
        while model.state is ModelState.UNLOADING:
            await _wait_transition(model)
        if model.state is ModelState.RESIDENT:
            return
        task = self._begin(model)
        await asyncio.wait({task})  # unlike awaiting the task, this leaves it alone when we are cancelled
        if task.cancelled():
            raise NotReady("the worker is shutting down")
        task.result()

    def _begin(self, model: _Model) -> asyncio.Task[None]:
        if model.task is None:
            if self._closed:
                raise NotReady("the worker is shutting down")
            model.state = ModelState.LOADING
            model.task = asyncio.create_task(self._load(model), name=f"load-{model.name}")
            model.task.add_done_callback(_consume_exception)
        return model.task

    async def _load(self, model: _Model) -> None:
        began_s = self._clock()
        try:
            async with self._loads:
                await self._reserve_slot(model)
                await self._actions.start(model.name)
        except BaseException as error:
            model.state = ModelState.COLD
            model.task = None
            model.has_slot = False
            if isinstance(error, Exception) and not isinstance(error, OverCapacity):
                self._note_failure(model, error)
            raise
        now_s = self._clock()
        model.state = ModelState.RESIDENT
        model.task = None
        model.loaded_at_s = model.used_at_s = now_s
        model.backoff_s = FIRST_BACKOFF_S
        model.retry_at_s = 0.0
        self._observer.model_loaded(model.name, now_s - began_s)

    def _note_failure(self, model: _Model, error: Exception) -> None:
        """Sessions must not begin a load that fails again and again, each of them anew."""
        model.retry_at_s = self._clock() + model.backoff_s
        model.backoff_s = min(2 * model.backoff_s, MAX_BACKOFF_S)
        info = error_info(error)
        self._observer.model_failed(model.name, info.code.value)
        log.error("model %s could not be loaded: %s", model.name, info.message)

    async def _reserve_slot(self, model: _Model) -> None:
        """Take a place under the cap. Victims are chosen and withdrawn in one step, then waited for: what they hold
        must be free before more is taken."""
        rules = self._config.rules
        now_s = self._clock()
        leaving = [other.task for other in self._models.values() if other.state is ModelState.UNLOADING]
        counted = [self._describe(other) for other in self._models.values() if other.has_slot]
        victims = select_victims(counted, 1, rules, now_s)
        if victims is None:
            raise OverCapacity(
                f"{len(counted)} models are loaded, none of which may go yet, so {model.name} has to wait",
                retry_after_s=max(_RETRY_AFTER_S, evictable_in_s(counted, rules, now_s) or 0.0),
            )
        model.has_slot = True
        leaving.extend(self._begin_unload(self._models[name], "made_room") for name in victims)
        if tasks := [task for task in leaving if task is not None]:
            await asyncio.wait(tasks)

    def _describe(self, model: _Model) -> ResidentModel:
        if model.state is ModelState.LOADING:
            return ResidentModel(model.name, self._clock(), self._clock(), references=1)
        # Who waited for it has not begun yet: without counting them, two models could push each other out for ever.
        references = self._actions.references(model.name) + model.waiting
        return ResidentModel(model.name, model.loaded_at_s, model.used_at_s, references, model.pinned)

    # -- giving up ----------------------------------------------------------------------------------------------------

    async def unload(self, name: str) -> None:
        """Free a model on somebody's order: the rules on age do not apply, use does. One that is cold is fine.

        Raises UnknownModel, and IllegalCommand while sessions use it.
        """
        model = self._model(name)
        while model.state is not ModelState.COLD:
            if model.state is ModelState.RESIDENT:
                if model.waiting:
                    raise IllegalCommand(f"engine {name} is about to be used by {model.waiting} sessions")
                self._begin_unload(model, "asked")
            await _wait_transition(model)

    def _begin_unload(self, model: _Model, reason: str) -> asyncio.Task[None]:
        """From this line on no session can begin with it. Raises IllegalCommand while sessions use it."""
        self._actions.withdraw(model.name)
        model.state = ModelState.UNLOADING
        model.has_slot = False
        model.task = asyncio.create_task(self._unload(model, reason), name=f"unload-{model.name}")
        model.task.add_done_callback(_consume_exception)
        return model.task

    async def _unload(self, model: _Model, reason: str) -> None:
        try:
            await self._actions.stop(model.name)
        finally:
            model.state = ModelState.COLD
            model.task = None
            self._observer.model_unloaded(model.name, reason)
        log.info("model %s is unloaded (%s)", model.name, reason)

    def evict_idle(self) -> tuple[str, ...]:
        """Begin to give up what was idle for too long; returns the names."""
        names = expired([self._describe(m) for m in self._resident_models()], self._config.rules, self._clock())
        for name in names:
            self._begin_unload(self._models[name], "idle")
        return names

    def _resident_models(self) -> Sequence[_Model]:
        return [model for model in self._models.values() if model.state is ModelState.RESIDENT]

    async def _evict_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._config.check_interval_s)
            self.evict_idle()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def touch(self, name: str) -> None:
        """A session with this model began or ended."""
        if name in self._models:
            self._models[name].used_at_s = self._clock()

    def not_ready_error(self, name: str) -> NotReady:
        """What a session that cannot wait is told; its model is being loaded from now on if the settings allow."""
        model = self._model(name)
        if (refused := self._load_refusal(model)) is not None:
            return refused
        if model.state is ModelState.COLD:
            self._begin(model)
        return NotReady(f"the model {name} is being loaded; try again", retry_after_s=_RETRY_AFTER_S)

    async def wait(self, name: str) -> None:
        """Until a session can use it. Raises NotReady or OverCapacity, both retryable, with ``retry_after_s``: it is
        not loaded on demand, takes longer than ``load_wait_s``, could not be loaded, or too many wait already."""
        model = self._model(name)
        if (refused := self._load_refusal(model)) is not None:
            raise refused
        if model.waiting >= self._config.max_waiting:
            raise OverCapacity(f"{model.waiting} sessions wait for the model {name}", retry_after_s=_RETRY_AFTER_S)
        model.waiting += 1
        try:
            with anyio.fail_after(self._config.load_wait_s):
                await self.load(name)
        except TimeoutError:
            raise NotReady(f"the model {name} is still being loaded; try again", retry_after_s=_RETRY_AFTER_S) from None
        except (NotReady, OverCapacity):
            raise
        except TTSWorkerError:
            raise self._load_refusal(model) or NotReady(f"the model {name} could not be loaded") from None
        finally:
            model.waiting -= 1

    def _load_refusal(self, model: _Model) -> NotReady | None:
        """Why a session may not load it."""
        if model.state is ModelState.RESIDENT:
            return None
        if not self._config.on_demand and model.state is ModelState.LOADING:
            return NotReady(f"the model {model.name} is being loaded; try again", retry_after_s=_RETRY_AFTER_S)
        if not self._config.on_demand:
            return NotReady(f"the model {model.name} is not loaded", retry_after_s=self._config.check_interval_s)
        wait_s = model.retry_at_s - self._clock()
        if model.state is ModelState.COLD and wait_s > 0:
            return NotReady(f"the model {model.name} could not be loaded", retry_after_s=wait_s)
        return None


async def _wait_transition(model: _Model) -> None:
    """Until the transition under way is over, however it ends."""
    if model.task is not None:
        await asyncio.wait({model.task})


def _consume_exception(task: asyncio.Task[None]) -> None:
    """A failure that nobody waited for was logged where it happened."""
    if not task.cancelled():
        task.exception()
