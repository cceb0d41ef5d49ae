"""Follows the agent's playback: an audio output in front of LiveKit's sink.

LiveKit emits no event when it pauses or resumes the sink, so this output forwards all calls to the sink and reports
them, and how far each segment was played.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from livekit.agents.voice import AgentSession
from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities, PlaybackFinishedEvent

from livekit import rtc
from tts_worker.errors import InvalidRequest


def follow_playback(
    session: AgentSession[Any],
    on_pause: Callable[[], None],
    on_resume: Callable[[], None],
    on_finished: Callable[[PlaybackFinishedEvent], None],
) -> None:
    """Call back whenever the agent pauses or resumes playback, and when that of a segment has ended.

    Raises:
        InvalidRequest: The session has no audio output.
    """
    sink = session.output.audio
    if sink is None:
        raise InvalidRequest("the agent has no audio output yet: attach after session.start(...)")
    session.output.audio = tap = PlaybackTap(sink, on_pause, on_resume)
    tap.on("playback_finished", on_finished)


class PlaybackTap(AudioOutput):
    """Forwards everything to ``sink``.

    ``on_pause`` runs after the sink was paused and ``on_resume`` before it is resumed, so that the callbacks delay
    neither.
    """

    def __init__(self, sink: AudioOutput, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        super().__init__(
            label="tts-worker playback",
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
