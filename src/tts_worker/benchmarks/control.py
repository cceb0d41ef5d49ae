"""How fast STOP, PAUSE and RESUME take hold while every session speaks.

In the worker: a command arrives from another thread, as it would from a socket, so the event loop's lag counts. The
clock runs from there to the acknowledgement, after which no old frame may leave (those that do are counted); for RESUME
to the next frame, if sound had begun before the pause (else it is a first audio latency, counted apart). Over a
WebSocket see ``control_websocket``.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from tts_worker.app import Worker, running_worker
from tts_worker.benchmarks.stats import Figure, LoopLag, percentile, rounded_ms
from tts_worker.benchmarks.texts import paragraph
from tts_worker.session.hub import SessionOptions
from tts_worker.session.session import LocalSession
from tts_worker.settings import Settings
from tts_worker.types import Acknowledged, ControlName, Ended, Outcome, PcmFrame, UtteranceKey

SCRIPT = (ControlName.PAUSE, ControlName.RESUME, ControlName.STOP)
GAP_S = (0.15, 0.9)
"""Between two commands of a session."""


@dataclass(slots=True)
class ControlTimes:
    """Seconds per command, and frames that should not have come."""

    stop_s: list[float] = field(default_factory=list)
    pause_s: list[float] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)
    resume_to_first_sound_s: list[float] = field(default_factory=list)
    frames_after_stop: int = 0
    frames_in_pause: int = 0

    def resumed(self, seconds: float, sounded_before: bool) -> None:
        (self.resume_s if sounded_before else self.resume_to_first_sound_s).append(seconds)

    def figures(self) -> dict[str, Figure]:
        return {
            "stops": len(self.stop_s),
            "stop_p50_ms": rounded_ms(percentile(self.stop_s, 50)),
            "stop_p99_ms": rounded_ms(percentile(self.stop_s, 99)),
            "stop_max_ms": rounded_ms(max(self.stop_s, default=None)),
            "pause_p99_ms": rounded_ms(percentile(self.pause_s, 99)),
            "resume_p99_ms": rounded_ms(percentile(self.resume_s, 99)),
            "resume_to_first_sound_p99_ms": rounded_ms(percentile(self.resume_to_first_sound_s, 99)),
            "frames_after_stop": self.frames_after_stop,
            "frames_in_pause": self.frames_in_pause,
        }


class Unanswered:
    """Commands of one session that are under way, and what the answers have said so far. Answers come in the order of
    the commands, of which several may be under way when the machine stood still."""

    def __init__(self, times: ControlTimes) -> None:
        self._times = times
        self._asked_at_s: dict[ControlName, deque[float]] = {command: deque() for command in SCRIPT}
        self._resume_asked_at_s: float | None = None  # of a pause that is over, before its first sound
        self._paused = False

    def asked(self, command: ControlName, at_s: float) -> None:
        self._asked_at_s[command].append(at_s)

    def answered(self, command: ControlName, *, applied: bool) -> float:
        """When it had been given."""
        asked_at_s = self._asked_at_s[command].popleft()
        if command is ControlName.PAUSE:
            self._paused = applied
        elif command is ControlName.RESUME and applied:  # no sooner: it may leave before its PAUSE is answered
            self._paused = False
            self._resume_asked_at_s = asked_at_s
        return asked_at_s

    def sounded(self, now_s: float, *, before: bool) -> None:
        """A frame came; ``before``: not the first of its turn."""
        if self._resume_asked_at_s is not None:
            self._times.resumed(now_s - self._resume_asked_at_s, before)
            self._resume_asked_at_s = None
        self._times.frames_in_pause += self._paused

    def over(self) -> None:
        """The turn has ended, and with it what was paused."""
        self._paused = False
        self._resume_asked_at_s = None


class Commander:
    """Sends every session its commands at random times, from a thread of its own. ``deliver(index, command, at_s)`` is
    called on the event loop; ``at_s`` is when the command was given."""

    def __init__(self, sessions: int, seed: int, deliver: Callable[[int, ControlName, float], None]) -> None:
        self._sessions = sessions
        self._rng = random.Random(seed)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commander", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._over.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        now_s = perf_counter()
        due = sorted((now_s + 0.3 + self._rng.uniform(*GAP_S), index, 0) for index in range(self._sessions))
        while not self._over.wait(max(0.0, due[0][0] - perf_counter())):
            at_s, index, step = due.pop(0)
            self._loop.call_soon_threadsafe(self._deliver, index, SCRIPT[step % len(SCRIPT)], perf_counter())
            due.append((at_s + self._rng.uniform(*GAP_S), index, step + 1))
            due.sort()


class _Speaker:
    """One listener who never runs out of things to hear, and whose commands are timed."""

    def __init__(self, session: LocalSession, rng: random.Random, times: ControlTimes) -> None:
        self._session = session
        self._rng = rng
        self._times = times
        self._commands = Unanswered(times)
        self._last_stopped: UtteranceKey | None = None
        self._speak()

    def _speak(self) -> None:
        self._session.speak(paragraph(self._rng, 6))
        self._session.end_text()

    def command(self, command: ControlName, at_s: float) -> None:
        self._commands.asked(command, at_s)
        if command is ControlName.PAUSE:
            self._session.pause()
        elif command is ControlName.RESUME:
            self._session.resume()
        else:
            self._session.stop()

    async def listen(self) -> None:
        async for item in self._session:
            now_s = perf_counter()
            if isinstance(item, PcmFrame):
                self._on_frame(item, now_s)
            elif isinstance(item, Ended):
                if item.outcome is Outcome.STOPPED:
                    self._last_stopped = item.key
                    self._times.stop_s.append(now_s - self._commands.answered(ControlName.STOP, applied=True))
                self._commands.over()
                self._speak()
            elif isinstance(item, Acknowledged):
                asked_at_s = self._commands.answered(item.command, applied=item.applied)
                if item.command is ControlName.PAUSE:
                    self._times.pause_s.append(now_s - asked_at_s)

    def _on_frame(self, frame: PcmFrame, now_s: float) -> None:
        if self._last_stopped is not None and frame.key.generation <= self._last_stopped.generation:
            self._times.frames_after_stop += 1
        self._commands.sounded(now_s, before=frame.index > 0)


async def measure_control(settings: Settings, sessions: int, seconds: float) -> dict[str, Figure]:
    """Everything in this process."""
    times = ControlTimes()
    async with running_worker(settings) as worker, LoopLag() as lag:
        speakers = [_Speaker(_open(worker), random.Random(index), times) for index in range(sessions)]
        listening = [asyncio.create_task(speaker.listen()) for speaker in speakers]
        commander = Commander(sessions, 1, lambda index, command, at_s: speakers[index].command(command, at_s))
        busy_before_s = _busy_s(worker)
        commander.start()
        await asyncio.sleep(seconds)
        busy_s = _busy_s(worker) - busy_before_s
        await commander.stop()
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)
    return {
        **times.figures(),
        "loop_lag_p99_ms": rounded_ms(percentile(lag.lags_s, 99)),
        "engine_load": round(busy_s / seconds, 3),
    }


def _open(worker: Worker) -> LocalSession:
    return worker.hub.open(SessionOptions(realtime=True))


def _busy_s(worker: Worker) -> float:
    return sum(engine.stats.busy_s for engine in worker.engines.values())
