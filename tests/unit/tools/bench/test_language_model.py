"""``bench lm``: our decoder beside transformers' on the same weights."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tools.bench.__main__ import main

SMALL = ["--layers", "2", "--width", "128", "--prompt", "5", "--steps", "3", "--batches", "1", "2", "--json"]


def test_bench_lm_measures_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["lm", *SMALL]) == 0
    figures = json.loads(capsys.readouterr().out)
    for batch in (1, 2):
        assert figures[f"batch_{batch}_ours_prompt_ms"] > 0
        assert figures[f"batch_{batch}_ours_step_ms"] > 0
    if importlib.util.find_spec("transformers") is None:
        assert figures["transformers"] is None
        assert "batch_1_transformers_step_ms" not in figures
    else:
        assert max(figures["batch_1_difference"], figures["batch_2_difference"]) < 1e-4


@pytest.mark.parametrize("option", [("--layers", "0"), ("--width", "100"), ("--batches", "0")])
def test_bench_lm_rejects_impossible_sizes(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lm", *option]) == 2
    assert "--width a multiple of 128" in capsys.readouterr().err
