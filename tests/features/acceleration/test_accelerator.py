"""What acceleration chooses after its checks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.plan import find_accelerator
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.engine.cosyvoice.execution.streams import CudaStream, ExecutionStreams
from tts_worker.features.acceleration import accelerator
from tts_worker.features.acceleration.graphs import CudaGraphRunner, graph_problem


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> ExecutionStreams:
    """Those of a CUDA device that is not there."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    stream = object.__new__(CudaStream)
    stream.device, stream.cuda_stream = torch.device("cuda"), SimpleNamespace()  # type: ignore[assignment]
    return ExecutionStreams(stream, stream, stream)


def runner_types(streams: ExecutionStreams, **changes: Any) -> tuple[list[type], tuple[str, ...]]:
    runners, missing = accelerator._runners(streams, StreamingConfig(**{"graphs": True, **changes}))
    return [type(each) for each in runners], missing


def test_engine_finds_the_accelerator() -> None:
    assert find_accelerator() is accelerator.ACCELERATOR


def test_graphs_are_captured_where_one_is_replayed(streams: ExecutionStreams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "graph_problem", lambda device: "")
    assert runner_types(streams) == ([CudaGraphRunner, CudaGraphRunner], ())
    assert runner_types(streams, audio_graphs=False) == ([CudaGraphRunner, EagerRunner], ())
    assert runner_types(streams, graphs=False) == ([EagerRunner, EagerRunner], ())


def test_device_that_replays_no_graph_runs_eagerly(
    streams: ExecutionStreams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accelerator, "graph_problem", lambda device: "a replay changed nothing")
    missing = ("CUDA graphs are not used: a replay changed nothing",)
    assert runner_types(streams) == ([EagerRunner, EagerRunner], missing)
    assert "a replay changed nothing" in caplog.text


def test_refused_graph_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise RuntimeError("operation not permitted")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    assert graph_problem("cpu") == "operation not permitted"
