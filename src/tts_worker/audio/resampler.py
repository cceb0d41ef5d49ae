"""Streaming sample-rate conversion of mono s16le between 8 and 48 kHz with a polyphase windowed-sinc filter.

General resampling libraries work in blocks, which delays the first audio of a telephone call by 40 to 80 ms. This one
looks ahead by exactly 48 samples of the lower rate (2 ms at 24 kHz, 6 ms at 8 kHz).
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
"""Accepted rates are multiples of this (all common rates are), which bounds the size of the filter table."""

_LOBES = 48  # zero crossings on either side, at the lower of the two rates
_KAISER_BETA = 8.0  # 80 dB stop-band attenuation, below 16-bit quantization noise
_MAX_STRIDED_PHASES = 8
_MIN_STRIDED_OUTPUTS = 16  # outputs of one phase from which the strided way is faster for more phases, too
_TRANSITION = 5.1 / _LOBES  # transition width as a share of the lower Nyquist frequency (Kaiser's design formula)


@lru_cache(maxsize=16)
def _filters(up: int, down: int) -> Floats:
    """Build the read-only filter table ``[up, taps] float32``.

    Row p holds the weights of the input around an output that lies p/up after an input sample. The filter is a
    Kaiser-windowed sinc; its stop band begins at the lower Nyquist frequency, which prevents aliasing.
    Source: Kaiser's window method; polyphase decomposition as in Crochiere and Rabiner, Multirate Digital Signal
    Processing.
    """
    scale = min(1.0, up / down)  # lower rate / source rate
    half = _half_taps(up, down)
    # Distance in source samples between tap k and the output: taps cover (-half, half] around the output.
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


def check_rate(rate_hz: int, name: str = "sample_rate") -> None:
    """Check that a rate is a multiple of 25 Hz between 8 and 48 kHz. Raises InvalidRequest."""
    if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ or rate_hz % RATE_STEP_HZ:
        raise InvalidRequest(
            f"{name} must be {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz in steps of {RATE_STEP_HZ}, not {rate_hz}"
        )


class Resampler:
    """Converts one stream; the concatenated output does not depend on how the input is divided into calls.

    N samples become ``ceil(N * target_hz / source_hz)``; the first output is aligned with the first input. Equal rates
    pass the bytes through unchanged.

    Raises:
        InvalidRequest: A rate is not a multiple of 25 Hz between 8 and 48 kHz.
    """

    def __init__(self, source_hz: int, target_hz: int) -> None:
        check_rate(source_hz, "sample rate")
        check_rate(target_hz, "sample rate")
        common = gcd(source_hz, target_hz)
        self._up = target_hz // common
        self._down = source_hz // common
        self._reset()

    def _reset(self) -> None:
        # Half a filter of silence precedes the first sample.
        self._buffer_start = 1 - _half_taps(self._up, self._down)  # position of the buffer's first sample in the input
        self._buffer = np.zeros(-self._buffer_start, np.float32)
        self._output_samples = 0

    @property
    def delay_samples(self) -> int:
        """Look-ahead of the filter in source samples."""
        return 0 if self._up == self._down else _half_taps(self._up, self._down)

    def process(self, pcm: bytes) -> bytes:
        """Convert the next s16le input. Output within the filter's look-ahead follows with a later call."""
        if self._up == self._down:
            return pcm
        return self._convert(np.frombuffer(pcm, "<i2").astype(np.float32))  # integer scale: no conversion to [-1, 1)

    def flush(self) -> bytes:
        """End the stream and return its remaining output. The next call starts a new stream."""
        if self._up == self._down:
            return b""
        input_samples = self._buffer_start + len(self._buffer)
        total_samples = -(-input_samples * self._up // self._down)
        tail = self._convert(np.zeros(self.delay_samples, np.float32))
        tail = tail[: len(tail) - 2 * (self._output_samples - total_samples)]
        self._reset()
        return tail

    def _convert(self, samples: Floats) -> bytes:
        self._buffer = np.concatenate((self._buffer, samples))
        table = _filters(self._up, self._down)
        taps = table.shape[1]
        # Output n lies at n * down / up in the input and needs the taps // 2 samples after that position.
        available = self._buffer_start + len(self._buffer) - taps // 2
        done = self._output_samples
        end = max(done, -(-available * self._up // self._down)) if available > 0 else done
        if end == done:
            return b""
        out = self._upsample(table, end) if self._down == 1 else self._interpolate(table, end)
        self._output_samples = end
        first_needed = end * self._down // self._up + 1 - taps // 2
        self._buffer = self._buffer[first_needed - self._buffer_start :]
        self._buffer_start = first_needed
        np.rint(out, out=out)
        np.minimum(out, FULL_SCALE - 1, out=out)
        np.maximum(out, -FULL_SCALE, out=out)
        return out.astype("<i2").tobytes()

    def _upsample(self, table: Floats, end: int) -> Floats:
        """Compute outputs up to ``end`` for an integer ratio such as 24 to 48 kHz.

        Every phase is a plain correlation, at half the cost of the general case.
        """
        taps = table.shape[1]
        count = (end - self._output_samples) // self._up
        first = self._output_samples // self._up + 1 - taps // 2 - self._buffer_start
        source = self._buffer[first : first + count + taps - 1]
        out = np.empty((count, self._up), np.float32)
        for phase in range(self._up):
            out[:, phase] = np.correlate(source, table[phase], "valid")
        return out.ravel()

    def _interpolate(self, table: Floats, end: int) -> Floats:
        """Compute outputs up to ``end`` for any ratio."""
        taps = table.shape[1]
        windows = np.lib.stride_tricks.sliding_window_view(self._buffer, taps)
        position = np.arange(self._output_samples, end) * self._down
        phase = position % self._up
        rows = position // self._up + (1 - taps // 2) - self._buffer_start
        if self._up <= _MAX_STRIDED_PHASES or len(rows) >= _MIN_STRIDED_OUTPUTS * self._up:
            # Outputs of one phase are evenly spaced: strided views avoid copies, 15 times faster for 48 kHz.
            out = np.empty(end - self._output_samples, np.float32)
            for first in range(min(self._up, len(out))):
                strided = windows[rows[first] :: self._down][: len(out[first :: self._up])]
                out[first :: self._up] = np.einsum("nk,k->n", strided, table[phase[first]])
        else:
            out = np.einsum("nk,nk->n", windows[rows], table[phase])
        return out
