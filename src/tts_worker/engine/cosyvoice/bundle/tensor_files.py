"""Tensor files: safetensors, memory-mapped, and PyTorch files without running pickled code.

Every problem with a file raises BundleError and names the file.
"""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tts_worker.errors import BundleError
from tts_worker.models.bundles.report import missing_content

PRECISION_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Number formats of weights by the name of their precision."""
_MAX_EXPANSION = 2
"""Size of the content of a zip file, as a multiple of the size of the file."""

INT8_SCALE = ".int8_scale"
"""Name suffix of the scales ``[rows]`` of a matrix that is stored as int8."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a ``.safetensors`` or ``.pt`` file to the CPU, memory-mapped where the format allows.

    Raises:
        BundleError: The file is missing, truncated, malformed, or contains code or anything but named tensors.
    """
    if path.suffix == ".safetensors":
        return _expand_int8(read_safetensors(path)[0], path)
    loaded = read_pickled(path)
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise BundleError(f"{path}: contains something other than named tensors; expected a state dict")
    if not all(isinstance(key, str) for key in loaded):
        raise BundleError(f"{path}: has keys that are not strings; expected a state dict")
    return {key: value.detach() for key, value in loaded.items()}


def read_pickled(path: Path) -> Any:
    """Read tensors and plain containers written by ``torch.save``. Code in the file is refused, not run."""
    _must_be_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings address the author of the file
            if is_zip := zipfile.is_zipfile(path):
                _must_not_expand(path)
            # mmap needs the zip format, which torch writes since 1.6.
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
            _must_be_dense(loaded, path)
            return loaded
    except BundleError:
        raise
    except pickle.UnpicklingError:
        raise BundleError(
            f"{path}: contains code or objects that are not tensors, or is not a PyTorch file; it was not run. "
            "Load weights from a trusted source, or get the file as .safetensors"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # torch's zip and pickle readers raise many types
        raise BundleError(f"{path}: cannot be read ({type(error).__name__}); it is truncated or damaged") from None


def _must_not_expand(path: Path) -> None:
    """Refuse a zip file whose content is larger than itself: torch stores tensors without compression."""
    with zipfile.ZipFile(path) as archive:
        content_bytes = sum(entry.file_size for entry in archive.infolist())
    if content_bytes > _MAX_EXPANSION * path.stat().st_size:
        raise BundleError(f"{path}: is compressed and would take {content_bytes / 1e6:.0f} MB; it was not read")


def _must_be_dense(loaded: object, path: Path) -> None:
    """Refuse a tensor with more values than its storage.

    With stride 0 four bytes become gigabytes at the first copy. Containers may share elements, so each is visited once.
    """
    pending = [loaded]
    visited = set[int]()
    while pending:
        value = pending.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
        elif isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_quantized:
                raise BundleError(f"{path}: contains a sparse or quantized tensor; expected dense numbers")
            if value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise BundleError(f"{path}: contains a tensor of shape {tuple(value.shape)} with too little data")


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata of a safetensors file, memory-mapped copy-on-write. Raises BundleError."""
    _must_be_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path}: is not a complete safetensors file ({error})") from None


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file through a temporary name, so that it is complete or missing.

    The bytes depend on the arguments only.

    Raises:
        BundleError: The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    storages = set[int]()
    separate = {}
    for name, tensor in tensors.items():  # the format knows no tensors that share memory
        shared = tensor.untyped_storage().data_ptr() in storages
        storages.add(tensor.untyped_storage().data_ptr())
        separate[name] = tensor.detach().cpu().clone() if shared else tensor.detach().cpu().contiguous()
    try:
        save_file(separate, partial, dict(metadata))
        partial.replace(path)
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise BundleError(f"{path}: cannot be written ({error})") from None


def _expand_int8(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    for name in [name for name in tensors if name.endswith(INT8_SCALE)]:
        scale = tensors.pop(name)
        matrix = tensors.get(name.removesuffix(INT8_SCALE))
        if matrix is None or matrix.dtype != torch.int8 or matrix.shape[:1] != scale.shape:
            raise BundleError(f"{path}: {name[:120]!r} does not belong to an int8 matrix of as many rows")
        tensors[name.removesuffix(INT8_SCALE)] = matrix.float() * scale.view(-1, *[1] * (matrix.dim() - 1))
    return tensors


def finite_range(tensor: Tensor) -> tuple[float, float]:
    """Smallest and largest value, NaN if any value is NaN. One pass, no copy."""
    if not tensor.numel():
        return 0.0, 0.0
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def _must_be_file(path: Path) -> None:
    if problem := missing_content(path):
        raise BundleError(f"{path}: {problem}")
