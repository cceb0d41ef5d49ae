"""Stages that compare the outputs of single modules, to locate the first layer that differs.

Modules carry the official names, so a golden tensor is matched by its path. A tensor without a module is reported, not
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.parity.compare import DECODE, FEATURES, MEL, PITCH_HZ, SCORES, CheckList, Golden
from tools.parity.flow_stages import outputs_of, run_estimator, whole_past
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.networks.dit import Dit
from tts_worker.engine.cosyvoice.networks.kv_cache import SlotPool

NO_MODULE = "this network has no such module"


def _parts(golden: Golden, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) for key in golden if key.startswith(prefix)]


_FUSED = ("to_q", "to_k", "to_v")
"""Layers of the reference that are fused into ``to_qkv`` here."""


def _module_path(path: str) -> str:
    """Path in our network of a module of the reference."""
    stem, dot, name = path.rpartition(".")
    return f"{stem}{dot}to_qkv" if name in _FUSED else path


def _check_modules(
    checks: CheckList, golden: Golden, prefix: str, module: nn.Module, limit: float, run: Callable[[], object]
) -> None:
    known = {name for name, _ in module.named_modules()}
    paths = _parts(golden, prefix)
    with outputs_of(module, {_module_path(path) for path in paths} & known) as outputs:
        run()
    for path in paths:
        got = outputs.get(_module_path(path))
        key = f"{prefix}{path}"
        if got is not None and _module_path(path) != path:
            got = got.chunk(3, dim=-1)[_FUSED.index(path.rpartition(".")[2])]
        expected = golden[key]
        if got is None or got.shape != expected.shape:
            note = NO_MODULE if got is None else "the module of this name has another output shape"
            checks.info(golden.name, key, note)
        else:
            checks.close(golden, key, got, limit)


def check_layers(checks: CheckList, golden: Golden, networks: Networks) -> None:
    flow = networks.chunked_flow
    hift = networks.hift
    if "est.x" in golden:
        x, mu, cond, spk, t = (golden[f"est.{name}"] for name in ("x", "mu", "cond", "spks", "t"))
        _check_modules(
            checks, golden, "est_stream.", flow.estimator, MEL, lambda: run_estimator(flow, x, mu, spk, cond, t, True)
        )
        if "est.out_stream" in golden:
            checks.close(golden, "est.out_stream", run_estimator(flow, x, mu, spk, cond, t, True), MEL)
        if "est.rope_freqs" in golden:
            start = torch.zeros(1, dtype=torch.long, device=x.device)
            angles = cast("Dit", flow.estimator).rotary_embed.angles(start, x.shape[2])
            checks.close(golden, "est.rope_freqs", angles.repeat_interleave(2, dim=-1), FEATURES)
    if "enc.in" in golden:
        given = golden["enc.in"]
        ahead = flow.dims.lookahead_tokens
        span = given.shape[1]
        past = whole_past(flow)
        flow.encoder.prepare(span)
        known = torch.tensor([span], device=given.device)
        start = torch.zeros_like(known)

        # Here the embedding includes the look-ahead; the reference embeds it separately.
        checks.close(golden, "enc_stream.embed", flow.encoder.embed(given), MEL)
        _check_modules(
            checks,
            golden,
            "enc_stream.",
            flow.encoder,
            MEL,
            lambda: flow.encoder(F.pad(given, (0, 0, 0, ahead)), known, start, known, span, True, past),
        )
    if "hift.mel" in golden:
        mel = golden["hift.mel"]
        _check_modules(checks, golden, "f0.", hift.f0_predictor, PITCH_HZ, lambda: hift.f0_predictor(mel))
        source = golden["hift.source"]
        checks.close(golden, "hift.decode", hift.decode(mel, source), DECODE)
        _check_modules(checks, golden, "hift.", hift, FEATURES, lambda: hift.decode(mel, source))
    if "llm.in" in golden:
        _check_llm(checks, golden, networks)


class _RecordedPass:
    """Passes a layer's calls on to its pass, and records what the layer computes between them."""

    def __init__(self, inner: Any, layer: int, seen: dict[str, Tensor]) -> None:
        self._inner = inner
        self._layer = layer
        self._seen = seen
        self._is_first_norm = True

    def add_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if not self._is_first_norm:  # what the layer before added comes first
            self._seen[f"llm.layer{self._layer}.self_attn"] = x.clone()
        self._is_first_norm = False
        normed: Tensor = self._inner.add_norm(x, weight)
        return normed

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        self._seen[f"llm.layer{self._layer}.q_proj"] = qkv.clone()  # queries come before keys and values
        attended: Tensor = self._inner.attend(layer, qkv)
        return attended

    def gate(self, x: Tensor, weight: Tensor) -> Tensor:
        gated: Tensor = self._inner.gate(x, weight)
        return gated


@contextmanager
def _layers_recorded(layers: nn.ModuleList) -> Iterator[dict[str, Tensor]]:
    """Record what each layer of the language model adds to the residual, and its projections, while the block runs."""
    seen: dict[str, Tensor] = {}

    def before(layer: int) -> Callable[[nn.Module, tuple[Tensor, Any]], tuple[Tensor, Any]]:
        return lambda _module, given: (given[0], _RecordedPass(given[1], layer, seen))

    def after(layer: int) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _given, added: seen.update({f"llm.layer{layer}.mlp": added.clone()})

    handles = [module.register_forward_pre_hook(before(i)) for i, module in enumerate(layers)]
    handles += [module.register_forward_hook(after(i)) for i, module in enumerate(layers)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _check_llm(checks: CheckList, golden: Golden, networks: Networks) -> None:
    lm = networks.qwen
    dims = networks.config.lm
    given = golden["llm.in"].to(lm.llm_decoder.weight.dtype)
    one = torch.ones(1, dtype=torch.long, device=given.device)
    span = given.shape[1]
    pool = SlotPool(dims.layers, 1, dims.kv_heads, span, dims.head_dim, dtype=given.dtype, device=given.device)
    with _layers_recorded(lm.body.layers) as seen:
        lm(given, one * span, one * 0, pool, span)
    for path in _parts(golden, "llm.layer"):
        key = f"llm.layer{path}"
        checks.close(golden, key, seen[key][None, :, : golden[key].shape[-1]], SCORES)
    states = [given]
    for layer in range(dims.layers):
        states.append(states[-1] + seen[f"llm.layer{layer}.self_attn"] + seen[f"llm.layer{layer}.mlp"])
    states[-1] = lm.body.norm(states[-1])
    if "llm.hidden_states" in golden:
        checks.close(golden, "llm.hidden_states", torch.cat(states), SCORES)
    if "llm.logits" in golden:
        checks.close(golden, "llm.logits", lm.llm_decoder(states[-1]), SCORES)
