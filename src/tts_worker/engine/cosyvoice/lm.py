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


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Rotary positions in the half-split form: ``x, cos, sin, out [B, T, H, 2, d/2]``, the first half of ``sin`` with
    its sign turned."""
    torch.addcmul(x * cos, x.flip(-2), sin, out=out)


class Attention(nn.Module):
    """Grouped-query attention over the slots of a pool."""

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
        self.qkv_proj = joined(self.q_proj, self.k_proj, self.v_proj)
        del self.q_proj, self.k_proj, self.v_proj
        self._used = self.qkv_proj, self.o_proj.weight  # at hand: looking them up takes as long as a small sum

    def forward(self, x: Tensor, call: _Call) -> Tensor:  # [B, T, D] -> [B, T, D]
        qkv_proj, weight = self._used
        rotate(qkv_proj(x).view(call.cos.shape), call.cos, call.sin, call.halves)
        keys, values = call.past.keys_values(self.layer)  # [B, Hkv, L, d] each
        # The heads that share a key are queries of one head: nothing is repeated in memory.
        queries = call.queries if call.span == 1 else call.queries.flatten(2, 3)  # [B, Hkv, G*T, d]
        out = F.scaled_dot_product_attention(queries, keys, values, call.mask)  # [B, Hkv, G*T, d]
        if call.span > 1:
            out = out.unflatten(2, (-1, call.span)).permute(0, 3, 1, 2, 4)  # [B, T, Hkv, G, d]
        return F.linear(out.reshape(call.joint), weight)  # [B, T, D]


class Mlp(nn.Module):
    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def prepare(self) -> None:
        self.gate_up_proj = joined(self.gate_proj, self.up_proj)
        del self.gate_proj, self.up_proj
        self._used = self.gate_up_proj.weight, self.down_proj.weight

    def forward(self, x: Tensor, call: _Call) -> Tensor:  # [B*T, D] -> [B, T, D]
        gate_up, down = self._used
        F.linear(x, gate_up, out=call.gate_up)  # type: ignore[call-arg]
        return F.linear(F.silu(call.gate).mul_(call.up), down)


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
        self._used = self.input_layernorm.forward, self.self_attn, self.post_attention_layernorm.forward, self.mlp

    def forward(self, x: Tensor, call: _Call) -> Tensor:  # [B, T, D] -> [B, T, D]
        before, attend, between, mlp = self._used
        torch.add(x, attend(before(x), call), out=call.middle)
        return call.middle + mlp(between(call.rows), call)


class _Call:
    """What all layers of one forward pass share: where the tokens stand, whom they may look at, and buffers for what
    each of them reads by views: a view that is made once for all costs nothing."""

    def __init__(self, lm: SpeechLM, pool: SlotPool, slots: Tensor, new: Tensor, x: Tensor, context: int) -> None:
        cfg, (batch, span, _) = lm.cfg, x.shape
        self.span = span
        self.joint = (batch, span, cfg.heads * cfg.head_dim)
        where = pool.lengths[slots][:, None]  # [B, 1]
        where = where + torch.arange(span, device=new.device) if span > 1 else where  # [B, T]
        self.gate_up = x.new_empty(batch * span, 2 * cfg.intermediate_size)
        self.gate, self.up = self.gate_up.view(batch, span, -1).chunk(2, dim=-1)
        self.middle = x.new_empty(x.shape)  # [B, T, D]
        self.rows = self.middle.view(-1, cfg.hidden_size)
        heads = x.new_empty(batch, span, cfg.heads + 2 * cfg.kv_heads, cfg.head_dim)
        self.halves = heads.unflatten(3, (2, -1))
        queries, kv = heads.tensor_split((cfg.heads,), dim=2)
        queries = queries.unflatten(2, (cfg.kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [B, Hkv, G, T, d]
        self.queries = queries.flatten(2, 3) if span == 1 else queries
        self.past = SlotView(pool, slots, where, new, context, kv)
        self.mask: Tensor | None = None  # [B, 1, G*T, L], added to the scores
        if not self.past.all_seen:
            seen = torch.arange(context, device=new.device) <= where[:, :, None]  # [B, T, L]
            hidden = x.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
            self.mask = hidden.repeat(1, cfg.heads // cfg.kv_heads if span > 1 else 1, 1)[:, None]
        where = where.clamp_(max=pool.max_tokens) if span > 1 else where  # padding may lie beyond the memory
        cos, sin, turning = lm.turns(pool.max_tokens + 1, x)
        turns = where[:, :, None] * turning  # [B, T, H+2*Hkv]
        self.cos = cos[turns]
        self.sin = sin[turns]
        pool.lengths.index_add_(0, slots, new)


class Qwen2(nn.Module):
    """The decoder stack, with the names of the official weights."""

    def __init__(self, cfg: LmDims) -> None:
        super().__init__()
        self.embed_tokens = embedding(cfg.text_vocab, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.layers))
        self.norm = nn.RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


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
        self._rotary: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    @property
    def body(self) -> Qwen2:
        return cast(Qwen2, self.get_submodule("llm.model.model"))

    def tie(self) -> None:
        """The text head shares its weight with the text table."""
        self.get_submodule("llm.model.lm_head").weight = self.body.embed_tokens.weight

    def prepare(self) -> SpeechLM:
        """Join the layers that read the same; afterwards the state dict no longer has the official names."""
        self._layers = tuple(cast("list[Layer]", self.body.layers))
        for layer in self._layers:
            layer.prepare()
        return self

    def turns(self, positions: int, like: Tensor) -> list[Tensor]:
        """Cosines and sines as ``rotate`` takes them ``[positions, 2, d/2]``; which heads turn ``[H+2*Hkv]``: 1, or 0
        for values, which stay as at position 0. Kept, for CUDA graphs read them where they are."""
        key = positions, like.dtype
        if key not in self._rotary:
            exponent = torch.arange(0, self.cfg.head_dim, 2, device=like.device).float() / self.cfg.head_dim
            angle = torch.arange(positions, device=like.device)[:, None] * (1.0 / self.cfg.rope_theta**exponent)
            # [positions, d/2]
            cos = angle.cos()
            sin = angle.sin()
            turns = [torch.stack(pair, 1).to(like.dtype) for pair in ((cos, cos), (-sin, sin))]
            turning = [1] * (self.cfg.heads + self.cfg.kv_heads) + [0] * self.cfg.kv_heads
            self._rotary[key] = [*turns, torch.tensor(turning, device=like.device)]
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
        call = _Call(self, pool, slots, new, x, context)
        for layer in self._layers:
            x = layer(x, call)
        last = x[:, 0] if call.span == 1 else x[torch.arange(x.shape[0], device=x.device), new - 1]  # [B, D]
        return self.llm_decoder(self.body.norm(last)).log_softmax(-1, dtype=torch.float32)
