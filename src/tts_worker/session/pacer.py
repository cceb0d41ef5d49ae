"""Pacing of frames, sans-IO: the clock is a parameter.

Frames that were sent cannot be recalled, so a real-time stream is sent with a small playout lead. The pacer models the
client's playback: it starts with the first frame, runs at the sample rate and stalls while its buffer is empty (an
underrun).
"""

from __future__ import annotations

from math import inf


class Pacer:
    """Paces the frames of one session.

    Args:
        rate_hz: Sample rate.
        lead_s: Upper bound of the playout lead after a frame was sent (or that frame, if it is longer). None does not
            pace (a download, or a track that pulls at its own clock) but still counts underruns.

    Attributes:
        is_blocked: The client takes no audio now, so no frame is due: a telephone call that is not connected yet.
        underruns: Underruns inside utterances.
        underrun_s: Their total duration.
        longest_underrun_s: The longest of them.
    """

    def __init__(self, rate_hz: int, lead_s: float | None) -> None:
        self._rate_hz = rate_hz
        self._lead_s = lead_s
        self._empty_at_s: float | None = None  # when all sent audio will have been played
        self._gap_expected = True
        self._began_at_s = 0.0  # the first frame after the last expected gap; those that fill the lead are due then
        self.is_blocked = False
        self.underruns = 0
        self.underrun_s = 0.0
        self.longest_underrun_s = 0.0

    def due_at_s(self, samples: int, now_s: float) -> float:
        """When a frame of ``samples`` may be sent; a time up to ``now_s`` means now, infinity while blocked."""
        if self.is_blocked:
            return inf
        if self._lead_s is None or self._empty_at_s is None:
            return now_s
        return self._empty_at_s - max(0.0, self._lead_s - samples / self._rate_hz)

    def timing(self, samples: int, now_s: float) -> tuple[float, float] | None:
        """Return how a frame that is sent now is timed: seconds after it was due, and the playout lead before it.

        None where nothing is due: without pacing, and for the first frame after a gap that was expected.
        """
        if self._lead_s is None or self._empty_at_s is None or self._gap_expected:
            return None
        # As due_at_s and lead_at_s, without calls: this runs for every frame.
        spare_s = self._lead_s - samples / self._rate_hz
        due_at_s = self._empty_at_s - spare_s if spare_s > 0 else self._empty_at_s
        if due_at_s < self._began_at_s:
            due_at_s = self._began_at_s
        lead_s = self._empty_at_s - now_s
        return now_s - due_at_s if now_s > due_at_s else 0.0, lead_s if lead_s > 0 else 0.0

    def record_sent(self, samples: int, now_s: float) -> float:
        """Record a sent frame. Returns the underrun before it in seconds, 0.0 if none."""
        empty_at_s = self._empty_at_s
        gap_s = 0.0
        if self._gap_expected:
            self._began_at_s = now_s
        if empty_at_s is None or empty_at_s < now_s:
            if empty_at_s is not None and not self._gap_expected:
                gap_s = now_s - empty_at_s
                self.underruns += 1
                self.underrun_s += gap_s
                self.longest_underrun_s = max(self.longest_underrun_s, gap_s)
            empty_at_s = now_s
        self._gap_expected = False
        self._empty_at_s = empty_at_s + samples / self._rate_hz
        return gap_s

    def expect_gap(self) -> None:
        """Do not count silence before the next frame as an underrun: an utterance ended, or the session is paused."""
        self._gap_expected = True

    def drop(self) -> None:
        """STOP: the client discards its unplayed audio."""
        self._empty_at_s = None
        self._gap_expected = True

    def lead_at_s(self, now_s: float) -> float:
        """Seconds of audio sent and, by this model, not played yet."""
        return 0.0 if self._empty_at_s is None else max(0.0, self._empty_at_s - now_s)
