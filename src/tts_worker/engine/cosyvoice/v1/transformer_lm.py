"""The language model of CosyVoice-300M: a text encoder and a decoder with relative positions, both causal.

Its input is start, speaker, encoded text, task and speech tokens; instruct mode leaves the speaker out. Positions are
relative, so keys of the past stay valid, and the text can be encoded at its positions in the sequence of the decoder:
both share the slots of one KV cache, the text encoder in the layers behind those of the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import embedding
from tts_worker.engine.cosyvoice.networks.dims import TransformerLmDims
from tts_worker.engine.cosyvoice.networks.flow_encoder import Embed, FeedForward, RelativeAttention, relative_sinusoids
from tts_worker.engine.cosyvoice.networks.kv_cache import AttentionMemory, SlotPool
from tts_worker.engine.cosyvoice.networks.linear import Linear
from tts_worker.engine.cosyvoice.networks.lm_inputs import Kind


class CausalAttention(RelativeAttention):
    """``RelativeAttention`` without keys right of the query. ``positions`` are those of distances M-1 .. 0."""

    def forward(
        self, x: Tensor, mask: Tensor, column: Tensor, memory: AttentionMemory
    ) -> Tensor:  # [B, T, D] -> [B, T, D]
        context = mask.shape[-1]
        qkv = torch.stack([self.linear_q(x), self.linear_k(x), self.linear_v(x)])
        qkv = qkv.unflatten(-1, (self.heads, -1)).transpose(2, 3)  # [3, B, H, T, d]
        q, (k, v) = qkv[0], memory.keys_values(self.site, qkv[1:])  # [B, H, T or L, d]
        by_position = (q + self.pos_bias_v[:, None]) @ self.positions[:, :, -context:]  # [B, H, T, L]
        bias = by_position.gather(-1, column.expand(-1, self.heads, -1, -1)) / math.sqrt(q.shape[-1])
        out = F.scaled_dot_product_attention(q + self.pos_bias_u[:, None], k, v, bias.masked_fill(~mask, -torch.inf))
        return self.linear_out(out.transpose(1, 2).flatten(2))


class SlotMemory:
    """Layers of a ``SlotPool`` as the past of a ``CausalStack``.

    Args:
        pool: The KV cache.
        first_layer: Layer of the cache for site 0.
        slots: ``[B]``.
        positions: ``[B, T]`` of the new vectors; ``pool.max_tokens`` for padding.
        ends: ``[B]`` positions of the slots after this pass.
        context: Positions that are read.
    """

    def __init__(
        self, pool: SlotPool, first_layer: int, slots: Tensor, positions: Tensor, ends: Tensor, context: int
    ) -> None:
        self._pool = pool
        self._first_layer = first_layer
        self._slots = slots
        self._positions = positions
        self._ends = ends
        self._context = context
        # A single sequence on a CPU is read in place.
        self._slot = int(slots[0]) if slots.shape[0] == 1 and not slots.is_cuda and not pool.checked else None

    def keys_values(self, site: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        layer = self._first_layer + site
        for which, new in enumerate(kv):  # [B, H, T, d]
            self._pool.data[layer, which, self._slots[:, None], :, self._positions] = new.transpose(1, 2)
        if self._slot is None:
            return self._pool.gather(layer, self._slots, self._ends, self._context)
        keys, values = self._pool.data[layer, :, self._slot : self._slot + 1, :, : self._context].unbind()
        return keys, values


class TextLayer(nn.Module):
    """A layer of the text encoder."""

    def __init__(self, dim: int, heads: int, inner: int, site: int) -> None:
        super().__init__()
        self.self_attn = CausalAttention(dim, heads, site)
        self.feed_forward = FeedForward(dim, inner)
        self.norm_mha = nn.LayerNorm(dim, eps=1e-12)
        self.norm_ff = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor, column: Tensor, memory: AttentionMemory) -> Tensor:  # [B, T, D]
        x = x + self.self_attn(self.norm_mha(x), mask, column, memory)
        return x + self.feed_forward(self.norm_ff(x))


class ReluFeedForward(FeedForward):
    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        return self.w_2(F.relu(self.w_1(x)))


class SpeechLayer(nn.Module):
    """A layer of the decoder."""

    def __init__(self, dim: int, heads: int, inner: int, site: int) -> None:
        super().__init__()
        self.self_attn = CausalAttention(dim, heads, site)
        self.feed_forward = ReluFeedForward(dim, inner)
        self.norm1 = nn.LayerNorm(dim, eps=1e-12)
        self.norm2 = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor, column: Tensor, memory: AttentionMemory) -> Tensor:  # [B, T, D]
        x = x + self.self_attn(self.norm1(x), mask, column, memory)
        return x + self.feed_forward(self.norm2(x))


class ReluEmbed(Embed):
    """As ``Embed``, with ReLU before the scaling."""

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C] -> [B, T, D]
        x = F.relu(self.out(x))
        return x * math.sqrt(x.shape[-1])


class CausalStack(nn.Module):
    """Layers over a sequence or, with a past, over its continuation. They make vectors of ``dim`` of others."""

    def __init__(self, embed: Embed, layers: Iterable[TextLayer | SpeechLayer], dim: int) -> None:
        super().__init__()
        self.embed = embed
        self.encoders = nn.ModuleList(layers)
        self.after_norm = nn.LayerNorm(dim, eps=1e-5)

    def prepare(self, tokens: int) -> None:
        """Tabulate relative positions for sequences of up to ``tokens``."""
        table = relative_sinusoids(tokens, self.after_norm.normalized_shape[0])[:tokens].to(
            self.after_norm.weight.device
        )
        for layer in self.encoders:
            cast("TextLayer | SpeechLayer", layer).self_attn.prepare(table)

    def forward(
        self, x: Tensor, positions: Tensor, context: int, memory: AttentionMemory, first: Tensor | None = None
    ) -> Tensor:
        """``x [B, T, C] -> [B, T, D]``.

        Args:
            x: New vectors.
            positions: ``[B, T]`` where they are.
            context: Positions that the memory returns, beyond the largest of ``positions`` but for padding.
            memory: The past.
            first: ``[B]`` position before which no other vector sees anything; None: 0.
        """
        key = torch.arange(context, device=x.device)
        distance = positions[:, :, None] - key  # [B, T, L], keys left of the query > 0
        mask = distance >= 0
        if first is not None:
            mask = mask & ((key >= first[:, None])[:, None] | (distance == 0))
        column = (context - 1 - distance).clamp(0, context - 1)
        x = self.embed(x)
        for layer in self.encoders:
            x = layer(x, mask[:, None], column[:, None], memory)
        return self.after_norm(x)


class TransformerLm(nn.Module):
    """The whole language model. Names are those of the official weights. Call ``prepare`` after loading them."""

    def __init__(self, dims: TransformerLmDims) -> None:
        super().__init__()
        self.dims = dims
        self.text_embedding = embedding(dims.text_vocab, dims.text_size)
        sizes = dims.hidden_size, dims.heads, dims.intermediate_size
        text_layers = (TextLayer(*sizes, site) for site in range(dims.text_layers))
        self.text_encoder = CausalStack(Embed(dims.text_size, dims.hidden_size), text_layers, dims.hidden_size)
        self.text_encoder_affine_layer = Linear(dims.hidden_size, dims.hidden_size)
        self.llm_embedding = embedding(2, dims.hidden_size)  # start, task
        layers = (SpeechLayer(*sizes, site) for site in range(dims.layers))
        self.llm = CausalStack(ReluEmbed(dims.hidden_size, dims.hidden_size), layers, dims.hidden_size)
        self.llm_decoder = Linear(dims.hidden_size, dims.speech_tokens + 1)
        self.speech_embedding = embedding(dims.speech_tokens, dims.hidden_size)
        self.spk_embed_affine_layer = Linear(dims.spk_embed, dims.hidden_size)
        self.speech_table = torch.zeros(0)  # [speech_tokens + 1, D], set by ``prepare``

    def prepare(self, tokens: int) -> None:
        """Tabulate relative positions for sequences of up to ``tokens`` inputs, and the inputs of decode steps."""
        self.text_encoder.prepare(tokens)
        self.llm.prepare(tokens)
        # The input of an idle slot, whose last id may be the end of speech, is never used.
        self.speech_table = F.pad(self.speech_embedding.weight, (0, 0, 0, 1))

    def speaker(self, embedding: Tensor) -> Tensor:
        """The input that tells the speaker, ``[B, D]``, of ``embedding [B, spk]``."""
        weight = self.spk_embed_affine_layer.weight
        return self.spk_embed_affine_layer(F.normalize(embedding, dim=1).to(weight))

    def score_items(
        self,
        ids: Tensor,
        kinds: Tensor,
        new: Tensor,
        slots: Tensor,
        pool: SlotPool,
        context: int,
        speakers: Tensor | None = None,
    ) -> Tensor:
        """Append inputs to the KV cache and score the next token.

        Args:
            ids: ``[B, T]`` ids of the inputs.
            kinds: ``[B, T]`` their kinds, by ``Kind``.
            new: ``[B]`` number of valid inputs per row; the rest is padding.
            slots: ``[B]`` distinct slots of ``pool``.
            pool: The KV cache, of ``dims.cache_layers`` layers.
            context: At least the longest length of the slots after this call.
            speakers: ``[S, D]`` inputs that tell the speaker, by slot; zeros for a sequence without one.

        Returns:
            Scores ``[B, speech_tokens + 1]`` after the last valid input, in the dtype of the network.
        """
        begin = pool.lengths[slots]
        pool.lengths.index_add_(0, slots, new)
        steps = torch.arange(ids.shape[1], device=ids.device)
        positions = torch.where(steps < new[:, None], begin[:, None] + steps, pool.max_tokens)  # [B, T]
        ends = begin + new
        x = self._embed(ids, kinds, slots, positions, ends, pool, context, speakers)
        hidden = self.llm(x, positions, context, SlotMemory(pool, 0, slots, positions, ends, context))
        last = (new - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[2])
        return self.llm_decoder(hidden.gather(1, last)[:, 0])

    def _embed(
        self,
        ids: Tensor,
        kinds: Tensor,
        slots: Tensor,
        positions: Tensor,
        ends: Tensor,
        pool: SlotPool,
        context: int,
        speakers: Tensor | None,
    ) -> Tensor:
        """Return the vectors ``[B, T, D]`` of inputs; encodes the text among them.

        The text encoder visits all inputs, so that its part of the cache is written everywhere.
        """
        special = F.pad(self.llm_embedding.weight, (0, 0, 0, 1))  # start, task, and the place of the speaker
        x = F.embedding((kinds - Kind.SOS).clamp(min=0), special)
        speech = self.speech_embedding(torch.where(kinds == Kind.SPEECH, ids, 0))
        x = torch.where((kinds == Kind.SPEECH)[..., None], speech, x)
        is_text = kinds == Kind.TEXT
        first = torch.ones_like(slots)
        if speakers is not None:
            told = speakers[slots]
            x = torch.where((kinds == Kind.SPEAKER)[..., None], told[:, None], x)
            first = first + told.any(1)
        memory = SlotMemory(pool, self.dims.layers, slots, positions, ends, context)
        text = self.text_embedding(torch.where(is_text, ids, 0))
        encoded = self.text_encoder_affine_layer(self.text_encoder(text, positions, context, memory, first))
        return torch.where(is_text[..., None], encoded, x)

    def step_logits(
        self, x: Tensor, positions: Tensor, ends: Tensor, slots: Tensor, pool: SlotPool, context: int
    ) -> Tensor:
        """Score the next token after one input per slot, as ``begin_step`` prepares it.

        Args:
            x: ``[B, D]`` input vectors.
            positions: ``[B, 1]``; ``pool.max_tokens`` for idle slots.
            ends: ``[B]`` positions of the slots after this call.
            slots: ``[B]`` slots of ``pool``; distinct, except for idle ones.
            pool: The KV cache.
            context: At least the largest of ``ends``.

        Returns:
            Scores ``[B, speech_tokens + 1]`` in the dtype of the network.
        """
        memory = SlotMemory(pool, 0, slots, positions, ends, context)
        return self.llm_decoder(self.llm(x[:, None], positions, context, memory)[:, 0])
