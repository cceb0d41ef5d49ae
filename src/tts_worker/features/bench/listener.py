"""A listener of a measurement: plays what arrives at 24 kHz, and notes when it becomes audible and when it runs dry."""

from __future__ import annotations

import math

import numpy as np

from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

AUDIBLE = 104
"""Samples above it, of 32768, are audible: -50 dBFS."""

UNDERRUN_S = 0.005
"""Audio that is later than this in all is an underrun; every output of a machine holds more."""


def first_audible(pcm: bytes) -> int | None:
    """Return the position of the first audible sample of s16le audio, or None."""
    audible = np.flatnonzero(np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > AUDIBLE)
    return int(audible[0]) if len(audible) else None


class Listener:
    """Plays one utterance in real time, from its first sample on.

    Args:
        due_s: When the utterance was due, by the clock of the arrivals; a late request counts from here, too.

    Attributes:
        first_audible_s: From ``due_s`` until the first audible sample is played; None before that.
        underruns_s: Length of each underrun after it. A gap before anything is audible delays that instead.
        ends_s: When all audio so far is played; minus infinity without any.
        audio_s: Length of the audio so far.
    """

    def __init__(self, due_s: float) -> None:
        self.first_audible_s: float | None = None
        self.underruns_s: list[float] = []
        self.ends_s = -math.inf
        self.audio_s = 0.0
        self._due_s = due_s
        self._rest = b""  # half a sample: a part of an HTTP answer may end anywhere

    def receive(self, pcm: bytes, at_s: float) -> None:
        """Take s16le audio that arrived at ``at_s``."""
        pcm = self._rest + pcm
        size = len(pcm) - len(pcm) % BYTES_PER_SAMPLE
        pcm, self._rest = pcm[:size], pcm[size:]
        if not pcm:
            return
        begins_s = max(self.ends_s, at_s)
        if self.first_audible_s is not None:
            if at_s > self.ends_s + UNDERRUN_S:
                self.underruns_s.append(at_s - self.ends_s)
            else:
                begins_s = self.ends_s  # the output bridges it, and holds so much less for the next parts
        elif (position := first_audible(pcm)) is not None:
            self.first_audible_s = begins_s + position / SAMPLE_RATE_HZ - self._due_s
        seconds = len(pcm) / BYTES_PER_SAMPLE / SAMPLE_RATE_HZ
        self.ends_s = begins_s + seconds
        self.audio_s += seconds
