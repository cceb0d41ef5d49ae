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
from tts_worker.engine.cosyvoice.joined import joined
from tts_worker.engine.cosyvoice.kv import SlotPool, SlotView


def embedding(rows: int, dim: int) -> nn.Embedding:
    """A table without initial values: they come from a file, and making them up would load half a compiler."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32 whatever the weights are. Call ``prepare`` once those are loaded."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def prepare(self) -> None:
        dim = self.weight.shape[0]
        self.gain, self.least = self.weight.detach() * dim**0.5, self.weight.new_tensor((self.eps * dim) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:  # [..., D] -> [..., D]
        if x.is_cuda or x.dtype != torch.float32:
            return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)
        # On a CPU that is eight operations; the same in four, where a step for one token counts them.
        return x * self.gain / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.least)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the half-split form: ``x, cos, sin [B, T, H, d]``, the first half of ``sin`` with its sign
    turned."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Attention(nn.Module):
    """Grouped-query attention over the slots of a pool."""

    qkv_proj: nn.Linear  # by ``prepare``, in place of the three

    def __init__(self, cfg: LmDims, layer: int) -> None:
        super().__init__()
        self.layer, self.head_dim, self.kv_heads = layer, cfg.head_dim, cfg.kv_heads
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.heads * cfg.head_dim)
        self.k_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim)
        self.v_proj = nn.Linear(cfg.hidden_size, cfg.kv_heads * cfg.head_dim)
        self.o_proj = nn.Linear(cfg.heads * cfg.head_dim, cfg.hidden_size, bias=False)

    def prepare(self) -> None:
        self.qkv_proj = joined(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj

    def forward(self, x: Tensor, call: _Call) -> Tensor:  # [B, T, D] -> [B, T, D]
        heads = rotate(self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)), call.cos, call.sin)  # [B, T, H+2*Hkv, d]
        q, new = heads.tensor_split((-2 * self.kv_heads,), dim=2)
        keys, values = call.past.keys_values(self.layer, new)  # [B, Hkv, L, d] each
        # The heads that share a key become queries of one head: nothing is repeated in memory.
        q = q.transpose(1, 2).unflatten(1, (self.kv_heads, -1)).flatten(2, 3)  # [B, Hkv, G*T, d]
        out = F.scaled_dot_product_attention(q, keys, values, call.mask)
        out = out.unflatten(2, (-1, x.shape[1])).flatten(1, 2)  # [B, H, T, d]
        return self.o_proj(out.transpose(1, 2).flatten(2))  # [B, T, D]


class Mlp(nn.Module):
    gate_up_proj: nn.Linear  # by ``prepare``, in place of the two

    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def prepare(self) -> None:
        self.gate_up_proj = joined(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate).mul_(up))


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

    def __init__(
        self, cfg: LmDims, pool: SlotPool, slots: Tensor, new: Tensor, span: int, context: int, rotary: Tensor
    ) -> None:
        where = pool.lengths[slots][:, None] + torch.arange(span, device=new.device)  # [B, T]
        self.past = SlotView(pool, slots, where, new, context)
        self.mask: Tensor | None = None  # [B, 1, G*T, L], added to the scores
        if not self.past.all_seen:
            seen = torch.arange(context, device=new.device) <= where[:, :, None]  # [B, T, L]
            hidden = torch.zeros(seen.shape, dtype=rotary.dtype, device=new.device).masked_fill_(~seen, -torch.inf)
            self.mask = hidden.repeat(1, cfg.heads // cfg.kv_heads if span > 1 else 1, 1)[:, None]
        turns = rotary[:, where.clamp_(max=pool.max_tokens)][:, :, :, None]  # [2, B, T, 1, d]
        still = rotary[:, :1, None, None].expand(-1, *where.shape, cfg.kv_heads, -1)  # position 0: values do not turn
        self.cos, self.sin = torch.cat([turns.expand(-1, -1, -1, cfg.heads + cfg.kv_heads, -1), still], dim=3)
        pool.lengths[slots] += new


class Qwen2(nn.Module):
    """The decoder stack, with the names of the official weights."""

    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.embed_tokens = embedding(cfg.text_vocab, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class SpeechLM(nn.Module):
    """CosyVoice2's and CosyVoice3's language model; the family decides where the special rows lie. Call ``prepare``
    once the weights are loaded."""

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
        self._rotary: dict[tuple[int, torch.dtype], Tensor] = {}

    @property
    def body(self) -> Qwen2:
        return cast(Qwen2, self.get_submodule("llm.model.model"))

    def tie(self) -> None:
        """The text head shares its weight with the text table."""
        self.get_submodule("llm.model.lm_head").weight = self.body.embed_tokens.weight

    def prepare(self) -> SpeechLM:
        """Join the layers that read the same; afterwards the state dict no longer has the official names."""
        for layer in cast("list[Layer]", self.body.layers):
            layer.self_attn.prepare()
            layer.mlp.prepare()
        for norm in [module for module in self.modules() if isinstance(module, RMSNorm)]:
            norm.prepare()
        return self

    def _turns(self, positions: int, like: Tensor) -> Tensor:
        """Cosines and sines of the rotary angles as ``rotate`` takes them: ``[2, positions, d]``. Kept, for they depend
        on the position only, and CUDA graphs read them where they are."""
        key = positions, like.dtype
        if key not in self._rotary:
            exponent = torch.arange(0, self.cfg.head_dim, 2, device=like.device).float() / self.cfg.head_dim
            angle = torch.arange(positions, device=like.device)[:, None] * (1.0 / self.cfg.rope_theta**exponent)
            cos, sin = angle.cos(), angle.sin()  # [positions, d/2]
            self._rotary[key] = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)]).to(like.dtype)
        return self._rotary[key]

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
        call = _Call(self.cfg, pool, slots, new, x.shape[1], context, self._turns(pool.max_tokens + 1, x))
        for layer in self.body.layers:
            x = layer(x, call)
        last = x[:, 0] if x.shape[1] == 1 else x[torch.arange(x.shape[0], device=x.device), new - 1]  # [B, D]
        return self.llm_decoder(self.body.norm(last)).float().log_softmax(-1)
