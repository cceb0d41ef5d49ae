"""The tiny networks, loaded once, and small helpers for comparing tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.unit.cosyvoice.bundles import FAMILIES, ONE_FAMILY, fullsize, qwen_of, tiny, yaml_of
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.dims import FlowDims
from tts_worker.models.bundles.report import Problem

__all__ = [
    "FAMILIES",
    "ONE_FAMILY",
    "apart",
    "full_config",
    "ids",
    "little_work",
    "load_shallow",
    "load_thin",
    "networks",
    "noise",
    "shallow",
    "shallow_config",
    "tiny_bundle",
]


SOLVER_STEPS = 2
"""Instead of ten, to save time: what is tested here holds for any number."""


def tiny_bundle(family: str) -> Bundle:
    """The tiny bundle with few solver steps."""
    bundle = Bundle.open(tiny(family))
    return replace(bundle, config=replace(bundle.config, flow=replace(bundle.config.flow, steps=SOLVER_STEPS)))


_RESBLOCK = re.compile(r"(?<=^resblocks\.)\d+")


@dataclass(frozen=True)
class _ShallowBundle(Bundle):
    """A bundle with more weights than its configuration names.

    Attributes:
        stage: Residual blocks of a stage in the vocoder's weights, of which the configuration has the first.
    """

    stage: int = 1

    def _read(self, part: str, expected: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Tensor], list[Problem]]:
        tensors, _ = super()._read(part, expected)

        def first_of_stage(block: re.Match[str]) -> str:
            return str(int(block[0]) * self.stage)

        return {key: tensors[_RESBLOCK.sub(first_of_stage, key)] for key in expected}, []


def shallow_config(config: CosyVoiceConfig) -> CosyVoiceConfig:
    """The configuration of a tiny bundle with one of each kind of layer, two in the language model."""
    flow = config.flow
    if isinstance(flow, FlowDims) and flow.dit is not None:
        flow = replace(flow, dit=replace(flow.dit, depth=1))
    if isinstance(flow, FlowDims) and flow.encoder is not None and flow.unet is not None:
        encoder = replace(flow.encoder, layers=1, up_layers=1)
        flow = replace(flow, encoder=encoder, unet=replace(flow.unet, mid_blocks=1))
    hift = replace(
        config.hift,
        resblock_kernel_sizes=config.hift.resblock_kernel_sizes[:1],
        resblock_dilation_sizes=((1,),),
        source_resblock_dilation_sizes=((1,),) * len(config.hift.source_resblock_dilation_sizes),
    )
    return replace(config, flow=flow, hift=hift)


def shallow(whole: Bundle) -> Bundle:
    """The first layers of a tiny or random bundle, for tests of what happens around the networks."""
    if isinstance(whole, _ShallowBundle):
        return whole
    stage = len(whole.config.hift.resblock_kernel_sizes)
    return _ShallowBundle(whole.path, shallow_config(whole.config), whole.rl, stage)


_load = Networks.load.__func__  # type: ignore[attr-defined]


def load_shallow(bundle: Bundle, **options: Any) -> Networks:
    """Replaces ``Networks.load`` in tests of what happens around the networks."""
    loaded: Networks = _load(Networks, shallow(bundle), **options)
    return loaded


@contextmanager
def little_work() -> Iterator[None]:
    """Load shallow networks with few solver steps, for tests of a worker: what they check holds for any networks."""
    steps = patch("tts_worker.engine.cosyvoice.bundle.config.EULER_STEPS", SOLVER_STEPS)
    with steps, patch.object(Networks, "load", load_shallow):
        yield


def thin(whole: Bundle) -> Bundle:
    """A tiny bundle with the layers that export differently once, and two of those that are alike.

    A residual block of the vocoder has one of its dilations, another one for each size of the kernel.
    """
    if isinstance(whole, _ShallowBundle):
        return whole
    config = whole.config
    flow = config.chunked_flow
    if flow.dit is not None:
        flow = replace(flow, dit=replace(flow.dit, depth=2))
    if flow.unet is not None:
        flow = replace(flow, unet=replace(flow.unet, mid_blocks=1))
    dilations = tuple((each[i],) for i, each in enumerate(config.hift.resblock_dilation_sizes))
    source = tuple(each[-1:] for each in config.hift.source_resblock_dilation_sizes)
    hift = replace(config.hift, resblock_dilation_sizes=dilations, source_resblock_dilation_sizes=source)
    return _ShallowBundle(whole.path, replace(config, flow=flow, hift=hift), whole.rl)


def load_thin(bundle: Bundle, **options: Any) -> Networks:
    """Replaces ``Networks.load`` in tests of exported graphs: their time is proportional to the number of layers."""
    loaded: Networks = _load(Networks, thin(bundle), **options)
    return loaded


@lru_cache
def networks(family: str) -> Networks:
    """Shared: tests must not change it."""
    return Networks.load(tiny_bundle(family))


def full_config(family: str) -> CosyVoiceConfig:
    """The official model's dimensions: the tiny YAML with the official numbers."""
    small = CosyVoiceConfig.from_files(yaml_of(family), qwen_of(family), family)
    qwen = fullsize()[f"{family}/qwen_config"]
    lm = replace(
        small.qwen,
        hidden_size=qwen["hidden_size"],
        intermediate_size=qwen["intermediate_size"],
        layers=qwen["num_hidden_layers"],
        heads=qwen["num_attention_heads"],
        kv_heads=qwen["num_key_value_heads"],
        head_dim=qwen["hidden_size"] // qwen["num_attention_heads"],
        text_vocab=qwen["vocab_size"],
    )
    hift = replace(small.hift, base_channels=512, f0_channels=512)
    flow = small.chunked_flow
    if flow.encoder is not None and flow.unet is not None:
        ahead = replace(flow.encoder.lookahead, in_channels=512, channels=512)
        encoder = replace(flow.encoder, input_size=512, output_size=512, heads=8, linear_units=2048, layers=6)
        unet = replace(flow.unet, channels=256, blocks=4, mid_blocks=12, heads=8, head_dim=64)
        flow = replace(flow, input_size=512, encoder=replace(encoder, lookahead=ahead), unet=unet)
    if flow.lookahead is not None and flow.dit is not None:
        dit = replace(flow.dit, dim=1024, depth=22, heads=16, head_dim=64)
        flow = replace(flow, lookahead=replace(flow.lookahead, channels=1024), dit=dit)
    return replace(small, lm=lm, flow=flow, hift=hift)


def apart(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; NaN anywhere is infinitely far."""
    assert a.shape == b.shape
    return float((a - b).abs().nan_to_num(torch.inf).max()) if a.numel() else 0.0


def ids(count: int, below: int, seed: int = 0) -> Tensor:
    """``[1, count]`` ids."""
    return torch.randint(0, below, (1, count), generator=torch.Generator().manual_seed(seed))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
