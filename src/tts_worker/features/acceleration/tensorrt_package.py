"""Imports the package ``tensorrt``, if it is one that the engine can use. Needs no torch."""

from __future__ import annotations

import importlib
from typing import Any

from tts_worker.errors import BackendUnavailable

OLDEST_TENSORRT = (10, 3)  # as in the extra "tensorrt"


def import_tensorrt() -> Any:
    """Import TensorRT.

    Raises:
        BackendUnavailable: It is not installed, cannot be imported or is too old.
    """
    try:
        trt = importlib.import_module("tensorrt")
        version = str(trt.__version__)
    except (ImportError, OSError, AttributeError) as error:  # OSError: a shared library is missing
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorrt":
            raise BackendUnavailable("not installed") from None
        raise BackendUnavailable(f"cannot be imported: {error!s:.200}") from None
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TENSORRT:
        raise BackendUnavailable(f"{version} is too old, needed: {'.'.join(map(str, OLDEST_TENSORRT))} or later")
    return trt
