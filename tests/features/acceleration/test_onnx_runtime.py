"""ONNX Runtime on a GPU, with stand-ins for the device: providers, their options, streams, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.features.acceleration import graph_files
from tests.features.acceleration.graph_files import networks
from tests.unit.cosyvoice.bundles import tiny
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.execution.onnx_providers import CPU, CUDA, TENSORRT, select_providers
from tts_worker.engine.cosyvoice.execution.plan import Backend, BackendOptions, ChunkPlan
from tts_worker.engine.cosyvoice.voices import audio_frontend
from tts_worker.engine.cosyvoice.voices.audio_frontend import PromptFrontend
from tts_worker.errors import BundleError, ConfigError
from tts_worker.features.acceleration import onnx_runtime
from tts_worker.features.acceleration.accelerator import select_backend
from tts_worker.features.acceleration.onnx_checks import PREFERENCE
from tts_worker.features.acceleration.onnx_graphs import ENCODER, GraphSpec, graph_specs
from tts_worker.features.acceleration.onnx_profiles import chunk_profiles
from tts_worker.features.acceleration.onnx_runtime import (
    OnnxRuntimeGraph,
    SessionOptions,
    open_graph,
    ordered,
    run_on_onnxruntime,
)
from tts_worker.features.acceleration.tensorrt import default_cache

GPU = torch.device("cuda", 1)
SHAPES = {"trt_profile_min_shapes": "x:1"}


def names(available: tuple[str, ...], device: int | None, **options: Any) -> list[str]:
    return [name for name, _ in select_providers(available, device, **options)]


def test_providers_are_tensorrt_cuda_cpu_as_available() -> None:
    wanted = {"allow_tf32": True, "profile": SHAPES}
    assert names(PREFERENCE, 0, **wanted) == [TENSORRT, CUDA, CPU]
    assert names((CPU, CUDA), 0, **wanted) == [CUDA, CPU]
    assert names((CPU,), 0, **wanted) == [CPU]
    assert names(PREFERENCE, None, **wanted) == [CPU], "a session on the CPU"
    assert names(PREFERENCE, 0, allow_tf32=False, profile=SHAPES) == [CUDA, CPU], "TensorRT would round to TF32"
    assert names(PREFERENCE, 0, allow_tf32=True) == [CUDA, CPU], "without sizes it would build an engine per shape"


def test_providers_get_device_stream_and_precision(tmp_path: Path) -> None:
    chosen = dict(select_providers(PREFERENCE, 1, stream=77, allow_tf32=True, profile=SHAPES, cache=tmp_path))
    assert chosen[CUDA] == {
        "device_id": "1",
        "user_compute_stream": "77",
        "use_tf32": "1",
        "cudnn_conv_algo_search": "HEURISTIC",
    }
    assert chosen[TENSORRT] == {
        "device_id": "1",
        "user_compute_stream": "77",
        "has_user_compute_stream": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(tmp_path),
        **SHAPES,
    }
    assert dict(select_providers(PREFERENCE, 0))[CUDA]["use_tf32"] == "0"


def test_engines_of_a_provider_are_kept_outside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is machine code, and its name says nothing about the weights: a folder for each graph file."""
    of = networks("cosyvoice3")
    folder = graph_files.exported("cosyvoice3")
    asked: dict[str, SessionOptions] = {}

    def open_graph(spec: GraphSpec, path: Path, weights: str, options: SessionOptions) -> SimpleNamespace:
        asked[spec.file] = options
        return SimpleNamespace(providers=(CPU,))

    monkeypatch.setattr(onnx_runtime, "open_graph", open_graph)
    monkeypatch.setattr(onnx_runtime, "install_graphs", lambda *_: None)
    run_on_onnxruntime(of, folder, plan=ChunkPlan(1, 1, 4), cache=tmp_path)
    assert {options.cache for options in asked.values()} == {tmp_path}
    run_on_onnxruntime(of, folder)
    assert {options.cache for options in asked.values()} == {None}, "without sizes there are no engines"

    backend = BackendOptions(Backend.ONNXRUNTIME, folder, plan=ChunkPlan(1, 1, 4))
    select_backend(of, backend)
    assert {options.cache for options in asked.values()} == {default_cache()}
    select_backend(of, replace(backend, plan_cache=tmp_path))
    assert {options.cache for options in asked.values()} == {tmp_path}


def test_engines_are_kept_for_each_graph_and_weights(
    log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = FakeRuntime(*PREFERENCE)
    opened(runtime, monkeypatch, cache=tmp_path / "a" / "b")
    path = Path(runtime.options[TENSORRT]["trt_engine_cache_path"])
    assert path.is_dir(), "the provider creates one level only"
    assert path.parent.parent == tmp_path / "a" / "b"
    assert networks("cosyvoice3").fingerprints["flow"][:16] in path.name

    (tmp_path / "file").write_text("not a directory")
    opened(runtime, monkeypatch, cache=tmp_path / "file")
    assert "trt_engine_cache_path" not in runtime.options[TENSORRT]
    assert "builds the engine again" in caplog.text


class FakeStream:
    cuda_stream = 77

    def __init__(self, log: list[str], name: str) -> None:
        self.device = GPU
        self._log = log
        self._name = name

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append(f"{self._name} waits for {other._name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What two fake CUDA streams were told."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: FakeStream(told, "session"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: FakeStream(told, "caller"))
    return told


class FakeRuntime:
    """ONNX Runtime with these providers; ``broken`` raises, ``silent`` is left out of the session."""

    def __init__(self, *available: str, broken: str = "", silent: str = "") -> None:
        self.available = available
        self.broken = broken
        self.silent = silent
        self.sessions: list[list[str]] = []
        self.options: dict[str, dict[str, str]] = {}
        self.entries: list[tuple[str, str]] = []
        self.SessionOptions = lambda: SimpleNamespace(add_session_config_entry=lambda *_: None)
        self.RunOptions = lambda: SimpleNamespace(add_run_config_entry=lambda *entry: self.entries.append(entry))

    def get_available_providers(self) -> list[str]:
        return list(self.available)

    def InferenceSession(self, model: str, options: object, *, providers: Any, enable_fallback: int) -> object:
        chosen = [name for name, _ in providers]
        self.sessions.append(chosen)
        self.options = dict(providers)
        if chosen[0] == self.broken:
            raise RuntimeError("out of device memory")
        return SimpleNamespace(get_providers=lambda: [name for name in chosen if name != self.silent])


def opened(
    runtime: FakeRuntime,
    monkeypatch: pytest.MonkeyPatch,
    errors: dict[str, float | Exception] | None = None,
    cache: Path | None = None,
) -> OnnxRuntimeGraph:
    def parity_error(_: object, graph: OnnxRuntimeGraph, *__: object) -> float:
        error = (errors or {}).get(graph.providers[0], 1e-6)
        if isinstance(error, Exception):
            raise error
        return error

    of = networks("cosyvoice3")
    specs = graph_specs(of)
    monkeypatch.setattr(onnx_runtime, "import_onnxruntime", lambda: runtime)
    monkeypatch.setattr(onnx_runtime, "parity_error", parity_error)
    profile = chunk_profiles(of, specs, ChunkPlan(1, 1, 4))[ENCODER]
    options = SessionOptions(GPU, allow_tf32=True, profile=profile, cache=cache)
    path = graph_files.exported("cosyvoice3") / ENCODER
    return open_graph(specs[ENCODER], path, of.fingerprints["flow"], options)


def test_session_uses_the_first_provider_that_works(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime(*PREFERENCE)
    assert opened(runtime, monkeypatch).providers == PREFERENCE
    assert runtime.entries == [("disable_synchronize_execution_providers", "1")], "the host does not wait"


@pytest.mark.parametrize(
    ("runtime", "errors", "reason"),
    [
        (FakeRuntime(*PREFERENCE, broken=TENSORRT), {}, "TensorrtExecutionProvider fails: out of device memory"),
        (FakeRuntime(*PREFERENCE, silent=TENSORRT), {}, "TensorrtExecutionProvider does not load"),
        (FakeRuntime(*PREFERENCE), {TENSORRT: RuntimeError("no kernel")}, "TensorrtExecutionProvider fails: no kernel"),
        (FakeRuntime(*PREFERENCE), {TENSORRT: 0.1}, "differ from PyTorch's by 1.0e-01, more than 1e-02"),
    ],
)
def test_provider_that_fails_or_differs_is_left_out(
    runtime: FakeRuntime,
    errors: dict[str, float | Exception],
    reason: str,
    log: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert opened(runtime, monkeypatch, errors).providers == (CUDA, CPU)
    assert runtime.sessions == [[TENSORRT, CUDA, CPU], [CUDA, CPU]]
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        (FakeRuntime(CPU), "it has only CPUExecutionProvider"),
        (FakeRuntime(CUDA, CPU, silent=CUDA), "CUDAExecutionProvider does not load"),
        (FakeRuntime(CUDA, CPU, broken=CUDA), "CUDAExecutionProvider fails: out of device memory"),
    ],
)
def test_device_without_a_working_provider_is_an_error(
    runtime: FakeRuntime, reason: str, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never the CPU in its place: it cannot read the memory of the GPU, and would be slow without a word."""
    with pytest.raises(ConfigError, match=rf"cannot run on cuda:1 \({reason}.*tts-worker doctor"):
        opened(runtime, monkeypatch)


def test_session_is_ordered_with_the_stream_of_the_caller(log: list[str]) -> None:
    with ordered(torch.cuda.Stream(GPU)):
        log.append("run")
    assert log == ["session waits for caller", "run", "caller waits for session"]
    with ordered(None):
        log.append("on a CPU")
    assert log[3:] == ["on a CPU"]


def test_inputs_and_outputs_are_bound_in_place() -> None:
    """The addresses of the tensors, so that nothing is copied."""
    spec = graph_specs(networks("cosyvoice3"))[ENCODER]
    bound: dict[str, tuple[object, ...]] = {}

    def bind(name: str, *how: object) -> None:
        bound[name] = how

    binding = SimpleNamespace(bind_input=bind, bind_output=bind)
    session = SimpleNamespace(
        io_binding=lambda: binding, get_providers=lambda: [CUDA], run_with_iobinding=lambda *_: None
    )
    tokens, known, context = (
        torch.zeros(1, 28, dtype=torch.long),
        torch.ones(1, dtype=torch.long),
        torch.zeros(1, 128),
    )
    mu, after = torch.zeros(1, 50, 80), torch.zeros(1, 128)
    OnnxRuntimeGraph(spec, session, None, GPU, None).execute([tokens, known, context], [mu, after])
    assert bound["tokens"] == ("cuda", 1, np.int64, (1, 28), tokens.data_ptr())
    assert bound["mu"] == ("cuda", 1, np.float32, (1, 50, 80), mu.data_ptr())
    assert bound.keys() == {*spec.inputs, *spec.outputs}


# -- prompt models ----------------------------------------------------------------------------------------------------


class PromptRuntime(FakeRuntime):
    """Sessions that return a speaker embedding; ``fails_at`` raises while running."""

    def __init__(self, *available: str, broken: str = "", fails_at: str = "") -> None:
        super().__init__(*available, broken=broken)
        self.fails_at = fails_at

    def InferenceSession(self, model: str, options: object, *, providers: Any, enable_fallback: int) -> object:
        session: Any = super().InferenceSession(model, options, providers=providers, enable_fallback=enable_fallback)
        first = providers[0][0]

        def run(_: object, given: object) -> list[np.ndarray]:
            if first == self.fails_at:
                raise RuntimeError("out of device memory")
            return [np.ones((1, 192), dtype=np.float32)]

        session.get_inputs = lambda: [SimpleNamespace(name="input")]
        session.run = run
        return session


@pytest.mark.parametrize(
    ("runtime", "device", "sessions"),
    [
        (PromptRuntime(*PREFERENCE), "cuda:1", [[CUDA, CPU]]),
        (PromptRuntime(*PREFERENCE), "cpu", [[CPU]]),
        (PromptRuntime(CPU), "cuda", [[CPU]]),
        (PromptRuntime(*PREFERENCE, broken=CUDA), "cuda", [[CUDA, CPU], [CPU]]),
        (PromptRuntime(*PREFERENCE, fails_at=CUDA), "cuda", [[CUDA, CPU], [CPU]]),
    ],
)
def test_prompt_models_run_on_the_gpu_where_they_can(
    runtime: PromptRuntime, device: str, sessions: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio_frontend, "import_onnxruntime", lambda: runtime)
    bundle = Bundle.open(tiny("cosyvoice3"))
    frontend = PromptFrontend(bundle, device=device)
    for _ in range(2):
        assert frontend._run(bundle.campplus, np.zeros((1, 50, 80), dtype=np.float32)).shape == (1, 192)
    assert runtime.sessions == sessions


def test_prompt_model_that_fails_on_the_cpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(tiny("cosyvoice3"))
    for runtime in (PromptRuntime(CPU, broken=CPU), PromptRuntime(CPU, fails_at=CPU)):
        monkeypatch.setattr(audio_frontend, "import_onnxruntime", lambda runtime=runtime: runtime)
        with pytest.raises(BundleError, match=r"campplus\.onnx"):
            PromptFrontend(bundle)._run(bundle.campplus, np.zeros((1, 50, 80), dtype=np.float32))
