"""The three networks of a model directory, loaded, prepared and checked.

Owns how weights get into the networks and the forward check that refuses weights which load but make nonsense.
It must not know files (bundle.py) nor what is said with the networks (pipeline.py, the streaming engine).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.flow.model import Flow
from tts_worker.engine.cosyvoice.hift import HashedNoise, Hift
from tts_worker.engine.cosyvoice.kv import SlotPool
from tts_worker.engine.cosyvoice.lm import SpeechLM
from tts_worker.errors import BundleError

# log magnitudes live in -12..5; a sound that never moves is no sound
LARGEST_MEL = 100.0
LEAST_SOUND = 1e-6


_Network = TypeVar("_Network", bound=nn.Module)


def _fill(network: _Network, weights: dict[str, Tensor], name: str, device: torch.device) -> _Network:
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as problem:  # the report of missing, unexpected and mis-shaped tensors
        raise BundleError(f"{name} does not fit its YAML: {problem}") from None
    return network.requires_grad_(False).eval().to(device)


@dataclass
class Networks:
    """Ready to run on ``device``. The language model may be in another ``dtype``; flow and vocoder are in float32."""

    config: CosyVoiceConfig
    lm: SpeechLM
    flow: Flow
    hift: Hift

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        *,
        device: str | torch.device = "cpu",
        lm_dtype: torch.dtype = torch.float32,
        float32_phase: bool = False,
    ) -> Networks:
        """Raises BundleError if the weights do not fit or make nonsense."""
        config = bundle.config
        device = torch.device(device)
        if device.type == "cuda":  # convolutions round factors to 10 bits there unless told not to: a phase needs more
            torch.backends.cudnn.allow_tf32 = False
        with torch.device("meta"):  # no memory, no time for numbers that are thrown away
            lm = SpeechLM(config.lm)
            flow = Flow(config.flow)
        hift = Hift(config.hift, not float32_phase)
        lm = _fill(lm, bundle.load_weights("llm", lm_dtype), "the language model", device)
        lm.prepare().tie()
        flow = _fill(flow, bundle.load_weights("flow"), "the flow", device)
        hift = _fill(hift, bundle.load_weights("hift"), "the vocoder", device)
        networks = cls(config, lm, flow.prepare(config.flow.chunk_tokens), hift.prepare())
        networks.check()
        return networks

    @torch.inference_mode()
    def check(self) -> None:
        """Say one chunk of nonsense and look at the numbers. Raises BundleError naming the network at fault."""
        config = self.config
        device = self.flow.noise.device
        dtype = self.lm.llm_decoder.weight.dtype
        one = torch.ones(1, dtype=torch.long, device=device)
        pool = SlotPool(config.lm.layers, 1, config.lm.kv_heads, 8, config.lm.head_dim, dtype=dtype, device=device)
        ids = torch.arange(8, device=device)[None]
        scores = self.lm(self.lm.embed_speech(ids), one * 8, one * 0, pool, 8)
        _demand(bool(scores.isfinite().all()), "llm", "scores that are no numbers")
        tokens = torch.arange(config.flow.chunk_tokens, device=device)[None] * 97 % config.flow.vocab
        spk = self.flow.speaker(torch.ones(1, config.flow.spk_embed, device=device))
        prompt = torch.zeros(1, 0, config.flow.mel, device=device)
        mel = self.flow.mel(tokens, one * tokens.shape[1], prompt, one * 0, spk, chunked=True, final=True)
        _demand(bool(mel.isfinite().all()), "flow", "mel frames that are no numbers")
        _demand(float(mel.abs().max()) < LARGEST_MEL, "flow", f"mel frames beyond {LARGEST_MEL:.0f}")
        sound, _ = self.hift(mel.transpose(1, 2), HashedNoise(one, not config.hift.causal))
        _demand(bool(sound.isfinite().all()), "hift", "sound that is no numbers")
        _demand(float(sound.std()) > LEAST_SOUND, "hift", "no sound")
        clipped = (sound.abs() >= config.hift.audio_limit).float().mean()
        _demand(float(clipped) < 0.5, "hift", "sound that is clipped most of the time")


def _demand(good: bool, part: str, fault: str) -> None:
    if not good:
        raise BundleError(f"the weights of {part} load but give {fault}: damaged, or of another model")
