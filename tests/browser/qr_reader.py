"""Reads QR codes (ISO/IEC 18004, versions 1 to 6): written for the tests, so that it shares nothing with the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BLOCKS = {21: (16, 1), 25: (28, 1), 29: (44, 1), 33: (32, 2), 37: (43, 2), 41: (27, 4)}
"""Size -> data bytes of a block and number of blocks, with error correction M."""
_TOTAL = {21: 26, 25: 44, 29: 70, 33: 100, 37: 134, 41: 172}


def read(modules: Sequence[Sequence[bool]]) -> str:
    """Return the text of a code. Raises ValueError if it is damaged."""
    size = len(modules)
    mask = _mask(modules)
    bits = [modules[row][column] ^ mask(row, column) for row, column in _path(size)]
    words = [sum(bit << (7 - at) for at, bit in enumerate(bits[8 * i : 8 * i + 8])) for i in range(_TOTAL[size])]
    data_bytes, blocks = _BLOCKS[size]
    split = [words[block::blocks] for block in range(blocks)]
    for block in split:
        if any(_value(block, root) for root in range(len(block) - data_bytes)):
            raise ValueError("the error correction does not match")
    data = [byte for block in split for byte in block[:data_bytes]]
    stream = "".join(f"{byte:08b}" for byte in data)
    if stream[:4] != "0100":
        raise ValueError("not in byte mode")
    length = int(stream[4:12], 2)
    return bytes(int(stream[12 + 8 * i : 20 + 8 * i], 2) for i in range(length)).decode()


def _mask(modules: Sequence[Sequence[bool]]) -> Callable[[int, int], bool]:
    """Return which modules are inverted, by row and column."""
    column = [modules[row][8] for row in (0, 1, 2, 3, 4, 5, 7, 8)]
    line = [modules[8][at] for at in (7, 5, 4, 3, 2, 1, 0)]
    bits = sum(bit << at for at, bit in enumerate([*column, *line])) ^ 0x5412
    level, number = bits >> 13, bits >> 10 & 7
    if level != 0:
        raise ValueError("the error correction is not M")
    size = len(modules)
    copy = [modules[8][size - 1 - at] for at in range(8)] + [modules[size - 7 + at][8] for at in range(7)]
    if copy != [*column, *line]:
        raise ValueError("the copies of the format differ")
    return (
        lambda i, j: (i + j) % 2 == 0,
        lambda i, j: i % 2 == 0,
        lambda i, j: j % 3 == 0,
        lambda i, j: (i + j) % 3 == 0,
        lambda i, j: (i // 2 + j // 3) % 2 == 0,
        lambda i, j: i * j % 2 + i * j % 3 == 0,
        lambda i, j: (i * j % 2 + i * j % 3) % 2 == 0,
        lambda i, j: ((i + j) % 2 + i * j % 3) % 2 == 0,
    )[number]


def _path(size: int) -> list[tuple[int, int]]:
    """Return the positions of the data, in order."""
    columns = [*range(size - 1, 6, -2), *range(5, 0, -2)]
    path = []
    for turn, right in enumerate(columns):
        rows = range(size - 1, -1, -1) if turn % 2 == 0 else range(size)
        path += [(row, column) for row in rows for column in (right, right - 1)]
    return [(row, column) for row, column in path if not _is_pattern(size, row, column)]


def _is_pattern(size: int, row: int, column: int) -> bool:
    corner = (row < 9 and (column < 9 or column >= size - 8)) or (row >= size - 8 and column < 9)
    alignment = size > 21 and abs(row - size + 7) <= 2 and abs(column - size + 7) <= 2
    return corner or alignment or row == 6 or column == 6


def _value(block: Sequence[int], root: int) -> int:
    """The value of the block as a polynomial at 2^root in GF(256); 0 for an undamaged block."""
    point, value = 1, 0
    for _ in range(root):
        point = _double(point)
    for byte in block:
        product, factor = 0, point
        for bit in range(8):
            product ^= factor if value >> bit & 1 else 0
            factor = _double(factor)
        value = product ^ byte
    return value


def _double(value: int) -> int:
    return value << 1 ^ (0x11D if value & 0x80 else 0)
