"""What one utterance is made from, as ids and tensors: the seam between voices and texts (enrol.py) and the networks.

Plain data. It must not know where any of it came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Request:
    """What an utterance is made from. Ids as tuples; ``prompt_mel [P, mel]`` and ``embedding [spk_embed]`` float32."""

    text: tuple[int, ...]
    embedding: Tensor
    prompt_text: tuple[int, ...] = ()
    lm_prompt: tuple[int, ...] = ()  # speech of the prompt, for the language model
    flow_prompt: tuple[int, ...] = ()  # the same for the flow, with its mel
    prompt_mel: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
