"""Runs the behavior table on every transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum
from itertools import product

import anyio
import pytest
import pytest_asyncio

from tests.behavior.behaviors import BEHAVIORS, BehaviorContext
from tests.behavior.transports import TRANSPORTS, stop_shared_engine_process
from tests.fakes.clock import run_in_virtual_time

CONCURRENT_BEHAVIORS = 12
"""Behaviors of a paced transport that run at the same time: each waits for playback most of the time."""
TIME_LIMIT_S = 110
"""Just below the limit of pytest-timeout: on a busy machine audio may take several times its duration."""


class Clock(Enum):
    """How the waits of a behavior pass."""

    VIRTUAL = "no socket, no thread: the clock jumps"
    REAL = "one behavior at a time"
    SHARED = "paced audio: many behaviors wait at the same time"


def clock_of(transport: str, name: str) -> Clock:
    if TRANSPORTS[transport].is_paced:
        return Clock.SHARED
    is_virtual = TRANSPORTS[transport].has_virtual_time and "hang" not in BEHAVIORS[name].requires
    return Clock.VIRTUAL if is_virtual else Clock.REAL


async def run_behavior(transport: str, name: str) -> None:
    behavior = BEHAVIORS[name]
    case = TRANSPORTS[transport]
    async with case.connect(behavior.setup) as client:
        await behavior.run(BehaviorContext(client, case.is_lossless, case.is_slow, case.concurrent_sessions))


def parametrize_table(*, clock: Clock) -> pytest.MarkDecorator:
    """Every transport with every behavior; rows that a transport does not support are skipped with the reason."""
    rows = []
    for transport, name in product(TRANSPORTS, BEHAVIORS):
        if clock_of(transport, name) is not clock:
            continue
        missing = ", ".join(sorted(BEHAVIORS[name].requires & TRANSPORTS[transport].unsupported))
        skip = pytest.mark.skipif(bool(missing), reason=f"{transport} does not support: {missing}")
        rows.append(pytest.param(transport, name, marks=skip, id=f"{transport}-{name}"))
    return pytest.mark.parametrize(("transport", "name"), rows)


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def engine_process() -> AsyncIterator[None]:
    """Stops the engine process that behaviors share."""
    yield
    await stop_shared_engine_process()


@parametrize_table(clock=Clock.REAL)
@pytest.mark.asyncio(loop_scope="module")
async def test_behavior(transport: str, name: str) -> None:
    await run_behavior(transport, name)


@parametrize_table(clock=Clock.VIRTUAL)
def test_behavior_in_virtual_time(transport: str, name: str) -> None:
    run_in_virtual_time(run_behavior(transport, name))


GetTask = Callable[[str, str], "asyncio.Task[None]"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paced_tasks(request: pytest.FixtureRequest) -> AsyncIterator[GetTask]:
    """Starts all selected behaviors of the paced transports at once; each test awaits its own task."""
    semaphore = asyncio.Semaphore(CONCURRENT_BEHAVIORS)

    async def run_when_free(transport: str, name: str) -> None:
        async with semaphore:
            with anyio.fail_after(TIME_LIMIT_S):
                await run_behavior(transport, name)

    tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
    for item in request.session.items:
        if not (isinstance(item, pytest.Function) and item.function is test_paced_behavior):
            continue
        if not any(mark.args[0] for mark in item.iter_markers("skipif")):
            transport, name = (str(item.callspec.params[key]) for key in ("transport", "name"))
            tasks[transport, name] = asyncio.create_task(run_when_free(transport, name))
    yield lambda transport, name: tasks[transport, name]
    for task in tasks.values():
        task.cancel()
    if tasks:
        await asyncio.wait(tasks.values())


@parametrize_table(clock=Clock.SHARED)
@pytest.mark.asyncio(loop_scope="module")
async def test_paced_behavior(paced_tasks: GetTask, transport: str, name: str) -> None:
    await paced_tasks(transport, name)


def test_all_behaviors_are_registered() -> None:
    assert len(BEHAVIORS) >= 30
