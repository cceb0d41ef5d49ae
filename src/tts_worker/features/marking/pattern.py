"""What the watermark says and where: 48 bits, coded and spread over a repeated pattern of cells.

A cell is one chip (``CHIP_MS``) of one band (``BAND_HZ``); the watermark raises or lowers its level. Three quarters of
the cells have signs that every detector knows; the others carry the deployment id and its checksum. The pattern is
public: all deployments share it, so that one detector finds them all.

Sources: direct-sequence spread spectrum over log magnitudes, Kirovski and Malvar, Spread-Spectrum Watermarking of Audio
Signals, IEEE Transactions on Signal Processing 51 (4), 2003; the code is the first-order Reed-Muller code of length 32,
decoded by the Hadamard transform (MacWilliams and Sloane, The Theory of Error-Correcting Codes, 1977, chapter 14).
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tts_worker.audio.pcm import Floats

CHIP_MS = 15
PERIOD_CHIPS = 137
"""A prime, so that few rhythms have this period (2.055 s)."""
BAND_HZ = (300, 200)
"""Lower edge of the lowest band, and the width of each."""
BANDS = 15
"""Up to 3300 Hz: what a telephone passes."""

_ID_BITS = 32
_CHECK_BITS = 16
_CODE_BITS = 32  # of a word
_WORD_BITS = 6  # of the message in it
_WORDS = (_ID_BITS + _CHECK_BITS) // _WORD_BITS
_CELLS_PER_BIT = 2
_DOUBTFUL_WORDS = 3  # chance gives one in 8192 patterns of noise an id
_SEED = b"tts-worker watermark 1"


def encode(deployment_id: int) -> Floats:
    """Return the signs of the code bits ``[256]`` of a deployment id (0 to ``settings.MAX_ID``)."""
    bits = _to_bits(deployment_id << _CHECK_BITS | _checksum(deployment_id))
    words = bits.reshape(_WORDS, _WORD_BITS)
    rows = words[:, 1:] @ (1 << np.arange(_WORD_BITS - 1))
    signs: Floats = (_hadamard()[rows] * (1 - 2 * words[:, :1])).astype(np.float32).ravel()
    return signs


def decode(evidence: Floats) -> int | None:
    """Return the deployment id that fits the evidence ``[256]`` for the code bits best; None without its checksum.

    If the checksum is wrong, the words that are least certain are read as what fits them second best.
    """
    scores = evidence.reshape(_WORDS, _CODE_BITS) @ _hadamard().T
    rows = np.argsort(-np.abs(scores), axis=1)[:, :2]
    best = np.take_along_axis(scores, rows, axis=1)
    margins = np.abs(best) @ np.array([1, -1])
    doubtful = np.argsort(margins)[:_DOUBTFUL_WORDS]
    readings = np.array(list(itertools.product((0, 1), repeat=_DOUBTFUL_WORDS)))
    for reading in readings[np.argsort(readings @ margins[doubtful], kind="stable")]:
        choice = np.zeros(_WORDS, np.intp)
        choice[doubtful] = reading
        value = 0
        for row, score in zip(rows[np.arange(_WORDS), choice], best[np.arange(_WORDS), choice], strict=True):
            for bit in (int(score < 0), *(int(row) >> bit & 1 for bit in range(_WORD_BITS - 1))):
                value = value << 1 | bit
        deployment_id, check = value >> _CHECK_BITS, value & (1 << _CHECK_BITS) - 1
        if check == _checksum(deployment_id):
            return deployment_id
    return None


@cache
def known_signs() -> Floats:
    """Return the signs ``[chips, bands]`` of the cells that every detector knows, 0 elsewhere."""
    signs: Floats = _cell_signs().copy()
    signs.ravel()[data_cells().ravel()] = 0
    return signs


@cache
def data_cells() -> NDArray[np.intp]:
    """Return the cells ``[256, 2]`` of each code bit, as indices of the flattened pattern."""
    order = np.argsort(np.frombuffer(_random_bytes(b"order", 8), "<u8"), kind="stable")
    return order[: _WORDS * _CODE_BITS * _CELLS_PER_BIT].reshape(-1, _CELLS_PER_BIT)


@cache
def data_signs() -> Floats:
    """Return the signs ``[256, 2]`` of the cells of each code bit when it is positive."""
    signs: Floats = _cell_signs().ravel()[data_cells()]
    return signs


def pattern(deployment_id: int) -> Floats:
    """Return the signs ``[chips, bands]`` of all cells."""
    signs: Floats = known_signs().copy()
    signs.ravel()[data_cells()] = data_signs() * encode(deployment_id)[:, None]
    return signs


@cache
def _cell_signs() -> Floats:
    bytes_ = np.frombuffer(_random_bytes(b"signs", 1), np.uint8).reshape(PERIOD_CHIPS, BANDS)
    signs: Floats = np.where(bytes_ & 1, np.float32(1), np.float32(-1))
    return signs


def _random_bytes(purpose: bytes, per_cell: int) -> bytes:
    """Return bytes that are the same in every release, unlike those of numpy's generators."""
    return hashlib.shake_256(_SEED + purpose).digest(PERIOD_CHIPS * BANDS * per_cell)


@cache
def _hadamard() -> Floats:
    matrix: Floats = np.ones((1, 1), np.float32)
    while len(matrix) < _CODE_BITS:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _checksum(deployment_id: int) -> int:
    return binascii.crc_hqx(deployment_id.to_bytes(4, "big"), 0xFFFF)


def _to_bits(value: int) -> NDArray[np.int64]:
    places = np.arange(_ID_BITS + _CHECK_BITS - 1, -1, -1)
    return np.array([value >> int(place) & 1 for place in places], np.int64)
