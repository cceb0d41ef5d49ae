"""Strict reader and writer of safetensors headers: 8 bytes of length, then JSON, then the raw tensors.

Sizes, names, ranges and overlaps are checked; tensor data are not read. Format:
https://github.com/huggingface/safetensors (README, "Format").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from tts_worker.errors import BundleError

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 100_000
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,512}")


@dataclass(frozen=True)
class Entry:
    """A tensor in bytes ``[start, end)`` of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    entries: dict[str, Entry]
    metadata: dict[str, str]


def read_header(file: BinaryIO, size_bytes: int, source: str) -> Header:
    """Read and check the header.

    Args:
        file: The file at its beginning.
        size_bytes: Size of the whole file.
        source: File name for error messages.

    Raises:
        BundleError: The file is incomplete or malformed.
    """

    def fail(problem: str) -> NoReturn:
        raise BundleError(f"{source}: {problem}")

    length = int.from_bytes(file.read(8), "little")
    if size_bytes < 10 or not 2 <= length <= size_bytes - 8:
        fail("is not a safetensors file, or is truncated in its header")
    if length > MAX_HEADER_BYTES:
        fail(f"has a header of {length} bytes; more than {MAX_HEADER_BYTES} are not accepted")
    try:
        raw = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):
        fail("has a header that is not valid JSON")
    if not isinstance(raw, dict) or len(raw) > MAX_TENSORS:
        fail("has a header that is not a table of tensors")
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        fail("has metadata that are not strings")
    data_start = 8 + length
    entries = {name: _entry(name, value, data_start, fail) for name, value in raw.items()}
    at = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != at:
            fail(f"has a gap or an overlap before {name[:80]!r}")
        at = entry.end
    if at != size_bytes:
        fail(f"has {size_bytes} bytes where its header describes {at}; it is truncated or has extra data")
    return Header(entries, metadata)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _entry(name: str, value: Any, data_start: int, fail: Any) -> Entry:
    if not _NAME.fullmatch(name):
        fail("has a tensor with an invalid name")
    try:
        dtype, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
    except (TypeError, KeyError, ValueError):
        fail(f"does not describe the tensor {name[:80]!r}")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        fail(f"has the tensor {name[:80]!r} in an unsupported number format")
    numbers = [*shape, start, end] if isinstance(shape, list) and len(shape) <= 8 else [-1]
    if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 1 << 48 for n in numbers):
        fail(f"has the tensor {name[:80]!r} with an invalid shape or offset")
    size = ITEM_BYTES[dtype]
    for n in shape:
        size *= n
    if end - start != size:
        fail(f"has the tensor {name[:80]!r} with a shape that does not match its data")
    return Entry(dtype, tuple(shape), data_start + start, data_start + end)


def encode_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Encode the header, padded so that the data begin at a multiple of 8 bytes.

    Args:
        tensors: ``name -> (dtype, shape)``, in the order of the data.
        metadata: String metadata.
    """
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = ITEM_BYTES[dtype]
        for n in shape:
            size *= n
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
