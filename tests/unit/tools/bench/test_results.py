"""bench/results/README.md explains every result file, and its figures match the files."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[4] / "bench" / "results"
ROWS = {
    name: engine
    for line in (RESULTS / "README.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
    for names, _, engine in [line.strip("| ").split(" | ")]
    for name in re.findall(r"`([^`]+\.json)`", names)
}


def test_every_result_file_is_explained() -> None:
    assert sorted(ROWS) == sorted(file.name for file in RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", ROWS)
def test_every_result_names_its_engine(name: str) -> None:
    """A figure without its engine misleads: the tone engine costs almost nothing."""
    record: dict[str, Any] = json.loads((RESULTS / name).read_text("utf-8"))
    figures = record["runs"][0] if "runs" in record else record["result"]
    engine = figures.get("engine")
    command = record["command"]
    if engine == "hibari":
        expected = "the CPU voice"
    elif "bench frames" in command:
        assert engine == "tone"
        expected = "the tone engine"
    elif "bench text" in command or "bench lm" in command:
        expected = "no audio"
    elif "engine_process" in command:
        assert f"--engine {engine} " in command
        expected = {"tone": "the tone engine", "cpu": "the CPU voice"}[engine]
    elif "bench control" in command or "webrtc_stop_latency" in command:
        assert engine in ("tone", None)
        expected = "the tone engine"
    elif "speech_study" in command:
        assert figures["bundle"] == "nano"
        expected = "the voice nano"
    elif "tests/data" in command or "RANDOM-TINY" in command:
        expected = "tiny random weights"
    elif "bench latency --engine cpu" in command:
        expected = "the CPU voice"
    else:
        assert "RANDOM-MID" in command
        expected = "random weights of middle size"
    assert ROWS[name] == expected


def test_quoted_figures_match_the_files() -> None:
    text = (RESULTS / "README.md").read_text("utf-8")
    load = json.loads((RESULTS / "load-cpu-40.json").read_text("utf-8"))["result"]
    latency = json.loads((RESULTS / "latency-cpu.json").read_text("utf-8"))["result"]
    assert f"{load['underruns']} in `load-cpu-40.json`" in text
    assert f"outside of such stalls: {load['underruns_unexplained']}." in text
    assert f"p50 {latency['first_audio_p50_ms']:.1f} ms" in text
    assert f"p95 ({latency['first_audio_p95_ms']:.1f} ms)" in text
    fairness = json.loads((RESULTS / "fairness-cpu.json").read_text("utf-8"))["runs"]
    assert f"{sum(run['underruns'] for run in fairness)} underruns in {len(fairness)} runs" in text


def _comparisons(suffix: str = "") -> list[dict[str, Any]]:
    names = [f"compare_upstream_cosyvoice{family}_amd{suffix}.json" for family in (3, 2)]
    return [json.loads((RESULTS / name).read_text("utf-8"))["result"] for name in names]


def _row(results: list[dict[str, Any]], title: str, separator: str, keys: list[str], style: str) -> str:
    cells = [separator.join(format(result[key], style) for key in keys) for result in results]
    return " | ".join([f"| {title}", *cells]).replace("e-0", "e-") + " |"


def test_quoted_comparison_matches_the_files() -> None:
    text = (RESULTS.parents[1] / "docs" / "streaming-engine.md").read_text("utf-8")
    row = partial(_row, _comparisons())
    sides = ("ours", "baseline")
    for what, key in (("of the first audio", "first"), ("wall", "wall"), ("cpu", "cpu")):
        assert row(f"ratio {what}: today, 9c4c819", ", ", [f"hop_reset_over_{n}_{key}" for n in sides], ".1f") in text
    for what, key in (("first audio", "first_s"), ("total, wall", "wall_s"), ("total, cpu", "cpu_s")):
        style = ".2f" if key == "first_s" else ".1f"
        quoted = row(
            f"{what}: today / 9c4c819 / reference", " / ", [f"{n}_{key}" for n in (*sides, "hop_reset")], style
        )
        assert quoted in re.sub(r"(?<=\d) s(?= [/|])", "", text)
    largest = [f"{name}_mel_difference_largest" for name in sides]
    assert row("largest difference of the mel: today, 9c4c819", ", ", largest, ".1e") in text
    assert row("root mean square of that difference", ", ", [f"{n}_mel_difference_rms" for n in sides], ".1e") in text


def test_quoted_comparison_with_equal_chunks_matches_the_files() -> None:
    text = (RESULTS.parents[1] / "docs" / "streaming-engine.md").read_text("utf-8")
    results = _comparisons("_stride-4")
    for what in ("wall", "cpu"):
        keys = [f"hop_reset_over_{name}_{what}" for name in ("ours", "baseline")]
        assert _row(results, f"ratio {what} with the reference's chunk sizes", ", ", keys, ".1f") in text
