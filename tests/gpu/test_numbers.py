"""The numbers of a CUDA device against those of the CPU: every network, drawn ids, and whole utterances.

float32 has a 24-bit mantissa (6e-8), TF32 an 11-bit one (5e-4) and bfloat16 an 8-bit one (4e-3). Ten solver steps of 22
layers amplify rounding about a hundredfold, so a limit of 1e-4 holds for float32 and exposes TF32.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.gpu.engines import device_engine, draw_ids, forced, relative_difference, relative_error, seeded, speak_crowd
from tests.unit.cosyvoice.bundles import FAMILIES
from tests.unit.streaming.engines import bundle
from tts_worker.engine.cosyvoice.audio.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.loader import load_networks
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise
from tts_worker.engine.cosyvoice.networks.kv_cache import PagedLibrary, PageShape, SlotPool
from tts_worker.types import SynthesisParams

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")
TOKENS = 110  # 4.4 s: five chunks, the last one partial
MAX_ERROR = {False: 1e-4, True: 0.05}
"""Error of the mel and the scores by whether they are computed in bfloat16, relative to their standard deviation."""

Bundles = Callable[[str], Bundle]
Exact = Callable[[str], Networks]

_exact_mels: dict[str, Tensor] = {}  # by family; on the CPU each of them takes long


def speech_ids(networks: Networks, device: torch.device) -> Tensor:
    return (torch.arange(TOKENS, device=device)[None] * 97) % networks.config.flow.vocab


def whole_mel(networks: Networks, device: torch.device) -> Tensor:
    """Compute the mel of forced tokens in one pass, under the chunk mask."""
    flow = networks.flow
    length = torch.tensor([TOKENS], device=device)
    prompt = torch.zeros(1, 0, flow.dims.mel, device=device)
    spk = flow.speaker(torch.ones(1, flow.dims.spk_embed, device=device))
    return flow.mel(speech_ids(networks, device), length, prompt, length * 0, spk, chunked=True, final=True)


def exact_mel(family: str, exact_networks: Exact) -> Tensor:
    """Return ``whole_mel`` of the official size on the CPU."""
    if family not in _exact_mels:
        _exact_mels[family] = whole_mel(exact_networks(family), CPU)
    return _exact_mels[family]


def streamed_mel(
    networks: Networks, device: torch.device, library: Callable[[PageShape], PagedLibrary] | None = None
) -> Tensor:
    """Compute the mel of forced tokens chunk by chunk, from paged memory."""
    flow = networks.flow
    pool = FlowPool(flow, slots=1, pages=8, max_chunks=8, dtype=flow.dtype, library=library)
    state = pool.open()
    size = pool.chunk_tokens
    ahead = flow.dims.lookahead_tokens
    spk = flow.speaker(torch.ones(1, flow.dims.spk_embed, device=device))
    cond = torch.zeros(1, flow.chunk_frames, flow.dims.mel, device=device)
    ids = torch.nn.functional.pad(speech_ids(networks, device), (0, size + ahead))
    parts = []
    for start in range(0, TOKENS, size):
        known = min(size + ahead, TOKENS - start)
        parts.append(pool.advance([state], ids[:, start : start + size + ahead], [known], spk, cond).clone())
    return torch.cat(parts, dim=1)[:, : TOKENS * flow.dims.frames_per_token]


def scores(networks: Networks, device: torch.device) -> Tensor:
    """Score a forced sequence that is fed in three parts."""
    config = networks.config.lm
    dtype = networks.lm.llm_decoder.weight.dtype
    pool = SlotPool(config.layers, 1, config.kv_heads, 300, config.head_dim, dtype=dtype, device=device)
    ids = torch.arange(300, device=device)[None] * 89 % config.speech_tokens
    one = torch.ones(1, dtype=torch.long, device=device)
    parts = []
    for begin, end in ((0, 200), (200, 299), (299, 300)):
        x = networks.lm.embed_speech(ids[:, begin:end])
        parts.append(networks.lm(x, one * (end - begin), one * 0, pool, end))
    return torch.cat(parts)


@torch.inference_mode()
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_networks_match_the_cpu(
    family: str, half: bool, device: torch.device, large_bundle: Bundles, exact_networks: Exact
) -> None:
    """At the official size: scores, mel and audio from the CPU's own inputs, so that errors do not add up."""
    exact = exact_networks(family)
    networks = load_networks(large_bundle(family), device, half=half)
    assert relative_error(scores(networks, device), scores(exact, CPU)) < MAX_ERROR[half]
    mel = exact_mel(family, exact_networks)
    for computed in (whole_mel(networks, device), streamed_mel(networks, device)):
        assert computed.isfinite().all()
        assert relative_error(computed, mel) < MAX_ERROR[half]

    # The vocoder is float32 in both precisions. The phase sums up the rounding of the pitch over the frames.
    seeds = torch.ones(1, dtype=torch.long)
    causal = exact.config.hift.causal
    expected, _ = exact.hift(mel.transpose(1, 2), HashedNoise(seeds, not causal))
    audio, _ = networks.hift(mel.transpose(1, 2).to(device), HashedNoise(seeds.to(device), not causal))
    assert relative_error(audio, expected) < 2e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_utterance_matches_the_cpu(family: str, device: torch.device) -> None:
    """The margin is what another order of the same float32 operations changes on the CPU, eight times."""
    params = [seeded(0), SynthesisParams("plain", seed=1, speed=0.8)]
    script = forced(family, 60)
    expected, rounded, outputs = (
        speak_crowd(device_engine(family, where, graphs=graphs, crowd=2, render_batch=batch, script=script), params)
        for where, graphs, batch in ((CPU, False, 1), (CPU, True, 2), (device, False, 1))
    )
    for exact, other, output in zip(expected, rounded, outputs, strict=True):
        assert output.words == exact.words
        margin = 8 * relative_difference(exact.pcm, other.pcm)
        assert 0 < margin < 0.02
        assert relative_difference(exact.pcm, output.pcm) < margin
    assert device.type == "cpu" or not torch.backends.cudnn.allow_tf32, "convolutions must use full float32"


@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_ids_match_the_cpu(family: str, device: torch.device) -> None:
    """Sampling is a hash of seed and step, so the same scores up to rounding give the same ids."""
    lengths = range(4, 76, 9)
    drawn = [draw_ids(load_networks(bundle(family), where, half=False), where, lengths) for where in (CPU, device)]
    assert drawn[0] == drawn[1]
    assert len({tuple(ids) for ids in drawn[0]}) == len(drawn[0]), "every seed gives other ids"
