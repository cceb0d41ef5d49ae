"""Flow stages: encoder or look-ahead layer, estimator, ODE solver, complete inference."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.parity.compare import FEATURES, MEL, CheckList, Golden
from tts_worker.engine.cosyvoice.networks.blocks import chunk_mask
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.engine.cosyvoice.networks.flow_encoder import EncoderPast, relative_sinusoids
from tts_worker.engine.cosyvoice.networks.kv_cache import Memory, NoPast

EXACT = 1e-6
NOISE = 1e-5  # the last bits of torch's generator depend on the processor's vector width


@contextmanager
def outputs_of(module: nn.Module, paths: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Record the outputs of the submodules at ``paths`` while the block runs."""
    outputs: dict[str, Tensor] = {}

    def record(path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _module, _inputs, output: outputs.update({path: output.clone()})  # later changed in place

    handles = [module.get_submodule(path).register_forward_hook(record(path)) for path in paths]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def run_estimator(flow: Flow, x: Tensor, mu: Tensor, spk: Tensor, cond: Tensor, t: Tensor, chunked: bool) -> Tensor:
    """Run the estimator on whole sequences.

    Returns:
        Velocity ``[N, mel, T]`` for ``x``, ``mu`` and ``cond`` ``[N, mel, T]``, ``spk [N, mel]``, ``t [N]``.
    """
    dtype = flow.dtype
    x, mu, cond = (y.transpose(1, 2).to(dtype) for y in (x, mu, cond))
    spk = spk.to(dtype)
    frames = x.shape[1]
    start = torch.zeros(len(x), dtype=torch.long, device=x.device)
    mask = chunk_mask(start, start + frames, frames, frames, flow.chunk_frames * chunked)
    tables = flow.estimator.tables(t).to(dtype)
    velocity: Tensor = flow.estimator(x, mu, spk, cond, tables, start, mask, NoPast(flow.estimator.sites.tails))
    return velocity.transpose(1, 2)


def whole_past(flow: Flow) -> Memory | EncoderPast:
    if flow.dims.encoder is None:
        return NoPast(flow.front_sites.tails)
    return EncoderPast(NoPast(flow.encoder.token_sites.tails), NoPast(flow.encoder.frame_sites.tails))


def check_encoder(checks: CheckList, golden: Golden, flow: Flow) -> None:
    tokens = golden["token"].long()
    ahead = flow.dims.lookahead_tokens
    ids = tokens.clamp(min=0)
    if "embedded" in golden:
        checks.close(golden, "embedded", flow.input_embedding(ids), EXACT)
    if "spk_in" in golden:
        checks.close(golden, "spk_out", flow.speaker(golden["spk_in"]), FEATURES)
    if flow.dims.encoder is not None:
        encoder = flow.encoder
        embedded = encoder.embed(flow.input_embedding(ids))
        if "embed_out" in golden:
            checks.close(golden, "embed_out", embedded, FEATURES)
        if "pos_emb" in golden:
            table = relative_sinusoids(tokens.shape[1], flow.dims.encoder.output_size)[None].to(tokens.device)
            checks.close(golden, "pos_emb", table, FEATURES)
        if "lookahead_out" in golden:
            seen = encoder.pre_lookahead_layer(F.pad(embedded, (0, 0, 0, ahead)), NoPast(encoder.token_sites.tails))
            checks.close(golden, "lookahead_out", seen, FEATURES)
    for key in golden:
        if not (found := re.fullmatch(r"(h|mu)_final([01])(?:_stream([01]))?", key)):
            continue
        what = found.group(1)
        final = found.group(2) == "1"
        chunked = found.group(3) == "1"
        given = F.pad(tokens, (0, ahead)) if final else tokens
        known = torch.tensor([tokens.shape[1]], device=tokens.device)
        start = torch.zeros_like(known)
        span = given.shape[1] - ahead
        past = whole_past(flow)
        if flow.dims.encoder is not None:
            flow.encoder.prepare(span)
        if what == "h" and isinstance(past, EncoderPast):
            got = flow.encoder(
                flow.input_embedding(given.clamp(min=0)), known, start, known * 0 + span, span, chunked, past
            )
        else:
            got = flow.mu(given, known, start, known * 0 + span, span, chunked, past)
        checks.close(golden, key, got, MEL)


def check_estimator(checks: CheckList, golden: Golden, flow: Flow) -> None:
    if "time_in" in golden:
        checks.close(golden, "time_emb", flow.estimator.time_embedding(golden["time_in"]), FEATURES)
    for key in golden:
        if found := re.fullmatch(r"(out|input_embed)_(\d+)(?:_stream([01]))?", key):
            what = found.group(1)
            size = found.group(2)
            chunked = found.group(3) == "1"
            x, mu, spk, cond, t = (golden[f"{name}_{size}"] for name in ("x", "mu", "spks", "cond", "t"))
            with outputs_of(flow.estimator, ["input_embed"] if what == "input_embed" else []) as seen:
                got = run_estimator(flow, x, mu, spk, cond, t, chunked)
            checks.close(golden, key, seen.get("input_embed", got), MEL)


def check_solver(checks: CheckList, golden: Golden, flow: Flow) -> None:
    noise = flow.noise.T[None]  # [1, mel, NOISE_FRAMES]
    if "t_dt" in golden:
        checks.close(golden, "t_dt", flow.times, EXACT)
    if "t_span" in golden:
        ends = torch.cat([flow.times[:1, 0] * 0, flow.times[:, 0] + flow.times[:, 1]])
        checks.close(golden, "t_span", ends, EXACT)
    for key in golden:
        if found := re.fullmatch(r"noise_(first|last)_(\d+)_frames", key):
            count = int(found.group(2))
            part = noise[:, :, :count] if found.group(1) == "first" else noise[:, :, -count:]
            checks.close(golden, key, part, NOISE)
        if found := re.fullmatch(r"out_stream([01])", key):
            dtype = flow.dtype
            mu = golden["mu"].transpose(1, 2).to(dtype)
            spk = golden["spks"].to(dtype)
            cond = golden["cond"].transpose(1, 2).to(dtype)
            frames = mu.shape[1]
            start = torch.zeros(len(mu), dtype=torch.long, device=mu.device)
            chunk = flow.chunk_frames * int(found.group(1))
            mask = chunk_mask(start, start + frames, frames, frames, chunk)
            got = flow.solve(mu, spk, cond, start, mask, flow.no_past())
            checks.close(golden, key, got.transpose(1, 2), MEL)
    if "noise_shape" in golden.meta:
        checks.equal(golden.name, "noise_shape", list(noise.shape), golden.meta["noise_shape"])
    if digest := golden.meta.get("noise_sha256"):
        same = hashlib.sha256(noise.cpu().contiguous().numpy().tobytes()).hexdigest() == digest
        note = "identical" if same else "differs in the last bits, which depend on the processor"
        checks.info(golden.name, "noise_sha256", note)


def check_inference(checks: CheckList, golden: Golden, flow: Flow) -> None:
    spk = flow.speaker(golden["embedding"])
    for key in golden:
        if not (found := re.fullmatch(r"mel_(noprompt_)?(\d+)_stream([01])_final([01])", key)):
            continue
        prompt = golden["prompt_token"].long()
        mel = golden["prompt_feat"]
        if found.group(1):
            prompt = prompt[:, :0]
            mel = mel[:, :0]
        tokens = torch.cat([prompt, golden[f"token_{found.group(2)}"].long()], dim=1)
        lengths = torch.tensor([tokens.shape[1]], device=tokens.device)
        frames = torch.tensor([mel.shape[1]], device=tokens.device)
        chunked = found.group(3) == "1"
        final = found.group(4) == "1"
        got = flow.mel(tokens, lengths, mel, frames, spk, chunked=chunked, final=final)[:, mel.shape[1] :]
        checks.close(golden, key, got.transpose(1, 2), MEL)
