"""Write one step of a model's language model as an ONNX graph, for other runtimes, and compare it with PyTorch.

    python -m tools.lm_step_graph CosyVoice2-0.5B --out graphs

No back end of the worker runs it: the language model always runs on PyTorch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.qwen2 import Layer as DecoderLayer
from tts_worker.engine.cosyvoice.networks.qwen2 import SpeechLM
from tts_worker.features.acceleration.onnx_graphs import GraphSpec, Shape, Sizes, random_values, write_graph
from tts_worker.features.acceleration.onnx_networks import largest_difference
from tts_worker.features.acceleration.onnx_runtime import SessionOptions, open_graph

FILE = "llm.step.onnx"


class LmStepGraph(nn.Module):
    """The language model with its past as plain tensors: input vectors to scores of the next speech token.

    The layers are written out with elementary operations: those of ``networks/qwen2.py`` write into shared buffers.
    """

    def __init__(self, lm: SpeechLM) -> None:
        super().__init__()
        self.lm = lm

    def forward(
        self, x: Tensor, start: Tensor, last: Tensor, mask: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, ...]:
        """Score the token after input ``last [B]`` of each row.

        Args:
            x: ``[B, T, D]`` input vectors.
            start: ``[B]`` position of the first one.
            last: ``[B]`` index of the last valid one.
            mask: ``[B, 1, T, L+T]``, True where an input sees a key.
            keys: ``[layers, B, Hkv, L, d]``, positions already rotated.
            values: ``[layers, B, Hkv, L, d]``.
        """
        dims = self.lm.dims
        exponent = torch.arange(0, dims.head_dim, 2, device=x.device).float() / dims.head_dim
        position = (start[:, None] + torch.arange(x.shape[1], device=x.device)).float()
        angle = position[:, :, None] * (1.0 / dims.rope_theta**exponent)  # [B, T, d/2]
        cos, sin = (torch.cat([part, part], dim=-1)[:, None] for part in (angle.cos(), angle.sin()))  # [B, 1, T, d]
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -torch.inf)
        new_keys = []
        new_values = []
        for i, layer in enumerate(cast("Iterable[DecoderLayer]", self.lm.body.layers)):
            q, k, v = self._heads(layer, x)
            k = _rotate(k, cos, sin)
            new_keys.append(k)
            new_values.append(v)
            out = _grouped_attention(
                _rotate(q, cos, sin), torch.cat([keys[i], k], dim=2), torch.cat([values[i], v], dim=2), bias
            )
            x = x + F.linear(out.transpose(1, 2).flatten(2), layer.self_attn.o_proj.weight)
            gate_up = F.linear(_rms_norm(layer.post_attention_layernorm, x), layer.mlp.gate_up_proj.weight)
            gate, up = gate_up.chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight)
        x = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]
        scores = self.lm.llm_decoder(_rms_norm(self.lm.body.norm, x)).log_softmax(-1)
        return scores, torch.stack(new_keys), torch.stack(new_values)

    def _heads(self, layer: DecoderLayer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[B, H, T, d]``, keys and values ``[B, Hkv, T, d]``, before rotation."""
        dims = self.lm.dims
        heads = layer.self_attn.qkv_proj(_rms_norm(layer.input_layernorm, x)).unflatten(-1, (-1, dims.head_dim))
        q, k, v = heads.transpose(1, 2).split([dims.heads, dims.kv_heads, dims.kv_heads], dim=1)
        return q, k, v


def _rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    assert norm.eps is not None
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _grouped_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of ``q [B, H, T, d]`` over ``k, v [B, Hkv, L, d]``: ``[B, H, T, d]``."""
    kv_heads, dim = k.shape[1], k.shape[3]
    q = q.reshape(q.shape[0], kv_heads, q.shape[1] // kv_heads, q.shape[2], dim)  # [B, Hkv, G, T, d]
    scores = q @ k[:, :, None].transpose(-1, -2) * dim**-0.5 + bias[:, None]
    out: Tensor = scores.softmax(-1) @ v[:, :, None]
    return out.flatten(1, 2)


def lm_step_spec(networks: Networks) -> GraphSpec:
    """Return the graph of one step. Raises ConfigError for CosyVoice-300M."""
    lm = networks.qwen
    dims = lm.dims

    def example(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        rows, steps, past = sizes["rows"], sizes["steps"], sizes["past_steps"]
        ids = torch.randint(0, dims.speech_tokens, (rows, steps), generator=generator)
        x = lm.embed_speech(ids.to(lm.llm_decoder.weight.device)).float().cpu()
        mask = torch.ones(rows, 1, steps, past + steps, dtype=torch.bool).tril(past)
        mask[-1, :, :, : past // 2] = False
        keys, values = (
            random_values(generator, dims.layers, rows, dims.kv_heads, past, dims.head_dim) for _ in range(2)
        )
        last = torch.full([rows], steps - 1)
        return x, torch.full([rows], past), last, mask, keys, values

    keys: Shape = (dims.layers, "rows", dims.kv_heads, "past_steps", dims.head_dim)
    new_keys: Shape = (dims.layers, "rows", dims.kv_heads, "steps", dims.head_dim)
    return GraphSpec(
        FILE,
        "llm",
        LmStepGraph(lm),
        inputs={
            "x": ("rows", "steps", dims.hidden_size),
            "start": ("rows",),
            "last": ("rows",),
            "mask": ("rows", 1, "steps", "all_steps"),
            "keys": keys,
            "values": keys,
        },
        outputs={"log_probs": ("rows", dims.speech_rows), "new_keys": new_keys, "new_values": new_keys},
        derive=lambda sizes: sizes,
        example=example,
        sizes={"rows": 2, "steps": 3, "past_steps": 8},
    )


def main(arguments: list[str] | None = None) -> None:
    """Write the graph and print its largest difference from PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, metavar="DIR", help="model directory")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder for the graph")
    args = parser.parse_args(arguments)
    networks = Networks.load(Bundle.open(args.bundle))
    spec = lm_step_spec(networks)
    weights = networks.fingerprints[spec.part]
    args.out.mkdir(parents=True, exist_ok=True)
    path = write_graph(spec, args.out / FILE, weights)
    cpu = torch.device("cpu")
    difference = largest_difference(spec, open_graph(spec, path, weights, SessionOptions(cpu)), spec.sizes, cpu)
    print(f"{path}  {path.stat().st_size / 1e6:.1f} MB  differs from PyTorch by {difference:.1e}")


if __name__ == "__main__":
    main()
