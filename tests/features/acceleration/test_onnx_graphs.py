"""The exported graphs: valid, equal to PyTorch, and able to stream in its place on ONNX Runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.engine_contract import EngineCase, EngineDriver, segments
from tests.features.acceleration import graph_files
from tests.features.acceleration.graph_files import (
    GRAPHS,
    counted_calls,
    fresh,
    networks,
    streamed_mel,
    with_other_weights,
)
from tests.unit.cosyvoice.bundles import ONE_FAMILY, copy_of, tiny
from tests.unit.cosyvoice.networks import apart, load_thin
from tools.reference.pipeline import OfflinePipeline
from tts_worker.cli import main
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.onnx_providers import CPU
from tts_worker.engine.cosyvoice.execution.settings import GRAPHS_DIR
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
from tts_worker.engine.cosyvoice.voices.speaker import Request
from tts_worker.errors import BundleError, ConfigError
from tts_worker.features.acceleration.onnx_graphs import (
    ENCODER,
    ESTIMATOR,
    VOCODER,
    VOCODER_CHUNK,
    export_onnx,
    graph_specs,
)
from tts_worker.features.acceleration.onnx_networks import BoundGraph
from tts_worker.features.acceleration.onnx_runtime import (
    SessionOptions,
    compare_graphs,
    open_graph,
    run_on_onnxruntime,
)
from tts_worker.types import Boundary, SynthesisParams, UtteranceKey

TOLERANCE = 5e-5


@pytest.fixture(autouse=True, scope="module")
def networks_have_few_layers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "load", load_thin)
        yield


@pytest.fixture(scope="module", params=ONE_FAMILY)
def exported(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """One family and its graphs."""
    return request.param, graph_files.exported(request.param)


@pytest.fixture(scope="module")
def on_onnxruntime(exported: tuple[str, Path]) -> Networks:
    loaded = fresh(exported[0])
    assert run_on_onnxruntime(loaded, exported[1]) == (CPU,)
    return loaded


@lru_cache
def bound(family: str, folder: Path, file: str) -> BoundGraph:
    of = networks(family)
    spec = graph_specs(of)[file]
    options = SessionOptions(torch.device("cpu"))
    return BoundGraph(spec, open_graph(spec, folder / file, of.fingerprints[spec.part], options))


def test_graphs_are_valid_and_of_standard_operators(exported: tuple[str, Path]) -> None:
    family, folder = exported
    assert {file.name for file in folder.iterdir()} == GRAPHS[family]
    for file in folder.iterdir():
        onnx.checker.check_model(str(file), full_check=True)
        model = onnx.load(file)
        assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}, "another runtime lacks our operators"
        assert not model.functions


def test_graphs_have_free_sizes_for_streaming(exported: tuple[str, Path]) -> None:
    graph = onnx.load(exported[1] / ESTIMATOR).graph
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes["mask"] == ["rows", 1, "frames", "all_frames"]
    assert shapes["keys"][1] == "rows"
    assert shapes["keys"][3] == "past_frames"
    assert {"values", "context", "new_keys", "new_values", "new_context"} <= shapes.keys()


def test_all_graphs_match_pytorch(exported: tuple[str, Path]) -> None:
    family, folder = exported
    differences = compare_graphs(networks(family), folder, GRAPHS[family])

    assert differences.keys() == GRAPHS[family]
    assert max(differences.values()) < TOLERANCE


def test_command_writes_and_compares_the_chosen_parts(
    exported: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, _ = exported
    assert main(["export", "onnx", str(tiny(family)), "--out", str(tmp_path), "--part", "hift"]) == 0
    assert {file.name for file in tmp_path.iterdir()} == GRAPHS[family] & {VOCODER, VOCODER_CHUNK}
    for line in capsys.readouterr().out.splitlines():
        written, _, difference = line.partition("  differs from PyTorch by ")
        assert Path(written.split()[0]).parent == tmp_path
        assert float(difference) < TOLERANCE


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_graphs_accept_other_sizes(exported: tuple[str, Path], data: st.DataObject) -> None:
    """Rows, chunks and the length of the past are free, and need not be those of the example."""
    family, folder = exported
    file = data.draw(st.sampled_from(sorted(GRAPHS[family])))
    graph = bound(family, folder, file)
    rows = data.draw(st.integers(1, 4))
    past = data.draw(st.integers(1, 5))
    sizes = {
        "rows": rows,
        "frames": data.draw(st.integers(8, 70)),
        "past_frames": past * 50,
        "past_tokens": past * 25,
        "tokens_ahead": data.draw(st.integers(1, 2)) * 25 + 3,
    }
    inputs = graph.spec.example({name: sizes[name] for name in graph.spec.sizes}, torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = graph.spec.module(*inputs)
    actual = graph(*inputs)
    assert actual is not None
    assert max(apart(a, b) for a, b in zip(expected, actual, strict=True)) < TOLERANCE


def rendered(of: Networks, *, stream: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    mel = torch.randn(40, of.config.flow.mel, generator=generator) * 0.5
    spk = torch.randn(of.config.flow.spk_embed, generator=generator)
    request = Request((), spk, flow_prompt=tuple(range(20)), prompt_mel=mel)
    tokens = [7 * i % 6561 for i in range(61)]
    return [chunk.samples for chunk in OfflinePipeline(of).render(request, tokens, seed=5, stream=stream)]


@pytest.mark.parametrize("stream", [False, True])
def test_offline_output_is_equal_on_both_backends(
    exported: tuple[str, Path], on_onnxruntime: Networks, stream: bool
) -> None:
    plain = rendered(networks(exported[0]), stream=stream)
    with counted_calls() as calls:
        graphs = rendered(on_onnxruntime, stream=stream)

    assert calls.keys() >= {ENCODER, ESTIMATOR, VOCODER}
    assert [len(chunk) for chunk in plain] == [len(chunk) for chunk in graphs]
    assert max(apart(a, b) for a, b in zip(plain, graphs, strict=True)) < 2e-3


@pytest.mark.parametrize(("chunks", "bucket"), [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_streamed_mel_is_equal_on_both_backends(
    exported: tuple[str, Path], on_onnxruntime: Networks, chunks: int, bucket: int
) -> None:
    """Tables as long as they need to be (then there may be no mask at all), or batches and tables padded."""
    plain = streamed_mel(networks(exported[0]), chunks=chunks, bucket=bucket)
    with counted_calls() as calls:
        graphs = streamed_mel(on_onnxruntime, chunks=chunks, bucket=bucket)

    assert calls.keys() == {ENCODER, ESTIMATOR}
    assert {sizes["frames"] for sizes in calls[ESTIMATOR]} >= {50 * chunks}
    assert max(sizes["rows"] for sizes in calls[ESTIMATOR]) == 4
    assert max(apart(a, b) for a, b in zip(plain, graphs, strict=True)) < TOLERANCE


def test_missing_or_damaged_graphs_are_reported(exported: tuple[str, Path], tmp_path: Path) -> None:
    family, folder = exported
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / ESTIMATOR).unlink()
    with pytest.raises(BundleError, match=r"flow\.estimator\.onnx: is missing; create it with: tts-worker export onnx"):
        run_on_onnxruntime(networks(family), tmp_path)
    whole = (folder / ESTIMATOR).read_bytes()
    (tmp_path / ESTIMATOR).write_bytes(whole[:5000])
    with pytest.raises(BundleError, match="is truncated; run again: tts-worker export onnx"):
        run_on_onnxruntime(networks(family), tmp_path)
    (tmp_path / ESTIMATOR).write_bytes(whole.replace(b"LayerNormalization", b"LayerNormalisation"))
    with pytest.raises(BundleError, match="onnxruntime cannot load it"):
        run_on_onnxruntime(networks(family), tmp_path)


def test_graphs_of_other_weights_are_refused(exported: tuple[str, Path], tmp_path: Path) -> None:
    family, folder = exported
    options = LoadOptions(with_other_weights(family, tmp_path), device="cpu", backend="onnxruntime", graphs_dir=folder)
    with pytest.raises(BundleError, match=r"onnx: was exported from other weights; run again"):
        load_engine(options)


def test_graph_that_fails_the_check_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise onnx.checker.ValidationError("bad node")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(BundleError, match="not valid: bad node"):
        export_onnx(networks("cosyvoice2"), tmp_path)
    assert not list(tmp_path.iterdir())


def spoken(path: Path, tokens: dict[str, int], **options: object) -> list[np.ndarray]:
    """Audio of utterances at the same time, of so many speech tokens, through the loader of the engine."""
    text = segments(("Hello ", Boundary.CLAUSE), ("there.", Boundary.END))
    given = LoadOptions(path, device="cpu", memory_gb=0.2, max_utterances=4, **options)  # type: ignore[arg-type]

    def load() -> object:
        return load_engine(given, lambda key, run: [*range(100, 100 + tokens[key.session]), 6561])

    driver = EngineDriver(EngineCase(load, SynthesisParams("tiny_spk", seed=3), text, ()))  # type: ignore[arg-type]
    outputs = []
    for name in tokens:
        outputs.append(driver.open(UtteranceKey(name, 1)))
        driver.send_text(UtteranceKey(name, 1))
    driver.drain()
    driver.engine.close()
    return [np.frombuffer(output.pcm, "<i2") / 32_768 for output in outputs]


@pytest.mark.parametrize(
    ("exported", "stride", "tokens"),
    [
        pytest.param("cosyvoice2", 2, {"x": 115, "y": 112}, marks=pytest.mark.long),
        ("cosyvoice3", 1, {"x": 40}),
        pytest.param("cosyvoice2", 1, {"x": 40}, marks=pytest.mark.long),
        pytest.param("cosyvoice3", 2, {"x": 115, "y": 112}, marks=pytest.mark.long),
    ],
    indirect=["exported"],
)
def test_streaming_engine_runs_on_both_backends(
    exported: tuple[str, Path], tmp_path: Path, stride: int, tokens: dict[str, int]
) -> None:
    """The same audio but for the last bits, several chunks and utterances at a time."""
    family, folder = exported
    path = copy_of(family, tmp_path)
    shutil.copytree(folder, path / GRAPHS_DIR)
    batch = len(tokens)
    options = {"stride_chunks": stride, "render_batch": batch}

    plain = spoken(path, tokens, **options)
    with counted_calls() as calls:
        graphs = spoken(path, tokens, backend="onnxruntime", **options)

    ran = {VOCODER, VOCODER_CHUNK} if family == "cosyvoice3" else {VOCODER}
    assert calls.keys() == {ENCODER, ESTIMATOR, *ran}, "nothing is left to PyTorch"
    assert max(sizes["frames"] for sizes in calls[ESTIMATOR]) == 50 * stride
    assert max(sizes["rows"] for sizes in calls[ESTIMATOR]) == 2 * batch
    for ours, theirs in zip(plain, graphs, strict=True):
        assert len(ours) == len(theirs) > 4_800
        assert np.abs(ours - theirs).max() < 0.01


def test_unknown_backend_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="backend: must be one of: torch, onnxruntime, tensorrt"):
        load_engine(LoadOptions(tiny("cosyvoice3"), device="cpu", backend="jax"))
    bundle = str(tiny("cosyvoice3"))
    say = ["say", "--bundle", bundle, "--set", "engines.cosyvoice.backend=onnx", "--quiet", "Hi."]
    assert main([*say, "--out", str(tmp_path / "x.wav")]) != 0
    assert "'onnxruntime'" in capsys.readouterr().err
