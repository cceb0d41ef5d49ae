"""The code book: what a speech token of the trained voice means.

A code is the pair of units in both halves of a token, and the token's smoothed pitch as one of a few levels (0: not
voiced). The most frequent combinations have codes; others are replaced by the most similar one. The teacher speaks with
the pitch that the codes stand for (``pitch_of_half``), so that a small flow need not guess where the harmonics are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Pitch = npt.NDArray[np.floating]
Floats = npt.NDArray[np.float32]

_KERNEL = np.array([1, 2, 3, 2, 1]) / 9
"""Weights of five tokens: no further ahead than the flow looks."""


@dataclass(frozen=True)
class CodeBook:
    """Codes by number.

    Attributes:
        units: Symbols of the units.
        edges_hz: Limits between the levels of pitch.
        levels_hz: Pitch of each level.
        codes: ``[codes, 3]``: units of the first and second half, level of pitch.
    """

    units: tuple[str, ...]
    edges_hz: tuple[float, ...]
    levels_hz: tuple[float, ...]
    codes: Ids

    @classmethod
    def train(cls, units: tuple[str, ...], halves: Ids, pitch_hz: Pitch, levels: int, limit: int) -> CodeBook:
        """Choose the levels of pitch, which are equally frequent, and the most frequent codes.

        Args:
            units: Symbols of the units.
            halves: ``[2*N]`` units of the halves of ``N`` tokens.
            pitch_hz: ``[2*N]``, 0: not voiced.
            levels: Levels of pitch.
            limit: Number of codes, at most.
        """
        pitch = _token_pitch(pitch_hz)
        bounds = np.quantile(pitch[pitch > 0], np.arange(1, 2 * levels) / (2 * levels)).round(2).tolist()
        book = cls(units, tuple(bounds[1::2]), tuple(bounds[0::2]), np.zeros((0, 3), np.int64))
        keys, counts = np.unique(book._keys(halves, pitch_hz), return_counts=True)
        return replace(book, codes=book._parts(keys[np.lexsort((keys, -counts))[:limit]]))

    @classmethod
    def load(cls, path: Path) -> CodeBook:
        data = json.loads(path.read_text("utf-8"))
        codes = np.array(data["codes"], np.int64).reshape(-1, 3)
        return cls(tuple(data["units"]), tuple(data["edges_hz"]), tuple(data["levels_hz"]), codes)

    def save(self, path: Path) -> None:
        data = {
            "units": self.units,
            "edges_hz": self.edges_hz,
            "levels_hz": self.levels_hz,
            "codes": self.codes.tolist(),
        }
        path.write_text(json.dumps(data, ensure_ascii=False), "utf-8")

    def __len__(self) -> int:
        return len(self.codes)

    def encode(self, halves: Ids, pitch_hz: Pitch) -> Ids:
        """Codes ``[N]`` of tokens with units ``halves [2*N]`` and ``pitch_hz [2*N]``."""
        keys, index = np.unique(self._keys(halves, pitch_hz), return_inverse=True)
        known = {(int(a), int(b), int(level)): i for i, (a, b, level) in enumerate(self.codes)}
        nearest = [self._nearest(known, *map(int, parts)) for parts in self._parts(keys)]
        return np.array(nearest, np.int64)[index.reshape(-1)]

    def numbers(self, units: tuple[str, ...]) -> Ids:
        """Numbers in this book of ``units``, which number their symbols differently."""
        known = {unit: number for number, unit in enumerate(self.units)}
        return np.array([known.get(unit, 0) for unit in units], np.int64)

    def pitch_of_half(self, codes: Ids, pitch_hz: Pitch) -> Floats:
        """Pitch that a sentence of ``codes`` is spoken with, ``[2*N]``; voiced where ``pitch_hz [2*N]`` is."""
        level = self.codes[codes, 2]
        smooth = _smooth(np.concatenate([[0.0], self.levels_hz])[level])
        at = np.arange(len(pitch_hz)) / 2 - 0.25
        return np.where(pitch_hz > 0, np.interp(at, np.arange(len(codes)), smooth), 0).astype(np.float32)

    def spoken(self, codes: Ids) -> list[str]:
        """Sequence of units in ``codes``, each once."""
        halves = self.codes[codes, :2].reshape(-1)
        return [self.units[unit] for i, unit in enumerate(halves) if i == 0 or unit != halves[i - 1]]

    @property
    def _levels(self) -> int:
        return len(self.edges_hz) + 2

    def _keys(self, halves: Ids, pitch_hz: Pitch) -> Ids:
        """One number for the units and the level of each token: ``[N]``."""
        pitch = _token_pitch(pitch_hz)
        pitch = np.where(pitch > 0, _smooth(pitch), 0)
        level = np.where(pitch > 0, 1 + np.searchsorted(self.edges_hz, pitch), 0)
        return (halves[0::2] * len(self.units) + halves[1::2]) * self._levels + level

    def _parts(self, keys: Ids) -> Ids:
        """Inverse of ``_keys``: ``[N, 3]``."""
        pairs, level = np.divmod(keys, self._levels)
        first, second = np.divmod(pairs, len(self.units))
        return np.stack([first, second, level], axis=1)

    def _nearest(self, known: dict[tuple[int, int, int], int], first: int, second: int, level: int) -> int:
        levels = sorted(range(self._levels), key=lambda other: abs(other - level))
        for pair in ((first, second), (second, second), (first, first)):
            for other in levels:
                code = known.get((pair[0], pair[1], other))
                if code is not None:
                    return code
        return 0


def _token_pitch(pitch_hz: Pitch) -> npt.NDArray[np.float64]:
    """Mean pitch of the voiced halves of each token; 0 if none is voiced."""
    pairs = pitch_hz.reshape(-1, 2).astype(np.float64)
    mean: npt.NDArray[np.float64] = pairs.sum(1) / np.maximum((pairs > 0).sum(1), 1)
    return mean


def _smooth(pitch_hz: Pitch) -> npt.NDArray[np.float64]:
    """Smoothed pitch of each token, also where it is not voiced (0)."""
    voiced = np.flatnonzero(pitch_hz > 0)
    if not len(voiced):
        return np.zeros(len(pitch_hz))
    whole = np.interp(np.arange(len(pitch_hz)), voiced, np.log(pitch_hz[voiced]))
    reach = len(_KERNEL) // 2
    smooth: npt.NDArray[np.float64] = np.exp(np.convolve(np.pad(whole, reach, mode="edge"), _KERNEL, "valid"))
    return smooth
