"""The flow of CosyVoice-300M: speech tokens to mel frames, over whole sequences.

Token and mel rates have no common multiple, so the encoded tokens are interpolated to the rate of mel frames. A stream
computes overlapping parts: the first frames of a part repeat the last ones of the part before, from the same initial
noise and the same token condition. State is passed in and out.
Flow matching: https://arxiv.org/abs/2210.02747; guidance: https://arxiv.org/abs/2207.12598.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import FusedAttention
from tts_worker.engine.cosyvoice.networks.dims import ConformerDims, V1FlowDims
from tts_worker.engine.cosyvoice.networks.flow import EstimatorOwner, FlowBase, initial_noise, solver_times
from tts_worker.engine.cosyvoice.networks.flow_encoder import Embed, Layer, prepare_layers
from tts_worker.engine.cosyvoice.networks.kv_cache import NoPast
from tts_worker.engine.cosyvoice.networks.linear import Linear
from tts_worker.engine.cosyvoice.v1.unet import V1Unet


class TokenEncoder(nn.Module):
    """A conformer without convolution modules in which every token attends to all others."""

    def __init__(self, dims: ConformerDims) -> None:
        super().__init__()
        self.embed = Embed(dims.input_size, dims.output_size)
        self.encoders = nn.ModuleList(Layer(dims, site) for site in range(dims.layers))
        self.after_norm = nn.LayerNorm(dims.output_size, eps=1e-5)
        self.reach_tokens = 0

    def prepare(self, tokens: int) -> None:
        """Tabulate relative positions for sequences of up to ``tokens`` tokens. Idempotent."""
        if tokens <= self.reach_tokens:
            return
        self.reach_tokens = max(tokens, 2 * self.reach_tokens)
        prepare_layers(self.encoders, self.reach_tokens, self.after_norm)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C] -> [B, T, D]
        tokens = x.shape[1]
        self.prepare(tokens)
        position = torch.arange(tokens, device=x.device)
        column = (tokens - 1 - (position[:, None] - position))[None, None].expand(len(x), -1, -1, -1)
        mask = torch.ones_like(column, dtype=torch.bool)
        past = NoPast([])
        x = self.embed(x)
        for layer in self.encoders:
            x = layer(x, mask, column, past)
        return self.after_norm(x)


class LengthRegulator(nn.Module):
    """Interpolates token vectors to the rate of mel frames, then smooths them with convolutions."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Conv1d(channels, channels, 3, padding=1), nn.GroupNorm(1, channels), nn.Mish()]
        self.model = nn.Sequential(*parts, nn.Conv1d(channels, channels, 1))

    def forward(self, parts: list[tuple[Tensor, int]]) -> Tensor:
        """Interpolate each part by itself.

        Args:
            parts: Vectors ``[B, T, C]`` and their number of frames.

        Returns:
            ``[B, frames of all parts, C]``.
        """
        pieces = [F.interpolate(x.transpose(1, 2), size=frames, mode="linear") for x, frames in parts if x.shape[1]]
        return self.model(torch.cat(pieces, dim=2)).transpose(1, 2)


class V1Flow(FlowBase):
    """The flow of CosyVoice-300M. Rows of a batch have equal lengths. Call ``prepare`` after loading the weights."""

    def __init__(self, dims: V1FlowDims) -> None:
        super().__init__(dims)
        self.dims = dims
        self.encoder = TokenEncoder(dims.encoder)
        self.encoder_proj = Linear(dims.encoder.output_size, dims.mel)
        self.length_regulator = LengthRegulator(dims.mel, dims.regulator_layers)
        self.decoder = EstimatorOwner(V1Unet(dims.unet))

    @property
    def estimator(self) -> V1Unet:
        return self.decoder.estimator  # type: ignore[return-value]

    @property
    def device(self) -> torch.device:
        return self.spk_embed_affine_layer.weight.device

    @torch.inference_mode()
    def prepare(self, tokens: int) -> V1Flow:
        """Tabulate what depends on weights and constants only, and fuse layers that share an input.

        Call once after loading the weights. ``tokens`` is the longest expected sequence; longer ones extend the tables.
        """
        self.times = solver_times(self.dims.steps).to(self.device)  # [steps, 2]
        self.noise = initial_noise(self.dims.mel).to(self.device)  # [NOISE_FRAMES, mel]
        for attention in [module for module in self.estimator.modules() if isinstance(module, FusedAttention)]:
            attention.prepare()
        self.time_tables = self.estimator.tables(self.times[:, 0])  # [steps, stages, C]
        self.encoder.prepare(tokens)
        return self

    def mu(self, tokens: Tensor, prompt: Tensor, prompt_frames: int) -> Tensor:
        """Token condition of the estimator: ``[B, prompt_frames + frames(T), mel]``.

        Args:
            tokens: ``[B, T]``.
            prompt: ``[B, P]`` tokens of the prompt.
            prompt_frames: Frames of the prompt; 0 without one.
        """
        ids = torch.cat([prompt, tokens], dim=1)
        x = self.encoder_proj(self.encoder(self.input_embedding(ids.clamp(min=0))))
        edge = self.dims.lookahead_tokens
        frames = self.dims.frames(tokens.shape[1])
        speech = x[:, prompt.shape[1] :]
        parts = [(x[:, : prompt.shape[1]], prompt_frames)]
        if tokens.shape[1] > 2 * edge:  # what two parts of a stream share is interpolated alike in both
            edge_frames = self.dims.frames(edge)
            parts.append((speech[:, :edge], edge_frames))
            parts.append((speech[:, edge:-edge], frames - 2 * edge_frames))
            parts.append((speech[:, -edge:], edge_frames))
        else:
            parts.append((speech, frames))
        return self.length_regulator(parts)

    def noise_at(self, prompt_frames: int, start: int, frames: int) -> Tensor:
        """Initial noise of a part: that of the prompt, then ``frames`` frames from frame ``start`` of the speech.

        Returns:
            ``[1, prompt_frames + frames, mel]``, the same for the same frame in every part.
        """
        speech = prompt_frames + start + torch.arange(frames, device=self.device)
        index = torch.cat([torch.arange(prompt_frames, device=self.device), speech])
        return self.noise[index % len(self.noise)][None]

    def solve(self, mu: Tensor, spk: Tensor, cond: Tensor, noise: Tensor) -> Tensor:
        """Run the guided Euler steps from ``noise [B, T, mel]`` to mel.

        Args:
            mu: ``[B, T, mel]`` token condition.
            spk: ``[B, mel]`` speaker condition.
            cond: ``[B, T, mel]`` prompt mel, or 0.
            noise: Initial state.
        """
        known = torch.cat([mu, spk[:, None].expand(-1, mu.shape[1], -1), cond], dim=2)
        known = torch.cat([known, torch.zeros_like(known)])  # [2B, T, 3*mel], with and without conditions
        x = noise
        for step in range(self.dims.steps):
            inputs = torch.cat([x.repeat(2, 1, 1), known], dim=2)
            conditional, unconditional = self.estimator(inputs, self.time_tables[step]).split(len(x))
            velocity = (1.0 + self.dims.guidance) * conditional - self.dims.guidance * unconditional
            x = x + self.times[step, 1] * velocity
        return x

    @torch.inference_mode()
    def part(
        self, tokens: Tensor, prompt: Tensor, prompt_mel: Tensor, spk: Tensor, noise: Tensor, known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the mel of a part of the speech.

        Args:
            tokens: ``[B, T]`` tokens of the part; the first ``lookahead_tokens`` repeat the end of the part before.
            prompt: ``[B, P]`` tokens of the prompt.
            prompt_mel: ``[B, F, mel]``.
            spk: ``[B, mel]`` speaker condition.
            noise: ``[B, F + N, mel]`` initial noise, for ``N = frames(T)``.
            known: ``[B, F + O, mel]`` condition of the prompt and of the overlap, from the part before.

        Returns:
            Mel ``[B, N, mel]``; ``known`` of the next part.
        """
        prompt_frames = prompt_mel.shape[1]
        mu = self.mu(tokens, prompt, prompt_frames)
        if known is not None:
            mu = torch.cat([known, mu[:, known.shape[1] :]], dim=1)
        cond = F.pad(prompt_mel, (0, 0, 0, mu.shape[1] - prompt_frames))
        mel = self.solve(mu, spk, cond, noise)[:, prompt_frames:]
        return mel, torch.cat([mu[:, :prompt_frames], mu[:, -self.overlap_frames :]], dim=1)

    @property
    def overlap_frames(self) -> int:
        """Frames that a part and the next one share."""
        return self.dims.frames(self.dims.lookahead_tokens)


def fade_mel(mel: Tensor, held: Tensor) -> Tensor:
    """Cross-fade the first frames of a part ``mel [B, N, mel]`` from the same frames ``held [B, O, mel]`` of the last.

    Like the reference, with halves of a Hamming window, whose sum is not quite constant.
    """
    overlap = held.shape[1]
    window = torch.hamming_window(2 * overlap, periodic=False, dtype=torch.float64, device=mel.device)[:, None]
    faded = mel[:, :overlap] * window[:overlap] + held * window[overlap:]
    return torch.cat([faded.to(mel.dtype), mel[:, overlap:]], dim=1)
