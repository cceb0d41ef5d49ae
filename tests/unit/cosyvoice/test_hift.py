"""The vocoder: streaming equals offline where it can, comes near where it cannot, and keeps its phase."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.cosyvoice.bundles import fullsize
from tests.unit.cosyvoice.networks import FAMILIES, apart, full_config, networks, noise
from tools.reference.algorithms import BufferedNoise, FadeState, reference_fade
from tts_worker.engine.cosyvoice.networks import hift as hift_module
from tts_worker.engine.cosyvoice.networks.hift import Conv, Fourier, HashedNoise, Hift, RepeatConv, Source
from tts_worker.engine.cosyvoice.ops.audio import inverse_stft

V2, V3 = FAMILIES
FRAME = 480
QUIET = BufferedNoise(torch.zeros(0, 9))


def a_mel(frames: int, seed: int = 0, batch: int = 1) -> Tensor:
    """Mel frames that move slowly, as speech does: ``[batch, 80, frames]``."""
    rough = noise(batch, 80, frames // 4 + 2, seed=seed)
    return torch.nn.functional.interpolate(rough, size=frames, mode="linear") * 2 - 3


def hashed(family: str, *seeds: int) -> HashedNoise:
    return HashedNoise(torch.tensor(seeds), normal=family == V2)


def streamed(hift: Hift, mel: Tensor, cuts: list[int], noise_: HashedNoise | BufferedNoise) -> Tensor:
    state = hift.start(mel.shape[0])
    out = []
    for i, piece in enumerate(mel.split(cuts, dim=2)):
        audio, state = hift.stream(piece, state, noise_, final=i == len(cuts) - 1)
        out.append(audio)
    return torch.cat(out, dim=1)


pieces = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_shapes_are_the_official_ones(family: str) -> None:
    with torch.device("meta"):
        hift = Hift(full_config(family).hift)
    assert {key: list(value.shape) for key, value in hift.state_dict().items()} == fullsize()[f"{family}/hift"]


@settings(deadline=None, max_examples=10)
@given(cuts=pieces, seed=st.integers(0, 9))
def test_causal_vocoder_streams_exactly(cuts: list[int], seed: int) -> None:
    hift = networks(V3).hift
    mel = a_mel(sum(cuts), seed)
    assert apart(streamed(hift, mel, cuts, hashed(V3, seed)), hift(mel, hashed(V3, seed))[0]) < 1e-5


@settings(deadline=None, max_examples=8)
@given(cuts=pieces, seed=st.integers(0, 9))
def test_noncausal_vocoder_streams_exactly_with_lookahead(cuts: list[int], seed: int) -> None:
    hift = networks(V2).hift
    mel = a_mel(sum(cuts), seed)
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(hift_module, "HELD_FRAMES", 21)  # all that a frame's audio depends on to its right
        got = streamed(hift, mel, cuts, hashed(V2, seed))
    assert apart(got, hift(mel, hashed(V2, seed))[0]) < 2e-4


def test_noncausal_vocoder_is_closer_than_the_reference() -> None:
    hift = networks(V2).hift
    cuts = [30, 20, 25, 40]
    mel = a_mel(sum(cuts), seed=4)
    whole = hift(mel, QUIET)[0]
    ours = streamed(hift, mel, cuts, QUIET)
    theirs = []
    state = None
    for i, piece in enumerate(mel.split(cuts, dim=2)):
        audio, state = reference_fade(hift, piece, state, QUIET, final=i == len(cuts) - 1)
        theirs.append(audio)
    assert isinstance(state, FadeState | None)
    error = float((ours - whole).square().mean())
    assert error < 0.05 * float((torch.cat(theirs, dim=1) - whole).square().mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_no_click_at_chunk_boundaries(family: str) -> None:
    """The steepest step of the streamed audio is no steeper than that of the whole."""
    hift = networks(family).hift
    mel = a_mel(90, seed=2)
    whole = hift(mel, QUIET)[0]
    cut = streamed(hift, mel, [20, 30, 15, 25], QUIET)
    assert float(cut.diff().abs().max()) < 1.05 * float(whole.diff().abs().max()) + 1e-4


@settings(deadline=None, max_examples=6)
@given(family=st.sampled_from(FAMILIES), first=st.integers(0, 60), final=st.booleans())
def test_decoding_from_a_frame_is_the_end_of_all(family: str, first: int, final: bool) -> None:
    hift = networks(family).hift
    frame = hift.dims.frame_samples
    mel = a_mel(72, seed=first)
    source = torch.rand(1, 1, 72 * frame, generator=torch.Generator().manual_seed(first)) - 0.5
    with torch.inference_mode():
        whole = hift.decode(mel, source, final)
        assert apart(hift.decode(mel, source, final, first=first), whole[:, first * frame :]) < 2e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_batch_equals_its_members(family: str) -> None:
    hift = networks(family).hift
    mel = a_mel(40, batch=3)
    both = streamed(hift, mel, [22, 18], hashed(family, 4, 5, 6))
    for row in range(3):
        alone = streamed(hift, mel[row : row + 1], [22, 18], hashed(family, 4 + row))
        assert apart(both[row : row + 1], alone) < 1e-4  # rounding of the pitch adds up in the phase


@pytest.mark.parametrize("family", FAMILIES)
def test_stream_state_does_not_grow(family: str) -> None:
    hift = networks(family).hift
    state = networks(family).hift.start(1)
    emitted = 0
    for step in range(12):
        audio, state = hift.stream(a_mel(10, seed=step), state, QUIET, final=False)
        emitted += audio.shape[1]
        assert emitted == max(0, 10 * (step + 1) - hift.held) * FRAME
        assert state.cached_mel.shape[2] <= hift.history + hift.held
        assert int(state.start) + state.emitted_frames == emitted // FRAME
    audio, _ = hift.stream(a_mel(1), state, QUIET, final=True)
    assert emitted + audio.shape[1] == 121 * FRAME


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("normal", [False, True])
def test_noise_depends_on_position_only(family: str, normal: bool) -> None:
    made = HashedNoise(torch.tensor([3, 8]), normal)
    long = made(torch.tensor([0, 0]), 30_000, 9)
    assert torch.equal(made(torch.tensor([700, 700]), 50, 9), long[:, 700:750])
    assert torch.equal(made(torch.tensor([0, 700]), 50, 9)[1], long[1, 700:750])
    mean, deviation = (0.0, 1.0) if normal else (0.5, math.sqrt(1 / 12))
    assert float(long.mean()) == pytest.approx(mean, abs=0.01)
    assert float(long.std()) == pytest.approx(deviation, rel=0.02)
    flat = long[0].T - long[0].T.mean(dim=1, keepdim=True)
    across = (flat @ flat.T / flat.square().sum(1).mean()).fill_diagonal_(0)
    along = (flat[:, 1:] * flat[:, :-1]).sum(1) / flat.square().sum(1)
    assert float(across.abs().max()) < 0.03  # harmonics are independent
    assert float(along.abs().max()) < 0.03  # and so are neighbors
    assert not torch.equal(long[0], long[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_phase_precision_is_constant(family: str) -> None:
    dims = networks(family).config.hift
    pitch = torch.full([1, 4], 211.7)
    frames = 4
    start = 3000 * 60  # an hour in
    turns = torch.arange(1, 10).double() * (pitch[0, 0].double() * torch.arange(1, 10) / 24000 / torch.arange(1, 10))
    phase = (turns * start)[None]
    exact, coarse = (Source(dims, exact_phase=way).harmonics(pitch, phase) for way in (True, False))
    step = Source(dims, True).cycles_per_sample(pitch).double()[0, 0]
    frame_turns = (phase[0] + step * torch.arange(1, frames + 1)[:, None]) * FRAME  # [frames, 9]
    if family == V3:  # the phase of a frame holds for all of it
        expected = (frame_turns * 2 * math.pi).sin().float()
        got = exact[0, ::FRAME]
        assert apart(got, expected) < 1e-3
        assert apart(coarse[0, ::FRAME], expected) > 0.1
    else:  # between the middles of frames it runs on evenly
        middle = exact[0, FRAME // 2 :: FRAME]
        expected = ((frame_turns + step * 0.5) * 2 * math.pi).sin().float()
        assert apart(middle[:-1], expected[:-1]) < 1e-3
        assert apart(coarse[0, FRAME // 2 :: FRAME][:-1], expected[:-1]) > 0.1


@settings(deadline=None, max_examples=20)
@given(frames=st.integers(6, 60), sizes=st.sampled_from([(16, 4), (32, 8), (8, 2)]), seed=st.integers(0, 99))
def test_stft_equals_torch(frames: int, sizes: tuple[int, int], seed: int) -> None:
    n_fft, hop = sizes
    fourier = Fourier(n_fft, hop)
    window = torch.hann_window(n_fft)
    fourier.prepare(torch.device("cpu"))
    audio = noise(2, 1, frames * hop, seed=seed)
    expected = torch.stft(audio[:, 0], n_fft, hop, n_fft, window, return_complex=True)
    spectrum = fourier.analyze(audio)
    assert apart(spectrum, torch.cat([expected.real, expected.imag], dim=1)) < 1e-5
    kernels = fourier.inverse_kernel, fourier.window_square
    back = inverse_stft(expected.abs(), expected.angle(), *kernels, None, hop)
    assert apart(back, torch.istft(expected, n_fft, hop, n_fft, window)) < 1e-5
    assert apart(back, audio[:, 0]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_output_stays_within_the_audio_limit(family: str) -> None:
    hift = networks(family).hift
    audio, _ = hift(a_mel(20) + 40, QUIET)
    assert float(audio.abs().max()) == pytest.approx(networks(family).config.hift.audio_limit)
    assert audio.isfinite().all()


@pytest.mark.parametrize("pad", [(0, 0), (4, 4), (8, 0), (3, 1), (0, 5)])
def test_convolution_pads_the_same_on_cuda(pad: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    conv = Conv(3, 4, 3, pad, dilation=2).requires_grad_(False)
    x = noise(2, 3, 20)
    on_cpu = conv(x)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    assert apart(conv(x), on_cpu) < 1e-6


@pytest.mark.parametrize(("kernel", "rate"), [(16, 8), (11, 5), (7, 3), (3, 2), (1, 4)])
def test_folded_upsampling_equals_repetition(kernel: int, rate: int) -> None:
    conv = RepeatConv(3, 4, kernel, rate).requires_grad_(False)
    x = noise(2, 3, 9)
    repeated = torch.nn.functional.pad(x.repeat_interleave(rate, dim=2), (kernel - 1, 0))
    expected = torch.nn.functional.conv1d(repeated, conv.weight, conv.bias)
    conv.prepare()
    assert apart(conv(x), expected) < 1e-6
