"""``tools.bench gpu`` on a simulated CUDA device: time on a real one is too dear for a mistake in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fakes.cuda.device import SimulatedDevice, simulated_cuda
from tests.fakes.graph_runner import FakeGraphRunner
from tests.fakes.heap import Heap
from tests.unit.cosyvoice.networks import load_shallow
from tools.bench import gpu
from tools.bench.gpu import GpuBench, run_sections
from tools.bench.gpu_load import slots_for
from tools.bench.gpu_plan import Plan, Results
from tools.random_bundle.writer import write_random_bundle
from tts_worker.engine.cosyvoice import loader
from tts_worker.engine.cosyvoice.bundle import config
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.components import Components
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig
from tts_worker.engine.cosyvoice.loader import LoadOptions

SECTIONS = ("start", "first_audio", "replays", "convolutions", "load_2", "variant_load_burst_4", "variant_as_served")
"""Those that know CUDA or build an engine in a way of their own; all others ran here once, in three minutes."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedDevice]:
    """Engines that replay fake graphs on a simulated device, for sections that believe to be on CUDA."""
    monkeypatch.setattr(config, "EULER_STEPS", 1)
    monkeypatch.setattr(Networks, "load", load_shallow)
    monkeypatch.setattr(GpuBench, "on_cuda", property(lambda bench: True))
    monkeypatch.setattr(gpu, "DRAWN_IDS", 8)
    monkeypatch.setattr(gpu, "gc", Heap())
    monkeypatch.setattr(gpu, "VARIANT_TEXTS", 1)
    monkeypatch.setattr(gpu, "REPLAYED_TOKENS", 10)
    properties = SimpleNamespace(name="a device", major=9, minor=0, multi_processor_count=132)
    for name, result in {
        "synchronize": None,
        "empty_cache": None,
        "memory_allocated": 0,
        "memory_reserved": 0,
        "mem_get_info": (2, 3),
        "get_device_properties": properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, result=result: result)
    build = Components.build

    def simulated(networks: Networks, *args: Any, **kwargs: Any) -> Components:
        settings = args[2]
        runner = FakeGraphRunner if settings.graphs else EagerRunner
        return build(networks, *args, **kwargs, graph_runners=(runner(), runner()), streams=cuda.streams())

    monkeypatch.setattr(Components, "build", simulated)
    # As on CUDA, where the device decides.
    monkeypatch.setattr(loader, "StreamingConfig", lambda **given: StreamingConfig(**{**given, "graphs": True}))
    with simulated_cuda() as cuda:
        yield cuda


@pytest.mark.long  # test_gpu runs the sections on the CPU
@pytest.mark.timeout(300)
def test_sections_run_on_a_device(device: SimulatedDevice, tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "tiny", "cosyvoice3", "tiny", prompt_models=False)
    slots = slots_for(2)  # those of the load: one engine less is built
    plan = Plan(
        LoadOptions(tmp_path / "tiny", device="cpu", memory_gb=0.5, threads=1, max_segment_s=4, max_utterances=slots),
        loads=(2,),
        load_seconds=0.2,
        call_s=(0.4, 0.8),
        texts=1,
        speed_seconds=0.4,
        growth_seconds=12.0,
        correct_tokens=(12,),
        stage_batches=(1, 2),
        stage_live=None,
        cancels=3,
        budget_s=1e6,
    )

    figures = run_sections(replace(plan, sections=SECTIONS), Results(tmp_path / "gpu.json")).figures

    assert {name: each for name, each in figures.items() if "error" in each or "skipped" in each} == {}
    names = {key.split()[0] for key in figures["replays"]["ms"]}
    assert names == {"prefill", "decode", "flow", "vocoder"}
    assert device.faults == []
