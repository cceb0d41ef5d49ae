"""The speech language model: a Qwen2 decoder over text and speech tokens that scores the next speech token.

One forward pass serves any subset of utterances, with their KV caches in a ``SlotPool``: prefill, later text and single
decode steps are the same call with a different ``T``. On CUDA nothing is read by the host. A single utterance on a CPU
has a separate pass that copies nothing. Drawing ids is in sampler.py, the order of inputs in runs.py.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.networks.blocks import embedding
from tts_worker.engine.cosyvoice.networks.dims import LmDims
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool, SlotView
from tts_worker.engine.cosyvoice.networks.linear import Linear, fuse_linear, linear, store_by_columns
from tts_worker.engine.cosyvoice.networks.lm_inputs import Kind
from tts_worker.engine.cosyvoice.ops.language_model import (
    add_rms_norm,
    attention_splits,
    rotate_and_store,
    silu_mul,
    slot_attention,
)


class Attention(nn.Module):
    """Weights of grouped-query attention."""

    def __init__(self, dims: LmDims) -> None:
        super().__init__()
        self.q_proj = nn.Linear(dims.hidden_size, dims.heads * dims.head_dim)
        self.k_proj = nn.Linear(dims.hidden_size, dims.kv_heads * dims.head_dim)
        self.v_proj = nn.Linear(dims.hidden_size, dims.kv_heads * dims.head_dim)
        self.o_proj = nn.Linear(dims.heads * dims.head_dim, dims.hidden_size, bias=False)

    def prepare(self) -> None:
        self.qkv_proj = fuse_linear(self.q_proj, self.k_proj, self.v_proj)
        store_by_columns(self.qkv_proj, self.o_proj)
        del self.q_proj, self.k_proj, self.v_proj


class Mlp(nn.Module):
    """Weights of the feed-forward layer."""

    def __init__(self, dims: LmDims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims.hidden_size, dims.intermediate_size, bias=False)
        self.up_proj = nn.Linear(dims.hidden_size, dims.intermediate_size, bias=False)
        self.down_proj = nn.Linear(dims.intermediate_size, dims.hidden_size, bias=False)

    def prepare(self) -> None:
        self.gate_up_proj = fuse_linear(self.gate_proj, self.up_proj)
        store_by_columns(self.gate_up_proj, self.down_proj)
        del self.gate_proj, self.up_proj


class Layer(nn.Module):
    def __init__(self, dims: LmDims, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.self_attn = Attention(dims)
        self.mlp = Mlp(dims)
        self.input_layernorm = nn.RMSNorm(dims.hidden_size, dims.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(dims.hidden_size, dims.rms_norm_eps)

    def prepare(self) -> None:
        self.self_attn.prepare()
        self.mlp.prepare()
        # nn.Module attribute lookup costs as much as a small operation.
        self._weights = (
            self.input_layernorm.weight,
            self.self_attn.qkv_proj.weight,
            self.self_attn.qkv_proj.bias,
            self.self_attn.o_proj.weight,
            self.post_attention_layernorm.weight,
            self.mlp.gate_up_proj.weight,
            self.mlp.down_proj.weight,
        )

    def forward(self, x: Tensor, step: _Pass) -> Tensor:
        """Take what the layer before adds to the residual, ``[N, D]``, and return what this one adds."""
        input_norm, qkv, qkv_bias, out, post_norm, gate_up, down = self._weights
        x = step.attend(self.layer, linear(step.add_norm(x, input_norm), qkv, qkv_bias))
        x = linear(x, out)
        return linear(step.gate(step.add_norm(x, post_norm), gate_up), down)


class _Pass(Protocol):
    """State that all layers share during a forward pass over ``N`` = batch x time rows."""

    def add_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Add ``x [N, D]`` to the residual and return its RMS norm."""
        ...

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Store keys and values of ``qkv [N, (H+2*Hkv)*d]`` and attend: ``[N, H*d]``."""
        ...

    def gate(self, x: Tensor, weight: Tensor) -> Tensor:
        """The gated product of the feed-forward layer: ``[N, D] -> [N, I]``."""
        ...


class _BatchPass:
    """A forward pass over any number of slots. Runs fused operators, and never reads values on the host.

    Args:
        lm: The network.
        pool: The KV cache.
        slots: ``[B]``, distinct.
        positions: ``[B, T]`` of the new vectors; ``pool.max_tokens`` for padding.
        ends: ``[B]`` positions of the slots after this pass.
        context: At least the largest of ``ends``.
        like: A tensor of the residual's dtype and device.
    """

    def __init__(
        self, lm: SpeechLM, pool: SlotPool, slots: Tensor, positions: Tensor, ends: Tensor, context: int, like: Tensor
    ) -> None:
        dims, (batch, span) = lm.dims, positions.shape
        self._pool = pool
        self._slots = slots
        self._positions = positions
        self._ends = ends
        self._context = context
        self._eps = dims.rms_norm_eps
        self._heads = (dims.kv_heads, dims.heads // dims.kv_heads)
        self._residual = like.new_zeros(batch * span, dims.hidden_size)
        self._rotations = lm.rotations(pool.max_tokens + 1, like)[positions.flatten()]  # [N, 3, d/2]
        self._splits = attention_splits(context) if span == 1 else 1
        self._mask: Tensor | None = None
        if not slot_attention.is_fused(like):
            hidden = torch.arange(context, device=like.device) > positions[:, :, None]  # [B, T, L]
            bias = like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            groups = self._heads[1] if span > 1 else 1
            self._mask = bias.repeat(1, groups, 1)[:, None]  # [B, 1, G*T or 1, L]

    def add_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return add_rms_norm(x, self._residual, weight, self._eps)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        data = self._pool.data
        queries = rotate_and_store(qkv, self._rotations, self._positions, self._slots, data, layer)  # [N, H, d]
        if self._mask is None:
            return slot_attention(queries, data, layer, self._slots, self._positions, self._ends, self._splits)
        keys, values = self._pool.gather(layer, self._slots, self._ends, self._context)
        batch, span = self._positions.shape
        # Query heads that share a key head are stacked along time, so that no keys are repeated in memory.
        queries = queries.view(batch, span, *self._heads, -1).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, Hkv, G*T, d]
        out = F.scaled_dot_product_attention(queries, keys, values, self._mask)
        out = out.unflatten(2, (-1, span)).permute(0, 3, 1, 2, 4)  # [B, T, Hkv, G, d]
        return out.reshape(batch * span, -1)

    def gate(self, x: Tensor, weight: Tensor) -> Tensor:
        return silu_mul(linear(x, weight))


class _SinglePass:
    """A forward pass over a single slot on a CPU, where keys and values are read in place.

    Layers use work buffers through views that are created once.

    Args:
        lm: The network.
        pool: The KV cache.
        slot: The slot.
        begin: Position of the first vector.
        count: Number of vectors that are stored; the others are padding.
        span: Number of vectors ``T``.
        context: At least ``begin + count``.
        like: A tensor of the residual's dtype.
    """

    def __init__(
        self, lm: SpeechLM, pool: SlotPool, slot: int, begin: int, count: int, span: int, context: int, like: Tensor
    ) -> None:
        dims = lm.dims
        self._span = span
        self._shape = [dims.hidden_size]
        self._eps = dims.rms_norm_eps
        self._eps_term = like.new_full((1, 1), dims.rms_norm_eps) if span == 1 and like.dtype == torch.float32 else None
        self._merged = (span, dims.heads * dims.head_dim)
        self._residual: Tensor | None = None  # [T, D]
        self._column: Tensor  # its transpose, [D, T]
        self._gate_up = like.new_empty(1, 2 * dims.intermediate_size)  # of a single vector
        self._gate, self._up = self._gate_up.chunk(2, dim=-1)
        heads = like.new_empty(1, span, dims.heads + 2 * dims.kv_heads, dims.head_dim)
        self._rotated = heads.unflatten(3, (2, -1))  # [1, T, H+2*Hkv, 2, d/2]
        queries, kv = heads.tensor_split((dims.heads,), dim=2)
        queries = queries.unflatten(2, (dims.kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [1, Hkv, G, T, d]
        # Query heads that share a key head are stacked along time, so that no keys are repeated in memory.
        self._queries = queries.flatten(2, 3) if span == 1 else queries  # [1, Hkv, G*T, d]
        self._past = SlotView(pool, slot, begin, count, context, kv[0])
        # Values are "rotated" as at position 0, which changes nothing: one operation for all heads.
        rows = lm.rotated_heads(like.device) * begin  # [H+2*Hkv]
        self._mask: Tensor | None = None  # [1, 1, G*T, L], added to the scores
        if span > 1 or context > begin + 1:
            positions = torch.arange(begin, begin + span)[:, None]
            hidden = torch.arange(context) > positions  # [T, L]
            bias = like.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            self._mask = bias.repeat(dims.heads // dims.kv_heads if span > 1 else 1, 1)[None, None]
            rows = positions.clamp_(max=pool.max_tokens) * lm.rotated_heads(like.device)  # [T, H+2*Hkv]
        rotations = lm.rotations(pool.max_tokens + 1, like)[rows]  # [T, H+2*Hkv, 3, d/2] or [H+2*Hkv, 3, d/2]
        self._cos, self._sin = rotations.tensor_split((1,), dim=-2)

    def add_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if self._residual is None:
            self._residual = x.clone()
            self._column = self._residual.t()
        else:
            self._residual.add_(x)
        if self._eps_term is None:
            return torch.rms_norm(self._residual, self._shape, weight, self._eps)
        # For a single vector in half the time of PyTorch's own, which computes powers and means in small operations.
        scale = torch.addmm(self._eps_term, self._residual, self._column, alpha=1 / len(weight)).rsqrt_()  # [1, 1]
        return torch.mul(self._residual, scale).mul_(weight)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        x = qkv.view(self._rotated.shape)
        torch.addcmul(x * self._cos, x.flip(-2), self._sin, out=self._rotated)
        keys, values = self._past.keys_values(layer)  # [1, Hkv, L, d] each
        queries = self._queries if self._span == 1 else self._queries.flatten(2, 3)
        out = F.scaled_dot_product_attention(queries, keys, values, self._mask)  # [1, Hkv, G*T, d]
        if self._span > 1:
            out = out.unflatten(2, (-1, self._span)).permute(0, 3, 1, 2, 4)  # [1, T, Hkv, G, d]
        return out.reshape(self._merged)

    def gate(self, x: Tensor, weight: Tensor) -> Tensor:
        if self._span > 1:
            return silu_mul(linear(x, weight))
        F.linear(x, weight, out=self._gate_up)  # type: ignore[call-arg]
        return F.silu(self._gate).mul_(self._up)


class Qwen2(nn.Module):
    """The decoder stack, named like the official weights."""

    def __init__(self, dims: LmDims) -> None:
        super().__init__()
        self.embed_tokens = embedding(dims.text_vocab, dims.hidden_size)
        self.layers = nn.ModuleList(Layer(dims, i) for i in range(dims.layers))
        self.norm = nn.RMSNorm(dims.hidden_size, dims.rms_norm_eps)


class SpeechLM(nn.Module):
    """Language model of CosyVoice2 and CosyVoice3, which differ in the location of the special rows.

    Call ``prepare`` after loading the weights.
    """

    def __init__(self, dims: LmDims) -> None:
        super().__init__()
        self.dims = dims
        head = nn.Linear(dims.hidden_size, dims.text_vocab, bias=False)  # unused, but part of the official file
        self.llm = nn.ModuleDict({"model": nn.ModuleDict({"model": Qwen2(dims), "lm_head": head})})
        self.tie()
        self.llm_decoder = Linear(dims.hidden_size, dims.speech_rows, bias=dims.decoder_bias)
        self.speech_embedding = embedding(dims.speech_rows, dims.hidden_size)
        if dims.separate_special_rows:
            self.llm_embedding = embedding(2, dims.hidden_size)
        self._rotations: dict[tuple[int, torch.dtype], Tensor] = {}
        self._rotated_heads: Tensor | None = None

    @property
    def body(self) -> Qwen2:
        return cast(Qwen2, self.get_submodule("llm.model.model"))

    def tie(self) -> None:
        """Tie the weight of the text head to the text embedding."""
        self.get_submodule("llm.model.lm_head").weight = self.body.embed_tokens.weight

    def prepare(self) -> SpeechLM:
        """Rearrange the weights for short products; afterwards the state dict no longer has the official names."""
        self._layers = tuple(cast("list[Layer]", self.body.layers))
        for layer in self._layers:
            layer.prepare()
        store_by_columns(self.llm_decoder)
        return self

    def rotations(self, positions: int, like: Tensor) -> Tensor:
        """Rotary position embedding ``[positions, 3, d/2]``: cosines, negated sines, sines; angles are float32.

        Cached, because CUDA graphs read it at a fixed address.
        """
        key = positions, like.dtype
        if key not in self._rotations:
            exponent = torch.arange(0, self.dims.head_dim, 2, device=like.device).float() / self.dims.head_dim
            angle = torch.arange(positions, device=like.device)[:, None] * (1.0 / self.dims.rope_theta**exponent)
            sin = angle.sin()
            self._rotations[key] = torch.stack([angle.cos(), -sin, sin], dim=1).to(like.dtype)
        return self._rotations[key]

    def rotated_heads(self, device: torch.device) -> Tensor:
        """``[H+2*Hkv]``: 1 for the heads of queries and keys, 0 for those of values. Cached."""
        if self._rotated_heads is None:
            heads = [1] * (self.dims.heads + self.dims.kv_heads) + [0] * self.dims.kv_heads
            self._rotated_heads = torch.tensor(heads, device=device)
        return self._rotated_heads

    def embed_text(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        return F.embedding(ids, self.body.embed_tokens.weight)

    def embed_speech(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        return F.embedding(ids, self.speech_embedding.weight)

    def embed_special(self, row: int) -> Tensor:
        """The start-of-sequence or task row (``dims.sos_row``, ``dims.task_row``): ``[1, D]``."""
        table = self.llm_embedding if self.dims.separate_special_rows else self.speech_embedding
        return table.weight[row : row + 1]

    def forward(self, x: Tensor, new: Tensor, slots: Tensor, pool: SlotPool, context: int) -> Tensor:
        """Append inputs to the KV cache and score the next token.

        Args:
            x: ``[B, T, D]`` input vectors.
            new: ``[B]`` number of valid vectors per row; the rest is padding.
            slots: ``[B]`` distinct slots of ``pool``.
            pool: The KV cache.
            context: At least the longest length of the slots after this call.

        Returns:
            Log-softmax ``[B, speech_rows]``, float32, for the token after the last valid input.
        """
        return self.logits(x, new, slots, pool, context).log_softmax(-1, dtype=torch.float32)

    @property
    def speech_table(self) -> Tensor:
        """Inputs of decode steps by id, ``[V, D]``."""
        return self.speech_embedding.weight

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
        """``logits`` of inputs ``ids [B, T]`` of the given ``kinds [B, T]`` (``Kind``). ``speakers`` is not used."""
        is_text = kinds == Kind.TEXT
        is_special = kinds >= Kind.SOS
        text = self.embed_text(torch.where(is_text, ids, 0))
        speech = self.embed_speech(torch.where(kinds == Kind.SPEECH, ids, 0))
        special = torch.cat([self.embed_special(self.dims.sos_row), self.embed_special(self.dims.task_row)])  # [2, D]
        special = F.embedding((kinds - Kind.SOS).clamp(min=0), special)
        x = torch.where(is_special[..., None], special, torch.where(is_text[..., None], text, speech))
        return self.logits(x, new, slots, pool, context)

    def logits(self, x: Tensor, new: Tensor, slots: Tensor, pool: SlotPool, context: int) -> Tensor:
        """``forward`` without the softmax, in the dtype of the network."""
        batch, span, size = x.shape
        begin = pool.lengths[slots]
        pool.lengths.index_add_(0, slots, new)
        rows = x.view(-1, size)
        if batch == 1 and not x.is_cuda:
            count = new.tolist()[0]
            one = _SinglePass(self, pool, slots.tolist()[0], begin.tolist()[0], count, span, context, x)
            return self.llm_decoder(self._hidden(rows, one)[max(count - 1, 0), None])
        steps = torch.arange(span, device=x.device)
        positions = torch.where(steps < new[:, None], begin[:, None] + steps, pool.max_tokens)  # [B, T]
        hidden = self._hidden(rows, _BatchPass(self, pool, slots, positions, begin + new, context, x))
        last = torch.arange(batch, device=x.device) * span + (new - 1).clamp(min=0)
        return self.llm_decoder(hidden[last])

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
            Scores ``[B, speech_rows]`` in the dtype of the network.
        """
        if slots.shape[0] == 1 and not x.is_cuda:
            slot, end, position = slots.tolist()[0], ends.tolist()[0], positions.tolist()[0][0]
            one = _SinglePass(self, pool, slot, position, int(position < end), 1, context, x)
            return self.llm_decoder(self._hidden(x, one))
        return self.llm_decoder(self._hidden(x, _BatchPass(self, pool, slots, positions, ends, context, x)))

    def _hidden(self, x: Tensor, step: _Pass) -> Tensor:
        """Run all layers on rows ``[N, D]`` and normalize them."""
        for layer in self._layers:
            x = layer(x, step)
        return step.add_norm(x, self.body.norm.weight)
