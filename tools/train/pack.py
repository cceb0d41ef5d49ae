"""Packs trained weights as a bundle in the official layout that the engine, the CLI and the worker take as it is."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tools.train.bundle import CODES
from tts_worker.engine.cosyvoice.bundle.directory import TEXT_MODEL_DIR, Bundle
from tts_worker.engine.cosyvoice.bundle.tensor_files import INT8_SCALE, write_safetensors
from tts_worker.engine.cosyvoice.bundle.weights import OPTIONAL_KEYS
from tts_worker.engine.cosyvoice.voices.speaker import bundled_voices
from tts_worker.errors import ConfigError
from tts_worker.voices.files import VOICES_DIR, save_voice

PRECISIONS = ("fp32", "fp16", "int8")
_EXACT = "hift"  # its pitch accumulates to a phase, and it is small


def pack(
    source: Bundle,
    out: Path,
    weights: Mapping[str, Mapping[str, Tensor]],
    precision: str = "int8",
    details: bytes | None = None,
) -> Bundle:
    """Write a bundle.

    Args:
        source: Where configuration, tokenizer and speakers come from; weights that are not given as well.
        out: A new folder, or one of an earlier call, whose weights are replaced.
        weights: Weights by part: ``llm``, ``flow``, ``hift``.
        precision: Of the files: ``fp32``, ``fp16``, or ``int8`` (a scale per row; the vocoder is fp16).
        details: Content of ``details.json`` of the voices.

    Raises:
        ConfigError: Unknown precision.
        BundleError: The result is not complete.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision: must be one of: {', '.join(PRECISIONS)}")
    (out / TEXT_MODEL_DIR).mkdir(parents=True, exist_ok=True)
    patterns = (
        "*.yaml",
        "*.onnx",
        "configuration.json",
        CODES,
        "spk2info.pt",
        f"{TEXT_MODEL_DIR}/*",
        f"{VOICES_DIR}/*/voice.*",
    )
    for file in sorted(file for pattern in patterns for file in source.path.glob(pattern)):
        target = out / file.relative_to(source.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for part in ("llm", "flow", "hift"):
        tensors = weights.get(part) or source.load_weights(part)
        kept = {name: tensor for name, tensor in tensors.items() if name not in OPTIONAL_KEYS}
        if precision == "int8" and part != _EXACT:
            kept = _compress_int8(kept)
        elif precision != "fp32":
            kept = {name: tensor.half() for name, tensor in kept.items()}
        write_safetensors(out / f"{part}.safetensors", kept, {"format": "pt"})
    if source.speaker_info.is_file():
        for name, voice in bundled_voices(source.speaker_info, source.config).items():
            save_voice(out / VOICES_DIR, name, voice, details=details, replace=True)
    bundle = Bundle.open(out)
    bundle.validate().raise_if_bad()
    return bundle


def _compress_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Store matrices as int8 with a scale per row, which ``read_tensors`` multiplies again; all else as float16.

    The error is at most half a step: 0.4 % of the largest weight of a row.
    """
    compressed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        rows = tensor.float().flatten(1) if tensor.dim() > 1 else tensor
        if tensor.dim() < 2 or rows.shape[1] < 8:
            compressed[name] = tensor.half()
            continue
        scale = rows.abs().amax(1).clamp(min=1e-12) / 127
        compressed[name] = (rows / scale[:, None]).round().to(torch.int8).view(tensor.shape)
        compressed[name + INT8_SCALE] = scale
    return compressed
