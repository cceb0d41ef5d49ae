"""TensorRT behind a stand-in: profiles from the chunk plan, the plan cache, the parity check, and the fallback.

The stand-in's plan is the ONNX file, which it runs on ONNX Runtime: everything but NVIDIA's library is real.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.contract.engine_contract import EngineCase, EngineDriver, segments
from tests.features.acceleration import graph_files
from tests.features.acceleration.fake_tensorrt import FakeTrt, use_cpu_as_cuda
from tests.features.acceleration.graph_files import counted_calls, fresh, networks, with_other_weights
from tests.unit.cosyvoice.bundles import FAMILIES, ONE_FAMILY, tiny
from tests.unit.cosyvoice.networks import load_thin
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution import onnx_providers
from tts_worker.engine.cosyvoice.execution.plan import Backend, BackendState, ChunkPlan
from tts_worker.engine.cosyvoice.execution.settings import OLDEST_TORCH
from tts_worker.engine.cosyvoice.loader import LoadOptions, load_engine
from tts_worker.errors import BackendMismatch, BackendUnavailable, BundleError
from tts_worker.features.acceleration import tensorrt
from tts_worker.features.acceleration.onnx_graphs import (
    ENCODER,
    ESTIMATOR,
    VOCODER,
    VOCODER_CHUNK,
    GraphSpec,
    graph_specs,
)
from tts_worker.features.acceleration.onnx_profiles import Profile, chunk_profiles, profile_options
from tts_worker.features.acceleration.tensorrt import (
    Gpu,
    PlanCache,
    PlanKey,
    TensorRtEngines,
    TensorRtGraph,
    TensorRtLibrary,
)
from tts_worker.features.acceleration.tensorrt_package import OLDEST_TENSORRT
from tts_worker.types import Boundary, SynthesisParams, UtteranceKey

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
GPU = Gpu("NVIDIA Test 5000", "9.0")
PLAN = ChunkPlan(batch=4, stride=2, chunks=20)


@dataclass
class StandInPlan:
    session: Any  # of ONNX Runtime
    factor: float
    failure: str = ""

    def enqueue(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        if self.failure:
            raise RuntimeError(self.failure)
        values = self.session.run(list(outputs), {name: tensor.numpy() for name, tensor in inputs.items()})
        for tensor, value in zip(outputs.values(), values, strict=True):
            tensor.copy_(torch.from_numpy(value) * self.factor)


@dataclass
class StandInTensorRt:
    """``factor`` spoils all results; ``problem`` makes every build fail, and ``failure`` every run."""

    version: str = "10.9"
    factor: float = 1.0
    problem: str = ""
    failure: str = ""
    built: list[tuple[str, bool]] = field(default_factory=list)

    def build(self, graph: Path, profile: Profile, *, allow_tf32: bool) -> bytes:
        if self.problem:
            raise BackendUnavailable(self.problem)
        self.built.append((graph.name, allow_tf32))
        return graph.read_bytes()

    def load(self, plan: bytes) -> StandInPlan:
        import onnxruntime  # late: collection does without it

        try:
            session = onnx_providers.create_session(onnxruntime, plan, [(onnx_providers.CPU, {})])
        except Exception:
            raise BackendUnavailable("the plan cannot be loaded") from None
        return StandInPlan(session, self.factor, self.failure)


@pytest.fixture(autouse=True, scope="module")
def networks_have_few_layers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Networks, "load", load_thin)
        yield


@pytest.fixture(scope="module", params=ONE_FAMILY)
def exported(request: pytest.FixtureRequest) -> tuple[str, Path]:
    return request.param, graph_files.exported(request.param)


@pytest.fixture(scope="module")
def small() -> tuple[GraphSpec, Path, Profile]:
    """The smallest graph, its file and its profile."""
    folder = graph_files.exported("cosyvoice3")
    specs = graph_specs(networks("cosyvoice3"))
    profile = chunk_profiles(networks("cosyvoice3"), specs, PLAN)[ENCODER]
    return specs[ENCODER], folder / ENCODER, profile


def engine_of(
    small: tuple[GraphSpec, Path, Profile], library: TensorRtLibrary, folder: Path, gpu: Gpu = GPU, *, tf32: bool = True
) -> TensorRtGraph:
    spec, path, profile = small
    weights = networks("cosyvoice3").fingerprints["flow"]
    return TensorRtEngines(library, gpu, PlanCache(folder), CPU).engine(spec, path, weights, profile, allow_tf32=tf32)


# -- profiles ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(family=st.sampled_from(FAMILIES), batch=st.integers(1, 16), stride=st.integers(1, 4), chunks=st.integers(1, 70))
def test_profile_covers_every_pass_of_the_plan(family: str, batch: int, stride: int, chunks: int) -> None:
    of = networks(family)
    specs = graph_specs(of)
    profiles = chunk_profiles(of, specs, ChunkPlan(batch, stride, chunks))
    for now in {1, stride}:
        for past in {1, max(1, chunks - now)}:
            for rows in {1, batch}:
                frames, past_frames = 50 * now, 50 * past
                sizes = {"frames": frames, "past_frames": past_frames, "all_frames": frames + past_frames}
                assert profiles[ESTIMATOR].admits({"rows": 2 * rows, **sizes})
                assert profiles[ESTIMATOR].admits({"rows": 1, **sizes}), "the table of the first step"
    assert not profiles[ESTIMATOR].admits({"rows": 2 * batch + 1})
    assert not profiles[ESTIMATOR].admits({"frames": 50 * stride + 1})
    for file, profile in profiles.items():
        for name, (low, best, high) in profile.bounds.items():
            assert all(0 < a <= b <= c for a, b, c in zip(low, best, high, strict=True)), (file, name)
        lowest = {name: sizes.low for name, sizes in profile.ranges.items()}
        inputs = specs[file].example(lowest, torch.Generator().manual_seed(0))
        assert specs[file].sizes_of(inputs) == lowest, "sizes that belong together"


def test_profile_becomes_options_of_onnxruntime(small: tuple[GraphSpec, Path, Profile]) -> None:
    options = profile_options(small[2])
    assert options.keys() == {"trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes"}
    assert options["trt_profile_min_shapes"].startswith("tokens:1x28,known:1,context:1x")
    assert options["trt_profile_max_shapes"].startswith("tokens:4x53,known:4,context:4x")


# -- plans ------------------------------------------------------------------------------------------------------------


def test_engine_is_built_once_and_then_loaded(small: tuple[GraphSpec, Path, Profile], tmp_path: Path) -> None:
    library = StandInTensorRt()
    for _ in range(2):
        engine_of(small, library, tmp_path)
    assert library.built == [(ENCODER, True)]
    (plan,) = PlanCache(tmp_path).entries()
    assert (plan.graph, plan.gpu, plan.tensorrt) == (ENCODER, GPU.name, "10.9")
    assert plan.path.name.startswith("flow.encoder--NVIDIA-Test-5000--sm9.0--trt10.9--")
    assert plan.size_bytes > small[1].stat().st_size
    assert not list(tmp_path.glob(".*"))


def test_other_gpu_version_or_precision_needs_another_plan(
    small: tuple[GraphSpec, Path, Profile], tmp_path: Path
) -> None:
    spec, path, _ = small
    library = StandInTensorRt()
    engine_of(small, library, tmp_path)
    other_profile = chunk_profiles(networks("cosyvoice3"), {ENCODER: spec}, replace(PLAN, batch=5))[ENCODER]
    for other, other_library, gpu, tf32 in (
        (small, library, replace(GPU, name="NVIDIA Test 6000"), True),
        (small, library, replace(GPU, compute_capability="10.0"), True),
        (small, StandInTensorRt(version="11.4"), GPU, True),
        (small, library, GPU, False),
        ((spec, path, other_profile), library, GPU, True),
    ):
        count = len(list(tmp_path.iterdir()))
        engine_of(other, other_library, tmp_path, gpu, tf32=tf32)
        assert len(list(tmp_path.iterdir())) == count + 1


def test_other_graph_needs_another_plan(small: tuple[GraphSpec, Path, Profile], tmp_path: Path) -> None:
    spec, path, profile = small
    other = tmp_path / "other" / path.name
    other.parent.mkdir()
    other.write_bytes(path.read_bytes() + b"\x32\x01x")  # a comment at the end: the field doc_string
    library = StandInTensorRt()
    engine_of(small, library, tmp_path / "plans")
    engine_of((spec, other, profile), library, tmp_path / "plans")
    assert len(library.built) == 2


@pytest.mark.parametrize("harm", ["cut", "flip", "header", "empty", "unloadable"])
def test_damaged_plan_is_built_again(
    small: tuple[GraphSpec, Path, Profile], tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    library = StandInTensorRt()
    engine_of(small, library, tmp_path)
    (stored,) = PlanCache(tmp_path).entries()
    whole = stored.path.read_bytes()
    if harm == "unloadable":  # intact, but from a library that this one does not understand
        key = PlanKey(**{**vars(_key(small)), "tensorrt": "10.9"})
        PlanCache(tmp_path).store(key, b"not a plan", 0.0)
    else:
        damaged = {"cut": whole[:-10], "flip": whole[:-1] + b"?", "header": whole[20:], "empty": b""}
        stored.path.write_bytes(damaged[harm])
    engine_of(small, library, tmp_path)
    assert len(library.built) == 2
    assert "building the engine again" in caplog.text
    assert stored.path.read_bytes() == whole


def _key(small: tuple[GraphSpec, Path, Profile]) -> PlanKey:
    spec, path, profile = small
    digest = tensorrt._sha256(path)
    bounds = tuple(profile.bounds.items())
    return PlanKey(spec.file, digest, GPU.name, GPU.compute_capability, "10.9", True, bounds)


def test_plan_directory_may_be_read_only(
    small: tuple[GraphSpec, Path, Profile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a directory")
    library = StandInTensorRt()
    engine_of(small, library, tmp_path / "file" / "plans")
    assert library.built
    assert "the next start builds the engine again" in caplog.text


def test_engine_with_other_results_is_refused(small: tuple[GraphSpec, Path, Profile], tmp_path: Path) -> None:
    with pytest.raises(BackendMismatch, match=r"TensorRT's flow\.encoder\.onnx differ from PyTorch's by 5\.0e-02"):
        engine_of(small, StandInTensorRt(factor=1.05), tmp_path)
    with pytest.raises(BackendMismatch):
        engine_of(small, StandInTensorRt(factor=float("nan")), tmp_path)
    with pytest.raises(BackendMismatch, match="more than 1e-03"):
        engine_of(small, StandInTensorRt(factor=1.005), tmp_path, tf32=False)
    assert not list(tmp_path.iterdir()), "a wrong engine is not stored"
    engine_of(small, StandInTensorRt(factor=1.005), tmp_path)  # within the rounding of TF32


def test_default_cache_is_outside_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tensorrt.default_cache() == tmp_path / "tts-worker" / "tensorrt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert tensorrt.default_cache() == Path.home() / ".cache" / "tts-worker" / "tensorrt"


# -- the engine -------------------------------------------------------------------------------------------------------


def spoken(options: LoadOptions) -> tuple[np.ndarray, tuple[str, ...]]:
    """Audio of one utterance, and why the engine is degraded."""
    text = segments(("Hello there.", Boundary.END))

    def load() -> object:
        return load_engine(options, lambda key, run: [*range(100, 140), 6561])

    driver = EngineDriver(EngineCase(load, SynthesisParams("tiny_spk", seed=3), text, ()))  # type: ignore[arg-type]
    driver.engine.warm_up()
    output = driver.open(UtteranceKey("x", 1))
    driver.send_text(UtteranceKey("x", 1))
    driver.drain()
    driver.engine.close()
    return np.frombuffer(output.pcm, "<i2") / 32_768, driver.engine.info.degraded


def options_of(family: str) -> LoadOptions:
    return LoadOptions(tiny(family), device="cpu", memory_gb=0.2, max_utterances=2, max_segment_s=8)


@lru_cache
def spoken_on_pytorch(family: str) -> np.ndarray:
    return spoken(options_of(family))[0]


def use(library: StandInTensorRt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "find_tensorrt", lambda _: (library, GPU))


def test_streaming_engine_runs_on_tensorrt(
    exported: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, folder = exported
    library = StandInTensorRt()
    use(library, monkeypatch)
    options = options_of(family)
    plain = spoken_on_pytorch(family)
    on_tensorrt = replace(options, backend="tensorrt", graphs_dir=folder, plan_cache=tmp_path)
    with counted_calls() as calls:
        ours, degraded = spoken(on_tensorrt)

    vocoders = [VOCODER, VOCODER_CHUNK] if family == "cosyvoice3" else [VOCODER]
    assert calls.keys() == {ENCODER, ESTIMATOR, *vocoders}, "no call is beyond the profiles"
    assert degraded == ()
    assert len(plain) == len(ours) > 4_800
    assert np.abs(plain - ours).max() < 0.01
    assert sorted(library.built) == sorted((file, False) for file in (ENCODER, ESTIMATOR, *vocoders))
    assert len(list(tmp_path.iterdir())) == len(library.built)


def test_only_the_flow_may_use_tf32(
    exported: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = StandInTensorRt()
    factory = TensorRtEngines(library, GPU, PlanCache(tmp_path), CPU)
    tensorrt.run_on_tensorrt(fresh(exported[0]), exported[1], factory, PLAN, allow_tf32=True)
    assert {tf32 for file, tf32 in library.built if file.startswith("flow")} == {True}
    assert {tf32 for file, tf32 in library.built if file.startswith("hift")} == {False}


def test_calls_beyond_the_profile_stay_on_pytorch(exported: tuple[str, Path], tmp_path: Path) -> None:
    family, folder = exported
    of = fresh(family)
    factory = TensorRtEngines(StandInTensorRt(), GPU, PlanCache(tmp_path), CPU)
    tensorrt.run_on_tensorrt(of, folder, factory, replace(PLAN, stride=1), allow_tf32=True)
    ids = torch.arange(100)[None]
    spk = torch.zeros(1, of.config.flow.mel)
    prompt = torch.zeros(1, 0, of.config.flow.mel)
    given = (ids, torch.tensor([100]), prompt, torch.tensor([0]), spk)
    with counted_calls() as calls:
        mel = of.flow.mel(*given, chunked=True, final=True)
    assert calls.keys() == {"torch"}, "a whole sequence is longer than a chunk"
    expected = networks(family).flow.mel(*given, chunked=True, final=True)
    assert torch.equal(mel, expected)


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (None, "TensorRT needs a CUDA device"),
        (StandInTensorRt(problem="TensorRT cannot build flow.encoder.onnx"), "cannot build flow.encoder.onnx"),
        (StandInTensorRt(factor=2.0), "differ from PyTorch's by"),
        (StandInTensorRt(failure="out of device memory"), "fails with flow.encoder.onnx: out of device memory"),
    ],
)
def test_engine_falls_back_to_pytorch_and_says_so(
    library: StandInTensorRt | None,
    reason: str,
    small: tuple[GraphSpec, Path, Profile],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if library is not None:
        use(library, monkeypatch)
    options = replace(options_of("cosyvoice3"), plan_cache=tmp_path)
    plain = spoken_on_pytorch("cosyvoice3")
    with counted_calls() as calls, caplog.at_level(logging.WARNING):
        ours, degraded = spoken(replace(options, backend="tensorrt", graphs_dir=small[1].parent))

    assert not {ESTIMATOR, VOCODER} & calls.keys(), "only the check of the first graph ran"
    assert np.array_equal(plain, ours)
    (why,) = degraded
    assert why.startswith("backend: torch instead of tensorrt: ")
    assert reason in why
    assert any("running on PyTorch" in message for message in caplog.messages)


def test_graphs_of_other_weights_are_an_error(
    exported: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a reason to fall back: the model directory must be mended."""
    family, folder = exported
    use(StandInTensorRt(), monkeypatch)
    options = LoadOptions(with_other_weights(family, tmp_path), device="cpu", backend="tensorrt", plan_cache=tmp_path)
    with pytest.raises(BundleError, match="is missing; create it with"):
        load_engine(options)
    with pytest.raises(BundleError, match="was exported from other weights"):
        load_engine(replace(options, graphs_dir=folder))


def test_library_that_cannot_be_loaded_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> object:
        raise OSError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(BackendUnavailable, match=r"libnvinfer\.so\.10"):
        tensorrt.find_tensorrt(CUDA)


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match="needs a CUDA device"):
        tensorrt.find_tensorrt(CPU)
    with pytest.raises(BackendUnavailable, match='install the extra "tensorrt"'):
        tensorrt.find_tensorrt(CUDA)
    state = BackendState(Backend.TENSORRT, Backend.TORCH, "no device")
    assert state.degraded == ("backend: torch instead of tensorrt: no device",)
    assert BackendState().degraded == ()


# -- NVIDIA's library, as far as it is called here --------------------------------------------------------------------


@pytest.fixture
def cpu_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cpu_as_cuda(monkeypatch)


@pytest.mark.usefixtures("cpu_as_cuda")
def test_library_gets_profile_addresses_and_stream(small: tuple[GraphSpec, Path, Profile]) -> None:
    _, path, profile = small
    fake = FakeTrt()
    library = tensorrt.NvidiaTensorRt(fake, CUDA)
    assert library.version == "10.9.0"
    assert library.build(path, profile, allow_tf32=False) == b"plan"
    assert ("network", 1 << 3) in fake.calls
    assert ("clear", "tf32") in fake.calls
    assert {call[1]: call[2] for call in fake.calls if call[0] == "shape"} == profile.bounds
    library.build(path, profile, allow_tf32=True)
    assert fake.calls.count(("clear", "tf32")) == 1

    x, y = torch.ones(2, 3), torch.empty(2, 3)
    library.load(b"plan").enqueue({"x": x}, {"y": y})
    assert ("input", "x", (2, 3)) in fake.calls
    assert [call for call in fake.calls if call[0] == "address"] == [
        ("address", "x", x.data_ptr()),
        ("address", "y", y.data_ptr()),
    ]
    assert fake.calls[-1] == ("execute", 7), "on the stream of the caller"


@pytest.mark.usefixtures("cpu_as_cuda")
@pytest.mark.parametrize("broken", ["parse", "build", "deserialize", "input", "execute"])
def test_failures_of_the_library_are_reported(small: tuple[GraphSpec, Path, Profile], broken: str) -> None:
    library = tensorrt.NvidiaTensorRt(FakeTrt(broken), CUDA)
    expected = RuntimeError if broken in ("input", "execute") else BackendUnavailable
    match = {"parse": "an unknown operator", "input": "refuses the shape", "execute": "cannot run"}

    def run() -> None:
        plan = library.build(small[1], small[2], allow_tf32=True)
        library.load(plan).enqueue({"x": torch.ones(1)}, {"y": torch.ones(1)})

    with pytest.raises(expected, match=match.get(broken, "the log says why")):
        run()


@pytest.mark.usefixtures("cpu_as_cuda")
@pytest.mark.parametrize("broken", ["Logger", "Builder", "Runtime"])
def test_constructor_that_fails_is_reported_in_one_line(
    small: tuple[GraphSpec, Path, Profile], tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTrt(broken))
    with pytest.raises(BackendUnavailable, match=r"TypeError: pybind11::init\(\): factory function returned nullptr$"):
        engine_of(small, tensorrt.find_tensorrt(CUDA)[0], tmp_path)


@pytest.mark.usefixtures("cpu_as_cuda")
@pytest.mark.parametrize(
    ("version", "is_refused"), [("8.6.1", True), ("10.2.0", True), ("10.3", False), ("11.4", False)]
)
def test_old_version_is_refused(version: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTrt(version=version))
    refusal = pytest.raises(BackendUnavailable, match=f"{version} is too old, needed: 10.3 or later")
    with refusal if is_refused else contextlib.nullcontext():
        assert tensorrt.find_tensorrt(CUDA)[0].version == version


def test_oldest_versions_are_those_of_the_extras() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 to read pyproject.toml")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert "tensorrt>=" + ".".join(map(str, OLDEST_TENSORRT)) in extras["tensorrt"]
    assert "torch>=" + ".".join(map(str, OLDEST_TORCH)) in extras["cosyvoice"]


@pytest.mark.usefixtures("cpu_as_cuda")
def test_identity_graph_is_built_and_run() -> None:
    fake = FakeTrt()
    tensorrt.check_tensorrt(tensorrt.NvidiaTensorRt(fake, CUDA), CUDA)
    assert [call[0] for call in fake.calls if call[0] in ("build", "execute")] == ["build", "execute"]
    with pytest.raises(BackendMismatch, match="returns other values than its input"):
        tensorrt.check_tensorrt(tensorrt.NvidiaTensorRt(FakeTrt("values"), CUDA), CUDA)


def test_installed_graphs_are_copied_nowhere(small: tuple[GraphSpec, Path, Profile], tmp_path: Path) -> None:
    """The model directory stays as it is: plans go to the cache."""
    folder = tmp_path / "graphs"
    shutil.copytree(small[1].parent, folder)
    before = {path.name for path in folder.iterdir()}
    engine_of((small[0], folder / ENCODER, small[2]), StandInTensorRt(), tmp_path / "plans")
    assert {path.name for path in folder.iterdir()} == before
