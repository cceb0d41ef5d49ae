"""The flow: speech tokens to mel frames by flow matching with a guided Euler solver.

``Flow.mel`` computes whole sequences; ``Flow.chunk`` computes the next chunk of many utterances from their past and
gives the same numbers under the chunk mask. State is passed in and out; the module only stores what derives from
weights and constants (time tables, initial noise).
Flow matching: https://arxiv.org/abs/2210.02747; guidance: https://arxiv.org/abs/2207.12598.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import (
    CausalConv,
    Estimator,
    FusedAttention,
    Lookahead,
    Sites,
    chunk_mask,
    embedding,
    use_product_dtype,
)
from tts_worker.engine.cosyvoice.networks.dims import AnyFlowDims, FlowDims, UnetDims
from tts_worker.engine.cosyvoice.networks.dit import Dit
from tts_worker.engine.cosyvoice.networks.flow_encoder import Encoder, EncoderPast
from tts_worker.engine.cosyvoice.networks.kv_cache import Memory, NoPast
from tts_worker.engine.cosyvoice.networks.linear import Linear
from tts_worker.engine.cosyvoice.networks.unet import Unet
from tts_worker.engine.cosyvoice.ops.audio import paged_attention

NOISE_FRAMES = 15_000  # 300 s; the reference stops there, this implementation wraps around


def solver_times(steps: int) -> Tensor:
    """Cosine schedule ``[steps, 2]``: time and step size. Accumulates in float32 to match the reference's rounding."""
    ends = 1 - torch.cos(torch.linspace(0, 1, steps + 1) * 0.5 * torch.pi)
    t = ends[0]
    dt = ends[1] - ends[0]
    rows = []
    for step in range(1, steps + 1):
        rows.append(torch.stack([t, dt]))
        t = t + dt
        dt = ends[min(step + 1, steps)] - t
    return torch.stack(rows)


def initial_noise(mel: int) -> Tensor:
    """The fixed initial noise of the solver, by absolute frame: ``[NOISE_FRAMES, mel]``."""
    return torch.randn([1, mel, NOISE_FRAMES], generator=torch.Generator().manual_seed(0))[0].T.contiguous()


Velocity = Callable[[Tensor, Tensor | None, Tensor, Tensor | None, Any], Tensor]
"""The signature of ``Estimator.velocity``."""


@dataclass(frozen=True)
class ChunkPast:
    """The past of a batch of utterances.

    Attributes:
        front: Past of the look-ahead layer (v3) or the encoder (v2).
        estimator: Past of the estimator by solver rows, for frames from ``start [B]`` on of which those before
            ``total [B]`` exist. Row 0 is the conditional branch of the first step, rows 2s-1 and 2s are both branches
            of step s.
        null_velocity: ``[B, T, mel]`` unconditional velocity of the first step where it is tabulated (it depends on
            the position only).
        velocity: Replaces ``Estimator.velocity``, for example by a compiled one.
    """

    front: Memory | EncoderPast
    estimator: Callable[[slice, Tensor, Tensor], Memory]
    null_velocity: Tensor | None = None
    velocity: Velocity | None = None


class EstimatorOwner(nn.Module):
    """Namespace that matches the official key names."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator


class FlowBase(nn.Module):
    """What the flows of all families share: embeddings, the estimator's dtype, and what ``prepare`` tabulates."""

    decoder: EstimatorOwner

    def __init__(self, dims: AnyFlowDims) -> None:
        super().__init__()
        self.input_embedding = embedding(dims.vocab, dims.input_size)
        self.spk_embed_affine_layer = Linear(dims.spk_embed, dims.mel)
        self.times = self.noise = self.time_tables = torch.zeros(0)  # set by ``prepare``
        self.dtype = torch.float32  # of the estimator's products

    def use_dtype(self, dtype: torch.dtype) -> None:
        """Compute the products of the estimator in ``dtype``. Norms and the residual stream stay float32."""
        use_product_dtype(self.decoder.estimator, dtype)
        self.dtype = dtype

    def speaker(self, embedding: Tensor) -> Tensor:
        """Project speaker embeddings ``[B, spk_embed]`` to conditions ``[B, mel]``."""
        return self.spk_embed_affine_layer(F.normalize(embedding.to(self.spk_embed_affine_layer.weight), dim=1))


class Flow(FlowBase):
    """The flow of CosyVoice2 (encoder and UNet) or CosyVoice3 (look-ahead layer and DiT)."""

    def __init__(self, dims: FlowDims) -> None:
        super().__init__(dims)
        self.dims = dims
        self.front_sites = Sites()
        if dims.encoder is not None:
            self.encoder = Encoder(dims.encoder)
            self.encoder_proj = Linear(dims.encoder.output_size, dims.mel)
        if dims.lookahead is not None:
            self.pre_lookahead_layer = Lookahead(dims.lookahead, self.front_sites)
        estimator_dims = dims.unet or dims.dit
        assert estimator_dims is not None
        self.decoder = EstimatorOwner(
            Unet(estimator_dims) if isinstance(estimator_dims, UnetDims) else Dit(estimator_dims)
        )
        self.chunk_frames = estimator_dims.chunk_frames
        self.weights = torch.zeros(0)  # set by ``prepare``

    @property
    def estimator(self) -> Unet | Dit:
        return self.decoder.estimator  # type: ignore[return-value]

    @torch.inference_mode()
    def prepare(self, tokens: int) -> Flow:
        """Tabulate what depends on weights and constants only, and fuse layers that share an input.

        Call once after loading the weights. ``tokens`` is the longest expected sequence; longer ones extend the tables.
        """
        device = self.spk_embed_affine_layer.weight.device
        self.times = solver_times(self.dims.steps).to(device)  # [steps, 2]
        # Weights of both branches in the sum over the steps, [steps, 2].
        self.weights = self.times[:, 1:] * torch.tensor([1.0 + self.dims.guidance, -self.dims.guidance], device=device)
        self.noise = initial_noise(self.dims.mel).to(device)  # [NOISE_FRAMES, mel]
        for module in list(self.estimator.modules()):
            if isinstance(module, FusedAttention | CausalConv):
                module.prepare()
        self.time_tables = self.estimator.tables(self.times[:, 0])  # [steps, K, D]
        if self.dims.encoder is not None:
            self.encoder.prepare(tokens)
        if self.noise.is_cuda:
            self.pack()
        return self

    @torch.inference_mode(False)
    def pack(self) -> None:
        """Store the weights that the fused operators need."""
        for module in list(self.estimator.modules()):
            if isinstance(module, CausalConv):
                module.pack()

    def mu(
        self,
        tokens: Tensor,
        known: Tensor,
        start: Tensor,
        total: Tensor,
        context: int,
        chunked: bool,
        front: Memory | EncoderPast,
    ) -> Tensor:
        """Token condition of the estimator: ``[B, T*frames_per_token, mel]``.

        Args:
            tokens: ``[B, T+A]``, the last A are look-ahead only.
            known: ``[B]`` number of available tokens.
            start: ``[B]`` position of the first token.
            total: ``[B]`` tokens before this position are rendered.
            context: At least ``start + T``.
            chunked: Whether attention uses the chunk mask.
            front: Past of the encoder or look-ahead layer.
        """
        x = self.input_embedding(tokens.clamp(min=0))  # [B, T+A, C]
        if isinstance(front, EncoderPast):
            return self.encoder_proj(self.encoder(x, known, start, total, context, chunked, front))
        exists = torch.arange(x.shape[1], device=x.device) < known[:, None]
        x = self.pre_lookahead_layer(x.masked_fill(~exists[:, :, None], 0.0), front)  # [B, T, mel]
        return x.repeat_interleave(self.dims.frames_per_token, dim=1)

    def noise_at(self, start: Tensor, frames: int) -> Tensor:
        """Initial noise of ``frames`` frames from absolute frame ``start [B]``: ``[B, frames, mel]``."""
        return self.noise[(start[:, None] + torch.arange(frames, device=start.device)) % NOISE_FRAMES]

    def solve(
        self,
        mu: Tensor,
        spk: Tensor,
        cond: Tensor,
        start: Tensor,
        mask: Tensor | None,
        past: ChunkPast,
        total: Tensor | None = None,
    ) -> Tensor:
        """Run the guided Euler steps from noise to mel.

        Args:
            mu: ``[B, T, mel]`` token condition.
            spk: ``[B, mel]`` speaker condition.
            cond: ``[B, T, mel]`` prompt mel, or 0.
            start: ``[B]`` first frame.
            mask: ``[B, 1, T, L]``, or None if every key is visible or the past knows which ones are.
            past: Past of the networks.
            total: ``[B]``: frames before this position exist; ``None``: all.

        Returns:
            ``[B, T, mel]`` float32.
        """
        x = self.noise_at(start, mu.shape[1])
        total = start + mu.shape[1] if total is None else total
        if mask is not None:  # converted to an additive bias once instead of in each attention
            mask = torch.zeros(mask.shape, dtype=mu.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
        velocity = self._branches(mu, spk, cond, start, mask, past.velocity)
        for step in range(self.dims.steps):
            table = self.time_tables[step : step + 1]
            if step == 0 and past.null_velocity is not None:
                conditional = velocity(x, 1, table, past.estimator(slice(0, 1), start, total))
                unconditional = past.null_velocity
            else:
                memory = past.estimator(slice(2 * step - 1, 2 * step + 1), start, total)
                conditional, unconditional = velocity(x, 2, table, memory).chunk(2)
            x = torch.addcmul(x, conditional, self.weights[step, 0])
            x = torch.addcmul(x, unconditional, self.weights[step, 1])
        return x

    def _branches(
        self, mu: Tensor, spk: Tensor, cond: Tensor, start: Tensor, mask: Tensor | None, replaced: Velocity | None
    ) -> Callable[[Tensor, int, Tensor, Memory], Tensor]:
        """Prepare what all steps share.

        Returns:
            The velocity ``[n*B, T, mel]`` of the first ``n`` branches, the conditional one and the unconditional one,
            from the state ``[B, T, mel]``, ``n``, a row of the time tables and the past.
        """
        batch = mu.shape[0]
        mu, spk, cond = (torch.cat([y, torch.zeros_like(y)]) for y in (mu, spk, cond))
        if mask is not None and mask.shape[0] > 1:
            mask = mask.repeat(2, 1, 1, 1)
        estimator = self.estimator
        if not isinstance(estimator, Estimator):  # of another back end
            return lambda x, n, table, past: self.estimator(
                x.to(mu).repeat(n, 1, 1),
                mu[: n * batch],
                spk[: n * batch],
                cond[: n * batch],
                table,
                start,
                None if mask is None else mask[: n * batch],
                past,
            )
        inputs = estimator.inputs(torch.zeros_like(mu), mu, spk, cond)  # [2B, T, I]
        positions = estimator.positions(start, inputs)
        compute = replaced or estimator.velocity

        def velocity(x: Tensor, n: int, table: Tensor, past: Memory) -> Tensor:
            rows = slice(0, n * batch)
            inputs[rows].unflatten(0, (n, batch))[..., : estimator.mel] = x
            return compute(
                inputs[rows],
                None if positions is None else positions[rows],
                table,
                None if mask is None else mask[rows],
                past,
            )

        return velocity

    def no_past(self) -> ChunkPast:
        if self.dims.encoder is not None:
            encoder = self.encoder
            front: Memory | EncoderPast = EncoderPast(
                NoPast(encoder.token_sites.tails), NoPast(encoder.frame_sites.tails)
            )
        else:
            front = NoPast(self.front_sites.tails)
        tails = self.estimator.sites.tails
        return ChunkPast(front, lambda rows, start, total: NoPast(tails))

    @torch.inference_mode()
    def mel(
        self,
        tokens: Tensor,
        lengths: Tensor,
        prompt_mel: Tensor,
        prompt_frames: Tensor,
        spk: Tensor,
        *,
        chunked: bool,
        final: bool,
    ) -> Tensor:
        """Compute the mel of whole sequences.

        Args:
            tokens: ``[B, L]`` prompt and speech; unless ``final``, the last ones are look-ahead only.
            lengths: ``[B]`` number of valid tokens.
            prompt_mel: ``[B, P, mel]``.
            prompt_frames: ``[B]`` number of valid prompt frames.
            spk: ``[B, mel]`` speaker condition.
            chunked: Use the chunk mask.
            final: Whether no more tokens follow.

        Returns:
            ``[B, L'*frames_per_token, mel]`` including the prompt; L' is L, less the look-ahead unless ``final``.
        """
        ahead = self.dims.lookahead_tokens
        tokens = F.pad(tokens, (0, ahead)) if final else tokens
        span = tokens.shape[1] - ahead
        start = torch.zeros_like(lengths)
        total = lengths if final else lengths - ahead  # [B] tokens to render
        if self.dims.encoder is not None:
            self.encoder.prepare(span)
        past = self.no_past()
        mu = self.mu(tokens, lengths, start, total, span, chunked, past.front)  # [B, T, mel]
        mu = mu.to(self.dtype)
        frames = mu.shape[1]
        cond = F.pad(prompt_mel, (0, 0, 0, max(0, frames - prompt_mel.shape[1])))[:, :frames].to(mu)
        is_prompt = torch.arange(frames, device=mu.device) < prompt_frames[:, None]
        cond = cond.masked_fill(~is_prompt[:, :, None], 0.0)
        total_frames = total * self.dims.frames_per_token
        mask = chunk_mask(start, total_frames, frames, frames, self.chunk_frames * chunked)
        return self.solve(mu, spk.to(mu), cond, start, mask, past)

    @torch.inference_mode()
    def chunk(
        self, tokens: Tensor, known: Tensor, start: Tensor, context: int, spk: Tensor, cond: Tensor, past: ChunkPast
    ) -> Tensor:
        """Compute the next chunk of each utterance.

        Args:
            tokens: ``[B, T+A]``, the last A are look-ahead only.
            known: ``[B]`` number of available tokens.
            start: ``[B]`` first token, a multiple of the chunk size.
            context: Number of tokens in the page tables.
            spk: ``[B, mel]``.
            cond: ``[B, T*frames_per_token, mel]``.
            past: Past of the networks.

        Returns:
            ``[B, T*frames_per_token, mel]``; frames after the end are undefined.
        """
        ratio = self.dims.frames_per_token
        span = tokens.shape[1] - self.dims.lookahead_tokens
        total = start + known.clamp(max=span)
        mu = self.mu(tokens, known, start, total, context, True, past.front).to(self.dtype)
        start = start * ratio
        total = total * ratio
        mask: Tensor | None = None
        if not (isinstance(self.estimator, Estimator) and paged_attention.is_fused(mu)):
            mask = chunk_mask(start, total, span * ratio, context * ratio, self.chunk_frames)
            if not mu.is_cuda and bool(mask.all()):
                mask = None  # a single utterance sees its whole past; attention without a mask is faster on a CPU
        return self.solve(mu, spk.to(mu), cond.to(mu), start, mask, past, total)
