"""Mixing of stored voices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tts_worker.errors import InvalidRequest
from tts_worker.voices.files import Voice

_LEAST_LENGTH = 1e-6


def mix_voices(parts: Sequence[tuple[Voice, float]], prompt: Voice | None = None) -> Voice:
    """Mix voices of one model: the weighted mean of their speaker embeddings, each normalized to length 1.

    Args:
        parts: Voices and their weights, which need not add up to 1.
        prompt: Voice whose prompt audio and transcript the mix gets; None for a voice without a prompt, like the
            speakers for which a model was tuned.

    Raises:
        InvalidRequest: The voices belong to different models, or cancel each other.
    """
    first = parts[0][0]
    if any((voice.family, voice.embedding.shape) != (first.family, first.embedding.shape) for voice, _ in parts):
        raise InvalidRequest("only voices of the same model can be mixed")
    lengths = np.array([np.linalg.norm(voice.embedding) for voice, _ in parts])
    weights = np.array([weight for _, weight in parts]) / np.maximum(lengths, _LEAST_LENGTH)
    mean = np.stack([voice.embedding.astype(np.float64) for voice, _ in parts]).T @ weights
    length = float(np.linalg.norm(mean))
    if length < _LEAST_LENGTH * sum(weight for _, weight in parts):
        raise InvalidRequest("the speaker embeddings of these voices cancel each other")
    embedding = (mean * (lengths.mean() / length)).astype(np.float32)
    return Voice(
        family=first.family,
        prompt_text="" if prompt is None else prompt.prompt_text,
        prompt_text_ids=np.zeros(0, np.int32) if prompt is None else prompt.prompt_text_ids,
        tokens=np.zeros(0, np.int32) if prompt is None else prompt.tokens,
        mel=np.zeros((0, first.mel.shape[1]), np.float32) if prompt is None else prompt.mel,
        embedding=embedding,
        seconds=0.0 if prompt is None else prompt.seconds,
    )
