"""Copies of the tiny bundles that a test may damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig

DATA = Path(__file__).parents[2] / "data" / "cosyvoice"
FAMILIES = ("cosyvoice2", "cosyvoice3")
ONE_FAMILY = (pytest.param("cosyvoice2", marks=pytest.mark.long), "cosyvoice3")
"""Parameters of tests of what both families share: every run tries it with the newer one."""

YAML_FILES = {"cosyvoice1": "cosyvoice.yaml"}
GOLDEN = {f"cosyvoice{n}": DATA / "golden" / f"v{n}" for n in (1, 2, 3)}


def tiny(family: str) -> Path:
    return DATA / f"{family}-tiny"


def copy_of(family: str, target: Path) -> Path:
    """A tiny bundle that may be changed."""
    return Path(shutil.copytree(tiny(family), target / family))


def yaml_of(family: str) -> str:
    return (tiny(family) / YAML_FILES.get(family, f"{family}.yaml")).read_text("utf-8")


def qwen_of(family: str) -> dict[str, Any] | None:
    if family == "cosyvoice1":
        return None
    loaded: dict[str, Any] = json.loads((tiny(family) / "CosyVoice-BlankEN" / "config.json").read_text("utf-8"))
    return loaded


def fullsize() -> dict[str, Any]:
    """Keys and shapes of the official models, ``cosyvoice2/flow`` and so on, and the text model's ``config.json``."""
    loaded: dict[str, Any] = json.loads((DATA / "fullsize_keys.json").read_text("utf-8"))
    return loaded


OFFICIAL_SIZES = {
    "cosyvoice1": [
        ("text_encoder_input_size: 12", "text_encoder_input_size: 512"),
        ("llm_input_size: 16", "llm_input_size: 1024"),
        ("llm_output_size: 16", "llm_output_size: 1024"),
        ("spk_embed_dim: 8", "spk_embed_dim: 192"),
        ("text_token_size: 40", "text_token_size: 51866"),
        ("speech_token_size: 30", "speech_token_size: 4096"),
        ("output_size: 16", "output_size: 1024"),
        ("attention_heads: 2", "attention_heads: 16"),
        ("linear_units: 24", "linear_units: 4096"),
        (
            "num_blocks: 2\n        dropout_rate: 0.1\n        positional_dropout_rate: 0.1\n        "
            "attention_dropout_rate: 0.0\n        normalize",
            "num_blocks: 6\n        normalize",
        ),
        (
            "num_blocks: 2\n        dropout_rate: 0.1\n        positional_dropout_rate: 0.1\n        "
            "attention_dropout_rate: 0.0\n        input",
            "num_blocks: 14\n        input",
        ),
        ("num_blocks: 2", "num_blocks: 6"),
        ("input_size: 24", "input_size: 512"),
        ("vocab_size: 30", "vocab_size: 4096"),
        ("output_size: 32", "output_size: 512"),
        ("attention_heads: 4", "attention_heads: 8"),
        ("linear_units: 48", "linear_units: 2048"),
        ("sampling_ratios: [1]", "sampling_ratios: [1, 1, 1, 1]"),
        ("channels: [16, 16]", "channels: [256, 256]"),
        ("attention_head_dim: 8", "attention_head_dim: 64"),
        ("n_blocks: 1", "n_blocks: 4"),
        ("num_mid_blocks: 1", "num_mid_blocks: 12"),
        ("num_heads: 3", "num_heads: 8"),
        ("base_channels: 16", "base_channels: 512"),
        ("cond_channels: 12", "cond_channels: 512"),
    ],
    "cosyvoice2": [
        ("llm_input_size: 32", "llm_input_size: 896"),
        ("llm_output_size: 32", "llm_output_size: 896"),
        ("input_size: 48", "input_size: 512"),
        ("output_size: 48", "output_size: 512"),
        ("attention_heads: 4", "attention_heads: 8"),
        ("linear_units: 96", "linear_units: 2048"),
        ("num_blocks: 2", "num_blocks: 6"),
        ("channels: [32]", "channels: [256]"),
        ("attention_head_dim: 16", "attention_head_dim: 64"),
        ("n_blocks: 1", "n_blocks: 4"),
        ("num_mid_blocks: 2", "num_mid_blocks: 12"),
        ("num_heads: 2", "num_heads: 8"),
        ("base_channels: 32", "base_channels: 512"),
        ("cond_channels: 16", "cond_channels: 512"),
    ],
    "cosyvoice3": [
        ("llm_input_size: 32", "llm_input_size: 896"),
        ("llm_output_size: 32", "llm_output_size: 896"),
        ("        channels: 64", "        channels: 1024"),
        ("dim: 64", "dim: 1024"),
        ("depth: 3", "depth: 22"),
        ("heads: 4", "heads: 16"),
        ("dim_head: 16", "dim_head: 64"),
        ("base_channels: 32", "base_channels: 512"),
        ("cond_channels: 16", "cond_channels: 512"),
    ],
}
"""What the official YAML files say where the tiny ones differ."""


def official_config(family: str) -> CosyVoiceConfig:
    from tts_worker.engine.cosyvoice.bundle.config import (
        CosyVoiceConfig,  # imports PyTorch, which many users do not need
    )

    text = yaml_of(family)
    for tiny_text, official_text in OFFICIAL_SIZES[family]:
        assert tiny_text in text, tiny_text
        text = text.replace(tiny_text, official_text)
    return CosyVoiceConfig.from_files(text, fullsize().get(f"{family}/qwen_config"), f"{family}.yaml")
