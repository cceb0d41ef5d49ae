"""The code book."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tools.train.codes import CodeBook

UNITS = (" ", "a", "b")
RUNS = ((5, 1, 1, 100.0), (1, 1, 2, 100.0), (5, 2, 2, 0.0), (6, 1, 1, 200.0), (1, 0, 0, 0.0))  # tokens, units, pitch
HALVES = np.concatenate([np.tile(run[1:3], run[0]) for run in RUNS]).astype(np.int64)
PITCH_HZ = np.repeat([run[3] for run in RUNS], [2 * run[0] for run in RUNS])


def test_codes_are_pairs_of_units_with_a_level_of_pitch() -> None:
    book = CodeBook.train(UNITS, HALVES, PITCH_HZ, levels=2, limit=10)
    codes = book.encode(HALVES, PITCH_HZ)
    assert len(book) == len(set(codes.tolist())) == 5
    parts = np.repeat([[1, 1, 1], [1, 2, 1], [2, 2, 0], [1, 1, 2], [0, 0, 0]], [5, 1, 5, 6, 1], axis=0)
    assert book.codes[codes].tolist() == parts.tolist()
    assert book.spoken(codes[:7]) == ["a", "b"]


def test_pitch_of_codes_is_smooth_and_near_that_of_speech(tmp_path: Path) -> None:
    CodeBook.train(UNITS, HALVES, PITCH_HZ, levels=2, limit=10).save(tmp_path / "codes.json")
    book = CodeBook.load(tmp_path / "codes.json")
    pitch_hz = book.pitch_of_half(book.encode(HALVES, PITCH_HZ), PITCH_HZ)
    assert ((pitch_hz > 0) == (PITCH_HZ > 0)).all()
    assert np.abs(np.log2(pitch_hz[pitch_hz > 0] / PITCH_HZ[PITCH_HZ > 0])).max() < 0.25
    assert np.unique(book.pitch_of_half(book.encode(HALVES, 0 * PITCH_HZ), 0 * PITCH_HZ)) == 0


def test_combination_without_a_code_becomes_the_most_similar() -> None:
    book = CodeBook.train(UNITS, HALVES, PITCH_HZ, levels=2, limit=10)
    (code,) = book.encode(np.array([2, 2]), np.array([210.0, 210.0]))  # the unit at another level
    assert book.codes[code].tolist() == [2, 2, 0]
    (code,) = book.encode(np.array([0, 2]), np.array([0.0, 0.0]))  # its second unit alone
    assert book.codes[code].tolist() == [2, 2, 0]


def test_units_of_other_data_are_renumbered() -> None:
    book = CodeBook.train(UNITS, HALVES, PITCH_HZ, levels=2, limit=10)
    assert book.numbers(("b", " ", "a")).tolist() == [2, 0, 1]
