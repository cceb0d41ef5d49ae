"""Calls of a benchmark: WebSockets that speak one utterance after another and play the audio."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tts_worker.benchmarks.stall_monitor import Stall, is_machine_stall
from tts_worker.benchmarks.texts import paragraph
from tts_worker.benchmarks.timed_websocket import TimedWebSocket
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

_UNDERRUN_S = 0.005
_BYTES_PER_S = BYTES_PER_SAMPLE * SAMPLE_RATE_HZ


@dataclass
class Calls:
    """Totals over all calls.

    Attributes:
        underruns: End (monotonic clock) and length of every underrun, in seconds.
        frames: Audio messages received.
        audio_s: Audio received.
        errors: Utterances that ended with an error.
    """

    underruns: list[tuple[float, float]] = field(default_factory=list)
    frames: int = 0
    audio_s: float = 0.0
    errors: int = 0


class SpeakingCall:
    """A call that always speaks; it counts in ``calls``.

    Args:
        address: The server, ``host:port``.
        seed: Seed of the texts.
        calls: Totals, shared by the calls.
        delay_s: When to begin, so that calls do not begin together.
    """

    def __init__(self, address: str, seed: int, calls: Calls, delay_s: float = 0.0) -> None:
        self._socket = TimedWebSocket(address, self._on_message)
        self._rng = random.Random(seed)
        self._calls = calls
        self._delay_s = delay_s
        self._playing_until_s: float | None = None

    async def run(self) -> None:
        """Speak until the task is cancelled. Raises EngineFault if the server ends the connection."""
        try:
            await asyncio.sleep(self._delay_s)
            await self._socket.open()
            await self._socket.closed
        finally:
            self._socket.close()

    def _on_message(self, at_s: float, message: bytes | dict[str, object]) -> None:
        if isinstance(message, bytes):
            self._on_audio(at_s, len(message) / _BYTES_PER_S)
        elif message["type"] in ("ready", "done", "truncated", "error"):
            self._calls.errors += message["type"] == "error"
            self._playing_until_s = None
            self._socket.send({"type": "text", "text": paragraph(self._rng, 4), "end": True})

    def _on_audio(self, at_s: float, seconds: float) -> None:
        playing_until_s = self._playing_until_s
        if playing_until_s is not None and at_s > playing_until_s + _UNDERRUN_S:
            self._calls.underruns.append((at_s, at_s - playing_until_s))
        self._playing_until_s = max(at_s, playing_until_s or 0.0) + seconds
        self._calls.frames += 1
        self._calls.audio_s += seconds


def unexplained_underruns(
    underruns: Iterable[tuple[float, float]], stalls: Sequence[Stall], lead_s: float
) -> list[tuple[float, float]]:
    """Return the underruns that no stall of the machine explains."""
    return [(at_s, gap_s) for at_s, gap_s in underruns if not is_machine_stall(stalls, gap_s, at_s, lead_s)]


async def scrape(address: str) -> str:
    """Return the metrics of the server at ``address`` (``host:port``)."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        return (await reader.read(-1)).decode(errors="replace")
    finally:
        writer.close()
