"""Tensors on disk: safetensors (own reader and writer, memory-mapped) and PyTorch files without their pickled code.

Owns the two formats and what can be wrong with a file as a file. It must not know which tensors a model wants, nor
which engine asks. Every problem is a BundleError that names the file.
"""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tts_worker.errors import BundleError
from tts_worker.voicepack.safetensors_header import encode_header, read_header

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a ``.safetensors`` or ``.pt`` file, on the CPU, backed by the file where the format allows.

    Raises BundleError: missing, cut off, not of its format, holding code or anything but tensors by name.
    """
    if path.suffix == ".safetensors":
        return read_safetensors(path)[0]
    loaded = read_pickled(path)
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise BundleError(f"{path}: holds something else than tensors by name; expected a state dict")
    if not all(isinstance(key, str) for key in loaded):
        raise BundleError(f"{path}: has keys that are not texts; expected a state dict")
    return {key: value.detach() for key, value in loaded.items()}


def read_pickled(path: Path) -> Any:
    """What ``torch.save`` wrote, as far as it is tensors and plain containers. Code in the file is refused, not run."""
    _must_be_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice is for whoever wrote the file
            # mmap works on the zip format only, which is what torch has written since 1.6.
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
            _must_be_dense(loaded, path)
            return loaded
    except BundleError:
        raise
    except pickle.UnpicklingError:
        raise BundleError(
            f"{path}: holds code or objects that are not tensors, or is not a PyTorch file; it was not run. "
            "Only load weights from where you trust, or get the file as .safetensors"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # torch raises whatever its zip and pickle readers stumble over
        raise BundleError(f"{path}: cannot be read ({type(error).__name__}); it is cut off or damaged") from None


def _must_be_dense(loaded: object, path: Path) -> None:
    """Refuse a tensor that claims more values than the file holds: stride 0 makes gigabytes of four bytes, and the
    first copy of it takes them. Containers may share parts, so each is looked at once."""
    ahead = [loaded]
    seen = set[int]()
    while ahead:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            ahead += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            ahead += one
        elif isinstance(one, Tensor):
            if one.layout is not torch.strided or one.is_quantized:
                raise BundleError(f"{path}: holds a tensor that is sparse or quantized; expected plain numbers")
            if one.numel() * one.element_size() > one.untyped_storage().nbytes():
                raise BundleError(f"{path}: holds a tensor of shape {tuple(one.shape)} that its data do not fill")


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, memory-mapped copy-on-write. Raises BundleError."""
    _must_be_file(path)
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header = read_header(file, size_bytes, str(path))
    if size_bytes == 0 or not header.entries:
        return {}, header.metadata
    data = torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="c"))
    tensors = {}
    for name, entry in header.entries.items():
        piece = data[entry.start : entry.end]
        dtype = DTYPES[entry.dtype]
        if entry.start % dtype.itemsize:
            piece = piece.clone()  # a foreign writer did not align it
        tensors[name] = piece.view(dtype).reshape(entry.shape)
    return tensors, header.metadata


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write ``tensors`` so that either the whole file appears or nothing does. Bytes depend on the arguments alone."""
    ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
    header = encode_header({name: (NAMES[t.dtype], tuple(t.shape)) for name, t in ordered.items()}, metadata)
    write_atomically(path, (header, *map(tensor_bytes, ordered.values())))


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The raw little-endian bytes of a CPU tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def write_atomically(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Raises BundleError if the disk refuses; nothing half-written stays under the name."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BundleError(f"{path}: cannot be written ({error.strerror})") from None


def finite_range(tensor: Tensor) -> tuple[float, float]:
    """Smallest and largest value; NaN where there is a NaN. One pass, no copy."""
    if not tensor.numel():
        return 0.0, 0.0
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def _must_be_file(path: Path) -> None:
    if not path.is_file():
        raise BundleError(f"{path}: is missing")
