"""Flow and vocoder of CosyVoice-300M in batches and windows. ``tests/parity`` compares them with the reference."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.unit.cosyvoice.bundles import GOLDEN, fullsize, official_config, qwen_of, tiny, yaml_of
from tests.unit.cosyvoice.networks import apart, ids, noise
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.weights import expected_shapes, new_flow
from tts_worker.engine.cosyvoice.networks.dims import V1FlowDims
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise, Hift
from tts_worker.engine.cosyvoice.v1.flow import V1Flow

FAMILY = "cosyvoice1"


@lru_cache
def config() -> CosyVoiceConfig:
    """With the reference's number of solver steps, whatever the other tests of this folder use."""
    read = CosyVoiceConfig.from_files(yaml_of(FAMILY), qwen_of(FAMILY), "cosyvoice.yaml")
    assert isinstance(read.flow, V1FlowDims)
    return replace(read, flow=replace(read.flow, steps=10))


@lru_cache
def flow() -> V1Flow:
    """Shared: tests must not change it."""
    net = new_flow(config()).eval().requires_grad_(False)
    net.load_state_dict(torch.load(tiny(FAMILY) / "flow.pt", weights_only=True))
    assert isinstance(net, V1Flow)
    return net.prepare(16)


@lru_cache
def hift() -> Hift:
    net = Hift(config().hift).eval().requires_grad_(False)
    net.load_state_dict(torch.load(tiny(FAMILY) / "hift.pt", weights_only=True))
    return net.prepare()


@pytest.mark.parametrize("part", ["flow", "hift"])
def test_official_sizes_have_the_official_keys(part: str) -> None:
    expected = expected_shapes(official_config(FAMILY), part)

    assert {key: list(shape) for key, shape in expected.items()} == fullsize()[f"{FAMILY}/{part}"]


@settings(deadline=None, max_examples=5)
@given(tokens=st.integers(1, 70), prompt=st.integers(0, 9), rows=st.integers(1, 2))
def test_batch_of_parts_equals_its_rows(tokens: int, prompt: int, rows: int) -> None:
    net = flow()
    frames = net.dims.frames(prompt)
    speech, heard = (torch.cat([ids(n, 30, seed=row) for row in range(rows)]) for n in (tokens, prompt))
    prompt_mel = noise(rows, frames, 80)
    spk = net.speaker(noise(rows, 8))
    start = net.noise_at(frames, 0, net.dims.frames(tokens)).expand(rows, -1, -1)
    mel, known = net.part(speech, heard, prompt_mel, spk, start, None)
    assert mel.shape == (rows, net.dims.frames(tokens), 80)
    for i in range(rows):
        one = slice(i, i + 1)
        alone, known_alone = net.part(speech[one], heard[one], prompt_mel[one], spk[one], start[one], None)
        assert apart(mel[one], alone) < 1e-4
        assert apart(known[one], known_alone) < 1e-5


def test_noise_of_a_frame_is_the_same_in_every_part() -> None:
    whole = flow().noise_at(5, 0, 60)
    assert torch.equal(flow().noise_at(5, 40, 20)[:, 5:], whole[:, 45:])


def test_vocoder_keeps_its_phase_across_windows() -> None:
    net = hift()
    mel = load_file(GOLDEN[FAMILY] / "stream.safetensors")["vocoder_mel_2"]
    made = HashedNoise(torch.tensor([4]), normal=True)
    state = net.start(1)
    pieces = []
    for i, piece in enumerate(mel.split([40, 25, mel.shape[2] - 65], dim=2)):
        audio, state = net.stream(piece, state, made, final=i == 2)
        pieces.append(audio)
    whole, _ = net(mel, made)
    got = torch.cat(pieces, dim=1)
    assert got.shape == whole.shape == (1, mel.shape[2] * 256)
    assert float((got - whole).square().mean()) < 0.02 * float(whole.square().mean())
