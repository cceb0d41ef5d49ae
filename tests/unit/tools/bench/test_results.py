"""bench/results/README.md explains every result file, and its figures match the files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cases import each_case

RESULTS = Path(__file__).parents[4] / "bench" / "results"
BENCHMARKS = RESULTS.parents[1] / "docs" / "benchmarks.md"
ROWS = {
    name: engine
    for line in (RESULTS / "README.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
    for names, _, engine in [line.strip("| ").split(" | ")]
    for name in re.findall(r"`([^`]+\.json)`", names)
}


def test_every_result_file_is_explained() -> None:
    assert sorted(ROWS) == sorted(file.name for file in RESULTS.glob("*.json"))


@each_case("name", ROWS)
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
    elif "tools.expression" in command:
        expected = f"the voice {figures['voice']}"
    elif "watermark_study" in command:
        assert len(figures["attacks"]) == 14
        assert {"heart", "nano"} <= figures["attacks"].keys()
        expected = "the thirteen voices of the CPU engine, and nano"
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


SIDES = ("ours", "hop_reset")
RATIOS = [f"hop_reset_over_ours_{what}" for what in ("first", "wall", "cpu")]


def _comparison(suffix: str, title: str, separator: str, keys: list[str], style: str) -> str:
    """A row of the comparison with the reference, of the figures of both families."""
    cells = []
    for family in (3, 2):
        name = f"compare_upstream_cosyvoice{family}_amd{suffix}.json"
        result = json.loads((RESULTS / name).read_text("utf-8"))["result"]
        cells.append(separator.join(format(result[key], style) for key in keys))
    return " | ".join([f"| {title}", *cells]).replace("e-0", "e-") + " |"


@pytest.mark.parametrize(
    ("suffix", "title", "separator", "keys", "style"),
    [
        ("", "first audio, s: this engine / reference", " / ", [f"{side}_first_s" for side in SIDES], ".2f"),
        ("", "wall time, s: this engine / reference", " / ", [f"{side}_wall_s" for side in SIDES], ".1f"),
        ("", "processor time, s: this engine / reference", " / ", [f"{side}_cpu_s" for side in SIDES], ".1f"),
        (
            "_stride-4",
            "times as fast with the reference's chunk sizes (`stride_chunks: 4`): first audio, wall and processor time",
            ", ",
            RATIOS,
            ".1f",
        ),
        ("", "largest difference of the mel", "", ["ours_mel_difference_largest"], ".1e"),
    ],
)
def test_quoted_comparison_matches_the_files(
    suffix: str, title: str, separator: str, keys: list[str], style: str
) -> None:
    assert _comparison(suffix, title, separator, keys, style) in BENCHMARKS.read_text("utf-8")


def test_benchmarks_page_names_files_that_exist() -> None:
    table = BENCHMARKS.read_text("utf-8").partition("## Figures")[2].partition("\n## ")[0]
    rows = [line.rpartition(" | ")[2] for line in table.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert len(named) > 10
    assert [name for name in named if not (RESULTS / f"{name}.json").exists()] == []
