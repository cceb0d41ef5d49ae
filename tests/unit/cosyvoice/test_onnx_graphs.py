"""The exported graphs: valid, equal to PyTorch, and able to stream in its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from tests.contract.engine_contract import EngineCase, EngineDriver, segments
from tests.unit.cosyvoice.bundles import FAMILIES, copy_of, tiny
from tests.unit.cosyvoice.networks import apart, networks
from tts_worker.cli import main
from tts_worker.engine.cosyvoice.backends import onnx_graphs
from tts_worker.engine.cosyvoice.backends.onnx_graphs import (
    ESTIMATOR,
    GRAPHS_DIR,
    VOCODER,
    VOCODER_CHUNK,
    compare_onnx,
    run_on_onnx,
)
from tts_worker.engine.cosyvoice.bundle import Bundle
from tts_worker.engine.cosyvoice.flow_pool import FlowPool
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
from tts_worker.engine.cosyvoice.networks import Networks
from tts_worker.engine.cosyvoice.request import Request
from tts_worker.errors import BundleError, ConfigError
from tts_worker.parity.pipeline import OfflinePipeline
from tts_worker.types import Boundary, SynthesisParams, UtteranceKey

NAMES = {"cosyvoice2": {ESTIMATOR, VOCODER}, "cosyvoice3": {ESTIMATOR, VOCODER, VOCODER_CHUNK}}

LAST_BIAS = {"cosyvoice2": "final_proj.bias", "cosyvoice3": "proj_out.bias"}


@pytest.fixture(scope="module", params=FAMILIES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """One family, exported by the command."""
    folder = tmp_path_factory.mktemp("graphs")
    assert main(["export", "onnx", str(tiny(request.param)), "--out", str(folder)]) == 0
    return request.param, folder


@pytest.fixture(scope="module")
def on_onnx(exported: tuple[str, Path]) -> Networks:
    return run_on_onnx(Networks.load(Bundle.open(tiny(exported[0]))), exported[1])


def test_graphs_are_valid_and_support_streaming(exported: tuple[str, Path]) -> None:
    family, folder = exported
    assert {file.name for file in folder.iterdir()} == NAMES[family]
    for file in folder.iterdir():
        onnx.checker.check_model(str(file), full_check=True)
    graph = onnx.load(folder / ESTIMATOR).graph
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes["mask"] == ["rows", 1, "frames", "all_frames"]
    assert shapes["keys"][1] == "rows"
    assert shapes["keys"][3] == "past_frames"
    assert {"values", "context", "new_keys", "new_values", "new_context"} <= shapes.keys()


def test_graphs_match_pytorch(exported: tuple[str, Path]) -> None:
    family, folder = exported
    differences = compare_onnx(networks(family), folder)

    assert differences.keys() == NAMES[family]
    assert max(differences.values()) < 5e-5


def spoken(of: Networks, **how: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    mel = torch.randn(40, of.config.flow.mel, generator=generator) * 0.5
    spk = torch.randn(of.config.flow.spk_embed, generator=generator)
    request = Request((), spk, flow_prompt=tuple(range(20)), prompt_mel=mel)
    tokens = [7 * i % 6561 for i in range(61)]
    return [chunk.samples for chunk in OfflinePipeline(of).render(request, tokens, seed=5, **how)]


@pytest.mark.parametrize("stream", [False, True])
def test_offline_output_is_equal_on_both_backends(exported: tuple[str, Path], on_onnx: Networks, stream: bool) -> None:
    plain = spoken(networks(exported[0]), stream=stream)
    graphs = spoken(on_onnx, stream=stream)

    assert [len(chunk) for chunk in plain] == [len(chunk) for chunk in graphs]
    assert len(plain) == (4 if stream else 1)
    assert max(apart(a, b) for a, b in zip(plain, graphs, strict=True)) < 2e-3


@pytest.mark.parametrize("bucket", [1, 2])
def test_paged_memory_works_on_both_backends(exported: tuple[str, Path], on_onnx: Networks, bucket: int) -> None:
    """Utterances of other ages in one batch, pages out of order, a short last chunk; tables as long as they need to be
    (then there may be no mask at all), or batches and tables padded."""

    def run(of: Networks) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        pool = FlowPool(of.flow, slots=3, pages=14, max_chunks=5, checked=True, page_bucket=bucket)
        old = pool.open()
        young = pool.open()
        last = pool.open()
        mel = of.config.flow.mel
        spk = torch.randn(3, of.config.flow.mel, generator=generator)

        def advance(states: list, known: list[int]) -> Tensor:  # type: ignore[type-arg]
            n = len(states)
            tokens = torch.randint(0, 6561, (n, 28), generator=generator)
            return pool.advance(states, tokens, known, spk[:n], torch.zeros(n, of.flow.chunk_frames, mel))

        parts = [advance([old], [28]), advance([old, young], [28, 28]), advance([young, old, last], [28, 28, 28])]
        parts.append(advance([last, old], [28, 9])[0])
        return parts

    plain = run(networks(exported[0]))
    graphs = run(on_onnx)
    assert max(apart(a, b) for a, b in zip(plain, graphs, strict=True)) < 5e-5


def test_missing_or_damaged_graphs_are_reported(exported: tuple[str, Path], tmp_path: Path) -> None:
    options = LoadOptions(tiny(exported[0]), device="cpu", backend="onnx", graphs_dir=tmp_path)
    with pytest.raises(BundleError, match=r"flow\.estimator\.onnx: is missing; create it with: tts-worker export onnx"):
        load_engine(options)
    (tmp_path / ESTIMATOR).write_bytes((exported[1] / ESTIMATOR).read_bytes()[:5000])
    with pytest.raises(BundleError, match="onnxruntime cannot load it"):
        load_engine(options)


def test_graphs_of_other_weights_are_refused(exported: tuple[str, Path]) -> None:
    other = next(family for family in FAMILIES if family != exported[0])
    tuned = Networks.load(Bundle.open(tiny(exported[0])))
    with torch.inference_mode():
        tuned.flow.estimator.get_parameter("final_proj.bias" if exported[0] == "cosyvoice2" else "proj_out.bias").add_(
            1
        )
    with pytest.raises(BundleError, match=r"flow\.estimator\.onnx: was exported from other weights"):
        run_on_onnx(tuned, exported[1])
    with pytest.raises(BundleError, match="was exported from other weights; run again"):
        run_on_onnx(Networks.load(Bundle.open(tiny(other))), exported[1])


def test_graph_that_fails_the_check_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise onnx.checker.ValidationError("bad node")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(BundleError, match="not valid: bad node"):
        onnx_graphs.export_onnx(networks("cosyvoice2"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_graphs_accept_other_batch_sizes(exported: tuple[str, Path]) -> None:
    """Rows and frames are free: a graph made for two rows of two chunks takes five of thirteen frames."""
    family, folder = exported
    of = networks(family)
    graph = onnx_graphs.EstimatorGraph(of.flow)
    session = onnx_graphs.open_session(folder / ESTIMATOR, graph)
    generator = torch.Generator().manual_seed(2)
    x, mu, cond = (torch.randn(5, 13, of.config.flow.mel, generator=generator) for _ in range(3))
    spk = torch.randn(5, of.config.flow.mel, generator=generator)
    start = torch.tensor([0, 0, 0, 0, 0])
    mask = torch.ones(5, 1, 13, 13, dtype=torch.bool).tril()
    given = (x, mu, spk, cond, of.flow.time_tables[3:4], start, mask, *onnx_graphs.no_past(of.flow, 5))

    with torch.inference_mode():
        ours = graph(*given)
    named = {k: t.contiguous().numpy() for k, t in zip(onnx_graphs.ESTIMATOR_INPUTS, given, strict=True)}
    theirs = session.run(None, named)
    assert max(apart(a, torch.from_numpy(b)) for a, b in zip(ours, theirs, strict=True)) < 5e-5


def test_streaming_engine_runs_on_both_backends(exported: tuple[str, Path], tmp_path: Path) -> None:
    """The setting ``backend`` through the loader of the engine: the same audio, but for the last bits."""
    family, folder = exported
    path = copy_of(family, tmp_path)
    shutil.copytree(folder, path / GRAPHS_DIR)
    text = segments(("Hello ", Boundary.CLAUSE), ("there.", Boundary.END))

    def speak(backend: str) -> np.ndarray:
        options = LoadOptions(path, device="cpu", backend=backend, memory_gb=0.2, max_utterances=2)
        driver = EngineDriver(EngineCase(lambda: load_engine(options), SynthesisParams("tiny_spk", seed=3), text, ()))
        output = driver.open(UtteranceKey("x", 1))
        driver.send_text(UtteranceKey("x", 1))
        driver.drain()
        driver.engine.close()
        return np.frombuffer(output.pcm, "<i2") / 32_768

    plain = speak("torch")
    graphs = speak("onnx")
    assert len(plain) == len(graphs) > 4_800
    assert np.abs(plain - graphs).max() < 0.01
    with pytest.raises(ConfigError, match="backend: onnx runs on the CPU in float32"):
        load_engine(LoadOptions(path, device="cpu", backend="onnx", half=True))
