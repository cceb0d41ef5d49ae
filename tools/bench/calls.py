"""Calls of a benchmark: WebSockets that speak one utterance after another and play the audio."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import quote

from tools.bench.stall_monitor import Stall, is_machine_stall
from tts_worker.features.bench.texts import paragraph
from tts_worker.features.bench.timed_connection import TimedWebSocket
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

_UNDERRUN_S = 0.005
_BYTES_PER_S = BYTES_PER_SAMPLE * SAMPLE_RATE_HZ


@dataclass
class Calls:
    """Totals over all calls.

    Attributes:
        underruns: End (monotonic clock) and length of every underrun, in seconds.
        first_audio_s: Time from sending a text to its first audio.
        frames: Audio messages received.
        audio_s: Audio received.
        errors: Utterances that ended with an error.
    """

    underruns: list[tuple[float, float]] = field(default_factory=list)
    first_audio_s: list[float] = field(default_factory=list)
    frames: int = 0
    audio_s: float = 0.0
    errors: int = 0


class AlwaysSpeaking(ABC):
    """A call that speaks one text after another, and plays the audio as it arrives; it counts in ``calls``.

    Args:
        address: The server, ``host:port``.
        seed: Seed of the texts.
        calls: Totals, shared by the calls.
        delay_s: When to begin, so that calls do not begin together.

    Attributes:
        playing_until_s: When all received audio is played, that of earlier utterances included.
    """

    def __init__(self, address: str, seed: int, calls: Calls, delay_s: float = 0.0) -> None:
        self._rng = random.Random(seed)
        self._calls = calls
        self._delay_s = delay_s
        self._sent_at_s = 0.0
        self._awaits_first_audio = True  # of the utterance; silence before it is no underrun
        self.playing_until_s = 0.0

    async def run(self) -> None:
        """Speak until the task is cancelled. Raises EngineFault if the server ends the connection."""
        await asyncio.sleep(self._delay_s)
        await self._speak()

    @abstractmethod
    async def _speak(self) -> None:
        """Connect, and speak until the task is cancelled."""

    def _on_event(self, socket: TimedWebSocket, message: dict[str, object]) -> None:
        """Take a message of ``/v1/stream``; send the next text at its start and after each utterance."""
        if message["type"] in ("ready", "done", "truncated", "error"):
            self._calls.errors += message["type"] == "error"
            self._awaits_first_audio = True
            self._sent_at_s = monotonic()
            socket.send({"type": "text", "text": paragraph(self._rng, 4), "end": True})

    def _on_audio(self, at_s: float, seconds: float) -> None:
        if self._awaits_first_audio:
            self._awaits_first_audio = False
            self._calls.first_audio_s.append(at_s - self._sent_at_s)
        elif at_s > self.playing_until_s + _UNDERRUN_S:
            self._calls.underruns.append((at_s, at_s - self.playing_until_s))
        self.playing_until_s = max(at_s, self.playing_until_s) + seconds
        self._calls.frames += 1
        self._calls.audio_s += seconds


class SpeakingCall(AlwaysSpeaking):
    """A call over ``/v1/stream``; ``voice`` is None for the default one."""

    def __init__(self, address: str, seed: int, calls: Calls, delay_s: float = 0.0, voice: str | None = None) -> None:
        super().__init__(address, seed, calls, delay_s)
        query = "" if voice is None else f"?voice={quote(voice)}"
        self._socket = TimedWebSocket(address, self._on_message, f"/v1/stream{query}")

    async def _speak(self) -> None:
        try:
            await self._socket.open()
            await self._socket.closed
        finally:
            self._socket.close()

    def _on_message(self, at_s: float, message: bytes | dict[str, object]) -> None:
        if isinstance(message, bytes):
            self._on_audio(at_s, len(message) / _BYTES_PER_S)
        else:
            self._on_event(self._socket, message)


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
