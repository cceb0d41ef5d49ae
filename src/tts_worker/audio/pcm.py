"""Conversion between float samples and signed 16-bit little-endian mono PCM, with clipping, fades and silence.

Float samples are in [-1, 1) and full scale is 32768, so s16le -> float -> s16le returns the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tts_worker.types import BYTES_PER_SAMPLE

Floats = NDArray[np.float32]

FULL_SCALE = 32_768


def samples_of_ms(duration_ms: float, sample_rate_hz: int) -> int:
    """The number of samples in ``duration_ms``, rounded to the nearest integer."""
    return round(duration_ms * sample_rate_hz / 1000)


def to_pcm(samples: Floats) -> bytes:
    """Convert float samples ``[N]`` to s16le.

    Values out of range are clipped, so +1.0 never wraps to a full-scale click; NaN becomes silence.
    """
    scaled: Floats = np.minimum(samples, 1.0, dtype=np.float32)  # clipped before scaling: huge values would overflow
    np.maximum(scaled, -1.0, out=scaled)
    scaled *= FULL_SCALE
    np.rint(scaled, out=scaled)
    np.minimum(scaled, FULL_SCALE - 1, out=scaled)
    scaled[np.isnan(scaled)] = 0.0  # np.clip and np.nan_to_num take four times as long
    return scaled.astype("<i2").tobytes()


def to_float(pcm: bytes) -> Floats:
    """Convert s16le to float samples ``[N]`` in [-1, 1).

    Raises:
        ValueError: ``pcm`` ends with half a sample.
    """
    samples: Floats = np.frombuffer(pcm, "<i2").astype(np.float32)
    samples /= FULL_SCALE
    return samples


def silence(samples: int) -> bytes:
    """Digital silence as s16le."""
    return bytes(samples * BYTES_PER_SAMPLE)


def fade_curve(samples: int) -> Floats:
    """A rising raised-cosine curve ``[samples]``, strictly between 0 and 1, with no step in value or slope."""
    phase = (np.arange(samples, dtype=np.float32) + 0.5) * np.float32(np.pi / max(samples, 1))
    curve: Floats = (0.5 - 0.5 * np.cos(phase)).astype(np.float32)
    return curve


def fade_in(samples: Floats, fade_samples: int) -> Floats:
    """Return a copy of ``samples`` with the first ``fade_samples`` (at most all) faded in from silence."""
    return np.ascontiguousarray(fade_out(samples[::-1], fade_samples)[::-1])


def fade_out(samples: Floats, fade_samples: int) -> Floats:
    """Return a copy of ``samples`` with the last ``fade_samples`` (at most all) faded out to silence."""
    faded = np.array(samples, np.float32)
    count = min(fade_samples, len(faded))
    if count:
        faded[-count:] *= fade_curve(count)[::-1]
    return faded
