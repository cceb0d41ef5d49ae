"""Latency of STOP, PAUSE and RESUME while every session speaks, within the worker's process.

Commands come from another thread, as from a socket, so that the lag of the event loop counts. STOP and PAUSE are timed
until the acknowledgement, after which no old frame may be sent (such frames are counted). RESUME is timed until the
next frame if the utterance had audio before the pause; otherwise the time is a first-audio latency and reported
separately. ``control_websocket`` measures the same over WebSockets. A STOP during which the machine stalled
(``stall_monitor``) counts in ``stop_p99_ms``, and not in ``stop_p99_outside_stalls_ms``.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from tools.bench.stall_monitor import Stall, StallMonitor
from tts_worker.features.bench.stats import Figure, LoopLag, percentile, rounded_ms
from tts_worker.features.bench.texts import paragraph
from tts_worker.session.session import LocalSession
from tts_worker.settings import Settings
from tts_worker.types import Acknowledged, ControlName, Ended, Outcome, PcmFrame, SessionOptions, UtteranceKey
from tts_worker.worker import Worker, running_worker

SCRIPT = (ControlName.PAUSE, ControlName.RESUME, ControlName.STOP)
GAP_S = (0.15, 0.9)
"""Range of the pause between two commands of a session."""

_MIN_STALL_S = 0.004
"""A stall of this length matters to a STOP of a few milliseconds."""


@dataclass(slots=True)
class ControlTimes:
    """Seconds per command, and frames that should not have been sent."""

    stop_s: list[float] = field(default_factory=list)
    stopped_at_s: list[float] = field(default_factory=list)  # when each ended, if the measurement asks for it
    pause_s: list[float] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)
    resume_to_first_audio_s: list[float] = field(default_factory=list)
    frames_after_stop: int = 0
    frames_in_pause: int = 0

    def add_resume(self, seconds: float, had_audio: bool) -> None:
        (self.resume_s if had_audio else self.resume_to_first_audio_s).append(seconds)

    def figures(self) -> dict[str, Figure]:
        return {
            "stops": len(self.stop_s),
            "stop_p50_ms": rounded_ms(percentile(self.stop_s, 50)),
            "stop_p99_ms": rounded_ms(percentile(self.stop_s, 99)),
            "stop_max_ms": rounded_ms(max(self.stop_s, default=None)),
            "pause_p99_ms": rounded_ms(percentile(self.pause_s, 99)),
            "resume_p99_ms": rounded_ms(percentile(self.resume_s, 99)),
            "resume_to_first_audio_p99_ms": rounded_ms(percentile(self.resume_to_first_audio_s, 99)),
            "frames_after_stop": self.frames_after_stop,
            "frames_in_pause": self.frames_in_pause,
        }


def outside_stalls(times: ControlTimes, stalls: Sequence[Stall]) -> list[float]:
    """Return the seconds of each STOP during which the machine did not stall."""
    return [
        stop_s
        for stop_s, stopped_at_s in zip(times.stop_s, times.stopped_at_s, strict=True)
        if not any(stall.begin_s < stopped_at_s and stall.end_s > stopped_at_s - stop_s for stall in stalls)
    ]


class PendingCommands:
    """Commands of one session that are not acknowledged yet, and the state that the acknowledgements imply.

    Acknowledgements arrive in the order of the commands. Several commands may be pending after a stall of the machine.
    """

    def __init__(self, times: ControlTimes) -> None:
        self._times = times
        self._sent_at_s: dict[ControlName, deque[float]] = {command: deque() for command in SCRIPT}
        self._resume_sent_at_s: float | None = None  # set until the first frame after the resume
        self._is_paused = False

    def sent(self, command: ControlName, at_s: float) -> None:
        self._sent_at_s[command].append(at_s)

    def acknowledged(self, command: ControlName, *, applied: bool) -> float:
        """Record an acknowledgement; return when its command was sent."""
        sent_at_s = self._sent_at_s[command].popleft()
        if command is ControlName.PAUSE:
            self._is_paused = applied
        elif command is ControlName.RESUME and applied:  # not before: RESUME may be sent before PAUSE is acknowledged
            self._is_paused = False
            self._resume_sent_at_s = sent_at_s
        return sent_at_s

    def frame_received(self, now_s: float, *, had_audio: bool) -> None:
        """Record a frame.

        Args:
            now_s: Time of arrival.
            had_audio: Whether the utterance had audio before this frame.
        """
        if self._resume_sent_at_s is not None:
            self._times.add_resume(now_s - self._resume_sent_at_s, had_audio)
            self._resume_sent_at_s = None
        self._times.frames_in_pause += self._is_paused

    def end_utterance(self) -> None:
        """Forget a pause, which ends with its utterance."""
        self._is_paused = False
        self._resume_sent_at_s = None


class Commander:
    """Sends commands to every session at random times, from a separate thread.

    ``deliver(index, command, at_s)`` runs on the event loop; ``at_s`` is when the command was sent.
    """

    def __init__(self, sessions: int, seed: int, deliver: Callable[[int, ControlName, float], None]) -> None:
        self._sessions = sessions
        self._rng = random.Random(seed)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commander", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        now_s = perf_counter()
        due = sorted((now_s + 0.3 + self._rng.uniform(*GAP_S), index, 0) for index in range(self._sessions))
        while not self._stopping.wait(max(0.0, due[0][0] - perf_counter())):
            at_s, index, step = due.pop(0)
            self._loop.call_soon_threadsafe(self._deliver, index, SCRIPT[step % len(SCRIPT)], perf_counter())
            due.append((at_s + self._rng.uniform(*GAP_S), index, step + 1))
            due.sort()


class SpeakingSession:
    """A session that always has text to speak, and whose commands are timed."""

    def __init__(self, session: LocalSession, rng: random.Random, times: ControlTimes) -> None:
        self._session = session
        self._rng = rng
        self._times = times
        self._commands = PendingCommands(times)
        self._last_stopped: UtteranceKey | None = None
        self._speak()

    def _speak(self) -> None:
        self._session.speak(paragraph(self._rng, 6))
        self._session.end_text()

    def command(self, command: ControlName, at_s: float) -> None:
        self._commands.sent(command, at_s)
        match command:
            case ControlName.PAUSE:
                self._session.pause()
            case ControlName.RESUME:
                self._session.resume()
            case ControlName.STOP:
                self._session.stop()

    async def listen(self) -> None:
        async for item in self._session:
            now_s = perf_counter()
            match item:
                case PcmFrame():
                    self._on_frame(item, now_s)
                case Ended():
                    self._on_ended(item)
                case Acknowledged():
                    self._on_acknowledged(item, now_s)

    def _on_acknowledged(self, acknowledged: Acknowledged, now_s: float) -> None:
        sent_at_s = self._commands.acknowledged(acknowledged.command, applied=acknowledged.applied)
        if acknowledged.command is ControlName.PAUSE:
            self._times.pause_s.append(now_s - sent_at_s)
        elif acknowledged.command is ControlName.STOP and acknowledged.applied:
            self._times.stop_s.append(now_s - sent_at_s)
            self._times.stopped_at_s.append(now_s)

    def _on_ended(self, ended: Ended) -> None:
        if ended.outcome is Outcome.STOPPED:
            self._last_stopped = ended.key
        self._commands.end_utterance()
        self._speak()

    def _on_frame(self, frame: PcmFrame, now_s: float) -> None:
        if self._last_stopped is not None and frame.key.generation <= self._last_stopped.generation:
            self._times.frames_after_stop += 1
        self._commands.frame_received(now_s, had_audio=frame.index > 0)


async def measure_control(settings: Settings, sessions: int, seconds: float) -> dict[str, Figure]:
    """Measure ``sessions`` sessions within this process."""
    times = ControlTimes()
    async with StallMonitor(_MIN_STALL_S) as monitor, running_worker(settings) as worker, LoopLag() as lag:
        speaking_sessions = [
            SpeakingSession(_open_session(worker), random.Random(index), times) for index in range(sessions)
        ]
        listening = [asyncio.create_task(session.listen()) for session in speaking_sessions]
        commander = Commander(sessions, 1, lambda index, command, at_s: speaking_sessions[index].command(command, at_s))
        busy_before_s = _busy_s(worker)
        commander.start()
        await asyncio.sleep(seconds)
        busy_s = _busy_s(worker) - busy_before_s
        await commander.stop()
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)
    unstalled_s = outside_stalls(times, monitor.stalls)
    return {
        **times.figures(),
        "stop_p99_outside_stalls_ms": rounded_ms(percentile(unstalled_s, 99)),
        "stop_max_outside_stalls_ms": rounded_ms(max(unstalled_s, default=None)),
        "stops_in_stalls": len(times.stop_s) - len(unstalled_s),
        "machine_stalls": len(monitor.stalls),
        "loop_lag_p99_ms": rounded_ms(percentile(lag.lags_s, 99)),
        "engine_load": round(busy_s / seconds, 3),
    }


def _open_session(worker: Worker) -> LocalSession:
    return worker.hub.open(SessionOptions(realtime=True))


def _busy_s(worker: Worker) -> float:
    return sum(engine.stats.busy_s for engine in worker.engines.values())
