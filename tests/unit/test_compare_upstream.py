"""The comparison with the reference: figures of several versions of the engine in one run."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")

import torch

from tests.unit.cosyvoice.bundles import tiny
from tools.bench.engine import forced_tokens, random_voice
from tools.compare_upstream import StreamTimes, figures_of, mel_figures
from tools.forced_speech import VOICE, load, speak_mel
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.voices.files import save_voice


def _times(first_s: float, wall_s: float, cpu_s: float) -> StreamTimes:
    return StreamTimes(first_s, 3840, wall_s, cpu_s, 12, 480_000)


def test_ratios_are_of_the_medians_of_each_version() -> None:
    figures = figures_of(
        {
            "ours": [_times(0.5, 5.0, 8.0), _times(9.0, 90.0, 80.0), _times(0.5, 5.0, 8.0)],
            "baseline": [_times(1.0, 6.0, 10.0)] * 3,
            "hop_reset": [_times(2.0, 30.0, 40.0), _times(2.0, 30.0, 40.0), _times(1.0, 3.0, 4.0)],
        }
    )
    over = {name: value for name, value in figures.items() if "_over_" in name}
    assert over == {
        "hop_reset_over_ours_wall": 6.0,
        "hop_reset_over_ours_cpu": 5.0,
        "hop_reset_over_ours_first": 4.0,
        "hop_reset_over_baseline_wall": 5.0,
        "hop_reset_over_baseline_cpu": 4.0,
        "hop_reset_over_baseline_first": 2.0,
    }
    assert figures["ours_first_audio_s"] == 0.16


def test_first_audio_also_counts_short_utterances() -> None:
    runs = {"ours": [_times(9.0, 5.0, 8.0)], "hop_reset": [_times(2.0, 30.0, 40.0)]}
    short = {"ours": [_times(1.0, 0.8, 1.1), _times(0.5, 0.8, 1.1)]}
    figures = figures_of(runs, short)
    assert (figures["ours_first_s"], figures["ours_wall_s"], figures["ours_cpu_s"]) == (1.0, 5.0, 8.0)
    assert figures["hop_reset_over_ours_first"] == 2.0


def test_mel_of_each_version_is_compared_with_the_reference() -> None:
    theirs = torch.zeros(80, 10)
    ours, baseline = theirs.clone(), theirs.clone()
    ours[3, 4] = -0.5
    baseline[:] = 0.25
    figures = mel_figures(theirs, {"ours": ours, "baseline": baseline})
    assert figures == {
        "mel_std": 0.0,
        "ours_mel_difference_largest": 0.5,
        "ours_mel_difference_rms": pytest.approx(0.5 / 800**0.5),
        "baseline_mel_difference_largest": 0.25,
        "baseline_mel_difference_rms": 0.25,
    }


def test_exact_mel_gives_the_error_of_each_side() -> None:
    exact = torch.full((80, 10), 1 + 2**-30, dtype=torch.float64)  # between two numbers of float32
    theirs = exact.float()
    figures = mel_figures(theirs, {"ours": theirs + 0.5}, exact)
    assert figures["reference_mel_error_largest"] == figures["reference_mel_error_rms"] == 2**-30
    assert figures["ours_mel_error_largest"] == 0.5 - 2**-30
    assert figures["ours_mel_difference_largest"] == 0.5


def test_mels_of_other_lengths_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        mel_figures(torch.zeros(80, 10), {"ours": torch.zeros(80, 1)})


def test_mel_of_the_stored_voice_is_recorded(tmp_path: Path) -> None:
    bundle = tiny("cosyvoice3")
    voice = random_voice(Bundle.open(bundle), 45, seed=3)
    save_voice(tmp_path, VOICE, voice)
    options = Namespace(
        bundle=bundle, voices=tmp_path, threads=1, overlap=0, first_tokens=8, stride_chunks=None, max_segment_s=4
    )
    bench = load(options)
    try:
        spoken = speak_mel(bench, forced_tokens(30, 1).tolist())
    finally:
        bench.engine.close()
    assert spoken["mel"].shape == (80, 60)
    kept = len(spoken["prompt"])  # the start is cut off, so that the first chunk ends after ``first_tokens``
    np.testing.assert_array_equal(spoken["prompt"], voice.tokens[-kept:])
    np.testing.assert_array_equal(spoken["prompt_mel"], voice.mel[-2 * kept :])


def test_mel_of_an_older_version_is_recorded() -> None:
    class Renderer:
        def _frames(self, works: list[int]) -> list[Any]:
            return [torch.full((1, 80, 2), float(work)) for work in works]

    parts = SimpleNamespace(renderer=Renderer(), book=SimpleNamespace(_states={}))
    parts.book._states[VOICE] = SimpleNamespace(prompt=(7, 8), prompt_mel=torch.zeros(4, 80))

    def speak(tokens: Any) -> None:
        for token in tokens:
            parts.renderer._frames([token])

    bench = SimpleNamespace(engine=SimpleNamespace(parts=parts), speak=speak)
    spoken = speak_mel(bench, [1, 2])
    assert spoken["mel"][0].tolist() == [1, 1, 2, 2]
    assert spoken["prompt"].tolist() == [7, 8]
