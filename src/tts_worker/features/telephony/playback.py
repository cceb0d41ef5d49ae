"""What a call was sent, what it has played, and what it has to play again. Sans-IO: the clock is a parameter.

A mark after each frame comes back when the frame was played. It also comes back when a ``clear`` dropped the frame, and
does not say which. So the marks of cleared frames are forgotten, and a position never claims more than was confirmed.
At the time of a ``clear`` it is late by the time that a mark travels.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tts_worker.types import PcmFrame

MARK_TIMEOUT_S = 5.0
"""A mark that is later than this will not come: from then on the clock confirms the frames."""


@dataclass(frozen=True, slots=True)
class _SentFrame:
    mark: int
    frame: PcmFrame
    played_at_s: float  # when the call has played it, by the clock


class CallPlayback:
    """Frames of one call between being sent and being confirmed.

    Args:
        rate_hz: Sample rate of the call.

    Attributes:
        is_held: Frames were cleared by a pause and wait to be sent again.
        has_marks: The call returns marks in time. Otherwise the clock confirms frames.
    """

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._sent: deque[_SentFrame] = deque()
        self._held: list[PcmFrame] = []
        self._empty_at_s = 0.0
        self.is_held = False
        self.has_marks = True

    @property
    def unplayed_samples(self) -> int:
        """Samples sent and not confirmed."""
        return sum(sent.frame.samples for sent in self._sent)

    @property
    def overdue_at_s(self) -> float | None:
        """When to call ``confirm_overdue``; None if nothing is unconfirmed."""
        if not self._sent:
            return None
        return self._sent[0].played_at_s + (MARK_TIMEOUT_S if self.has_marks else 0.0)

    def send(self, frame: PcmFrame, mark: int, now_s: float) -> None:
        """Record a frame that is sent now, before the mark ``mark``. Marks increase over the whole call."""
        self._empty_at_s = max(self._empty_at_s, now_s) + frame.samples / self._rate_hz
        self._sent.append(_SentFrame(mark, frame, self._empty_at_s))

    def confirm(self, mark: str) -> PcmFrame | None:
        """Record a returned mark. Returns the newest frame that was played; None if it is not of these frames."""
        if not mark.isascii() or not mark.isdigit() or len(mark) > 18:
            return None
        number = int(mark)
        if not self._sent or not self._sent[0].mark <= number <= self._sent[-1].mark:
            return None
        self.has_marks = True
        frame = None
        while self._sent and self._sent[0].mark <= number:
            frame = self._sent.popleft().frame
        return frame

    def confirm_overdue(self, now_s: float) -> PcmFrame | None:
        """Confirm by the clock if a mark is overdue. Returns the newest frame that was played, None if none was."""
        overdue_at_s = self.overdue_at_s
        if overdue_at_s is None or overdue_at_s > now_s:
            return None
        self.has_marks = False
        frame = None
        while self._sent and self._sent[0].played_at_s <= now_s:
            frame = self._sent.popleft().frame
        return frame

    def hold(self) -> bool:
        """Keep the unconfirmed frames for ``release``. Returns whether the call has to be cleared."""
        self._held += [sent.frame for sent in self._sent]
        self.is_held = True
        return self._clear()

    def release(self) -> list[PcmFrame]:
        """Return the frames to send again, in order."""
        frames = self._held
        self._held = []
        self.is_held = False
        return frames

    def drop(self) -> bool:
        """Forget all frames. Returns whether the call has to be cleared."""
        self.release()
        return self._clear()

    def _clear(self) -> bool:
        has_audio = bool(self._sent)
        self._sent.clear()
        self._empty_at_s = 0.0
        return has_audio
