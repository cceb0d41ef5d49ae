"""Outputs of single modules, to find the first layer that differs. Our modules carry the official names, so a golden
tensor is found by its path; where our network has no such module the tensor is reported, not compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from tts_worker.engine.cosyvoice.flow.dit import Dit
from tts_worker.engine.cosyvoice.kv import SlotPool
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.parity.compare import DECODE, FEATURES, MEL, PITCH_HZ, SCORES, Bench, Golden
from tts_worker.parity.flow_stages import outputs_of, run_estimator, whole_past

NO_MODULE = "no such module here"


def _parts(golden: Golden, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) for key in golden if key.startswith(prefix)]


_JOINED = ("to_q", "to_k", "to_v")
"""Three layers of the reference that are one of ours, ``to_qkv``."""


def _joined(path: str) -> str:
    """Our name of a module of the reference."""
    stem, dot, name = path.rpartition(".")
    return f"{stem}{dot}to_qkv" if name in _JOINED else path


def _check_modules(
    bench: Bench, golden: Golden, prefix: str, module: nn.Module, limit: float, run: Callable[[], object]
) -> None:
    known = {name for name, _ in module.named_modules()}
    paths = _parts(golden, prefix)
    with outputs_of(module, {_joined(path) for path in paths} & known) as seen:
        run()
    for path in paths:
        got = seen.get(_joined(path))
        key = f"{prefix}{path}"
        if got is not None and _joined(path) != path:
            got = got.chunk(3, dim=-1)[_JOINED.index(path.rpartition(".")[2])]
        expected = golden[key]
        if got is None or got.shape != expected.shape:
            bench.info(golden.name, key, NO_MODULE if got is None else "our module of this name holds something else")
        else:
            bench.close(golden, key, got, limit)


def check_layers(bench: Bench, golden: Golden, networks: Networks) -> None:
    flow = networks.flow
    hift = networks.hift
    if "est.x" in golden:
        x, mu, cond, spk, t = (golden[f"est.{name}"] for name in ("x", "mu", "cond", "spks", "t"))
        _check_modules(
            bench, golden, "est_stream.", flow.estimator, MEL, lambda: run_estimator(flow, x, mu, spk, cond, t, True)
        )
        if "est.out_stream" in golden:
            bench.close(golden, "est.out_stream", run_estimator(flow, x, mu, spk, cond, t, True), MEL)
        if "est.rope_freqs" in golden:
            start = torch.zeros(1, dtype=torch.long)
            angles = cast("Dit", flow.estimator).rotary_embed.angles(start, x.shape[2])
            bench.close(golden, "est.rope_freqs", angles.repeat_interleave(2, dim=-1), FEATURES)
    if "enc.in" in golden:
        given = golden["enc.in"]
        ahead = flow.dims.lookahead_tokens
        span = given.shape[1]
        past = whole_past(flow)
        flow.encoder.prepare(span)
        known = torch.tensor([span])
        start = torch.zeros(1, dtype=torch.long)

        # The embedding runs over the look-ahead, too, and so is longer than the reference's: cut to compare.
        bench.close(golden, "enc_stream.embed", flow.encoder.embed(given), MEL)
        _check_modules(
            bench,
            golden,
            "enc_stream.",
            flow.encoder,
            MEL,
            lambda: flow.encoder(F.pad(given, (0, 0, 0, ahead)), known, start, known, span, True, past),
        )
    if "hift.mel" in golden:
        mel = golden["hift.mel"]
        _check_modules(bench, golden, "f0.", hift.f0_predictor, PITCH_HZ, lambda: hift.f0_predictor(mel))
        source = golden["hift.source"]
        bench.close(golden, "hift.decode", hift.decode(mel, source), DECODE)
        _check_modules(bench, golden, "hift.", hift, FEATURES, lambda: hift.decode(mel, source))
    if "llm.in" in golden:
        _check_llm(bench, golden, networks)


def _check_llm(bench: Bench, golden: Golden, networks: Networks) -> None:
    lm = networks.lm
    dims = networks.config.lm
    given = golden["llm.in"]
    one = torch.ones(1, dtype=torch.long)
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
        pool = SlotPool(dims.layers, 1, dims.kv_heads, span, dims.head_dim)
        lm(given, one * span, one * 0, pool, span)
    for path, key in wanted.items():
        bench.close(golden, key, seen[path][..., : golden[key].shape[-1]], SCORES)  # queries come before keys, values
    states = [given, *(seen[path] for path in names)]
    states[-1] = lm.body.norm(states[-1])
    if "llm.hidden_states" in golden:
        bench.close(golden, "llm.hidden_states", torch.cat(states), SCORES)
    if "llm.logits" in golden:
        bench.close(golden, "llm.logits", lm.llm_decoder(states[-1]), SCORES)
