"""Execution providers of ONNX Runtime: which ones a session asks for. Needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tts_worker.errors import MissingExtra

TENSORRT = "TensorrtExecutionProvider"
CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"

Providers = list[tuple[str, dict[str, str]]]
"""Names and options, most preferred first."""


def import_onnxruntime() -> Any:
    """Import ONNX Runtime. Raises MissingExtra."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise MissingExtra("running ONNX graphs", "cosyvoice") from None


def select_providers(
    available: Collection[str],
    cuda_device: int | None,
    *,
    stream: int | None = None,
    allow_tf32: bool = False,
    profile: dict[str, str] | None = None,
    cache: Path | None = None,
) -> Providers:
    """Return the providers of a session with their options: TensorRT, CUDA and CPU, as far as available.

    Args:
        available: Providers of the installed build.
        cuda_device: Index of the GPU; None for a session on the CPU.
        stream: Handle of the CUDA stream to compute on; None for one of the session.
        allow_tf32: Whether matrix products on the GPU may round their inputs to ten bits.
        profile: Sizes that TensorRT builds its engine for, as its options; None leaves TensorRT out.
        cache: Directory of the engines that the TensorRT provider builds.
    """
    wanted: Providers = []
    if cuda_device is not None:
        common = {"device_id": str(cuda_device)}
        if stream is not None:
            common["user_compute_stream"] = str(stream)
        # TensorRT rounds float32 to TF32, and its provider has no option against that.
        if profile is not None and allow_tf32:
            tensorrt = {**common, **profile}
            if stream is not None:
                tensorrt["has_user_compute_stream"] = "1"
            if cache is not None:
                tensorrt |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(cache)}
            wanted.append((TENSORRT, tensorrt))
        # The default search for convolution algorithms measures all of them for each new shape, which takes seconds.
        cuda = {**common, "use_tf32": str(int(allow_tf32)), "cudnn_conv_algo_search": "HEURISTIC"}
        wanted.append((CUDA, cuda))
    wanted.append((CPU, {}))
    return [(name, settings) for name, settings in wanted if name in available]


def create_session(onnxruntime: Any, model: str | bytes, providers: Providers, threads: int = 1) -> Any:
    """Create a session. A provider that cannot be loaded may be left out silently, or raise any exception."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # PyTorch's threads need the cores, too
    # Without enable_fallback=0 a failing provider is replaced by the CPU with a line on standard output.
    return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
