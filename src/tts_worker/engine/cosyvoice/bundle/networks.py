"""Loads the three networks of a model directory and checks that they produce plausible output."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.weights import new_flow, new_hift, new_lm
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise, Hift
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.networks.linear import arrange_for_onednn
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM
from tts_worker.engine.cosyvoice.v1.flow import V1Flow
from tts_worker.engine.cosyvoice.v1.transformer_lm import TransformerLm
from tts_worker.errors import BundleError, ConfigError

MAX_ABS_MEL = 100.0  # log magnitudes are in -12..5
_LATER_ONLY = "this works with models of CosyVoice 2 and 3, not with CosyVoice-300M"
MIN_AUDIO_STD = 1e-6  # below this the audio is constant
_SAMPLED_VALUES = 64  # of each tensor, for the fingerprint


_Network = TypeVar("_Network", bound=nn.Module)


def _fill(network: _Network, weights: dict[str, Tensor], name: str, device: torch.device) -> _Network:
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as problem:  # the report of missing, unexpected and mis-shaped tensors
        raise BundleError(f"{name} does not fit its YAML: {problem}") from None
    return network.requires_grad_(False).eval().to(device)


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Identify the weights of a file: a hash of names, shapes and sampled values of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        some = tensor.detach().flatten()[:: max(1, tensor.numel() // _SAMPLED_VALUES)].float()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + some.contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass
class Networks:
    """Language model, flow and vocoder on one device. The language model can use a lower precision than float32.

    Attributes:
        config: Configuration of the model.
        lm: The language model.
        flow: Tokens to mel.
        hift: The vocoder.
        fingerprints: Identifies the weights of ``llm``, ``flow`` and ``hift``, as they are in their files: what is
            computed from them differs in the last bit between devices.
    """

    config: CosyVoiceConfig
    lm: SpeechLM | TransformerLm
    flow: Flow | V1Flow
    hift: Hift
    fingerprints: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.flow.noise.device

    @property
    def qwen(self) -> SpeechLM:
        """``lm`` of CosyVoice2 and 3. Raises ConfigError for CosyVoice-300M."""
        if not isinstance(self.lm, SpeechLM):
            raise ConfigError(_LATER_ONLY)
        return self.lm

    @property
    def chunked_flow(self) -> Flow:
        """``flow`` of CosyVoice2 and 3. Raises ConfigError for CosyVoice-300M."""
        if not isinstance(self.flow, Flow):
            raise ConfigError(_LATER_ONLY)
        return self.flow

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        *,
        device: str | torch.device = "cpu",
        lm_dtype: torch.dtype = torch.float32,
        float32_phase: bool = False,
    ) -> Networks:
        """Load, prepare and check the networks.

        Raises:
            BundleError: The weights do not match the configuration or produce implausible output.
        """
        config = bundle.config
        device = torch.device(device)
        if device.type == "cuda":
            configure_cuda()
        with torch.device("meta"):  # skips the initialization of values that are replaced anyway
            lm = new_lm(config)
            flow = new_flow(config)
        hift = new_hift(config.hift, exact_phase=not float32_phase)
        fingerprints = {}

        def weights(part: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
            loaded = bundle.load_weights(part, dtype)
            fingerprints[part] = fingerprint(loaded)
            return loaded

        lm = _fill(lm, weights("llm", lm_dtype), "the language model", device)
        if isinstance(lm, SpeechLM):
            lm.prepare().tie()
        else:
            arrange_for_onednn(lm)
        flow = _fill(flow, weights("flow"), "the flow", device)
        hift = _fill(hift, weights("hift"), "the vocoder", device)
        flow.prepare(config.flow.chunk_tokens)
        arrange_for_onednn(flow)
        networks = cls(config, lm, flow, hift.prepare(), fingerprints)
        networks.check()
        return networks

    @torch.inference_mode()
    def check(self) -> None:
        """Run one chunk of arbitrary tokens through all networks.

        Raises:
            BundleError: An output is not finite or implausible; names the network.
        """
        config = self.config
        device = self.device
        dtype = self.lm.llm_decoder.weight.dtype
        one = torch.ones(1, dtype=torch.long, device=device)
        lm = config.lm
        pool = SlotPool(lm.cache_layers, 1, lm.kv_heads, 8, lm.head_dim, dtype=dtype, device=device)
        ids = torch.arange(8, device=device)[None]
        if isinstance(self.lm, TransformerLm):
            self.lm.prepare(9)
        scores = self.lm.score_items(ids, torch.ones_like(ids), one * 8, one * 0, pool, 8)
        _require(bool(scores.isfinite().all()), "llm", "scores that are not finite")
        tokens = torch.arange(config.flow.chunk_tokens, device=device)[None] * 97 % config.flow.vocab
        spk = self.flow.speaker(torch.ones(1, config.flow.spk_embed, device=device))
        prompt = torch.zeros(1, 0, config.flow.mel, device=device)
        if isinstance(self.flow, V1Flow):
            noise = self.flow.noise_at(0, 0, config.flow.frames(tokens.shape[1]))
            mel, _ = self.flow.part(tokens, tokens[:, :0], prompt, spk, noise, None)
        else:
            mel = self.flow.mel(tokens, one * tokens.shape[1], prompt, one * 0, spk, chunked=True, final=True)
        _require(bool(mel.isfinite().all()), "flow", "mel frames that are not finite")
        _require(float(mel.abs().max()) < MAX_ABS_MEL, "flow", f"mel frames beyond {MAX_ABS_MEL:.0f}")
        audio, _ = self.hift(mel.transpose(1, 2), HashedNoise(one, not config.hift.causal))
        _require(bool(audio.isfinite().all()), "hift", "audio that is not finite")
        _require(float(audio.std()) > MIN_AUDIO_STD, "hift", "constant audio")
        clipped = (audio.abs() >= config.hift.audio_limit).float().mean()
        _require(float(clipped) < 0.5, "hift", "audio that is mostly clipped")


def configure_cuda() -> None:
    """Choose the libraries of the process for CUDA."""
    # TF32 convolutions have a 10-bit mantissa, too little for the phase.
    torch.backends.cudnn.allow_tf32 = False
    # The same for products: NVIDIA's images allow TF32 through TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.
    torch.set_float32_matmul_precision("highest")
    # cuDNN plans an attention for every new shape, which takes up to half a second; the others do not.
    torch.backends.cuda.enable_cudnn_sdp(False)


def _require(condition: bool, part: str, fault: str) -> None:
    if not condition:
        raise BundleError(f"the weights of {part} load but produce {fault}: damaged, or from another model")
