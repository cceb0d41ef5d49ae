"""``python -m tools.bench``: its benchmarks, their help, and runs of those that start a worker."""

from __future__ import annotations

import json

import pytest

from tools.bench.__main__ import COMMANDS, main


def bench(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, float]:
    assert main([*args, "--json"]) == 0
    figures: dict[str, float] = json.loads(capsys.readouterr().out)
    return figures


@pytest.mark.parametrize("transport", ["local", "ws", "grpc"])
def test_bench_control(capsys: pytest.CaptureFixture[str], transport: str) -> None:
    figures = bench(capsys, "control", "--sessions", "4", "--seconds", "3", "--transport", transport)
    assert figures["stops"] > 0
    if transport != "grpc":  # responses and audio are separate calls: audio in transit may follow
        assert figures["frames_after_stop"] == figures["frames_in_pause"] == 0
    assert 0 <= figures["stop_p50_ms"] <= figures["stop_p99_ms"] <= figures["stop_max_ms"]


def test_bench_load(capsys: pytest.CaptureFixture[str]) -> None:
    figures = bench(capsys, "load", "--engine", "tone", "--sessions", "3", "--seconds", "2")
    assert figures["utterances"] == 3
    assert figures.keys() >= {"sessions", "underrun_p99_ms", "first_audio_p95_ms", "cpu_percent", "rss_mb"}
    assert 0 <= figures["continuity_c50"] <= 1
    # At most two seconds and the lead per session; less after a stall of the machine, but more than one session.
    assert 2.2 < figures["audio_s"] < 6.5
    assert 0 <= figures["underruns_unexplained"] <= figures["underruns"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m tools.bench {name}" in capsys.readouterr().out


def test_list_of_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)
    assert main(["laod"]) == 2
    assert 'no benchmark "laod"' in capsys.readouterr().err
