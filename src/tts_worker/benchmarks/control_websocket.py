"""The same over real WebSockets: a server in a process of its own, and listeners that play what they get.

A listener plays at the sample rate from the first frame on. The clock of a STOP or PAUSE runs until the last old sample
has sounded: what was under way, and what was sent ahead (the lead), count in full. (Only then, when `stopped` has come
and its time is noted, the listener throws away what it holds, as a client should, and begins afresh.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator
from time import perf_counter

from websockets.asyncio.client import ClientConnection, connect

from tts_worker.benchmarks.control import Commander, ControlTimes, Unanswered
from tts_worker.benchmarks.stats import Figure, LoopLag, percentile, rounded_ms
from tts_worker.benchmarks.texts import paragraph
from tts_worker.errors import EngineFault
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, ControlName

_MESSAGES = {
    ControlName.PAUSE: '{"type": "pause"}',
    ControlName.RESUME: '{"type": "resume"}',
    ControlName.STOP: '{"type": "stop"}',
}


@contextlib.asynccontextmanager
async def server_process(arguments: list[str]) -> AsyncIterator[str]:
    """``tts-worker serve`` on a free port in its own process, ready; yields ``host:port``. Raises EngineFault if it
    does not come up."""
    words = ["serve", "--port", "0", "--set", "log_format=text", *arguments]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tts_worker", *words, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        listening = (await process.stdout.readline()).decode()
        if not listening.startswith("listening on http://") or not await process.stdout.readline():
            raise EngineFault("the server did not start; its own message is above")
        yield listening.split("//")[1].strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _Listener:
    """Plays, and notes when the last sample of what was stopped has sounded."""

    def __init__(self, socket: ClientConnection, rng: random.Random, times: ControlTimes) -> None:
        self._socket = socket
        self._rng = rng
        self._times = times
        self._commands = Unanswered(times)
        self._playing_until_s = 0.0
        self._stopped = self._sounded = False
        self._sending: set[asyncio.Task[None]] = set()
        self.acknowledged_s: list[float] = []

    def command(self, command: ControlName, at_s: float) -> None:
        self._commands.asked(command, at_s)
        self._send(_MESSAGES[command])

    def _send(self, message: str) -> None:
        task = asyncio.ensure_future(self._socket.send(message))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _speak(self) -> None:
        self._send(json.dumps({"type": "text", "text": paragraph(self._rng, 6), "end": True}))

    async def listen(self) -> None:
        self._speak()
        async for message in self._socket:
            now_s = perf_counter()
            if isinstance(message, bytes):
                self._on_sound(len(message), now_s)
            else:
                self._on_event(json.loads(message), now_s)

    def _on_sound(self, size: int, now_s: float) -> None:
        self._times.frames_after_stop += self._stopped
        self._commands.sounded(now_s, before=self._sounded)
        self._sounded = True
        seconds = size / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        self._playing_until_s = max(self._playing_until_s, now_s) + seconds

    def _on_event(self, event: dict[str, object], now_s: float) -> None:
        kind = event["type"]
        if kind == "started":
            self._stopped = self._sounded = False
        elif kind == "paused":
            asked_at_s = self._commands.answered(ControlName.PAUSE, applied=event["applied"] is True)
            self._times.pause_s.append(max(now_s, self._playing_until_s) - asked_at_s)
        elif kind == "resumed":
            self._commands.answered(ControlName.RESUME, applied=event["applied"] is True)
        elif kind == "stopped":
            asked_at_s = self._commands.answered(ControlName.STOP, applied=event["applied"] is True)
            if event["applied"] is True:
                self._times.stop_s.append(max(now_s, self._playing_until_s) - asked_at_s)
                self.acknowledged_s.append(now_s - asked_at_s)
                self._stopped = True
                self._playing_until_s = now_s
                self._over()
        elif kind in ("done", "truncated", "error"):
            self._over()

    def _over(self) -> None:
        self._commands.over()
        self._speak()


async def measure_control_websocket(address: str, sessions: int, seconds: float) -> dict[str, Figure]:
    """``sessions`` listeners of the server at ``address`` (``host:port``)."""
    times = ControlTimes()
    async with contextlib.AsyncExitStack() as stack:
        listeners = []
        for index in range(sessions):
            socket = await stack.enter_async_context(connect(f"ws://{address}/v1/stream", compression=None))
            listeners.append(_Listener(socket, random.Random(index), times))
        lag = await stack.enter_async_context(LoopLag())
        listening = [asyncio.create_task(listener.listen()) for listener in listeners]
        commander = Commander(sessions, 1, lambda index, command, at_s: listeners[index].command(command, at_s))
        commander.start()
        await asyncio.sleep(seconds)
        await commander.stop()
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)
    acknowledged_s = [value for listener in listeners for value in listener.acknowledged_s]
    return {
        **times.figures(),
        "acknowledged_p99_ms": rounded_ms(percentile(acknowledged_s, 99)),
        "client_loop_lag_p99_ms": rounded_ms(percentile(lag.lags_s, 99)),
    }
