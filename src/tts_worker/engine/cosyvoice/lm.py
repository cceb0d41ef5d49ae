"""The speech language model: a Qwen2 decoder that reads text and speech tokens and scores the next speech token.

Owns the weights and one forward pass over any subset of utterances, whose past lies in a ``SlotPool``: prefill, text
that comes later and single decode steps are the same call with another ``T``. No host synchronisation inside.
It must not know how ids are drawn (sample.py), in which order inputs are fed (chunks.py) or what they sound like.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.dims import LmDims
from tts_worker.engine.cosyvoice.kv import SlotPool


def embedding(rows: int, dim: int) -> nn.Embedding:
    """A table without initial values: they come from a file, and making them up would load half a compiler."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32 whatever the weights are."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # [..., D] -> [..., D]
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the half-split form: ``x [B, T, H, d]``, ``cos, sin [B, T, 1, d]``."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention over the slots of a pool."""

    def __init__(self, cfg: LmDims, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim = layer, cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.heads * cfg.head_dim)
        self.k_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim)
        self.v_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim)
        self.o_proj = nn.Linear(cfg.heads * cfg.head_dim, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor, call: _Call) -> Tensor:  # [B, T, D] -> [B, T, D]
        q = rotate(self.q_proj(x).unflatten(-1, (-1, self.head_dim)), call.cos, call.sin)  # [B, T, H, d]
        k = rotate(self.k_proj(x).unflatten(-1, (-1, self.head_dim)), call.cos, call.sin)  # [B, T, Hkv, d]
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim))  # [B, T, Hkv, d]
        call.pool.write(self.layer, call.slots, call.positions, k.to(call.pool.data.dtype), v.to(call.pool.data.dtype))
        keys, values = call.pool.read(self.layer, call.slots, call.mask.shape[-1]).to(x.dtype)  # [B, Hkv, L, d]
        # The heads that share a key become queries of one head: nothing is repeated in memory.
        q = q.transpose(1, 2).unflatten(1, (keys.shape[1], -1)).flatten(2, 3)  # [B, Hkv, G*T, d]
        mask = call.mask.repeat(1, 1, q.shape[2] // x.shape[1], 1) if x.shape[1] > 1 else call.mask
        out = F.scaled_dot_product_attention(q, keys, values, mask)
        out = out.unflatten(2, (-1, x.shape[1])).flatten(1, 2)  # [B, H, T, d]
        return self.o_proj(out.transpose(1, 2).flatten(2))  # [B, T, D]


class Mlp(nn.Module):
    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, cfg: LmDims, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(cfg, layer)
        self.mlp = Mlp(cfg)
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)

    def forward(self, x: Tensor, call: _Call) -> Tensor:  # [B, T, D] -> [B, T, D]
        x = x + self.self_attn(self.input_layernorm(x), call)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Call:
    """What all layers of one forward pass share: where the tokens stand and whom they may look at."""

    def __init__(self, cfg: LmDims, pool: SlotPool, slots: Tensor, new: Tensor, span: int, context: int) -> None:
        self.pool, self.slots = pool, slots
        steps = torch.arange(span, device=new.device)
        where = pool.lengths[slots][:, None] + steps  # [B, T]
        self.positions = torch.where(steps < new[:, None], where, pool.max_tokens)  # padding goes to the bin
        self.mask = (torch.arange(context, device=new.device) <= where[:, :, None])[:, None]  # [B, 1, T, L]
        exponent = torch.arange(0, cfg.head_dim, 2, device=new.device).float() / cfg.head_dim
        angle = where[:, :, None] * (1.0 / cfg.rope_theta**exponent)  # [B, T, d/2]
        angle = torch.cat([angle, angle], dim=-1)[:, :, None]  # [B, T, 1, d]
        self.cos, self.sin = angle.cos(), angle.sin()
        pool.lengths[slots] += new


class Qwen2(nn.Module):
    """The decoder stack, with the names of the official weights."""

    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.embed_tokens = embedding(cfg.text_vocab, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class SpeechLM(nn.Module):
    """CosyVoice2's and CosyVoice3's language model; the family decides where the special rows lie."""

    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.cfg = cfg
        head = nn.Linear(cfg.hidden_size, cfg.text_vocab, bias=False)  # unused, but part of the official file
        self.llm = nn.ModuleDict({"model": nn.ModuleDict({"model": Qwen2(cfg), "lm_head": head})})
        self.tie()
        self.llm_decoder = nn.Linear(cfg.hidden_size, cfg.speech_rows, bias=cfg.decoder_bias)
        self.speech_embedding = embedding(cfg.speech_rows, cfg.hidden_size)
        if cfg.own_special_rows:
            self.llm_embedding = embedding(2, cfg.hidden_size)

    @property
    def body(self) -> Qwen2:
        return cast(Qwen2, self.get_submodule("llm.model.model"))

    def tie(self) -> None:
        """The text head shares its weight with the text table."""
        self.get_submodule("llm.model.lm_head").weight = self.body.embed_tokens.weight

    def embed_text(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        return F.embedding(ids, self.body.embed_tokens.weight)

    def embed_speech(self, ids: Tensor) -> Tensor:  # [...] -> [..., D]
        return F.embedding(ids, self.speech_embedding.weight)

    def embed_special(self, row: int) -> Tensor:
        """The start-of-sequence or task row (``cfg.sos_row``, ``cfg.task_row``): ``[1, D]``."""
        table = self.llm_embedding if self.cfg.own_special_rows else self.speech_embedding
        return table.weight[row : row + 1]

    def forward(self, x: Tensor, new: Tensor, slots: Tensor, pool: SlotPool, context: int) -> Tensor:
        """Feed ``x [B, T, D]``, of which ``new [B]`` vectors count (the rest is padding), after what ``slots [B]``
        hold. ``context`` is at least their longest length afterwards. Returns the scores for the token after the
        last one, ``log-softmax [B, speech_rows]`` in float32. The slots of a batch must differ."""
        call = _Call(self.cfg, pool, slots, new, x.shape[1], context)
        call.cos, call.sin = call.cos.to(x.dtype), call.sin.to(x.dtype)
        for layer in self.body.layers:
            x = layer(x, call)
        last = x[torch.arange(x.shape[0], device=x.device), new - 1]  # [B, D]
        return self.llm_decoder(self.body.norm(last)).float().log_softmax(-1)
