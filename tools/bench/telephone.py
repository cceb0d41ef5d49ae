"""Telephone calls of a benchmark: for each the media stream of Twilio, and the agent that speaks in the call.

The provider behaves as the telephone network: it sends the caller's audio all the time, 20 ms in a message, and returns
each mark when the audio before it has been played.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import TypedDict, cast

from tools.bench.calls import AlwaysSpeaking, Calls
from tts_worker.features.bench.timed_connection import TimedWebSocket

_RATE_HZ = 8_000
_FRAME_S = 0.02
_SILENCE = base64.b64encode(b"\xff" * 160).decode()
"""20 ms of mu-law at 8 kHz."""


class _Media(TypedDict):
    payload: str


class TelephoneCall(AlwaysSpeaking):
    """A telephone call over ``/twilio`` and ``/v1/calls/{call}``."""

    def __init__(self, address: str, seed: int, calls: Calls, delay_s: float = 0.0) -> None:
        super().__init__(address, seed, calls, delay_s)
        self._name = f"CA{seed}"
        self._stream = f"MZ{seed}"
        self.provider = TimedWebSocket(address, self.on_provider_message, "/twilio")
        self.agent = TimedWebSocket(address, self._on_agent_message, f"/v1/calls/{self._name}")
        self._loop = asyncio.get_running_loop()

    async def _speak(self) -> None:
        caller = None
        try:
            await self.provider.open()
            self.provider.send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
            media_format = {"encoding": "audio/x-mulaw", "sampleRate": _RATE_HZ, "channels": 1}
            start = {"callSid": self._name, "tracks": ["inbound"], "mediaFormat": media_format}
            self.provider.send({"event": "start", "streamSid": self._stream, "start": start})
            caller = asyncio.create_task(self._send_silence())
            await self.agent.open()
            ends: set[asyncio.Future[None]] = {self.provider.closed, self.agent.closed, caller}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
        finally:
            self.agent.close()
            self.provider.close()
            if caller is not None:
                caller.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await caller

    async def _send_silence(self) -> None:
        message = {"event": "media", "streamSid": self._stream, "media": {"track": "inbound", "payload": _SILENCE}}
        due_s = self._loop.time()
        while not self.provider.closed.done():
            self.provider.send(message)
            due_s += _FRAME_S
            await asyncio.sleep(due_s - self._loop.time())

    def on_provider_message(self, at_s: float, message: bytes | dict[str, object]) -> None:
        assert isinstance(message, dict)
        if message["event"] == "media":
            payload = cast(_Media, message["media"])["payload"]
            self._on_audio(at_s, len(base64.b64decode(payload)) / _RATE_HZ)
        elif message["event"] == "mark":
            self._loop.call_at(max(at_s, self.playing_until_s), self._return_mark, message["mark"])

    def _return_mark(self, mark: object) -> None:
        if not self.provider.closed.done():
            self.provider.send({"event": "mark", "streamSid": self._stream, "mark": mark})

    def _on_agent_message(self, at_s: float, message: bytes | dict[str, object]) -> None:
        assert isinstance(message, dict)
        self._on_event(self.agent, message)
