"""A listener that plays audio in real time, for benchmarks that drive an engine directly."""

from __future__ import annotations

from tts_worker.types import SAMPLE_RATE_HZ, Done, Event, Failed


def failure_of(event: Event) -> str | None:
    """Return why an utterance ended before its text; None if it goes on or is complete."""
    if isinstance(event, Failed):
        return event.error.message
    return event.truncated if isinstance(event, Done) else None


class PlaybackClient:
    """Plays audio in real time from its arrival.

    Attributes:
        first_s: When the first audio arrived, by the clock of the caller.
        underrun_s: Total time without audio after the first.
    """

    def __init__(self) -> None:
        self.first_s = 0.0
        self.underrun_s = 0.0
        self._received_samples = 0
        self._played_samples = 0
        self._playback_start_s: float | None = None  # shifted by every underrun

    @property
    def has_started(self) -> bool:
        return self._playback_start_s is not None

    @property
    def ends_s(self) -> float:
        """When all audio received so far is played; 0 before the first."""
        return (
            0.0 if self._playback_start_s is None else self._playback_start_s + self._received_samples / SAMPLE_RATE_HZ
        )

    def receive(self, samples: int, now_s: float) -> None:
        """Add audio that arrives at ``now_s``."""
        if self._playback_start_s is None:
            self._playback_start_s = self.first_s = now_s
        late_s = now_s - self._playback_start_s - self._received_samples / SAMPLE_RATE_HZ
        if late_s > 0 and self._received_samples:
            self.underrun_s += late_s
            self._playback_start_s += late_s
        self._received_samples += samples

    def play(self, now_s: float) -> int:
        """Return the samples played since the last call."""
        if self._playback_start_s is None:
            return 0
        until = min(self._received_samples, int((now_s - self._playback_start_s) * SAMPLE_RATE_HZ))
        played = max(0, until - self._played_samples)
        self._played_samples = max(until, self._played_samples)
        return played
