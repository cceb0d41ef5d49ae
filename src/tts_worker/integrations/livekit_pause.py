"""How the agent's pauses are noticed: a link in the chain of its audio outputs.

LiveKit pauses and resumes the sink and tells nobody else, so this sits in front of the sink, passes everything on, and
says what it saw. It knows neither the worker nor the plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from livekit.agents.voice import AgentSession
from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities

from livekit import rtc
from tts_worker.errors import InvalidRequest


def follow_pauses(session: AgentSession[Any], on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
    """Call back whenever the agent pauses or resumes what it says. Raises InvalidRequest without an audio output."""
    sink = session.output.audio
    if sink is None:
        raise InvalidRequest("the agent has no audio output yet: attach after session.start(...)")
    session.output.audio = PauseTap(sink, on_pause, on_resume)


class PauseTap(AudioOutput):
    """Passes everything to ``sink``. The sink is paused before anybody is told, and told before it is resumed, so that
    neither is later than without this link."""

    def __init__(self, sink: AudioOutput, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        super().__init__(
            label="tts-worker pauses",
            capabilities=AudioOutputCapabilities(pause=True),
            next_in_chain=sink,
            sample_rate=sink.sample_rate,
        )
        self._on_pause = on_pause
        self._on_resume = on_resume

    @property
    def _sink(self) -> AudioOutput:
        assert self.next_in_chain is not None
        return self.next_in_chain

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        await self._sink.capture_frame(frame)

    def flush(self) -> None:
        super().flush()
        self._sink.flush()

    def clear_buffer(self) -> None:
        self._sink.clear_buffer()

    def pause(self) -> None:
        super().pause()
        self._on_pause()

    def resume(self) -> None:
        self._on_resume()
        super().resume()
