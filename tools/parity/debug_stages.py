"""Stages that compare the outputs of single modules, to locate the first layer that differs.

Modules carry the official names, so a golden tensor is matched by its path. A tensor without a module is reported, not
compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from tools.parity.compare import DECODE, FEATURES, MEL, PITCH_HZ, SCORES, CheckList, Golden
from tools.parity.flow_stages import outputs_of, run_estimator, whole_past
from tts_worker.engine.cosyvoice.kv_cache import SlotPool
from tts_worker.engine.cosyvoice.models.dit import Dit
from tts_worker.engine.cosyvoice.networks import Networks

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


def _check_llm(checks: CheckList, golden: Golden, networks: Networks) -> None:
    lm = networks.qwen
    dims = networks.config.lm
    given = golden["llm.in"].to(lm.llm_decoder.weight.dtype)
    one = torch.ones(1, dtype=torch.long, device=given.device)
    span = given.shape[1]
    names = {f"layers.{i}": f"llm.layer{i}." for i in range(dims.layers)}
    kinds = {"q_proj": "self_attn.qkv_proj", "self_attn": "self_attn", "mlp": "mlp"}
    wanted = {
        f"{path}.{module}": f"{prefix}{kind}"
        for path, prefix in names.items()
        for kind, module in kinds.items()
        if f"{prefix}{kind}" in golden
    }
    with outputs_of(lm.body, [*wanted, *names]) as seen:
        pool = SlotPool(dims.layers, 1, dims.kv_heads, span, dims.head_dim, dtype=given.dtype, device=given.device)
        lm(given, one * span, one * 0, pool, span)
    for path, key in wanted.items():
        checks.close(golden, key, seen[path][..., : golden[key].shape[-1]], SCORES)  # queries come before keys, values
    states = [given, *(seen[path] for path in names)]
    states[-1] = lm.body.norm(states[-1])
    if "llm.hidden_states" in golden:
        checks.close(golden, "llm.hidden_states", torch.cat(states), SCORES)
    if "llm.logits" in golden:
        checks.close(golden, "llm.logits", lm.llm_decoder(states[-1]), SCORES)
