"""Generates load in a separate process: reads plans as lines of JSON, runs them, writes a line of figures for each.

An utterance is due at a time that does not depend on the server, and its first audio counts from there: a late start is
part of it (open loop). The figures include how late this process itself ran.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import cycle
from time import monotonic
from typing import Literal, cast
from urllib.parse import quote

import msgspec

from tts_worker.errors import TTSWorkerError
from tts_worker.features.bench.listener import Listener
from tts_worker.features.bench.stats import LoopLag, no_garbage_collection
from tts_worker.features.bench.timed_connection import TimedRequest, TimedWebSocket

Kind = Literal["requests", "calls"]
"""Requests of ``POST /v1/audio/speech`` at a rate, or calls over ``/v1/stream`` that speak again and again."""

SPEECH_PATH = "/v1/audio/speech"
SENTENCES_FILE = "sentences.txt"
PAUSE_S = 0.5
"""Mean pause of a call between two utterances."""

_GRACE_S = 15.0
"""After the trial: an utterance that is not audible then has failed."""

_RAMP_S = 5.0
"""Calls begin within about the length of an utterance, so that their utterances are spread as later on."""


def sentences_file() -> bytes:
    """Return the sentences that the trials speak, one a line."""
    return (files("tts_worker.features.bench") / SENTENCES_FILE).read_bytes()


class Plan(msgspec.Struct, frozen=True):
    """A trial.

    Attributes:
        address: The server, ``host:port``.
        kind: What to generate.
        load: Requests a second, or calls at once.
        seconds: For how long utterances become due.
        seed: Of arrivals and sentences.
        voices: Voices that requests or calls take in turn; none: the server's default.
        headers: Further headers of requests and connections.
    """

    address: str
    kind: Kind
    load: float
    seconds: float
    seed: int
    voices: tuple[str, ...] = ()
    headers: dict[str, str] = {}


class Figures(msgspec.Struct):
    """What a trial measured.

    Attributes:
        started: Utterances that were due.
        first_audible_s: Of each audible utterance, from the time at which it was due.
        underruns_s: Length of each underrun.
        failures: Kind of failure -> utterances.
        audio_s: Audio received.
        lags_s: How late this process began each utterance, and how late its event loop ran timers.
    """

    started: int = 0
    first_audible_s: list[float] = []
    underruns_s: list[float] = []
    failures: dict[str, int] = {}
    audio_s: float = 0.0
    lags_s: list[float] = []


@dataclass
class _Trial:
    plan: Plan
    begins_s: float
    rng: random.Random
    texts: Sequence[str]
    voices: Iterator[str | None]
    lags_s: list[float] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def ends_s(self) -> float:
        return self.begins_s + self.plan.seconds

    async def next_utterance(self, due_s: float) -> tuple[str, Listener]:
        """Wait until an utterance is due."""
        await asyncio.sleep(due_s - monotonic())
        self.lags_s.append(max(0.0, monotonic() - due_s))
        self.listeners.append(Listener(due_s))
        return self.rng.choice(self.texts), self.listeners[-1]

    def fail(self, error: BaseException) -> None:
        self.failures[error.code.value if isinstance(error, TTSWorkerError) else type(error).__name__] += 1


async def run_trial(plan: Plan) -> Figures:
    """Run a trial in this process."""
    texts = sentences_file().decode().splitlines()
    rng = random.Random(f"{plan.seed} {plan.kind} {plan.load}")
    trial = _Trial(plan, monotonic(), rng, texts, cycle(plan.voices or (None,)))
    run = _run_requests if plan.kind == "requests" else _run_calls
    with no_garbage_collection():
        async with LoopLag() as lag:
            await run(trial)
    audible = [each for each in trial.listeners if each.first_audible_s is not None]
    silent = len(trial.listeners) - len(audible) - trial.failures.total()
    if silent > 0:
        trial.failures["no_audio"] += silent
    return Figures(
        started=len(trial.listeners),
        first_audible_s=[cast(float, each.first_audible_s) for each in audible],
        underruns_s=[gap_s for each in trial.listeners for gap_s in each.underruns_s],
        failures=dict(trial.failures),
        audio_s=sum(each.audio_s for each in trial.listeners),
        lags_s=trial.lags_s + lag.lags_s,
    )


async def _run_requests(trial: _Trial) -> None:
    """Poisson arrivals: the time between two requests is exponential."""
    requests: list[asyncio.Task[None]] = []
    due_s = trial.begins_s
    while (due_s := due_s + trial.rng.expovariate(trial.plan.load)) < trial.ends_s:
        text, listener = await trial.next_utterance(due_s)
        requests.append(asyncio.create_task(_request(trial, text, next(trial.voices), listener)))
    await _finish(trial, requests)


async def _request(trial: _Trial, text: str, voice: str | None, listener: Listener) -> None:
    plan = trial.plan
    body = speech_request(text, voice)
    request = TimedRequest(plan.address, SPEECH_PATH, plan.headers, lambda at_s, pcm: listener.receive(pcm, at_s))
    await request.post(body)


def speech_request(text: str, voice: str | None) -> dict[str, object]:
    """Return the body of a request for PCM."""
    chosen = {} if voice is None else {"voice": voice}
    return {"model": "tts-1", "input": text, "response_format": "pcm", **chosen}


async def _run_calls(trial: _Trial) -> None:
    plan = trial.plan
    count = int(plan.load)
    ramp_s = min(_RAMP_S, plan.seconds / 2)
    calls = [_Call(trial, trial.begins_s + ramp_s * trial.rng.random()) for _ in range(count)]
    await _finish(trial, [asyncio.create_task(call.run()) for call in calls])


async def _finish(trial: _Trial, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the tasks, and count their failures by kind; what takes too long is cancelled."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=max(0.0, trial.ends_s - monotonic()) + _GRACE_S)
    for task in late:
        task.cancel()
        trial.failures["timeout"] += 1
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(answer, Exception):
            trial.fail(answer)


class _Call:
    """A call over ``/v1/stream``: it speaks, plays to the end, pauses and speaks again."""

    def __init__(self, trial: _Trial, due_s: float) -> None:
        self._trial = trial
        self._due_s = due_s
        self._listener = Listener(due_s)
        voice = next(trial.voices)
        path = "/v1/stream" + (f"?voice={quote(voice)}" if voice is not None else "")
        self._socket = TimedWebSocket(trial.plan.address, self._on_message, path, trial.plan.headers)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Speak until the trial ends. Raises TTSWorkerError and OSError if the connection is refused or lost."""
        loop = asyncio.get_running_loop()
        try:
            await self._socket.open()
            while self._due_s < self._trial.ends_s:
                self._ended = loop.create_future()
                text, self._listener = await self._trial.next_utterance(self._due_s)
                self._socket.send({"type": "text", "text": text, "end": True})
                await asyncio.wait({self._ended, self._socket.closed}, return_when=asyncio.FIRST_COMPLETED)
                if self._socket.closed.done():
                    self._socket.closed.result()
                pause_s = self._trial.rng.expovariate(1 / PAUSE_S)
                self._due_s = max(self._listener.ends_s, monotonic()) + pause_s
        finally:
            self._socket.close()

    def _on_message(self, at_s: float, message: bytes | dict[str, object]) -> None:
        if isinstance(message, bytes):
            self._listener.receive(message, at_s)
            if at_s > self._trial.ends_s and self._listener.first_audible_s is not None:
                self._end()  # the rest of the utterance would be spoken beside ever fewer calls
        elif message["type"] == "error":
            error = cast(Mapping[str, object], message.get("error", message))
            self._trial.failures[str(error.get("code", "error"))] += 1
            self._end()
        elif message["type"] in ("done", "truncated"):
            if message["type"] == "truncated":
                self._trial.failures["truncated"] += 1
            self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def main() -> None:
    """Run the plans on standard input."""
    for line in sys.stdin:
        figures = asyncio.run(run_trial(msgspec.json.decode(line, type=Plan)))
        print(msgspec.json.encode(figures).decode(), flush=True)


if __name__ == "__main__":
    main()
