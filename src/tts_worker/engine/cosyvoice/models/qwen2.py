"""The speech language model: a Qwen2 decoder over text and speech tokens that scores the next speech token.

One forward pass serves any subset of utterances, with their KV caches in a ``SlotPool``: prefill, later text and single
decode steps are the same call with a different ``T``. There is no host synchronization inside. Sampling is in
sample.py, the order of inputs in chunks.py.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.kv_cache import SlotPool, SlotView
from tts_worker.engine.cosyvoice.models.dims import LmDims
from tts_worker.engine.cosyvoice.models.fuse import fuse_linear


def embedding(rows: int, dim: int) -> nn.Embedding:
    """An embedding without initial values: random initialization is wasted and imports torch's compiler."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Apply rotary position embedding in half-split form: ``x, cos, sin, out [B, T, H, 2, d/2]``.

    The first half of ``sin`` has its sign flipped.
    """
    torch.addcmul(x * cos, x.flip(-2), sin, out=out)


class Attention(nn.Module):
    """Grouped-query attention over the slots of a KV cache."""

    def __init__(self, cfg: LmDims, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = cfg.head_dim
        self.kv_heads = cfg.kv_heads
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.heads * cfg.head_dim)
        self.k_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim)
        self.v_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim)
        self.o_proj = nn.Linear(cfg.heads * cfg.head_dim, cfg.hidden_size, bias=False)

    def prepare(self) -> None:
        self.qkv_proj = fuse_linear(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj
        self._modules_used = self.qkv_proj, self.o_proj.weight  # nn.Module attribute lookup costs as much as a small op

    def forward(self, x: Tensor, ctx: _ForwardContext) -> Tensor:  # [B, T, D] -> [B, T, D]
        qkv_proj, weight = self._modules_used
        rotate(qkv_proj(x).view(ctx.cos.shape), ctx.cos, ctx.sin, ctx.rotated)
        keys, values = ctx.past.keys_values(self.layer)  # [B, Hkv, L, d] each
        # Query heads that share a key head are stacked along time, so that no keys are repeated in memory.
        queries = ctx.queries if ctx.span == 1 else ctx.queries.flatten(2, 3)  # [B, Hkv, G*T, d]
        out = F.scaled_dot_product_attention(queries, keys, values, ctx.mask)  # [B, Hkv, G*T, d]
        if ctx.span > 1:
            out = out.unflatten(2, (-1, ctx.span)).permute(0, 3, 1, 2, 4)  # [B, T, Hkv, G, d]
        return F.linear(out.reshape(ctx.merged_shape), weight)  # [B, T, D]


class Mlp(nn.Module):
    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def prepare(self) -> None:
        self.gate_up_proj = fuse_linear(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj
        self._modules_used = self.gate_up_proj.weight, self.down_proj.weight

    def forward(self, x: Tensor, ctx: _ForwardContext) -> Tensor:  # [B*T, D] -> [B, T, D]
        gate_up, down = self._modules_used
        F.linear(x, gate_up, out=ctx.gate_up)  # type: ignore[call-arg]
        return F.linear(F.silu(ctx.gate).mul_(ctx.up), down)


class Layer(nn.Module):
    def __init__(self, cfg: LmDims, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(cfg, layer)
        self.mlp = Mlp(cfg)
        self.input_layernorm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)

    def prepare(self) -> None:
        self.self_attn.prepare()
        self.mlp.prepare()
        self._modules_used = (
            self.input_layernorm.forward,
            self.self_attn,
            self.post_attention_layernorm.forward,
            self.mlp,
        )

    def forward(self, x: Tensor, ctx: _ForwardContext) -> Tensor:  # [B, T, D] -> [B, T, D]
        input_norm, attention, post_norm, mlp = self._modules_used
        torch.add(x, attention(input_norm(x), ctx), out=ctx.residual)
        return ctx.residual + mlp(post_norm(ctx.residual_rows), ctx)


class _ForwardContext:
    """State shared by all layers of one forward pass: positions, mask, KV cache view and work buffers.

    Layers read the buffers through views that are created once here instead of once per layer.
    """

    def __init__(self, lm: SpeechLM, pool: SlotPool, slots: Tensor, new: Tensor, x: Tensor, context: int) -> None:
        cfg, (batch, span, _) = lm.cfg, x.shape
        self.span = span
        self.merged_shape = (batch, span, cfg.heads * cfg.head_dim)
        positions = pool.lengths[slots][:, None]  # [B, 1]
        positions = positions + torch.arange(span, device=new.device) if span > 1 else positions  # [B, T]
        self.gate_up = x.new_empty(batch * span, 2 * cfg.intermediate_size)
        self.gate, self.up = self.gate_up.view(batch, span, -1).chunk(2, dim=-1)
        self.residual = x.new_empty(x.shape)  # [B, T, D]
        self.residual_rows = self.residual.view(-1, cfg.hidden_size)  # [B*T, D]
        heads = x.new_empty(batch, span, cfg.heads + 2 * cfg.kv_heads, cfg.head_dim)
        self.rotated = heads.unflatten(3, (2, -1))  # [B, T, H+2*Hkv, 2, d/2]
        queries, kv = heads.tensor_split((cfg.heads,), dim=2)
        queries = queries.unflatten(2, (cfg.kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [B, Hkv, G, T, d]
        self.queries = queries.flatten(2, 3) if span == 1 else queries
        self.past = SlotView(pool, slots, positions, new, context, kv)
        self.mask: Tensor | None = None  # [B, 1, G*T, L], added to the scores
        if not self.past.needs_no_mask:
            visible = torch.arange(context, device=new.device) <= positions[:, :, None]  # [B, T, L]
            bias = x.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
            self.mask = bias.repeat(1, cfg.heads // cfg.kv_heads if span > 1 else 1, 1)[:, None]
        positions = positions.clamp_(max=pool.max_tokens) if span > 1 else positions  # padding can exceed the cache
        cos, sin, is_rotated = lm.rope_tables(pool.max_tokens + 1, x)
        rows = positions[:, :, None] * is_rotated  # [B, T, H+2*Hkv]
        self.cos = cos[rows]
        self.sin = sin[rows]
        pool.lengths.index_add_(0, slots, new)


class Qwen2(nn.Module):
    """The decoder stack, named like the official weights."""

    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.embed_tokens = embedding(cfg.text_vocab, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.layers))
        self.norm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class SpeechLM(nn.Module):
    """Language model of CosyVoice2 and CosyVoice3, which differ in the location of the special rows.

    Call ``prepare`` after loading the weights.
    """

    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.cfg = cfg
        head = nn.Linear(cfg.hidden_size, cfg.text_vocab, bias=False)  # unused, but part of the official file
        self.llm = nn.ModuleDict({"model": nn.ModuleDict({"model": Qwen2(cfg), "lm_head": head})})
        self.tie()
        self.llm_decoder = nn.Linear(cfg.hidden_size, cfg.speech_rows, bias=cfg.decoder_bias)
        self.speech_embedding = embedding(cfg.speech_rows, cfg.hidden_size)
        if cfg.separate_special_rows:
            self.llm_embedding = embedding(2, cfg.hidden_size)
        self._rotary: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    @property
    def body(self) -> Qwen2:
        return cast(Qwen2, self.get_submodule("llm.model.model"))

    def tie(self) -> None:
        """Tie the weight of the text head to the text embedding."""
        self.get_submodule("llm.model.lm_head").weight = self.body.embed_tokens.weight

    def prepare(self) -> SpeechLM:
        """Fuse layers that share an input; afterwards the state dict no longer has the official names."""
        self._layers = tuple(cast("list[Layer]", self.body.layers))
        for layer in self._layers:
            layer.prepare()
        return self

    def rope_tables(self, positions: int, like: Tensor) -> list[Tensor]:
        """Tables for ``rotate``; cached, because CUDA graphs read them at fixed addresses.

        Returns:
            Cosines and sines ``[positions, 2, d/2]``, and per head ``[H+2*Hkv]`` 1 for queries and keys, 0 for values
            (which use position 0, the identity).
        """
        key = positions, like.dtype
        if key not in self._rotary:
            exponent = torch.arange(0, self.cfg.head_dim, 2, device=like.device).float() / self.cfg.head_dim
            angle = torch.arange(positions, device=like.device)[:, None] * (1.0 / self.cfg.rope_theta**exponent)
            # [positions, d/2]
            cos = angle.cos()
            sin = angle.sin()
            tables = [torch.stack(pair, 1).to(like.dtype) for pair in ((cos, cos), (-sin, sin))]
            is_rotated = [1] * (self.cfg.heads + self.cfg.kv_heads) + [0] * self.cfg.kv_heads
            self._rotary[key] = [*tables, torch.tensor(is_rotated, device=like.device)]
        return self._rotary[key]

    def embed_text(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        return F.embedding(ids, self.body.embed_tokens.weight)

    def embed_speech(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        return F.embedding(ids, self.speech_embedding.weight)

    def embed_special(self, row: int) -> Tensor:
        """The start-of-sequence or task row (``cfg.sos_row``, ``cfg.task_row``): ``[1, D]``."""
        table = self.llm_embedding if self.cfg.separate_special_rows else self.speech_embedding
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
        ctx = _ForwardContext(self, pool, slots, new, x, context)
        for layer in self._layers:
            x = layer(x, ctx)
        last = x[:, 0] if ctx.span == 1 else x[torch.arange(x.shape[0], device=x.device), new - 1]  # [B, D]
        return self.llm_decoder(self.body.norm(last)).log_softmax(-1, dtype=torch.float32)
