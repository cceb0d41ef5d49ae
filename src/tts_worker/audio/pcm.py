"""Samples as bytes and back: the one place where float sound becomes signed 16-bit little-endian mono.

Owns clipping, fades and silence. Pure functions over arrays; knows no rate conversion, container, engine or clock.
Float samples are in [-1, 1); full scale is 32768, so that s16le -> float -> s16le gives the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tts_worker.types import BYTES_PER_SAMPLE

Floats = NDArray[np.float32]

FULL_SCALE = 32_768


def samples_of_ms(duration_ms: float, sample_rate_hz: int) -> int:
    """The number of samples in ``duration_ms``, rounded to the nearest."""
    return round(duration_ms * sample_rate_hz / 1000)


def to_pcm(samples: Floats) -> bytes:
    """Float samples ``[N]`` as s16le. What is out of range is clipped, so that +1.0 never wraps to a full-scale click;
    not-a-number becomes silence."""
    scaled: Floats = np.minimum(samples, 1.0, dtype=np.float32)  # before scaling: huge values would overflow
    np.maximum(scaled, -1.0, out=scaled)
    scaled *= FULL_SCALE
    np.rint(scaled, out=scaled)
    np.minimum(scaled, FULL_SCALE - 1, out=scaled)
    scaled[np.isnan(scaled)] = 0.0  # np.clip and np.nan_to_num would do all this at four times the cost
    return scaled.astype("<i2").tobytes()


def to_float(pcm: bytes) -> Floats:
    """s16le as float samples ``[N]`` in [-1, 1). Raises ValueError for half a sample."""
    samples: Floats = np.frombuffer(pcm, "<i2").astype(np.float32)
    samples /= FULL_SCALE
    return samples


def silence(samples: int) -> bytes:
    """Digital silence of so many samples."""
    return bytes(samples * BYTES_PER_SAMPLE)


def fade_curve(samples: int) -> Floats:
    """A raised-cosine rise ``[samples]``, strictly between 0 and 1: neither its ends nor their slopes jump."""
    phase = (np.arange(samples, dtype=np.float32) + 0.5) * np.float32(np.pi / max(samples, 1))
    curve: Floats = (0.5 - 0.5 * np.cos(phase)).astype(np.float32)
    return curve


def fade_in(samples: Floats, fade_samples: int) -> Floats:
    """A copy of ``samples`` whose first ``fade_samples`` (at most all) rise from silence."""
    return np.ascontiguousarray(fade_out(samples[::-1], fade_samples)[::-1])


def fade_out(samples: Floats, fade_samples: int) -> Floats:
    """A copy of ``samples`` whose last ``fade_samples`` (at most all) sink to silence."""
    faded = np.array(samples, np.float32)
    count = min(fade_samples, len(faded))
    if count:
        faded[-count:] *= fade_curve(count)[::-1]
    return faded
