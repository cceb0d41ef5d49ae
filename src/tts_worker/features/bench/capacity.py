"""How much a server holds: the highest rate of requests and number of calls in time and without underrun."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from tts_worker.client.unreachable import unreachable
from tts_worker.errors import EngineFault
from tts_worker.features.bench.load_generator import SPEECH_PATH, Figures, Kind, Plan, speech_request
from tts_worker.features.bench.search import Trial, highest_load
from tts_worker.features.bench.stats import percentile, rounded_ms
from tts_worker.features.bench.timed_connection import TimedRequest

SHARE = 0.8
"""Of the calls that a machine holds, for ``session.max_sessions``: the rest is for unlucky moments."""

MOST_CALLS = 1_000
_LAG_SHARE = 0.2
"""Of the bound: a load generator that is later than this measures itself."""

_UTTERANCES = 20
"""A trial waits for about so many, for at most twice its length: fewer have no 95th percentile."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Loads of one kind, in steps.

    Attributes:
        step: Load of one step.
        first: Steps of the first trial.
        most: Steps of the highest.
        unit: Of the load, for people.
        utterances_per_s: About as many become due for each unit of the load.
    """

    step: float
    first: int
    most: int
    unit: str
    utterances_per_s: float = 1.0


SCALES: Mapping[Kind, Scale] = {
    "requests": Scale(0.5, 4, 800, "requests/s"),
    "calls": Scale(1, 8, MOST_CALLS, "calls", 0.2),
}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all trials have in common.

    Attributes:
        address: The server, ``host:port``.
        bound_ms: Limit of the 95th percentile of audible first audio.
        seconds: Length of a trial; one that confirms lasts twice as long.
        seed: Of arrivals and sentences.
        voices: Voices that requests or calls take in turn; none: the server's default.
        headers: Further headers of requests and connections.
    """

    address: str
    bound_ms: float
    seconds: float = 10.0
    seed: int = 1
    voices: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)


class TrialResult(msgspec.Struct):
    """Figures of a trial.

    Attributes:
        load: Requests a second, or calls at once.
        seconds: For how long utterances became due.
        utterances: How many did.
        first_audible_p50_ms: Median time until the first audible sample is played, from when the utterance was due.
        first_audible_p95_ms: Its 95th percentile.
        underruns: Gaps that a listener hears.
        underrun_max_ms: The longest of them.
        failures: Kind of failure -> utterances.
        speaking: Mean number of utterances that are being heard.
        lag_p95_ms: 95th percentile of how late the load generator ran.
        problem: Why the trial failed; None if it passed.
        measures_the_generator: Whether it failed because the load generator was late, which says nothing of the server.
    """

    load: float
    seconds: float
    utterances: int
    first_audible_p50_ms: float | None
    first_audible_p95_ms: float | None
    underruns: int
    underrun_max_ms: float | None
    failures: dict[str, int]
    speaking: float
    lag_p95_ms: float | None
    problem: str | None = None
    measures_the_generator: bool = False


class Capacity(msgspec.Struct):
    """Result of a search.

    Attributes:
        highest: Highest load that passed and was confirmed; None if the load generator was too late to tell.
        is_at_least: Whether the server may hold more: no trial failed for its sake.
        trials: All trials, in order.
    """

    highest: float | None
    is_at_least: bool
    trials: list[TrialResult]


def judge(figures: Figures, load: float, seconds: float, bound_ms: float) -> TrialResult:
    """Return the figures of a trial, with the problem that it found.

    Args:
        figures: What the load generator measured.
        load: Requests a second, or calls at once.
        seconds: For how long utterances became due.
        bound_ms: Limit of the 95th percentile of audible first audio.
    """
    result = TrialResult(
        load=load,
        seconds=seconds,
        utterances=figures.started,
        first_audible_p50_ms=rounded_ms(percentile(figures.first_audible_s, 50)),
        first_audible_p95_ms=rounded_ms(percentile(figures.first_audible_s, 95)),
        underruns=len(figures.underruns_s),
        underrun_max_ms=rounded_ms(max(figures.underruns_s, default=None)),
        failures=figures.failures,
        speaking=round(figures.audio_s / seconds, 2),
        lag_p95_ms=rounded_ms(percentile(figures.lags_s, 95)),
    )
    lag_ms, p95_ms = result.lag_p95_ms or 0.0, result.first_audible_p95_ms
    if lag_ms > _LAG_SHARE * bound_ms:
        result.problem = f"the load generator ran {lag_ms:.0f} ms late"
        result.measures_the_generator = True
    elif result.failures:
        result.problem = ", ".join(f"{count} x {kind}" for kind, count in sorted(result.failures.items()))
    elif result.underruns:
        result.problem = f"{result.underruns} underruns, up to {result.underrun_max_ms:.0f} ms"
    elif p95_ms is None:
        result.problem = "nothing was audible"
    elif p95_ms > bound_ms:
        result.problem = f"audible first audio p95 {p95_ms:.0f} ms"
    return result


class LoadGenerator:
    """The process that generates load, see ``load_generator``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, plan: Plan) -> Figures:
        """Run a trial. Raises EngineFault if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(plan) + b"\n")
        if not (line := await self._process.stdout.readline()):
            raise EngineFault("the load generator ended; see its message above")
        return msgspec.json.decode(line, type=Figures)


@contextlib.asynccontextmanager
async def load_generator() -> AsyncIterator[LoadGenerator]:
    """Run the load generator until the context exits."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tts_worker.features.bench.load_generator"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**30,  # a line of figures
    )
    try:
        yield LoadGenerator(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def warm_up(conditions: Conditions) -> None:
    """Speak with each voice, so that a wrong address, key or voice is reported as such. Raises TTSWorkerError."""
    try:
        for voice in conditions.voices or (None,):
            request = TimedRequest(conditions.address, SPEECH_PATH, conditions.headers, lambda at_s, pcm: None)
            await request.post(speech_request("Hello there.", voice))
    except OSError as error:
        raise unreachable(error) from None


async def find_capacity(
    kind: Kind,
    scale: Scale,
    conditions: Conditions,
    run: Callable[[Plan], Awaitable[Figures]],
    report: Callable[[TrialResult], None],
) -> Capacity:
    """Search for the highest load.

    Args:
        kind: Of the load.
        scale: Its steps.
        conditions: What the trials have in common.
        run: Runs a trial.
        report: Called with each trial.

    Raises:
        EngineFault: The load generator has ended.
    """
    trials: list[TrialResult] = []
    failed: list[TrialResult] = []
    steps = highest_load(scale.first, scale.most)

    async def passes(trial: Trial) -> bool:
        load = scale.step * trial.load
        seconds = conditions.seconds * (2 if trial.confirms else 1)
        seconds = max(seconds, min(_UTTERANCES / (scale.utterances_per_s * load), 2 * conditions.seconds))
        for _ in range(2):  # virtual machines stall, and a search should not end for that
            seed = conditions.seed + len(trials)
            plan = Plan(conditions.address, kind, load, seconds, seed, conditions.voices, conditions.headers)
            result = judge(await run(plan), load, seconds, conditions.bound_ms)
            trials.append(result)
            report(result)
            if result.problem is None:
                break
        if result.problem is not None:
            failed.append(result)
        return result.problem is None

    trial = next(steps)
    while True:
        try:
            trial = steps.send(await passes(trial))
        except StopIteration as end:
            highest = scale.step * end.value
            break
    above = [result for result in failed if result.load > highest]
    is_unknown = bool(above) and min(above, key=lambda result: result.load).measures_the_generator
    return Capacity(None if is_unknown and not highest else highest, is_unknown or not above, trials)


def sessions_to_set(calls: float | None) -> int | None:
    """Return what ``session.max_sessions`` should be on a machine that holds this many calls."""
    return max(1, int(SHARE * calls)) if calls else None


def cost_of_1000_minutes(price_per_hour: float, sessions: int) -> float:
    """Return the price of 1,000 minutes of calls on a machine that is full."""
    return 1_000 * price_per_hour / (60 * sessions)
