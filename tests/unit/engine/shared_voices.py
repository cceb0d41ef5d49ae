"""Voices of the CPU engine that share a network, with the weights of ``heart``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tts_worker.engine.cpu.hibari.model import VoiceModel, default_model_path
from tts_worker.voices.installed import CPU_NETWORK, CPU_VECTOR


def voice_like_heart(pack: Path, *, higher_hz: float = 0.0, language: str = "en-US") -> VoiceModel:
    """Lay out a voice with the weights of ``heart`` in its voice pack, and its network beside that, if it is missing.

    Args:
        pack: Folder of the voice.
        higher_hz: How much higher it speaks.
        language: Its accent.
    """
    pytest.importorskip("onnx", reason="writes a network")
    pytest.importorskip("torch", reason="writes a network")
    from tools.train.fast.evaluate import file_hash
    from tools.train.fast.network import load_network, save_network, shift_pitch, vector_of

    heart = load_network(default_model_path())
    network, vector = pack.parent / CPU_NETWORK, pack / CPU_VECTOR
    pack.mkdir(parents=True, exist_ok=True)
    if not network.is_file():
        save_network(heart, network)
    shift_pitch(heart, higher_hz)
    np.save(vector, vector_of(heart).numpy())
    return VoiceModel(pack.name, network, vector, file_hash(network, vector), language)
