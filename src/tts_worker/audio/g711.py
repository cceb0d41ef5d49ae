"""Telephone companding from 16-bit linear to 8-bit logarithmic samples (ITU-T G.711)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]

MULAW_SILENCE = b"\xff"
"""The mu-law code of zero."""


def encode_mulaw(pcm: bytes) -> bytes:
    """Encode s16le as mu-law, one byte per sample."""
    codes: Codes = _mulaw_table()[np.frombuffer(pcm, "<u2")]
    return codes.tobytes()


def encode_alaw(pcm: bytes) -> bytes:
    """Encode s16le as A-law, one byte per sample."""
    codes: Codes = _alaw_table()[np.frombuffer(pcm, "<u2")]
    return codes.tobytes()


def _all_values() -> NDArray[np.int32]:
    """The signed values of all 16-bit patterns, in the order of their unsigned values."""
    return np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)


@lru_cache(maxsize=1)
def _mulaw_table() -> Codes:
    """G.711 table 2: 14-bit magnitude plus a bias of 33; three exponent and four mantissa bits, all inverted."""
    value = _all_values()
    magnitude = np.minimum(np.abs(value) >> 2, 8158) + 33
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 5
    mantissa = (magnitude >> (exponent + 1)) & 0x0F
    sign = np.where(value < 0, 0x80, 0)
    return _table(~(sign | exponent << 4 | mantissa))


@lru_cache(maxsize=1)
def _alaw_table() -> Codes:
    """G.711 table 1: 13-bit magnitude, linear in the two lowest segments; every other bit inverted."""
    value = _all_values()
    magnitude = np.where(value < 0, ~value, value) >> 3  # one's complement: -1 gets the code next to 0
    exponent = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
    mantissa = (magnitude >> np.maximum(exponent, 1)) & 0x0F
    sign = np.where(value < 0, 0, 0x80)
    return _table((sign | exponent << 4 | mantissa) ^ 0x55)


def _table(codes: NDArray[np.int32]) -> Codes:
    table: Codes = (codes & 0xFF).astype(np.uint8)
    table.flags.writeable = False
    return table
