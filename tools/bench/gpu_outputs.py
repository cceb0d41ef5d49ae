"""Outputs of an engine, compared with those of another one: scores, drawn ids and audio."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tools.bench.engine import forced_tokens
from tts_worker.engine.cosyvoice.engine import CosyVoiceEngine
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks.lm_inputs import Item, Kind
from tts_worker.engine.cosyvoice.tokens.decoder import DecodeRow
from tts_worker.engine.cosyvoice.voices.features import MelSpectrogram
from tts_worker.types import SAMPLE_RATE_HZ


@dataclass(frozen=True)
class Outputs:
    scores: list[np.ndarray[Any, np.dtype[np.float32]]]  # [V] for each length
    ids: list[int]
    audio: list[np.ndarray[Any, np.dtype[np.float32]]]


def _sequence(length: int, engine: CosyVoiceEngine) -> list[Item]:
    rng = random.Random(length)
    dims = engine.components.networks.config.lm
    text = [(Kind.TEXT, rng.randrange(200)) for _ in range(max(1, length // 4))]
    speech = [(Kind.SPEECH, rng.randrange(dims.speech_tokens)) for _ in range(length - len(text) - 2)]
    return [(Kind.SOS, 0), *text, (Kind.TASK, 0), *speech]


@torch.inference_mode()
def scores_after(engine: CosyVoiceEngine, length: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the scores ``[V]`` after ``length`` speech tokens."""
    lm = engine.components.networks.lm
    dims = engine.components.networks.config.lm
    weight = lm.llm_decoder.weight
    pool = SlotPool(
        dims.cache_layers, 1, dims.kv_heads, length, dims.head_dim, dtype=weight.dtype, device=weight.device
    )
    one = torch.ones(1, dtype=torch.long, device=weight.device)
    ids = torch.from_numpy(forced_tokens(length, length)).long().to(weight.device)[None] % dims.speech_tokens
    kinds = torch.full_like(ids, Kind.SPEECH)
    logits = lm.score_items(ids, kinds, one * length, one * 0, pool, length)[0]
    scores: np.ndarray[Any, np.dtype[np.float32]] = logits.float().log_softmax(0).cpu().numpy()
    return scores


def draw_ids(engine: CosyVoiceEngine, count: int) -> list[int]:
    """Return ids drawn without forcing, with a fixed seed."""
    decoder = engine.components.decoder
    dims = engine.components.networks.config.lm
    slot = decoder.acquire()
    try:
        items = decoder.start(slot, 7, _sequence(40, engine))
        ids = decoder.prefill([DecodeRow(slot, dims.eos_id, count + 1, count + 1)], [items]).wait()[0].tolist()
        while len(ids) < count and ids[-1] >= 0:
            burst = decoder.burst([DecodeRow(slot, dims.eos_id, count + 1, count + 1)], 8).wait()[:, 0].tolist()
            ids += decoder.record_burst(slot, burst, ids[-1])
        return [int(token) for token in ids[:count]]
    finally:
        decoder.release(slot)


def compare_outputs(reference: Outputs, measured: Outputs) -> dict[str, Any]:
    """Return the deviation of ``measured``."""
    equal = next(
        (n for n, (a, b) in enumerate(zip(reference.ids, measured.ids, strict=False)) if a != b), len(reference.ids)
    )
    return {
        "scores_rms_error": [_relative_rms(a, b) for a, b in zip(reference.scores, measured.scores, strict=True)],
        "scores_same_best": [
            int(a.argmax()) == int(b.argmax()) for a, b in zip(reference.scores, measured.scores, strict=True)
        ],
        "equal_drawn_ids": equal,
        "drawn_ids": len(reference.ids),
        "same_length": [len(a) == len(b) for a, b in zip(reference.audio, measured.audio, strict=True)],
        "waveform_rms_error": [_relative_rms(a, b) for a, b in zip(reference.audio, measured.audio, strict=True)],
        "mel_error": [_mel_error(a, b) for a, b in zip(reference.audio, measured.audio, strict=True)],
    }


def _relative_rms(reference: np.ndarray[Any, Any], measured: np.ndarray[Any, Any]) -> float | None:
    if reference.shape != measured.shape:
        return None
    scale = float(np.sqrt(np.mean(np.square(reference, dtype=np.float64))))
    error = float(np.sqrt(np.mean(np.square(reference - measured, dtype=np.float64))))
    return float(f"{error / max(scale, 1e-12):.3g}")


def _mel_error(reference: np.ndarray[Any, Any], measured: np.ndarray[Any, Any]) -> float | None:
    """Return the mean difference of log-mel spectra in units of their deviation."""
    if reference.shape != measured.shape:
        return None
    mel = MelSpectrogram(SAMPLE_RATE_HZ, 1920, 1920, 480, 80, 0.0, 8000.0)
    a, b = (mel(torch.from_numpy(np.array(audio))[None]) for audio in (reference, measured))
    return float(f"{float((a - b).abs().mean() / a.std()):.3g}")
