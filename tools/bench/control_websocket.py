"""Control latency over WebSockets: a server in a separate process, and clients that play the audio.

A client plays at the sample rate from the first frame on. STOP and PAUSE are timed until the last old sample is played:
frames in transit and the playout lead count in full. After ``stopped`` is timed, the client drops its buffer, as a real
client should, and speaks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from time import perf_counter

from websockets.asyncio.client import ClientConnection, connect

from tools.bench.control import Commander, ControlTimes, PendingCommands
from tts_worker.features.bench.stats import Figure, LoopLag, percentile, rounded_ms
from tts_worker.features.bench.texts import paragraph
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ, ControlName

_MESSAGES = {
    ControlName.PAUSE: '{"type": "pause"}',
    ControlName.RESUME: '{"type": "resume"}',
    ControlName.STOP: '{"type": "stop"}',
}


class WebSocketClient:
    """A client that plays, and times when the last sample of a stopped utterance is played."""

    def __init__(self, socket: ClientConnection, rng: random.Random, times: ControlTimes) -> None:
        self._socket = socket
        self._rng = rng
        self._times = times
        self._commands = PendingCommands(times)
        self._playing_until_s = 0.0
        self._is_stopped = self._has_audio = False
        self._sending: set[asyncio.Task[None]] = set()
        self.acknowledged_s: list[float] = []

    def command(self, command: ControlName, at_s: float) -> None:
        self._commands.sent(command, at_s)
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
                self._on_audio(len(message), now_s)
            else:
                self._on_event(json.loads(message), now_s)

    def _on_audio(self, size: int, now_s: float) -> None:
        self._times.frames_after_stop += self._is_stopped
        self._commands.frame_received(now_s, had_audio=self._has_audio)
        self._has_audio = True
        seconds = size / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        self._playing_until_s = max(self._playing_until_s, now_s) + seconds

    def _on_event(self, event: dict[str, object], now_s: float) -> None:
        applied = event.get("applied") is True
        match event["type"]:
            case "started":
                self._is_stopped = self._has_audio = False
            case "paused":
                sent_at_s = self._commands.acknowledged(ControlName.PAUSE, applied=applied)
                self._times.pause_s.append(max(now_s, self._playing_until_s) - sent_at_s)
            case "resumed":
                self._commands.acknowledged(ControlName.RESUME, applied=applied)
            case "stopped":
                sent_at_s = self._commands.acknowledged(ControlName.STOP, applied=applied)
                if applied:
                    self._times.stop_s.append(max(now_s, self._playing_until_s) - sent_at_s)
                    self.acknowledged_s.append(now_s - sent_at_s)
                    self._is_stopped = True
                    self._playing_until_s = now_s
                    self._next_utterance()
            case "done" | "truncated" | "error":
                self._next_utterance()

    def _next_utterance(self) -> None:
        self._commands.end_utterance()
        self._speak()


async def measure_control_websocket(address: str, sessions: int, seconds: float) -> dict[str, Figure]:
    """Measure ``sessions`` clients of the server at ``address`` (``host:port``)."""
    times = ControlTimes()
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for index in range(sessions):
            socket = await stack.enter_async_context(connect(f"ws://{address}/v1/stream", compression=None))
            clients.append(WebSocketClient(socket, random.Random(index), times))
        lag = await stack.enter_async_context(LoopLag())
        listening = [asyncio.create_task(client.listen()) for client in clients]
        commander = Commander(sessions, 1, lambda index, command, at_s: clients[index].command(command, at_s))
        commander.start()
        await asyncio.sleep(seconds)
        await commander.stop()
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)
    acknowledged_s = [value for client in clients for value in client.acknowledged_s]
    return {
        **times.figures(),
        "acknowledged_p99_ms": rounded_ms(percentile(acknowledged_s, 99)),
        "client_loop_lag_p99_ms": rounded_ms(percentile(lag.lags_s, 99)),
    }
