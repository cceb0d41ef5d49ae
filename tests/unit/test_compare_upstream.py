"""The comparison with the reference: figures of several versions of the engine in one run."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs the extra 'cosyvoice'")

from tools.compare_upstream import StreamTimes, figures_of


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
