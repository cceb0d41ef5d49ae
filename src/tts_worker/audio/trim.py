"""Where speech begins and ends in a recording with near-silence around it, whole or while it is being made.

Owns the decision what is silence (level per short window) and the fades at the cuts. A little is kept on either side
so that soft consonants survive. Knows samples only: no engine, no text, no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tts_worker.audio.pcm import Floats, fade_curve, fade_out, samples_of_ms
from tts_worker.types import SAMPLE_RATE_HZ


@dataclass(frozen=True, slots=True)
class TrimOptions:
    """What counts as silence and what is kept of it. A window is speech when its RMS is above ``threshold_dbfs``."""

    threshold_dbfs: float = -50.0
    window_ms: float = 5.0
    pre_roll_ms: float = 20.0
    post_roll_ms: float = 40.0
    fade_ms: float = 5.0
    sample_rate_hz: int = SAMPLE_RATE_HZ

    def __post_init__(self) -> None:
        if not 0 <= self.fade_ms <= self.window_ms:
            raise ValueError("fade_ms must not be longer than window_ms: the first window is all that surely exists")


def speech_range(samples: Floats, options: TrimOptions | None = None) -> tuple[int, int] | None:
    """``[start, end)`` of the speech in ``samples [N]`` with its pre- and post-roll; None if there is only silence."""
    options = options or TrimOptions()
    window = max(1, samples_of_ms(options.window_ms, options.sample_rate_hz))
    loud = np.flatnonzero(_is_loud(samples, window, options))
    if not len(loud):
        return None
    start = int(loud[0]) * window - samples_of_ms(options.pre_roll_ms, options.sample_rate_hz)
    end = (int(loud[-1]) + 1) * window + samples_of_ms(options.post_roll_ms, options.sample_rate_hz)
    return max(0, start), min(len(samples), end)


def _is_loud(samples: Floats, window: int, options: TrimOptions) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Per window of ``samples`` whether it is speech; a last, incomplete window counts with its own mean."""
    if not len(samples):
        return np.zeros(0, np.bool_)
    starts = np.arange(0, len(samples), window)
    power = np.add.reduceat(np.square(samples, dtype=np.float64), starts)
    lengths = np.minimum(len(samples) - starts, window)
    return np.asarray(power > lengths * 10.0 ** (options.threshold_dbfs / 10), np.bool_)


class SpeechTrimmer:
    """``speech_range`` for sound that is still being made: what comes out, joined, is that range with a short fade at
    either end, however the input was cut.

    Silence inside the speech is held back until speech follows. ``start_sample`` is the input position of the first
    sample that came out (None before that); ``pending_samples`` are held back now.
    """

    def __init__(self, options: TrimOptions | None = None) -> None:
        self._options = options or TrimOptions()
        rate = self._options.sample_rate_hz
        self._window = max(1, samples_of_ms(self._options.window_ms, rate))
        self._pre_roll = samples_of_ms(self._options.pre_roll_ms, rate)
        self._post_roll = samples_of_ms(self._options.post_roll_ms, rate)
        self._fade = samples_of_ms(self._options.fade_ms, rate)
        self._held = np.zeros(0, np.float32)  # input from self._held_from on
        self._held_from = 0
        self._scanned = 0  # windows before this input position have been judged
        self._speech_end = 0  # end of the last loud window
        self.start_sample: int | None = None

    @property
    def pending_samples(self) -> int:
        return len(self._held)

    @property
    def silent_samples(self) -> int:
        """Input samples since the last speech, in whole windows: all of it, if none was heard yet."""
        return self._scanned - self._speech_end

    def push(self, samples: Floats) -> Floats:
        """Take sound ``[N]``, give back what is certain to stay ``[M]``, ``M >= 0``."""
        self._held = np.concatenate((self._held, samples))
        whole = (self._held_from + len(self._held) - self._scanned) // self._window * self._window
        self._judge(self._scanned + whole)
        if self.start_sample is None:
            # Only the pre-roll of speech that is still to come can be needed.
            self._release(max(self._held_from, self._scanned - self._pre_roll))
            return np.zeros(0, np.float32)
        # The last samples wait for the fade that they may get.
        available = self._held_from + len(self._held)
        return self._release(min(available, self._speech_end + self._post_roll) - self._fade)

    def finish(self, keep_until_sample: int = 0) -> Floats:
        """The rest ``[M]``, faded out. ``keep_until_sample`` (input position) is kept even where it is quiet."""
        available = self._held_from + len(self._held)
        self._judge(available)
        if self.start_sample is None:
            return self._release(available)[:0]
        end = min(available, max(self._speech_end + self._post_roll, keep_until_sample))
        rest = self._release(end)
        self._release(available)
        return fade_out(rest, self._fade)

    def _judge(self, until: int) -> None:
        loud = np.flatnonzero(
            _is_loud(self._held[self._scanned - self._held_from : until - self._held_from], self._window, self._options)
        )
        if len(loud):
            if self.start_sample is None:
                start = self._scanned + int(loud[0]) * self._window - self._pre_roll
                self.start_sample = max(0, start)
                self._release(self.start_sample)
                ramp = fade_curve(self._fade)[: len(self._held)]
                self._held[: len(ramp)] *= ramp
            self._speech_end = min(until, self._scanned + (int(loud[-1]) + 1) * self._window)
        self._scanned = until

    def _release(self, until: int) -> Floats:
        """Take the held input before position ``until`` out of the buffer."""
        count = min(max(0, until - self._held_from), len(self._held))
        out, self._held = self._held[:count], self._held[count:]
        self._held_from += count
        return out
