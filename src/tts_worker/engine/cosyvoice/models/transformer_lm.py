"""The language model of CosyVoice-300M: a text encoder and a decoder with relative positions, both causal.

Its input is start, speaker, encoded text, task and speech tokens; instruct mode leaves the speaker out. Positions are
relative, so keys of the past stay valid.

No engine loads this family yet (``bundle.py`` refuses it); its numbers are those of the reference.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.kv_cache import Memory
from tts_worker.engine.cosyvoice.models.dims import TransformerLmDims
from tts_worker.engine.cosyvoice.models.flow_encoder import Embed, FeedForward, RelativeAttention, relative_sinusoids


class TextLayer(nn.Module):
    """A layer of the text encoder."""

    def __init__(self, dim: int, heads: int, inner: int, site: int) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(dim, heads, site)
        self.feed_forward = FeedForward(dim, inner)
        self.norm_mha = nn.LayerNorm(dim, eps=1e-12)
        self.norm_ff = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor, column: Tensor, memory: Memory) -> Tensor:  # [B, T, D]
        x = x + self.self_attn(self.norm_mha(x), mask, column, memory)
        return x + self.feed_forward(self.norm_ff(x))


class ReluFeedForward(FeedForward):
    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        return self.w_2(F.relu(self.w_1(x)))


class SpeechLayer(nn.Module):
    """A layer of the decoder."""

    def __init__(self, dim: int, heads: int, inner: int, site: int) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(dim, heads, site)
        self.feed_forward = ReluFeedForward(dim, inner)
        self.norm1 = nn.LayerNorm(dim, eps=1e-12)
        self.norm2 = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor, column: Tensor, memory: Memory) -> Tensor:  # [B, T, D]
        x = x + self.self_attn(self.norm1(x), mask, column, memory)
        return x + self.feed_forward(self.norm2(x))


class ReluEmbed(Embed):
    """As ``Embed``, with ReLU before the scaling."""

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C] -> [B, T, D]
        x = F.relu(self.out(x))
        return x * math.sqrt(x.shape[-1])


class CausalStack(nn.Module):
    """Layers over a sequence or, with a past, over its continuation."""

    encoders: nn.ModuleList
    embed: nn.Module
    after_norm: nn.LayerNorm

    def prepare(self, tokens: int) -> None:
        """Tabulate relative positions for sequences of up to ``tokens``."""
        table = relative_sinusoids(tokens, self.after_norm.normalized_shape[0]).to(self.after_norm.weight.device)
        for layer in self.encoders:
            cast("TextLayer | SpeechLayer", layer).self_attn.prepare(table)

    def forward(self, x: Tensor, start: Tensor, context: int, memory: Memory) -> Tensor:
        """``x [B, T, C] -> [B, T, D]``.

        Args:
            x: New vectors.
            start: ``[B]`` positions of the first of them.
            context: Positions that the memory returns, at least ``start + T``.
            memory: The past.
        """
        query = start[:, None] + torch.arange(x.shape[1], device=x.device)  # [B, T]
        distance = query[:, :, None] - torch.arange(context, device=x.device)  # [B, T, L], keys left of the query > 0
        mask = (distance >= 0)[:, None]  # [B, 1, T, L]
        column = (context - 1 - distance).clamp(0, context + x.shape[1] - 2)[:, None]
        x = self.embed(x)
        for layer in self.encoders:
            x = layer(x, mask, column, memory)
        return self.after_norm(x)


class TextEncoder(CausalStack):
    """Text vectors to vectors of the decoder's width."""

    def __init__(self, dims: TransformerLmDims) -> None:
        super().__init__()
        self.embed = Embed(dims.text_size, dims.hidden_size)
        self.encoders = nn.ModuleList(
            TextLayer(dims.hidden_size, dims.heads, dims.intermediate_size, site) for site in range(dims.text_layers)
        )
        self.after_norm = nn.LayerNorm(dims.hidden_size, eps=1e-5)


class SpeechDecoder(CausalStack):
    """Input vectors to the vectors that the scores are computed from."""

    def __init__(self, dims: TransformerLmDims) -> None:
        super().__init__()
        self.embed = ReluEmbed(dims.hidden_size, dims.hidden_size)
        self.encoders = nn.ModuleList(
            SpeechLayer(dims.hidden_size, dims.heads, dims.intermediate_size, site) for site in range(dims.layers)
        )
        self.after_norm = nn.LayerNorm(dims.hidden_size, eps=1e-5)


class TransformerLm(nn.Module):
    """The whole language model. Names are those of the official weights. Call ``prepare`` after loading them."""

    def __init__(self, dims: TransformerLmDims) -> None:
        super().__init__()
        self.dims = dims
        self.text_embedding = nn.Embedding(dims.text_vocab, dims.text_size)
        self.text_encoder = TextEncoder(dims)
        self.text_encoder_affine_layer = nn.Linear(dims.hidden_size, dims.hidden_size)
        self.llm_embedding = nn.Embedding(2, dims.hidden_size)  # start, task
        self.llm = SpeechDecoder(dims)
        self.llm_decoder = nn.Linear(dims.hidden_size, dims.speech_tokens + 1)
        self.speech_embedding = nn.Embedding(dims.speech_tokens, dims.hidden_size)
        self.spk_embed_affine_layer = nn.Linear(dims.spk_embed, dims.hidden_size)

    def prepare(self, tokens: int) -> None:
        """Tabulate relative positions for sequences of up to ``tokens`` inputs."""
        self.text_encoder.prepare(tokens)
        self.llm.prepare(tokens)

    def encode_text(self, ids: Tensor, start: Tensor, context: int, memory: Memory) -> Tensor:
        """Encode text ids ``[B, T]``, which continue those in ``memory``: ``[B, T, D]``."""
        return self.text_encoder_affine_layer(self.text_encoder(self.text_embedding(ids), start, context, memory))

    def prompt(self, text: Tensor, embedding: Tensor | None, speech: Tensor) -> Tensor:
        """Return the input before the first draw, ``[B, 2 + has speaker + T + S, D]``.

        Args:
            text: ``[B, T, D]`` encoded text.
            embedding: ``[B, spk]`` speaker vectors; None in instruct mode.
            speech: ``[B, S]`` speech tokens of the prompt.
        """
        start, task = self.llm_embedding.weight.expand(text.shape[0], -1, -1).split(1, dim=1)
        parts = [start]
        if embedding is not None:
            parts.append(self.spk_embed_affine_layer(F.normalize(embedding, dim=1))[:, None])
        return torch.cat([*parts, text, task, self.speech_embedding(speech)], dim=1)

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores ``[..., speech_tokens + 1]`` of ``hidden [..., D]``; the last one is the end of speech."""
        return self.llm_decoder(hidden)
