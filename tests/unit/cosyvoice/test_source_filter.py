"""The vocoder that filters its excitation: it streams as the other one does, and a gain of 1 changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.cosyvoice.bundles import qwen_of, yaml_of
from tests.unit.cosyvoice.networks import FAMILIES, apart, full_config, noise
from tts_worker.engine.cosyvoice.bundle.config import CosyVoiceConfig
from tts_worker.engine.cosyvoice.bundle.weights import new_hift
from tts_worker.engine.cosyvoice.networks import hift as hift_module
from tts_worker.engine.cosyvoice.networks.hift import HashedNoise, Hift, StreamEnds
from tts_worker.engine.cosyvoice.networks.source_filter import SourceFilter
from tts_worker.errors import BundleError

FRAME = 480
NOISE = HashedNoise(torch.tensor([3]), normal=True)


def vocoder() -> Hift:
    """Random weights, and a pitch around 200 Hz."""
    dims = replace(
        full_config(FAMILIES[0]).hift,
        source_filter=True,
        base_channels=32,
        upsample_rates=(4,),
        upsample_kernel_sizes=(8,),
        n_fft=480,
        hop=120,
        resblock_kernel_sizes=(3, 5),
        resblock_dilation_sizes=((1, 2, 3), (1, 2)),
        f0_channels=8,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        hift = new_hift(dims)
        with torch.no_grad():
            hift.f0_predictor.classifier.bias.fill_(200.0)
            assert hift.conv_post.bias is not None
            hift.conv_post.bias.fill_(-1.0)
    return hift.requires_grad_(False).prepare()


def a_mel(frames: int, seed: int = 0) -> Tensor:
    rough = noise(1, 80, frames // 4 + 2, seed=seed)
    return torch.nn.functional.interpolate(rough, size=frames, mode="linear") * 2 - 3


def streamed(hift: Hift, mel: Tensor, cuts: list[int]) -> Tensor:
    state = hift.start(1)
    out = []
    for i, piece in enumerate(mel.split(cuts, dim=2)):
        audio, state = hift.stream(piece, state, NOISE, final=i == len(cuts) - 1)
        out.append(audio)
    return torch.cat(out, dim=1)


def test_dimensions_choose_the_vocoder() -> None:
    assert isinstance(vocoder(), SourceFilter)
    assert type(new_hift(full_config(FAMILIES[0]).hift)) is Hift


@settings(deadline=None, max_examples=8)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_source_filter_streams_exactly_with_lookahead(cuts: list[int], seed: int) -> None:
    hift = vocoder()
    mel = a_mel(sum(cuts), seed)
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(hift_module, "HELD_FRAMES", 14)  # all that a frame's audio depends on to its right
        got = streamed(hift, mel, cuts)
    assert apart(got, hift(mel, NOISE)[0]) < 2e-4


def test_source_filter_streams_closely_with_the_usual_delay() -> None:
    hift = vocoder()
    cuts = [30, 20, 25, 40]
    mel = a_mel(sum(cuts), 4)
    whole = hift(mel, NOISE)[0]
    assert apart(streamed(hift, mel, cuts), whole) < 0.2 * float(whole.abs().max())


@pytest.mark.parametrize("first", [0, 3, 25])
def test_filtering_from_a_frame_is_the_end_of_all(first: int) -> None:
    hift = vocoder()
    mel, source = a_mel(40), 0.1 * noise(1, 2, 40 * FRAME, seed=1)
    whole = hift.decode(mel, source)
    assert apart(hift.decode(mel, source, first=first), whole[:, first * FRAME :]) < 1e-5


def test_shorter_stream_in_a_window_equals_itself_alone() -> None:
    hift = vocoder()
    mel, source = a_mel(40), 0.1 * noise(1, 2, 40 * FRAME, seed=1)
    alone = hift.decode(mel[:, :, :30], source[:, :, : 30 * FRAME])
    padded = torch.cat([mel[:, :, :30], torch.zeros(1, 80, 10)], dim=2)
    together = hift.decode(padded, source, True, StreamEnds(torch.tensor([30])))
    assert apart(together[:, : 30 * FRAME], alone) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_only_cosyvoice2_can_filter(family: str) -> None:
    text = yaml_of(family).replace("nb_harmonics:", "source_filter: True\n    nb_harmonics:")
    if family == FAMILIES[0]:
        assert CosyVoiceConfig.from_files(text, qwen_of(family), "model.yaml").hift.source_filter
    else:
        with pytest.raises(BundleError, match="source_filter"):
            CosyVoiceConfig.from_files(text, qwen_of(family), "model.yaml")


def test_gain_of_one_passes_pulses_and_noise() -> None:
    """The sines of the source become cosines."""
    hift = vocoder()
    hift.conv_post.weight.zero_()
    assert hift.conv_post.bias is not None
    hift.conv_post.bias.zero_()
    angle = torch.arange(40 * FRAME) * (2 * math.pi * 200 / 24_000)
    quiet = 0.1 * noise(1, 40 * FRAME, seed=2)
    audio = hift.decode(a_mel(40), torch.stack([0.2 * angle.sin()[None], quiet], dim=1))
    middle = slice(5 * FRAME, 35 * FRAME)
    assert apart(audio[:, middle], (0.2 * angle.cos() + quiet)[:, middle]) < 1e-3
