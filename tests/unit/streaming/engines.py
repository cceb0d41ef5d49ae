"""Tiny engines for tests: real networks with random weights and a biased end-of-speech score."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from tests.contract.engine_contract import PLENTY_SAMPLES, EngineOutput
from tests.unit.cosyvoice.bundles import FAMILIES, ONE_FAMILY
from tests.unit.cosyvoice.networks import shallow, tiny_bundle
from tools.random_bundle.writer import write_random_bundle
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.execution.graph_runner import GraphRunner
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.engine.cosyvoice.execution.streams import ExecutionStreams
from tts_worker.engine.cosyvoice.loader import bundle_voices
from tts_worker.engine.cosyvoice.token_generator import EngineSpec, Script
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.types import (
    Audio,
    Cancel,
    Done,
    EndText,
    Failed,
    Open,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)
from tts_worker.voices.files import Voice

__all__ = [
    "FAMILIES",
    "KEY",
    "ONE_FAMILY",
    "PROMPTED",
    "cancel_two",
    "engine",
    "networks",
    "run_until_idle",
    "settings",
    "synthesize",
    "voice",
]

KEY = UtteranceKey("test", 1)
PROMPTED = SynthesisParams("prompted", seed=3)
EOS_BIAS = 9.0  # added to the score of the end of speech, so that runs end soon
RANDOM_EOS_BIAS = 7.0  # in addition, where the scores of random weights differ as much as those of trained ones


@lru_cache
def _temporary() -> TemporaryDirectory[str]:
    """A directory that is deleted at the end of the process."""
    return TemporaryDirectory(prefix="random-bundle-")


def _random_bundle(family: str) -> Bundle:
    return write_random_bundle(Path(_temporary().name) / family, family, prompt_models=False)


@lru_cache
def bundle(family: str) -> Bundle:
    """The tiny bundle with one of each kind of layer.

    CosyVoice-300M has random weights: its tiny bundle is too small for a vocabulary.
    """
    return shallow(_random_bundle(family) if family == "cosyvoice1" else tiny_bundle(family))


@lru_cache
def tokenizer(family: str) -> TextTokenizer:
    return TextTokenizer.from_bundle(bundle(family))


@lru_cache
def networks(family: str, eos_bias: float = EOS_BIAS) -> Networks:
    """Load networks with a biased end of speech. Cached: tests must not change them."""
    loaded = Networks.load(bundle(family))
    head = loaded.lm.llm_decoder
    dims = loaded.config.lm
    bias = torch.zeros(dims.speech_rows) if head.bias is None else head.bias.detach().clone()
    bias[dims.eos_id] += eos_bias + RANDOM_EOS_BIAS * (family == "cosyvoice1")
    head.bias = torch.nn.Parameter(bias, requires_grad=False)
    return loaded


@lru_cache
def voice(family: str, tokens: int = 60, seed: int = 1) -> Voice:
    """Return a random voice with a prompt of ``tokens`` speech tokens."""
    config = bundle(family).config
    rng = np.random.default_rng(seed)
    ids = tokenizer(family)
    text = "the world and you"
    system = [ids.end_of_prompt_id] if family == "cosyvoice3" else []
    return Voice(
        family=family,
        prompt_text=text,
        prompt_text_ids=np.array([*system, *ids.encode(text)], dtype=np.int32),
        tokens=rng.integers(0, config.flow.vocab, tokens).astype(np.int32),
        mel=rng.standard_normal((config.flow.frames(tokens), config.mel.bins)).astype(np.float32),
        embedding=rng.standard_normal(config.flow.spk_embed).astype(np.float32),
        seconds=tokens / config.token_rate_hz,
    )


def settings(**changes: Any) -> StreamingConfig:
    """Return settings with small memory that is filled with NaN until written."""
    base: dict[str, Any] = {
        "max_utterances": 10,
        "pages": 60,
        "max_segment_s": 16,
        "lm_tokens": 640,
        "cached_voices": 2,
        "checked": True,
    }
    return StreamingConfig(**{**base, **changes})


def engine(
    family: str,
    config: StreamingConfig | None = None,
    *,
    script: Script | None = None,
    loaded: Networks | None = None,
    graph_runners: tuple[GraphRunner, GraphRunner] | None = None,
    streams: ExecutionStreams | None = None,
    healthy: Callable[[], bool] | None = None,
    voices: dict[str, Voice] | None = None,
) -> CosyVoiceEngine:
    config = config or settings()
    loaded = loaded or networks(family)
    known = {**(voices or {"prompted": voice(family)}), **bundle_voices(bundle(family))}
    parts = Components.build(loaded, tokenizer(family), known, config, graph_runners=graph_runners, streams=streams)
    return CosyVoiceEngine(parts, EngineSpec(loaded.config, tokenizer(family), config, script), healthy=healthy)


def run_until_idle(subject: CosyVoiceEngine, outputs: dict[UtteranceKey, EngineOutput], max_steps: int = 5000) -> None:
    """Step until the engine has no work, and add its events to ``outputs``."""
    for step in range(max_steps):
        if not subject.has_work and not subject.wait_for_work():
            return
        for event in subject.step(step / 100):
            output = outputs.setdefault(event.key, EngineOutput())
            if isinstance(event, Audio):
                output.audio.append(event)
            else:
                assert isinstance(event, Done | Failed)
                output.ends.append(event)
    raise AssertionError("the engine did not come to rest")


def cancel_two(subject: CosyVoiceEngine, segment: Segment, steps: int) -> None:
    """Cancel two utterances, one after the other, after ``steps`` steps. They must emit nothing afterwards."""
    for turn in range(2):
        key = UtteranceKey("s", turn)
        subject.handle(Open(key, PROMPTED, PLENTY_SAMPLES))
        subject.handle(Text(key, segment))
        for _ in range(steps):
            subject.step(0.0)
        subject.handle(Cancel(key))
    outputs: dict[UtteranceKey, EngineOutput] = {}
    run_until_idle(subject, outputs)
    assert not outputs


def synthesize(
    subject: CosyVoiceEngine,
    segments: tuple[Segment, ...],
    params: SynthesisParams = PROMPTED,
    key: UtteranceKey = KEY,
    credit_samples: int = PLENTY_SAMPLES,
) -> EngineOutput:
    """Synthesize segments and return the output."""
    subject.handle(Open(key, params, credit_samples))
    for segment in segments:
        subject.handle(Text(key, segment))
    subject.handle(EndText(key))
    outputs = {key: EngineOutput()}
    run_until_idle(subject, outputs)
    return outputs[key]
