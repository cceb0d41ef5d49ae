"""Loads models on demand and evicts idle ones.

Each model has one state and at most one transition under way, so concurrent requests share a load. A model counts
toward the cap from the start of its load. References are sessions, not callers of ``load``.
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
from tts_worker.models.policy import (
    EvictionRules,
    ResidentModel,
    seconds_until_evictable,
    select_expired,
    select_victims,
)

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
    """Operations of the manager on an engine, by name.

    Attributes:
        start: Builds and warms up the engine and offers its voices.
        withdraw: Removes its voices from new sessions at once; raises IllegalCommand while sessions use it.
        stop: Releases its resources.
        references: Returns the number of sessions that use it.
        replace: Builds the engine anew beside the running one and swaps them for new sessions; if it raises, the
            running one stays.
        vacate: Withdraws the engine from new sessions at once, lets running utterances end within a limit, closes the
            sessions and stops the engine.
    """

    start: Callable[[str], Awaitable[None]]
    withdraw: Callable[[str], None]
    stop: Callable[[str], Awaitable[None]]
    references: Callable[[str], int]
    replace: Callable[[str], Awaitable[None]]
    vacate: Callable[[str], Awaitable[None]]


class ModelObserver(Protocol):
    """Receives loads and unloads, for metrics."""

    def model_loaded(self, name: str, seconds: float) -> None: ...
    def model_failed(self, name: str, code: str) -> None: ...
    def model_unloaded(self, name: str, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Settings of the manager.

    Attributes:
        default: Loaded at the start and never evicted.
        preload: Loaded at the start; None loads every model and evicts none.
        on_demand: Whether a session loads its model if necessary.
        load_wait_s: Longest wait of a session for its model.
        check_interval_s: Interval of the check for idle models.
        max_parallel_loads: Loads that run at the same time.
        max_waiting: Sessions that may wait for one model.
        rules: Eviction rules.
    """

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
    task: asyncio.Task[None] | None = None  # current transition
    reload: asyncio.Task[None] | None = None  # the model is resident meanwhile
    loaded_at_s: float = 0.0
    used_at_s: float = 0.0
    has_slot: bool = False  # counts toward the cap
    waiting: int = 0
    backoff_s: float = FIRST_BACKOFF_S
    retry_at_s: float = 0.0


class ModelManager:
    """Keeps track of all models of a worker. All methods belong to one event loop; ``clock`` is monotonic seconds."""

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
        """Whether all loads of the start have succeeded or failed."""

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all models."""
        return tuple(self._models)

    @property
    def resident(self) -> tuple[str, ...]:
        """Names of the models that sessions can use now."""
        return tuple(model.name for model in self._models.values() if model.state is ModelState.RESIDENT)

    @property
    def on_demand(self) -> bool:
        """Whether a session loads its model if necessary."""
        return self._config.on_demand

    def state(self, name: str) -> ModelState:
        """Return the state of a model. Raises UnknownModel."""
        return self._model(name).state

    def describe_state(self, name: str) -> str:
        """Return the state of a model as a word for people: a ModelState, or "reloading". Raises UnknownModel."""
        model = self._model(name)
        return "reloading" if model.reload is not None else model.state.value

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            known = ", ".join(self._models)
            raise UnknownModel(f'unknown engine "{name[:64]}"; available: {known}')
        return self._models[name]

    # -- start and close ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the models of ``preload``, the default one first, and start the eviction task.

        Raises:
            TTSWorkerError: The default model, or any model where ``preload`` is None, failed to load. Other failures
                are logged.
        """
        config = self._config
        await self.load(config.default)
        for name in self._models if config.preload is None else config.preload:
            try:
                await self.load(name)
            except TTSWorkerError as error:
                if config.preload is None:
                    raise
                log.error("model %s could not be preloaded: %s", name, error.message)
        self.started = True
        self._eviction_task = asyncio.create_task(self._evict_periodically(), name="model-eviction")

    async def close(self) -> None:
        """Cancel loads and eviction and wait for them. Resident models stay: the owner stops the engines."""
        self._closed = True
        tasks = [task for model in self._models.values() for task in (model.task, model.reload) if task is not None]
        for task in (*tasks, *([self._eviction_task] if self._eviction_task is not None else [])):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- loading ------------------------------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Load a model unless it is resident. Concurrent callers share the load; cancelling one does not cancel it.

        Raises:
            UnknownModel: The name is unknown.
            OverCapacity: The cap is reached and no model can be evicted.
            NotReady: The worker is shutting down.
            TTSWorkerError: The engine failed to start.
        """
        model = self._model(name)
        while model.state is ModelState.UNLOADING:
            await _wait_transition(model)
        if model.state is ModelState.RESIDENT:
            return
        task = self._begin(model)
        await asyncio.wait({task})  # unlike awaiting the task, a cancellation here does not reach it
        if task.cancelled():
            raise NotReady("the worker is shutting down")
        task.result()

    async def reload(self, name: str, *, free_first: bool = False) -> None:
        """Reload a model from its files; load it if it is not resident.

        Sessions in progress keep the old one. Cancelling the caller does not cancel the reload.

        Args:
            name: The model.
            free_first: Free the memory of the old one before the new one is built, for devices that cannot hold both:
                running utterances may end within a limit, and until the new one is loaded sessions must wait.

        Raises:
            UnknownModel: The name is unknown.
            IllegalCommand: The model is being reloaded.
            NotReady: The worker is shutting down.
            TTSWorkerError: The new one failed to start. The old one goes on, unless it was freed first.
        """
        model = self._model(name)
        while model.state is ModelState.UNLOADING:
            await _wait_transition(model)
        if model.state is not ModelState.RESIDENT:
            await self.load(name)
            return
        if model.reload is not None:
            raise IllegalCommand(f"engine {name} is being reloaded")
        if self._closed:
            raise NotReady("the worker is shutting down")
        work = self._free_and_load(model) if free_first else self._reload(model)
        model.reload = task = asyncio.create_task(work, name=f"reload-{name}")
        if free_first:
            model.state = ModelState.LOADING
            model.task = task
        task.add_done_callback(_consume_exception)
        await asyncio.wait({task})
        if task.cancelled():
            raise NotReady("the worker is shutting down")
        task.result()

    async def _reload(self, model: _Model) -> None:
        began_s = self._clock()
        try:
            async with self._loads:
                await self._actions.replace(model.name)
        except Exception as error:
            info = error_info(error)
            self._observer.model_failed(model.name, info.code.value)
            log.error("model %s could not be reloaded and stays as it was: %s", model.name, info.message)
            raise
        finally:
            model.reload = None
        model.loaded_at_s = self._clock()
        self._observer.model_loaded(model.name, self._clock() - began_s)
        log.info("model %s reloaded", model.name)

    async def _free_and_load(self, model: _Model) -> None:
        began_s = self._clock()
        try:
            async with self._loads:
                await self._actions.vacate(model.name)
                self._observer.model_unloaded(model.name, "reload")
                await self._actions.start(model.name)
        except BaseException as error:
            model.has_slot = False
            self._settle(model, ModelState.COLD)
            if isinstance(error, Exception):
                self._note_failure(model, error)
            raise
        finally:
            model.reload = None
        self._settle(model, ModelState.RESIDENT)
        self._observer.model_loaded(model.name, self._clock() - began_s)
        log.info("model %s reloaded", model.name)

    def _settle(self, model: _Model, state: ModelState) -> None:
        """End the transition of a model."""
        model.state = state
        model.task = None
        if state is ModelState.RESIDENT:
            model.loaded_at_s = model.used_at_s = self._clock()
            model.backoff_s = FIRST_BACKOFF_S
            model.retry_at_s = 0.0

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
            self._settle(model, ModelState.COLD)
            model.has_slot = False
            if isinstance(error, Exception) and not isinstance(error, OverCapacity):
                self._note_failure(model, error)
            raise
        self._settle(model, ModelState.RESIDENT)
        seconds = self._clock() - began_s
        self._observer.model_loaded(model.name, seconds)
        if self.started:  # the event "ready" tells of those before
            log.info("model %s loaded in %.1f s", model.name, seconds)

    def _note_failure(self, model: _Model, error: Exception) -> None:
        """Back off, so that sessions do not retry a failing load each time."""
        model.retry_at_s = self._clock() + model.backoff_s
        model.backoff_s = min(2 * model.backoff_s, MAX_BACKOFF_S)
        info = error_info(error)
        self._observer.model_failed(model.name, info.code.value)
        log.error("model %s could not be loaded: %s", model.name, info.message)

    async def _reserve_slot(self, model: _Model) -> None:
        """Reserve a slot under the cap, evicting idle models if needed.

        Victims are chosen and withdrawn without a suspension point. The load waits for their unloads, so that memory
        is free before more is allocated.
        """
        rules = self._config.rules
        now_s = self._clock()
        unloads = [other.task for other in self._models.values() if other.state is ModelState.UNLOADING]
        resident = [self._describe(other) for other in self._models.values() if other.has_slot]
        victims = select_victims(resident, 1, rules, now_s)
        if victims is None:
            raise OverCapacity(
                f"cannot load {model.name}: {len(resident)} models are loaded and none can be evicted yet",
                retry_after_s=max(_RETRY_AFTER_S, seconds_until_evictable(resident, rules, now_s) or 0.0),
            )
        model.has_slot = True
        unloads.extend(self._begin_unload(self._models[name], "made_room") for name in victims)
        if tasks := [task for task in unloads if task is not None]:
            await asyncio.wait(tasks)

    def _describe(self, model: _Model) -> ResidentModel:
        if model.state is ModelState.LOADING:
            return ResidentModel(model.name, self._clock(), self._clock(), references=1)
        # Waiting sessions count as references; otherwise two models could evict each other repeatedly.
        references = self._actions.references(model.name) + model.waiting + (model.reload is not None)
        return ResidentModel(model.name, model.loaded_at_s, model.used_at_s, references, model.pinned)

    # -- unloading ----------------------------------------------------------------------------------------------------

    async def unload(self, name: str) -> None:
        """Unload a model regardless of its age; ignored if it is not loaded.

        Raises:
            UnknownModel: The name is unknown.
            IllegalCommand: Sessions use the model or wait for it.
        """
        model = self._model(name)
        while model.state is not ModelState.COLD:
            if model.state is ModelState.RESIDENT:
                if model.waiting:
                    raise IllegalCommand(f"{model.waiting} sessions are waiting for engine {name}")
                if model.reload is not None:
                    raise IllegalCommand(f"engine {name} is being reloaded")
                self._begin_unload(model, "asked")
            await _wait_transition(model)

    def _begin_unload(self, model: _Model, reason: str) -> asyncio.Task[None]:
        """Withdraw a model from new sessions and unload it in a task. Raises IllegalCommand while sessions use it."""
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
        log.info("model %s unloaded (%s)", model.name, reason)

    def evict_idle(self) -> tuple[str, ...]:
        """Start unloading the models whose idle time has expired. Returns their names."""
        names = select_expired([self._describe(m) for m in self._resident_models()], self._config.rules, self._clock())
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
        """Record that a session with this model started or ended."""
        if name in self._models:
            self._models[name].used_at_s = self._clock()

    def not_ready_error(self, name: str) -> NotReady:
        """Return the error for a session that cannot wait, and start the load if sessions may load models."""
        model = self._model(name)
        if (refusal := self._load_refusal(model)) is not None:
            return refusal
        if model.state is ModelState.COLD:
            self._begin(model)
        return NotReady(f"the model {name} is being loaded; try again", retry_after_s=_RETRY_AFTER_S)

    async def wait(self, name: str) -> None:
        """Wait until a session can use a model. Both errors are retryable and have ``retry_after_s``.

        Raises:
            NotReady: The model is not loaded on demand, took longer than ``load_wait_s``, or failed to load.
            OverCapacity: No model can be evicted, or too many sessions wait already.
        """
        model = self._model(name)
        if (refusal := self._load_refusal(model)) is not None:
            raise refusal
        if model.waiting >= self._config.max_waiting:
            raise OverCapacity(
                f"{model.waiting} sessions are waiting for the model {name}", retry_after_s=_RETRY_AFTER_S
            )
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
        """Return why a session may not load the model, or None."""
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
    """Wait until the current transition has succeeded or failed."""
    if model.task is not None:
        await asyncio.wait({model.task})


def _consume_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task without waiters, which was logged before."""
    if not task.cancelled():
        task.exception()
