"""The code book."""

from __future__ import annotations

import numpy as np

from tools.train.codes import CodeBook

UNITS = (" ", "a", "b")
HALVES = np.array([1, 1, 1, 2, 2, 2, 1, 1, 0, 0])
PITCH_HZ = np.array([100.0, 100.0, 100.0, 0.0, 0.0, 0.0, 200.0, 200.0, 0.0, 0.0])


def test_codes_are_pairs_of_units_with_a_level_of_pitch() -> None:
    book = CodeBook.train(UNITS, HALVES, PITCH_HZ, levels=2, limit=10)
    codes = book.encode(HALVES, PITCH_HZ)
    assert len(book) == len(set(codes.tolist())) == 5
    assert book.codes[codes].tolist() == [[1, 1, 1], [1, 2, 1], [2, 2, 0], [1, 1, 2], [0, 0, 0]]
    assert book.spoken(codes[:3]) == ["a", "b"]


def test_combination_without_a_code_becomes_the_most_similar() -> None:
    book = CodeBook.train(UNITS, HALVES, PITCH_HZ, levels=2, limit=10)
    (code,) = book.encode(np.array([2, 2]), np.array([210.0, 210.0]))  # the unit at another level
    assert book.codes[code].tolist() == [2, 2, 0]
    (code,) = book.encode(np.array([0, 2]), np.array([0.0, 0.0]))  # its second unit alone
    assert book.codes[code].tolist() == [2, 2, 0]


def test_units_of_other_data_are_renumbered() -> None:
    book = CodeBook.train(UNITS, HALVES, PITCH_HZ, levels=2, limit=10)
    assert book.numbers(("b", " ", "a")).tolist() == [2, 0, 1]
