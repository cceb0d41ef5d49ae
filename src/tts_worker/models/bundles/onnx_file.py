"""Reads the outermost level of ONNX files without the onnx package and without the weights inside.

An ONNX file is one protobuf message (https://onnx.ai/onnx/repo-docs/IR.html); only a few field numbers of
``onnx.proto`` are needed. The models are up to a gigabyte, of which a few bytes are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tts_worker.models.bundles.report import missing_content

MAX_FIELDS = 1000
MAX_METADATA_BYTES = 1 << 16
_GRAPH = 7
_METADATA = 14


def check_onnx(path: Path) -> str | None:
    """Check that the outermost message is complete and has a graph; reads a few bytes only.

    Returns:
        The problem, or None.
    """
    if problem := missing_content(path):
        return problem
    numbers = []
    try:
        with path.open("rb") as file:
            for number, _ in _fields(file, path.stat().st_size):
                numbers.append(number)
    except _Incomplete:
        return "is truncated" if numbers else "is not an ONNX file, or is truncated"
    except ValueError:
        return "is not an ONNX file"
    return None if _GRAPH in numbers else "is not an ONNX file, or is truncated"


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata properties of a model; empty if it has none or is not an ONNX file."""
    found = {}
    try:
        with path.open("rb") as file:
            for number, size in _fields(file, path.stat().st_size):
                if number == _METADATA and size <= MAX_METADATA_BYTES:
                    entry = {key: file.read(length) for key, length in _fields(file, file.tell() + size)}
                    found[entry.get(1, b"").decode()] = entry.get(2, b"").decode()
    except (OSError, ValueError):
        return {}
    return found


class _Incomplete(ValueError):
    """The file ends within a field."""


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int]]:
    """Yield number and size of each field up to ``end``, with the file at its content. Numbers have the size 0.

    Raises:
        ValueError: This is not a protobuf message with the types of fields that ONNX uses.
    """
    for _ in range(MAX_FIELDS):
        if file.tell() >= end:
            return
        tag = _read_varint(file)
        if tag is None or tag >> 3 == 0 or tag & 7 not in (0, 2):
            raise ValueError("not a protobuf message")
        size = _read_varint(file)
        if size is None:
            raise _Incomplete("the file ends within a number")
        if tag & 7 == 0:
            yield tag >> 3, 0
            continue
        start = file.tell()
        if start + size > end:
            raise _Incomplete("the file ends within a field")
        yield tag >> 3, size
        file.seek(start + size)


def _read_varint(file: BinaryIO) -> int | None:
    """Read a protobuf varint; None at the end of the file or if it is longer than 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None
