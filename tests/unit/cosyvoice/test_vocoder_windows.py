"""The vocoder on windows of fixed sizes: the audio of exact windows, for streams of any lengths in one batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.fakes.graph_runner import FakeGraphRunner
from tests.features.acceleration.graph_files import (
    networks,  # of few layers, as time is proportional to their number
)
from tests.unit.cosyvoice.networks import ONE_FAMILY
from tests.unit.cosyvoice.test_hift import a_mel, hashed, streamed
from tts_worker.engine.cosyvoice.audio.vocoder_windows import (
    VocoderWindows,
    WindowInput,
    WindowState,
    to_int16,
    window_sizes,
)
from tts_worker.engine.cosyvoice.execution.streams import HostStream

MAX_CHUNK_FRAMES = 108  # a last chunk at half the pace


def windows(family: str, runner: FakeGraphRunner) -> VocoderWindows:
    loaded = networks(family)
    sizes = window_sizes(loaded.hift, loaded.config.flow, first_tokens=8, stride=1)
    return VocoderWindows(loaded.hift, HostStream(), runner, sizes, torch.device("cpu"))


def render(subject: VocoderWindows, streams: list[list[Tensor]]) -> list[Tensor]:
    """Render streams that are cut into chunks, chunk by chunk in common batches."""
    states: list[WindowState | None] = [None] * len(streams)
    audio: list[list[Tensor]] = [[] for _ in streams]
    for turn in range(max(len(chunks) for chunks in streams)):
        active = [i for i, chunks in enumerate(streams) if turn < len(chunks)]
        inputs = [WindowInput(states[i], i, streams[i][turn], turn == len(streams[i]) - 1) for i in active]
        samples, counts, after = subject.run(inputs)
        for row, i in enumerate(active):
            audio[i].append(samples[row, : counts[row]].clone())
            states[i] = after[row]
    return [torch.cat(parts) for parts in audio]


chunks = st.lists(st.integers(1, MAX_CHUNK_FRAMES), min_size=1, max_size=4)


@pytest.mark.parametrize("family", ONE_FAMILY)
@settings(deadline=None, max_examples=5)
@given(cuts=st.lists(chunks, min_size=1, max_size=3))
def test_windows_give_the_audio_of_exact_lengths(family: str, cuts: list[list[int]]) -> None:
    """One step of 16 bits at most: convolutions of another length may sum in another order."""
    mels = [a_mel(sum(lengths), seed=i) for i, lengths in enumerate(cuts)]
    streams = [list(mel.split(lengths, dim=2)) for mel, lengths in zip(mels, cuts, strict=True)]

    rendered = render(windows(family, FakeGraphRunner()), streams)

    for i, (mel, lengths, audio) in enumerate(zip(mels, cuts, rendered, strict=True)):
        expected = to_int16(streamed(networks(family).hift, mel, lengths, hashed(family, i)))[0]
        assert audio.shape == expected.shape
        assert int((audio.int() - expected.int()).abs().max()) <= 1


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_captured_windows_cover_every_chunk_length(family: str) -> None:
    runner = FakeGraphRunner()
    subject = windows(family, runner)
    subject.capture(2)
    assert sum(each.captured for each in runner.computations) <= 2 * 2 * 5
    for first, last in ((1, 1), (17, 20), (50, MAX_CHUNK_FRAMES)):
        render(subject, [list(a_mel(first + 50 + last).split([first, 50, last], dim=2)), [a_mel(last)]])
    assert runner.eager_calls == 0


@pytest.mark.parametrize("family", ONE_FAMILY)
def test_regular_chunks_have_no_padding(family: str) -> None:
    """A first chunk of 8 tokens and the chunks in the middle, which are nearly all, fit their windows exactly."""
    subject = windows(family, FakeGraphRunner())
    render(subject, [list(a_mel(16 + 50 + 50 + 50).split([16, 50, 50, 50], dim=2))])
    loaded = networks(family).hift
    cached = loaded.held + loaded.history
    assert subject.frames == 16 + 3 * (cached + 50)
