"""When sound may leave, sans-IO: the clock is a parameter.

What has left the worker cannot be recalled, so a real-time stream is sent only a little ahead of the listener. The
pacer models that listener: it begins to play with the first frame, plays at the sample rate, and waits where nothing
came (an underrun). It must not know what is in a frame, who asks, or why nothing came.
"""

from __future__ import annotations


class Pacer:
    """Paces one session at ``rate_hz``: after a frame has left, the listener holds at most ``lead_s`` of sound (or that
    one frame, if it is longer). ``lead_s=None`` does not pace (a download, or a track that pulls by its own clock) but
    still counts underruns.

    ``underruns`` and ``underrun_s`` count the holes the listener heard inside utterances.
    """

    def __init__(self, rate_hz: int, lead_s: float | None) -> None:
        self._rate_hz = rate_hz
        self._lead_s = lead_s
        self._empty_at_s: float | None = None  # when the listener will have played all that was sent
        self._gap_expected = True
        self.underruns = 0
        self.underrun_s = 0.0
        self.longest_underrun_s = 0.0

    def due_at_s(self, samples: int, now_s: float) -> float:
        """When a frame of ``samples`` may leave: not later than ``now_s`` means now."""
        if self._lead_s is None or self._empty_at_s is None:
            return now_s
        return self._empty_at_s - max(0.0, self._lead_s - samples / self._rate_hz)

    def record_sent(self, samples: int, now_s: float) -> float:
        """A frame left. Returns the hole in seconds that the listener heard before it (0.0 if none)."""
        empty_at_s = self._empty_at_s
        gap_s = 0.0
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
        """Silence before the next frame is no underrun: an utterance ended, or the caller paused."""
        self._gap_expected = True

    def drop(self) -> None:
        """STOP: the listener throws away what it has not played."""
        self._empty_at_s = None
        self._gap_expected = True

    def lead_at_s(self, now_s: float) -> float:
        """Seconds of sound that were sent and, by this model, not played yet."""
        return 0.0 if self._empty_at_s is None else max(0.0, self._empty_at_s - now_s)
