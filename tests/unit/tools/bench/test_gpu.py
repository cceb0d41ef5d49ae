"""``tools.bench gpu`` on the CPU with tiny random weights: sections, budget, and what an error leaves behind."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from tests.fakes.graph_runner import FakeGraphRunner
from tests.fakes.heap import Heap
from tests.unit.cosyvoice.networks import load_shallow
from tools.bench import gpu, gpu_attention, gpu_load, gpu_process
from tools.bench.__main__ import main
from tools.bench.commands import gpu as gpu_command
from tools.bench.engine import Bench
from tools.bench.gpu import GpuBench, Section, run_sections, sections
from tools.bench.gpu_counts import fallbacks_of
from tools.bench.gpu_load import Arrivals, measure_arrivals, plan_calls, random_call, slots_for
from tools.bench.gpu_outputs import draw_ids, scores_after
from tools.bench.gpu_plan import Figures, Plan, Results
from tools.bench.gpu_process import run_isolated
from tools.random_bundle import writer
from tools.random_bundle.writer import write_random_bundle
from tts_worker.engine.cosyvoice import ops
from tts_worker.engine.cosyvoice.bundle import config
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import EagerRunner
from tts_worker.engine.cosyvoice.loader import LoadOptions, resolve_device
from tts_worker.engine.cosyvoice.memory import CPU_UTTERANCES
from tts_worker.errors import ConfigError, DeviceLost, EngineFault, OverCapacity, SynthesisFailed
from tts_worker.features.acceleration.compiling import TorchCompiler
from tts_worker.types import SAMPLE_RATE_HZ, Alignment, Done, EngineInfo, EngineReport, Failed


@pytest.fixture(autouse=True, scope="module")
def little_work() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "EULER_STEPS", 2)
        patch.setattr(Networks, "load", load_shallow)
        patch.setattr(gpu, "DRAWN_IDS", 8)
        patch.setattr(gpu, "VARIANT_TEXTS", 2)
        patch.setattr(gpu, "gc", Heap())
        yield


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    bundle = tmp_path_factory.mktemp("gpu") / "tiny"
    write_random_bundle(bundle, "cosyvoice3", "tiny")
    options = LoadOptions(bundle, device="cpu", memory_gb=0.5, threads=1)
    return Plan(
        options, loads=(2,), load_seconds=1.0, call_s=(0.4, 0.8), texts=2, correct_tokens=(12,), stage_live=None
    )


def only(plan: Plan, *names: str, **changes: Any) -> Plan:
    return replace(plan, sections=names, **changes)


def test_every_section_writes_the_file(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[str]] = []
    write = Results.write

    def spy(self: Results) -> None:
        write(self)
        assert self.path is not None
        written.append([f"{name} {'running' in one}" for name, one in json.loads(self.path.read_text()).items()])

    monkeypatch.setattr(Results, "write", spy)

    run_sections(only(plan, "machine", "start", "first_audio"), Results(tmp_path / "gpu.json"))

    assert written[0] == ["machine True"]
    assert written[1] == ["machine False"]
    assert written[4] == ["machine False", "start False", "first_audio True"]
    assert written[5] == ["machine False", "start False", "first_audio False"]
    figures = json.loads((tmp_path / "gpu.json").read_text())
    assert figures["first_audio"]["texts"] == 2
    assert figures["first_audio"]["max_ms"] >= figures["first_audio"]["p50_ms"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.json"]


def test_cosyvoice_300m_is_measured(plan: Plan, tmp_path: Path) -> None:
    write_random_bundle(tmp_path / "tiny", "cosyvoice1", prompt_models=False)
    plan = replace(plan, options=replace(plan.options, bundle=tmp_path / "tiny"))
    with GpuBench(plan) as bench:
        refused = [
            section.name for section in sections(plan) if "CosyVoice-300M" in f"{bench.reason_to_skip(section, 1e9)}"
        ]
        figures = bench.first_audio()
        engine = bench.bench.engine
        scores = scores_after(engine, 8)
        ids = draw_ids(engine, 4)

    assert refused == ["stages", "attention", "convolutions", "variant_stride_2"]  # the other ones need CUDA
    assert figures["texts"] == 2
    assert figures["computations"]["decode"]["eager_calls"] > 0
    assert scores.shape == (4097,)
    assert len(ids) == 4


def test_sections_beyond_the_budget_are_skipped(plan: Plan) -> None:
    times = iter(range(0, 10_000, 100))

    figures = run_sections(only(plan, "machine", "start", budget_s=140.0), Results(None), lambda: next(times)).figures

    assert "skipped" not in figures["machine"]
    assert figures["start"]["skipped"] == "0 s of the time budget are left, about 50 s are needed"


def test_engine_that_must_be_built_counts_for_the_budget(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first guess is replaced by what the last engine took."""
    names = ("speed", "profile", "variant_as_served", "correct")
    speed, profile, variant, correct = (section for section in sections(only(plan, *names)))
    with GpuBench(plan) as bench:
        assert bench.expected_s(speed) == speed.expected_s + gpu.ENGINE_S
        assert bench.expected_s(profile) == profile.expected_s + gpu.ENGINE_S
        bench.load_engine(plan.options)
        assert 0 < bench.last_engine_s < gpu.ENGINE_S
        assert bench.expected_s(speed) == speed.expected_s
        assert bench.expected_s(profile) == profile.expected_s
        assert bench.expected_s(variant) == variant.expected_s + bench.bench.warm_up_s
        assert bench.expected_s(correct) == correct.expected_s + 4 * bench.last_engine_s


def test_engines_share_weights_and_those_of_a_call_their_engine(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the official size takes a third of a minute: eleven variants would take most of ten minutes with it."""
    loaded = []
    load = Networks.load

    def counted(*args: Any, **kwargs: Any) -> Networks:
        loaded.append(load(*args, **kwargs))
        return loaded[-1]

    built = []
    bench_of = Bench

    def built_bench(*args: Any) -> Bench:
        built.append(args[0])
        return bench_of(*args)

    monkeypatch.setattr(Networks, "load", counted)
    monkeypatch.setattr(gpu, "Bench", built_bench)
    names = ["speed", "load_1", "load_2", "variant_load_burst_4", "variant_as_served", "variant_stride_2"]

    figures = run_sections(
        only(plan, *names, loads=(2, 1), load_seconds=0.4, call_s=(0.2, 0.4), speed_seconds=0.4),
        Results(None),
    ).figures

    assert [name for name, section in figures.items() if "error" in section] == []
    assert len(loaded) == 1
    assert [options.max_utterances for options in built] == [None, 2, 2]
    assert [name for name, section in figures.items() if "engine_s" in section] == [
        "speed",
        "variant_as_served",
        "variant_stride_2",
    ]
    assert figures["variant_load_burst_4"]["burst_tokens"] == 4
    assert figures["load_1"]["slots"] == figures["load_2"]["slots"] == CPU_UTTERANCES


@pytest.mark.parametrize(("calls", "utterances"), [(2, None), (16, slots_for(16))])
def test_loads_are_as_served_where_there_are_slots(plan: Plan, calls: int, utterances: int | None) -> None:
    load = next(each for each in sections(replace(plan, loads=(calls,))) if each.name == f"load_{calls}")
    with GpuBench(plan) as bench:
        options = bench.options_of(load)
    assert options == replace(plan.options, max_utterances=utterances, decode_batch=utterances)


def test_profiler_comes_after_what_is_promised(plan: Plan) -> None:
    """It stays attached to the driver until the process ends. Any engine serves, so that none is built for it."""
    everything = sections(replace(plan, loads=(2, 4)))
    names = [section.name for section in everything]
    before = names[: names.index("profile")]

    assert {"first_audio", "speed", "replays", "stages", "growth", "cancels", "load_2", "load_4"} <= set(before)
    assert everything[len(before)].options is None


def test_profile_counts_every_kernel_once() -> None:
    """An operator on the host repeats the time of the kernels that it launched."""
    host = FunctionEvent(1, "aten::mm", 0, 0.0, 9.0, use_device="cuda", stack=[])
    host.append_kernel("gemm", 0, 5.0)
    on_device = partial(FunctionEvent, use_device="cuda", device_type=DeviceType.CUDA, stack=[])
    kernels = [on_device(n, "gemm", 0, 3.0, 8.0) for n in (2, 3)]
    label = on_device(4, "a range", 0, 3.0, 13.0, is_user_annotation=True)
    events = EventList([host, *kernels, label], use_device="cuda")
    events._build_tree()

    assert gpu.kernel_times(events.key_averages(), "cuda") == [(0.01, 2, "gemm")]
    assert gpu.kernel_times(events.key_averages(), "cpu") == [(0.009, 1, "aten::mm")]


def test_profile_leaves_out_the_time_of_the_profiler(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting it and reading what it recorded take seconds: a device would seem to be idle."""
    now_s = 0.0

    def spend(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    @contextmanager
    def profile(activities: object) -> Iterator[SimpleNamespace]:
        spend(3.0)
        event = SimpleNamespace(
            device_type=DeviceType.CPU, self_cpu_time_total=5e4, count=1, key="gemm", is_user_annotation=False
        )
        yield SimpleNamespace(key_averages=lambda: [event])
        spend(7.0)

    monkeypatch.setattr(torch.profiler, "profile", profile)
    monkeypatch.setattr(gpu, "perf_counter", lambda: now_s)
    bench: Any = SimpleNamespace(speak=lambda tokens: spend(0.1))
    monkeypatch.setattr(GpuBench, "bench", property(lambda self: bench))
    with GpuBench(plan) as measured:
        figures = measured.profile()

    assert figures["wall_ms"] == 100.0
    assert figures["busy_share"] == 0.5


def test_collections_of_garbage_leave_out_a_loaded_engine(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a server: a collection of everything takes as long as several steps."""
    heap = Heap()
    monkeypatch.setattr(gpu, "gc", heap)
    with GpuBench(plan) as bench:
        bench.load_engine(plan.options)
        assert heap.calls[-2:] == ["collect", "freeze"]
        heap.calls.clear()
    assert heap.calls == ["unfreeze"]


def test_engine_with_other_weights_is_expected_to_take_longer(plan: Plan) -> None:
    """What loading takes is known from the first engine, and from the second one what it takes without."""
    with GpuBench(plan) as bench:
        bench.engine_s = {False: 60.0, True: 9.0}
        first, other, correct = (
            Section(name, lambda bench: {}, 0.0, options, engines=engines)
            for name, options, engines in (
                ("first", plan.options, 0),
                ("other", replace(plan.options, half=True), 0),
                ("correct", None, 4),
            )
        )
        assert bench.expected_s(first) == 60.0
        bench.networks = bench.weights_of(plan.options), SimpleNamespace()  # type: ignore[assignment]
        assert bench.expected_s(first) == 9.0
        assert bench.expected_s(other) == 60.0
        assert bench.expected_s(correct) == 240.0


def test_first_engine_does_not_tell_what_the_next_one_takes(plan: Plan) -> None:
    """It loads weights and compiles kernels, for minutes: the loads would have been skipped for lack of time."""
    with GpuBench(plan) as bench:
        load = next(section for section in sections(only(plan, "load_2")))
        bench.load_engine(plan.options)
        bench.last_engine_s = bench.engine_s[False] = 500.0
        assert bench.expected_s(load) < load.expected_s + gpu.ENGINE_S


def test_compiled_engine_does_not_tell_what_the_next_one_takes(plan: Plan) -> None:
    """Compiling takes minutes, which the sections that compile expect themselves."""
    with GpuBench(plan) as bench:
        bench.load_engine(replace(plan.options, compile="on"))
        assert bench.engine_s[False] == gpu.ENGINE_S


def test_failed_section_does_not_stop_the_run(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(bench: GpuBench) -> Figures:
        raise RuntimeError("out of memory in this section")

    broken = Section("broken", fail, 0.0)
    monkeypatch.setattr(gpu, "sections", lambda plan: [broken, *sections(plan)])

    figures = run_sections(only(plan, "machine"), Results(None)).figures

    assert figures["broken"]["error"] == "RuntimeError: out of memory in this section"
    assert figures["machine"]["device"] == "cpu"


def test_machine_says_whether_triton_can_build_its_launchers(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C compiler or Python's headers an older Triton runs no kernel, and all figures are those without."""
    monkeypatch.delenv("CC", raising=False)
    with GpuBench(plan) as bench:
        monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/cc" if name == "gcc" else None)
        assert bench.machine()["c_compiler"] == "/usr/bin/cc"
        monkeypatch.setattr("shutil.which", lambda name: None)
        monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
        figures = bench.machine()
    assert figures["c_compiler"] is None
    assert figures["python_headers"] is False


def test_kernel_that_fails_in_one_section_is_checked_again_in_the_next(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs in float32 may serve in bfloat16: the figures of later sections must not depend on earlier ones."""
    operator = ops.OPERATORS["silu_mul"]
    monkeypatch.setattr(operator, "fault", "it differs")
    with GpuBench(plan) as bench:
        bench.unload()
        assert operator.fault == ""


def test_sections_for_cuda_are_skipped_on_a_cpu(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cuda = Section("on_cuda", GpuBench.machine, 0.0, needs_cuda=True)
    monkeypatch.setattr(gpu, "sections", lambda plan: [on_cuda])

    assert run_sections(plan, Results(None)).figures == {"on_cuda": {"skipped": "needs a CUDA device"}}


def test_attention_is_compared_where_it_can_run(plan: Plan) -> None:
    figures = run_sections(only(plan, "attention"), Results(None)).figures["attention"]

    shapes = [shape for shape in figures if not shape.endswith("_s")]
    assert shapes == [
        f"{what} batch {n} {past}" for n in (1, 8) for what, past in (("pages", "past 4"), ("slots", "context 256"))
    ]
    for shape in shapes:
        assert figures[shape]["gather"]["ms"] > 0
        assert figures[shape]["gather"]["difference"] < 1e-5
        assert "CUDA" in figures[shape]["kernel"]["skipped"]
    assert figures["pages batch 1 past 4"]["flashinfer"] == {"skipped": "needs a CUDA device"}


def test_convolutions_are_compared_where_they_can_run(plan: Plan) -> None:
    figures = run_sections(only(plan, "convolutions"), Results(None)).figures["convolutions"]

    shapes = [shape for shape in figures if not shape.endswith("_s")]
    assert shapes == [f"{what} batch {n}" for n in (1, 8) for what in ("pitch", "positions")]
    for shape in shapes:
        fused, *others = figures[shape]
        assert fused == ("products" if "pitch" in shape else "kernel")
        assert "CUDA" in figures[shape][fused]["skipped"]
        assert all(figures[shape][way]["ms"] > 0 for way in others)
        assert all(figures[shape][way]["difference"] < 1e-5 for way in others)


def test_attention_and_convolutions_are_timed_as_graphs_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in service: the host takes longer to launch a kernel than a device to compute it."""
    calls: list[int] = []

    def call() -> torch.Tensor:
        calls.append(1)
        return torch.ones(2)

    monkeypatch.setattr(gpu_attention, "CudaGraphRunner", lambda stream: FakeGraphRunner())
    for name in ("Stream", "stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())

    exact: Any = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(gpu_attention, "largest_difference", lambda got, exact: 0.0)
    figures = gpu_attention.figures_of({"one": call, "other": "absent"}, exact, 3)
    assert figures["one"]["ms"] > 0
    assert figures["one"]["captured"] is True
    assert figures["other"] == {"skipped": "absent"}
    assert len(calls) == 1 + 1 + 3, "to compare, before the capture, and in each replay"


def test_refused_capture_is_timed_with_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_attention, "CudaGraphRunner", lambda stream: FakeGraphRunner())
    monkeypatch.setattr(FakeGraphRunner, "_capture", lambda *_: 1 / 0)
    for name in ("Stream", "stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())

    figures = gpu_attention.time_of(lambda: torch.ones(2), 3, torch.device("cuda"))

    assert figures["ms"] > 0
    assert figures["captured"] is False


def test_cuda_variants_are_skipped_on_a_cpu(plan: Plan) -> None:
    names = ["variant_no_smooth_start", "variant_no_kernels", "variant_no_graphs"]

    figures = run_sections(only(plan, *names, speed_seconds=0.4), Results(None)).figures

    assert figures["variant_no_kernels"] == figures["variant_no_graphs"] == {"skipped": "needs a CUDA device"}
    assert figures["variant_no_smooth_start"]["smooth_start"] is False
    assert figures["variant_no_smooth_start"]["first_audio_p50_ms"] > 0
    assert figures["variant_no_smooth_start"]["degraded"] == []


def test_fallbacks_are_listed_with_their_reasons() -> None:
    reason = "it differs by 0.1 from PyTorch's operators"
    compiler = TorchCompiler()
    compiler.shapes["flow"] = 3
    compiler.faults["vocoder"] = reason
    runner = FakeGraphRunner()
    runner.refused["decode", 2, 512] = "OutOfMemoryError: no memory"
    faults = {"draw_ids": reason}
    parts = SimpleNamespace(compiler=compiler, graph_runners=(runner, EagerRunner()), kernel_faults=faults)
    engine: Any = SimpleNamespace(
        info=SimpleNamespace(degraded=("draw_ids: the kernel is not used",)), components=parts
    )

    figures = fallbacks_of(engine)

    assert figures == {
        "degraded": ["draw_ids: the kernel is not used"],
        "refused_graphs": {"decode 2 512": "OutOfMemoryError: no memory"},
        "unused_kernels": {"draw_ids": reason},
        "compiled_shapes": {"flow": 3},
        "not_compiled": {"vocoder": reason},
    }


def test_device_is_compared_with_the_cpu(plan: Plan) -> None:
    figures = run_sections(only(plan, "correct"), Results(None)).figures["correct"]

    assert figures["float32"]["waveform_rms_error"] == [0.0]
    assert figures["float32"]["equal_drawn_ids"] == figures["float32"]["drawn_ids"] == gpu.DRAWN_IDS
    # bfloat16 has 8 bits of mantissa: the scores differ, by no more than a few of its rounding steps.
    assert all(0 < error < 16 * 2**-8 for error in figures["bfloat16_graphs"]["scores_rms_error"])


def test_short_load_still_measures_a_call() -> None:
    """With two live calls of 8 s, three seconds often pass without an arrival: all figures would be empty."""
    arrivals = Arrivals(2, 3.0, (4.0, 12.0), "simulated")
    for seed in range(20):
        strict = list(plan_calls(random.Random(seed), arrivals, 3.0))
        extended = list(plan_calls(random.Random(seed), arrivals, 3.0, at_least=1))
        assert [call.after_s for call in extended[: len(strict)]] == [call.after_s for call in strict]
        assert len(extended) == max(1, len(strict))


def test_steps_over_20_ms_are_listed_with_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([0.0, 0.019, 1.0, 1.021])
    monkeypatch.setattr(gpu_load, "perf_counter", lambda: next(times_s))
    spent = iter([{"flow_ms": 1.0}, {"flow_ms": 2.0, "decode_ms": 5.0}, {"flow_ms": 20.0, "decode_ms": 5.0}])
    engine: Any = SimpleNamespace(step=lambda now_s: (), report=lambda: SimpleNamespace(last_step="flow 1x2"))
    observed = gpu_load.ObservedEngine(engine, lambda: next(spent))

    for _ in range(2):
        observed.step(0.0)

    assert observed.slow_steps == [gpu_load.SlowStep(21.0, "flow 1x2", {"flow_ms": 18.0})]
    assert gpu_load.slow_step_figures([*observed.slow_steps, gpu_load.SlowStep(30.0, "emit", {})]) == [
        {"ms": 30.0, "did": "emit"},
        {"ms": 21.0, "did": "flow 1x2", "flow_ms": 18.0},
    ]


def test_load_counts_every_measured_call(plan: Plan) -> None:
    figures = run_sections(only(plan, "load_2"), Results(None)).figures["load_2"]

    assert figures["arrivals"] >= 1
    assert figures["refused"] == figures["failed"] == 0
    assert figures["slots"] == CPU_UTTERANCES
    assert 0 <= figures["flow_busy"] < 1  # rounded: a stalled machine sees few calls
    assert figures["first_audio_max_ms"] >= figures["first_audio_p50_ms"] > 0


class _Breaking:
    """An engine whose first step raises."""

    info = EngineInfo("breaking", ("benchmark",), ("en",), Alignment.NONE, 8)

    def __init__(self) -> None:
        self.has_work = False

    def handle(self, command: object) -> None:
        self.has_work = True

    def step(self, now_s: float) -> list[object]:
        raise RuntimeError("a kernel failed\nwith advice")

    def report(self) -> EngineReport:
        return EngineReport()


def test_engine_that_fails_under_load_is_an_error() -> None:
    """Its calls would be counted as refused, and the next section would use what is left of it."""
    engine: Any = _Breaking()
    load = measure_arrivals(
        engine, Arrivals(8, 600.0, (0.05, 0.1), "benchmark"), stages=lambda: {}, announce=lambda key, script: None
    )

    with pytest.raises(EngineFault, match=r"the engine failed under load \(RuntimeError: a kernel failed\)$"):
        asyncio.run(load)


class _Loop:
    """An engine loop that takes commands and does nothing."""

    def subscribe(self, session: str, callback: object) -> None: ...
    def unsubscribe(self, session: str) -> None: ...
    def post(self, command: object) -> None: ...


def opened(load: gpu_load.OpenLoad) -> gpu_load.ListenedCall:
    """Open a call that is not stopped."""
    script = random_call(random.Random(1), Arrivals(1, 1.0, (1.0, 1.0), "benchmark"))
    load.open(gpu_load.PlannedCall(0.0, script, None))
    return list(load.live.values())[-1]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> gpu_load.OpenLoad:
    """A load at time 0."""
    monkeypatch.setattr(gpu_load, "perf_counter", lambda: 0.0)
    loop: Any = _Loop()
    return gpu_load.OpenLoad(loop, Arrivals(4, 1.0, (1.0, 1.0), "benchmark"), lambda key, script: None)


def test_failed_calls_are_listed_with_their_reasons(load: gpu_load.OpenLoad) -> None:
    """Time on a GPU is too dear to ask again why."""
    load.is_measuring = True
    for error in (OverCapacity("all slots are taken"), SynthesisFailed("a kernel failed"), None):
        call = opened(load)
        load.on_event(Done(call.key, "the slot is full") if error is None else Failed(call.key, error.info))

    figures = load.figures()

    assert (figures["refused"], figures["failed"]) == (1, 2)
    assert figures["errors"] == {"all slots are taken": 1, "a kernel failed": 1, "the slot is full": 1}


def test_stops_of_the_ramp_do_not_count(load: gpu_load.OpenLoad) -> None:
    in_ramp = opened(load)
    load.is_measuring = True
    measured = opened(load)
    load.stop(in_ramp, -1.0)
    load.stop(measured, -0.002)

    figures = load.figures()

    assert figures["arrivals"] == figures["stopped"] == 1
    assert figures["stop_p99_ms"] == 2.0


def test_live_calls_are_those_with_a_listener(load: gpu_load.OpenLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is 1.5 s ahead of a listener. A call that arrives finds as many as there are on average."""
    done = opened(load)
    done.playback.receive(SAMPLE_RATE_HZ, 0.0)
    load.end(done, "done")
    opened(load)
    load.is_measuring = True
    monkeypatch.setattr(gpu_load, "perf_counter", lambda: 0.9)
    opened(load)
    monkeypatch.setattr(gpu_load, "perf_counter", lambda: 1.1)
    opened(load)

    assert load.figures()["live_mean"] == 2.0, "one is done and heard until 1.0 s: 2 calls at 0.9 s, 2 at 1.1 s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sections", "nothing"], "--sections: nothing does not exist"),
        (["--loads", "some"], "--loads takes numbers"),
        (["--loads", "0"], "--loads must be 1 to 4,096, not 0"),
        (["--minutes", "0"], "--minutes must be 0.01 to 1,440, not 0"),
        (["--minutes", "nan"], "--minutes must be 0.01 to 1,440, not nan"),
        (["--budget-s", "inf"], "--budget-s must be"),
        (["--load-seconds", "nan"], "--load-seconds must be"),
        (["--texts", "1"], "--texts must be 2 to"),
        (["--cancels", "-1"], "--cancels must be"),
        (["--speed-seconds", "1e9"], "--speed-seconds must be 2 to 100"),
        (["--growth-seconds", "nan"], "--growth-seconds must be 12 to 100"),
        (["--memory-gb", "0"], "--memory-gb must be"),
        (["--threads", "0"], "--threads must be"),
        (["--output", "/nonexistent/folder/gpu.json"], "--output: the directory"),
        (["--output", "/"], "--output: / is a directory"),
        (["--device", "gpu0"], "device: must be auto, cpu, cuda or cuda:N, not 'gpu0'"),
        (["--device", "mps"], "device: must be"),
        (["--device", "cuda"], "no CUDA device is available"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before weights are written, which takes minutes at the official size."""
    if arguments == ["--device", "cuda"] and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr(writer, "write_random_bundle", lambda *_: pytest.fail("weights were written"))

    assert main(["gpu", "--random", "cosyvoice3", *arguments]) == 2

    assert message in capsys.readouterr().err


def test_bad_bundle_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by a process for each section, with a traceback of each."""
    monkeypatch.setattr(gpu_process, "run_isolated", lambda *_: pytest.fail("a process was started"))

    assert main(["gpu", "--bundle", str(tmp_path / "none")]) == 2

    assert f"error: {tmp_path / 'none'}: no such model directory" in capsys.readouterr().err


def test_choices_of_random_weights_are_all_there_are() -> None:
    assert set(gpu_command.FAMILIES) == set(config.YAML_NAMES.values())
    assert set(gpu_command.SIZES) == set(writer.SIZES)


def test_device_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    assert str(resolve_device("cuda:1")) == "cuda:1"
    with pytest.raises(ConfigError, match="there is no cuda:2"):
        resolve_device("cuda:2")


# -- processes --------------------------------------------------------------------------------------------------------


def dying(*codes: int) -> Callable[[Plan, Path], int]:
    """Run one section for each process, and begin a second one if its exit code is not 0."""
    left = list(codes)

    def run_part(plan: Plan, path: Path) -> int:
        results = Results.read(path)
        code = left.pop(0)
        if code == 0:
            for name in plan.sections:
                results.add(name, {"ms": 1.0})
        elif code > 0:
            results.add(plan.sections[0], {"ms": 1.0})
            results.begin(plan.sections[1])
        return code

    return run_part


def test_process_that_dies_loses_one_section(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text('{"machine": {"of": "an earlier run"}}')
    part = only(plan, "machine", "start", "first_audio", "speed", "cancels")

    figures = run_isolated(part, path, run_part=dying(1, 9, 0))

    assert figures == json.loads(path.read_text())
    assert figures == {
        "machine": {"ms": 1.0},
        "start": {"error": "the process was lost: exit code 1"},
        "first_audio": {"ms": 1.0},
        "speed": {"error": "the process was lost: exit code 9"},
        "cancels": {"ms": 1.0},
    }


def test_processes_that_cannot_begin_end_the_run(plan: Plan, tmp_path: Path) -> None:
    figures = run_isolated(only(plan, "machine", "start"), tmp_path / "gpu.json", run_part=dying(-9, -9))

    error = {"error": "no process could begin with it: exit code -9"}
    assert figures == {"machine": error, "start": error}


def test_later_processes_have_what_is_left_of_the_budget(plan: Plan, tmp_path: Path) -> None:
    budgets: list[float] = []
    run_part = dying(1, 0)

    def spy(plan: Plan, path: Path) -> int:
        budgets.append(plan.budget_s)
        return run_part(plan, path)

    times = iter(range(0, 1000, 70))
    run_isolated(
        only(plan, "machine", "start", "speed", budget_s=200.0),
        tmp_path / "gpu.json",
        run_part=spy,
        clock=lambda: next(times),
    )

    assert budgets == [130.0, 60.0]


def test_start_of_a_process_counts_for_the_budget(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has just started, importing PyTorch takes most of a minute."""
    budgets: list[float] = []
    monkeypatch.setattr(gpu_process, "run_sections", lambda plan, *_, **__: budgets.append(plan.budget_s))
    monkeypatch.setattr(gpu_process, "monotonic", lambda: 140.0)
    Results(tmp_path / "gpu.json").write()

    gpu_process.run_sections_of_process(replace(plan, budget_s=200.0), tmp_path / "gpu.json", started_s=100.0)

    assert budgets == [160.0]


def test_section_that_hangs_does_not_outlive_the_budget_by_far(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def watch(limit_s: float) -> nullcontext[None]:
        limits.append(limit_s)
        return nullcontext()

    monkeypatch.setattr(GpuBench, "on_cuda", property(lambda bench: True))
    sections_of = [Section("short", lambda bench: {}, 10.0), Section("long", lambda bench: {}, 100.0)]
    monkeypatch.setattr(gpu, "sections", lambda plan: sections_of)
    monkeypatch.setattr(GpuBench, "unload", lambda bench: None)

    run_sections(replace(plan, budget_s=150.0), Results(None), lambda: 0.0, watch)

    assert limits == [90.0, 210.0, gpu.CLOSE_LIMIT_S]


def test_engine_that_cannot_be_closed_does_not_hold_up_the_run(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that never ends: closing an engine waits for its work."""
    watched: list[float] = []

    @contextmanager
    def watch(limit_s: float) -> Iterator[None]:
        watched.append(limit_s)
        try:
            yield
        finally:
            watched.pop()

    closed_within: list[list[float]] = []
    monkeypatch.setattr(GpuBench, "unload", lambda bench: closed_within.append(list(watched)))
    monkeypatch.setattr(GpuBench, "close", lambda bench: closed_within.append(list(watched)))
    monkeypatch.setattr(gpu, "sections", lambda plan: [Section("broken", lambda bench: 1 / 0, 0.0)])  # type: ignore[arg-type,return-value]

    run_sections(plan, Results(None), watch=watch)

    assert closed_within[:2] == [[gpu.CLOSE_LIMIT_S]] * 2


def test_device_that_is_lost_ends_the_process(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The section has its error, and the others are for the next process."""

    def fail(bench: GpuBench) -> Figures:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    def lose(bench: GpuBench) -> None:
        raise DeviceLost("the device was lost")

    monkeypatch.setattr(GpuBench, "unload", lose)
    broken = Section("broken", fail, 0.0)
    monkeypatch.setattr(gpu, "sections", lambda plan: [broken, *sections(plan)])
    results = Results(None)

    with pytest.raises(DeviceLost):
        run_sections(only(plan, "machine"), results)

    assert list(results.figures) == ["broken"]
    assert results.figures["broken"]["error"] == "RuntimeError: CUDA error: an illegal memory access was encountered"


@pytest.mark.timeout(120)
def test_sections_run_in_another_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From the command line to the file."""
    output = tmp_path / "gpu.json"
    arguments = ["--random", "cosyvoice3", "--size", "tiny", "--device", "cpu", "--threads", "1"]

    assert main(["gpu", *arguments, "--sections", "machine,variant_gather", "--output", str(output)]) == 0

    figures = json.loads(output.read_text())
    assert json.loads(capfd.readouterr().out) == figures
    assert figures["machine"]["device"] == "cpu"
    assert figures["variant_gather"] == {"skipped": "needs a CUDA device"}


def test_section_that_hangs_ends_its_process() -> None:
    """Within the driver, too, where no Python runs any more."""
    code = """
import ctypes
from tools.bench.gpu_process import _ends_after
with _ends_after(0.2):
    ctypes.PyDLL(None).pause()  # with the interpreter's lock held
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    assert "Timeout" in done.stderr
