"""The input of the networks for one utterance, as ids and tensors; built by enrol.py from a voice and a text."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """Input of one utterance; ``prompt_mel [P, mel]`` and ``embedding [spk_embed]`` are float32."""

    text: tuple[int, ...]
    embedding: Tensor
    prompt_text: tuple[int, ...] = ()
    lm_prompt: tuple[int, ...] = ()  # speech tokens of the prompt, for the language model
    flow_prompt: tuple[int, ...] = ()  # speech tokens of the prompt, for the flow; belong to ``prompt_mel``
    prompt_mel: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    tells_speaker: bool = False  # whether the language model gets the embedding, too (CosyVoice-300M)
