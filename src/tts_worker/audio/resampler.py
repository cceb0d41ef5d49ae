"""Sample-rate conversion at the edge of the worker, in a stream, sample by sample.

Owns the conversion of s16le mono between 8 and 48 kHz: a polyphase windowed-sinc filter. General resampling libraries
work in blocks, which keeps the first sound of a telephone call back by 40 to 80 ms; this one looks ahead by 48 samples
of the lower rate (2 ms at 24 kHz, 6 ms at 8 kHz) and not a sample more. Knows no container and no clock.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np

from tts_worker.audio.pcm import FULL_SCALE, Floats
from tts_worker.errors import InvalidRequest

MIN_RATE_HZ = 8_000
MAX_RATE_HZ = 48_000
RATE_STEP_HZ = 25
"""Rates are multiples of this (all in use are), which bounds the filter table."""

_LOBES = 48  # zero crossings on either side, at the lower of the two rates
_KAISER_BETA = 8.0  # 80 dB in the stop band, below the noise of 16 bits
_FEW_PHASES = 8
_TRANSITION = 5.1 / _LOBES  # its width as a share of the lower Nyquist frequency (Kaiser's design formula)


@lru_cache(maxsize=16)
def _filters(up: int, down: int) -> Floats:
    """Read-only table ``[up, taps]``: row p weighs the input around an output that lies p/up after an input sample.

    Kaiser-windowed sinc whose stop band begins at the lower Nyquist frequency, so that nothing audible folds back.
    Source: Kaiser's window method; polyphase decomposition as in Crochiere and Rabiner, Multirate Digital Signal
    Processing.
    """
    scale = min(1.0, up / down)  # lower rate / source rate
    half = _half_taps(up, down)
    # Distance, in source samples, of tap k from the output: taps cover (-half, half] around it.
    taps = np.arange(1 - half, half + 1, dtype=np.float64)
    distance = taps[None, :] - np.arange(up, dtype=np.float64)[:, None] / up
    cutoff = scale * (1 - _TRANSITION / 2)
    inside = np.clip(1 - (distance / half) ** 2, 0.0, None)
    window = np.i0(_KAISER_BETA * np.sqrt(inside)) / np.i0(_KAISER_BETA)
    table: Floats = (cutoff * np.sinc(cutoff * distance) * window).astype(np.float32)
    table.flags.writeable = False
    return table


def _half_taps(up: int, down: int) -> int:
    return -(-_LOBES * max(up, down) // up)


class Resampler:
    """One stream from ``source_hz`` to ``target_hz``; the output joined does not depend on how the input was cut.

    N samples become ``ceil(N * target_hz / source_hz)``, the first at the time of the first. Raises InvalidRequest for
    a rate that is not a multiple of 25 from 8 to 48 kHz. Equal rates pass the bytes through untouched.
    """

    def __init__(self, source_hz: int, target_hz: int) -> None:
        for rate_hz in (source_hz, target_hz):
            if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ or rate_hz % RATE_STEP_HZ:
                raise InvalidRequest(
                    f"sample rate must be {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz in steps of {RATE_STEP_HZ}, not {rate_hz}"
                )
        self.source_hz = source_hz
        self.target_hz = target_hz
        common = gcd(source_hz, target_hz)
        self._up = target_hz // common
        self._down = source_hz // common
        self._reset()

    def _reset(self) -> None:
        # The input from position self._held_from on; half a filter of silence lies before the first sample.
        self._held_from = 1 - _half_taps(self._up, self._down)
        self._held = np.zeros(-self._held_from, np.float32)
        self._made = 0  # output samples so far

    @property
    def delay_samples(self) -> int:
        """Source samples that must follow an output before it can be made."""
        return 0 if self._up == self._down else _half_taps(self._up, self._down)

    def process(self, pcm: bytes) -> bytes:
        """Convert the next piece (s16le). What the filter still looks ahead for comes with a later call."""
        if self._up == self._down:
            return pcm
        return self._convert(np.frombuffer(pcm, "<i2").astype(np.float32))  # whole numbers: nothing to scale

    def flush(self) -> bytes:
        """The end of the stream. Afterwards the resampler begins a new one."""
        if self._up == self._down:
            return b""
        received = self._held_from + len(self._held)
        total = -(-received * self._up // self._down)
        rest = self._convert(np.zeros(self.delay_samples, np.float32))
        rest = rest[: len(rest) - 2 * (self._made - total)]
        self._reset()
        return rest

    def _convert(self, samples: Floats) -> bytes:
        self._held = np.concatenate((self._held, samples))
        table = _filters(self._up, self._down)
        taps = table.shape[1]
        # Output n lies at n * down / up and needs the taps // 2 samples after it.
        available = self._held_from + len(self._held) - taps // 2
        until = max(self._made, -(-available * self._up // self._down)) if available > 0 else self._made
        if until == self._made:
            return b""
        out = self._multiply(table, until) if self._down == 1 else self._interpolate(table, until)
        self._made = until
        first_needed = until * self._down // self._up + 1 - taps // 2
        self._held = self._held[first_needed - self._held_from :]
        self._held_from = first_needed
        np.rint(out, out=out)
        np.minimum(out, FULL_SCALE - 1, out=out)
        np.maximum(out, -FULL_SCALE, out=out)
        return out.astype("<i2").tobytes()

    def _multiply(self, table: Floats, until: int) -> Floats:
        """A whole multiple of the rate, as 24 to 48 kHz: every phase is a plain correlation, at half the cost."""
        taps = table.shape[1]
        frames = (until - self._made) // self._up
        first = self._made // self._up + 1 - taps // 2 - self._held_from
        source = self._held[first : first + frames + taps - 1]
        out = np.empty((frames, self._up), np.float32)
        for phase in range(self._up):
            out[:, phase] = np.correlate(source, table[phase], "valid")
        return out.ravel()

    def _interpolate(self, table: Floats, until: int) -> Floats:
        taps = table.shape[1]
        windows = np.lib.stride_tricks.sliding_window_view(self._held, taps)
        position = np.arange(self._made, until) * self._down
        phase = position % self._up
        rows = position // self._up + (1 - taps // 2) - self._held_from
        if self._up <= _FEW_PHASES:
            # Outputs of one phase are evenly spaced: views instead of copies, 15 times faster for 48 kHz.
            out = np.empty(until - self._made, np.float32)
            for first in range(min(self._up, len(out))):
                evenly = windows[rows[first] :: self._down][: len(out[first :: self._up])]
                out[first :: self._up] = np.einsum("nk,k->n", evenly, table[phase[first]])
        else:
            out = np.einsum("nk,nk->n", windows[rows], table[phase])
        return out
