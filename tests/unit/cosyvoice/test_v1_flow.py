"""Flow and vocoder of CosyVoice-300M against numbers of the reference (``tools/record_v1.py``)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from tests.unit.cosyvoice.bundles import DATA, fullsize, official_config, qwen_of, tiny, yaml_of
from tests.unit.cosyvoice.networks import apart, ids, noise
from tts_worker.engine.cosyvoice.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.features import MelSpectrogram
from tts_worker.engine.cosyvoice.models.dims import V1FlowDims
from tts_worker.engine.cosyvoice.models.hift import HashedNoise, Hift
from tts_worker.engine.cosyvoice.models.v1_flow import V1Flow, fade_mel
from tts_worker.engine.cosyvoice.reference.algorithms import FadeState, reference_fade
from tts_worker.engine.cosyvoice.weights import expected_shapes, new_flow

FAMILY = "cosyvoice1"
HOP_TOKENS = 30
OVERLAP_TOKENS = 20
PARTS_OF_STREAM = range(3)


@lru_cache
def golden(name: str) -> dict[str, Tensor]:
    return load_file(DATA / "golden" / "v1" / f"{name}.safetensors")


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


def part_tokens(stream: dict[str, Tensor], part: int) -> Tensor:
    begin = HOP_TOKENS * part
    return stream["tokens"][:, begin : begin + HOP_TOKENS + OVERLAP_TOKENS]


def streamed_mel(net: V1Flow, stream: dict[str, Tensor], part: int, known: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mel of a part of the recorded utterance."""
    tokens = part_tokens(stream, part)
    emitted = part * (net.dims.frames(HOP_TOKENS + OVERLAP_TOKENS) - net.overlap_frames)
    prompt_mel = stream["prompt_mel"]
    start = net.noise_at(prompt_mel.shape[1], emitted, net.dims.frames(tokens.shape[1]))
    return net.part(tokens, stream["prompt"], prompt_mel, net.speaker(stream["embedding"]), start, known)


@pytest.mark.parametrize("part", ["flow", "hift"])
def test_official_sizes_have_the_official_keys(part: str) -> None:
    expected = expected_shapes(official_config(FAMILY), part)

    assert {key: list(shape) for key, shape in expected.items()} == fullsize()[f"{FAMILY}/{part}"]


@pytest.mark.parametrize("part", PARTS_OF_STREAM)
def test_token_encoder_matches_the_reference(part: int) -> None:
    stream = golden("stream")
    tokens = torch.cat([stream["prompt"], part_tokens(stream, part)], dim=1)
    assert apart(flow().encoder(flow().input_embedding(tokens)), stream[f"encoded_{part}"]) < 2e-5


@pytest.mark.parametrize("part", PARTS_OF_STREAM)  # the last one is short and interpolated as a whole
def test_length_regulator_matches_the_reference(part: int) -> None:
    stream = golden("stream")
    got = flow().mu(part_tokens(stream, part), stream["prompt"], stream["prompt_mel"].shape[1])
    assert apart(got, stream[f"regulated_{part}"]) < 2e-5


@pytest.mark.parametrize("frames", [12, 13])  # an odd number is rounded up while halved
def test_estimator_step_matches_the_reference(frames: int) -> None:
    given_ = {key: value for key, value in golden("flow").items() if key.startswith(f"estimator_{frames}.")}
    x, mu, cond, spk, time, out = (
        given_[f"estimator_{frames}.{key}"] for key in ("x", "mu", "cond", "spk", "time", "out")
    )
    estimator = flow().estimator
    inputs = torch.cat([x, mu, spk[:, :, None].expand(-1, -1, frames), cond], dim=1).transpose(1, 2)
    with torch.inference_mode():
        assert apart(estimator(inputs, estimator.tables(time)[0]), out.transpose(1, 2)) < 2e-5


def test_streamed_mel_matches_the_reference() -> None:
    stream = golden("stream")
    known = None
    held = None
    for part in PARTS_OF_STREAM:
        mel, known = streamed_mel(flow(), stream, part, known)
        assert apart(mel.transpose(1, 2), stream[f"mel_{part}"]) < 1e-4
        assert apart(known.transpose(1, 2), stream[f"known_{part}"]) < 1e-4
        faded = mel if held is None else fade_mel(mel, held)
        held = faded[:, -flow().overlap_frames :]
        emitted = faded if part == PARTS_OF_STREAM[-1] else faded[:, : -flow().overlap_frames]
        vocoded = stream[f"vocoder_mel_{part}"][:, :, -emitted.shape[1] :]  # after the vocoder's cached frames
        assert apart(emitted.transpose(1, 2), vocoded) < 1e-4


def test_streamed_audio_matches_the_reference() -> None:
    stream = golden("stream")
    state: FadeState | None = None
    for part in PARTS_OF_STREAM:
        whole = stream[f"vocoder_mel_{part}"]
        new = whole if state is None else whole[:, :, state.mel.shape[2] :]
        made = HashedNoise(torch.tensor([part]), normal=True)
        phase = stream[f"phase_{part}"] / hift().dims.frame_samples
        assert apart(hift().f0_predictor(whole), stream[f"pitch_{part}"]) < 0.01
        audio, state = reference_fade(hift(), new, state, made, part == PARTS_OF_STREAM[-1], phase)
        assert apart(audio, stream[f"speech_{part}"]) < 2e-3


def test_prompt_mel_matches_the_reference() -> None:
    mel = config().mel
    features = MelSpectrogram(
        mel.sample_rate_hz, mel.n_fft, mel.window_samples, mel.hop_samples, mel.bins, mel.fmin_hz, mel.fmax_hz
    )
    flow_golden = golden("flow")
    expected = flow_golden["prompt_audio_mel"].transpose(1, 2)
    assert apart(features(flow_golden["prompt_audio"]), expected) < 1e-4


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
    mel = golden("stream")["vocoder_mel_2"]
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
