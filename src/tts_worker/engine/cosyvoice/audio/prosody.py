"""How the frames of an audio segment are spoken: rate, level and pitch, each from a mel frame on. Pure arithmetic.

A change of level or pitch is a ramp after the frame at which it begins, so that audio before it never changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tts_worker.audio.pcm import Floats
from tts_worker.types import Expression

SPEED_RANGE = (0.5, 2.0)
"""Of the speed of an utterance, and of what a span makes of it."""

_RAMP_S = 0.1
_Change = Literal["volume_db", "pitch_semitones"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames that are spoken alike.

    Attributes:
        frame: The first of them, as the flow computes them.
        start: Where they begin after the change of pace, in frames.
        speed: Pace; 2 gives half as many frames.
        volume_db: Change of the level.
        pitch_semitones: Change of the pitch.
    """

    frame: int
    start: float
    speed: float
    volume_db: float = 0.0
    pitch_semitones: float = 0.0

    def end(self, frame: float) -> float:
        """Return where ``frame`` begins after the change of pace."""
        return self.start + (frame - self.frame) / self.speed


@dataclass(frozen=True)
class Prosody:
    """Rate, level and pitch of an audio segment, as far as its words are known.

    Attributes:
        speed: Pace of the utterance.
        frame_rate_hz: Mel frames per second.
        stretches: In order; the first one begins at frame 0.
    """

    speed: float
    frame_rate_hz: float
    stretches: tuple[Stretch, ...]

    @classmethod
    def steady(cls, speed: float = 1.0, frame_rate_hz: float = 50.0) -> Prosody:
        """Return that of an utterance without expression."""
        return cls(speed, frame_rate_hz, (Stretch(0, 0.0, speed),))

    def changed(self, frame: int, expression: Expression) -> Prosody:
        """Return this one with ``expression`` from ``frame`` on, which no change follows."""
        last = self.stretches[-1]
        slowest, fastest = SPEED_RANGE
        speed = self.speed if expression.rate == 1.0 else min(max(self.speed * expression.rate, slowest), fastest)
        frame = max(frame, last.frame)
        following = Stretch(frame, last.end(frame), speed, expression.volume_db, expression.pitch_semitones)
        if following == replace(last, frame=frame, start=following.start):
            return self
        before = self.stretches if frame > last.frame else self.stretches[:-1]
        return replace(self, stretches=(*before, following))

    @property
    def changes_pace(self) -> bool:
        """Whether any frame is not spoken at the normal pace."""
        return any(stretch.speed != 1.0 for stretch in self.stretches)

    def changes(self, name: _Change) -> bool:
        """Whether any frame has another level, or another pitch."""
        return any(getattr(stretch, name) for stretch in self.stretches)

    def output_frames(self, frames: float) -> float:
        """Return where frame ``frames`` begins after the change of pace."""
        stretch = next(each for each in reversed(self.stretches) if each.frame <= frames)
        return stretch.end(frames)

    def stretch_at(self, output_frame: int) -> Stretch:
        """Return the stretch that the middle of a frame lies in, after the change of pace."""
        return next(each for each in reversed(self.stretches) if each.start <= output_frame + 0.5)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[Stretch, int, int]]:
        """Yield the stretches of the frames ``[begin, end)``, after the change of pace, and the frames of each."""
        for stretch, following in zip(self.stretches, (*self.stretches[1:], None), strict=True):
            first = max(begin, math.ceil(stretch.start - 0.5))
            last = end if following is None else min(end, math.ceil(following.start - 0.5))
            if first < last:
                yield stretch, first, last

    def pitch_factors(self, start: int, end: int) -> Floats:
        """Return the factors of the pitch of frames ``[start, end)``, after the change of pace."""
        return np.exp2(self._ramped("pitch_semitones", start, end) / 12).astype(np.float32)

    def gains(self, start_sample: int, samples: int, frame_samples: int) -> Floats:
        """Return the gains of samples, after the change of pace."""
        position = (np.arange(start_sample, start_sample + samples) + 0.5) / frame_samples
        first, last = start_sample // frame_samples, -(-(start_sample + samples) // frame_samples)
        levels_db = self._ramped("volume_db", first - 1, last)
        # The level of a frame is reached at its end.
        return np.power(10, np.interp(position, np.arange(first, last + 1), levels_db) / 20).astype(np.float32)

    def _ramped(self, name: _Change, start: int, end: int) -> Floats:
        """Return the moving average of a value over the frames before the end of each of ``[start, end)``."""
        values = np.array([getattr(stretch, name) for stretch in self.stretches], np.float32)
        width = max(1, math.ceil(_RAMP_S * self.frame_rate_hz))
        frames = np.arange(start - width + 1, end) + 0.5
        index = np.searchsorted([stretch.start for stretch in self.stretches], frames, side="right") - 1
        windows = np.lib.stride_tricks.sliding_window_view(values[np.maximum(index, 0)], width)
        means: Floats = windows.mean(axis=1)
        return means


STEADY = Prosody.steady()
"""Of an utterance as the voice speaks it."""
