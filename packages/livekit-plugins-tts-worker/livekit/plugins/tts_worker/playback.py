"""Follows the agent's playback: an audio output in front of LiveKit's sink.

LiveKit emits no event when it pauses or resumes the sink, so this output forwards all calls to the sink and reports
them, and how far each segment was played.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from livekit.agents.voice import AgentSession, SpeechHandle
from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities, PlaybackFinishedEvent

from livekit import rtc
from tts_worker.errors import InvalidRequest


def follow_playback(
    session: AgentSession[Any],
    on_pause: Callable[[], None],
    on_resume: Callable[[], None],
    on_finished: Callable[[SpeechHandle | None, PlaybackFinishedEvent], None],
) -> None:
    """Call back whenever the agent pauses or resumes playback, and when that of a segment of a speech has ended.

    Raises:
        InvalidRequest: The session has no audio output.
    """
    sink = session.output.audio
    if sink is None:
        raise InvalidRequest("the agent has no audio output yet: attach after session.start(...)")
    session.output.audio = tap = PlaybackTap(sink, on_pause, on_resume)
    tap.on("playback_finished", lambda event: on_finished(tap.end_segment(), event))


def current_speech() -> SpeechHandle | None:
    """Return the agent's speech that the running task works for; LiveKit has it in the context of its tasks."""
    return next((value for value in copy_context().values() if isinstance(value, SpeechHandle)), None)


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
        self._speeches: deque[SpeechHandle | None] = deque()  # of the segments whose playback has not ended
        self._is_capturing = False

    def end_segment(self) -> SpeechHandle | None:
        """Note that the playback of a segment has ended, and return its speech."""
        return self._speeches.popleft() if self._speeches else None

    @property
    def _sink(self) -> AudioOutput:
        assert self.next_in_chain is not None
        return self.next_in_chain

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._is_capturing:
            self._is_capturing = True
            self._speeches.append(current_speech())
        await self._sink.capture_frame(frame)

    def flush(self) -> None:
        super().flush()
        self._is_capturing = False
        self._sink.flush()

    def clear_buffer(self) -> None:
        self._sink.clear_buffer()

    def pause(self) -> None:
        super().pause()
        self._on_pause()

    def resume(self) -> None:
        self._on_resume()
        super().resume()
