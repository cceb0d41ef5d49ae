"""``tools.bench simulate``: stage times from files and from an engine, predictions, and the largest load."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cosyvoice.bundles import tiny
from tools.bench.__main__ import main
from tools.bench.gpu_load import Arrivals
from tools.bench.measure_stages import PassRecorder
from tools.bench.simulate import Goal, SimulatedCall, Simulation, largest_load, predict
from tools.bench.stage_times import adjusted, fit, read_stage_times, stage_times_as_json
from tools.engine_simulator.config import SimulationConfig
from tools.engine_simulator.engine import SimulatedEngine
from tools.engine_simulator.stage_times import Execution, StageTime, StageTimes, VirtualClock
from tts_worker.engine.cosyvoice.timings import StageTimings
from tts_worker.engine.scheduler import Batch, Budgets, Need, Plan, Policy
from tts_worker.errors import ConfigError
from tts_worker.types import SAMPLE_RATE_HZ, Segment, UtteranceKey

STAGE_TIMES = Path(__file__).parents[4] / "bench" / "stage_times"
FAST = StageTimes(
    Execution.STREAMS,
    prefill=StageTime.linear(1_000),
    decode=StageTime.linear(500, 5),
    flow=StageTime.linear(4_000, 1_000),
    vocoder=StageTime.linear(1_000, 500),
)


def test_stage_time_interpolates_and_extrapolates() -> None:
    stage = StageTime(((1, 10.0), (2, 12.0), (4, 20.0)))

    assert [stage.us(size) for size in (0, 1, 1.5, 3, 4, 8)] == [10.0, 10.0, 11.0, 16.0, 20.0, 36.0]


def test_fit_takes_medians_and_never_falls() -> None:
    assert fit([(1, 5.0), (1, 7.0), (1, 900.0), (2, 3.0), (3, 9.0)]).points == ((1, 6.0), (2, 6.0), (3, 9.0))


def test_adjusted_times_have_the_total_of_the_samples() -> None:
    stage = StageTime(((1, 10.0), (3, 30.0)))

    assert adjusted(stage, [(1, 9.0), (2, 36.0)]).points == ((1, 15.0), (3, 45.0))
    assert adjusted(stage, []) == stage


def test_stage_times_survive_a_file(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps(stage_times_as_json(FAST)))

    assert read_stage_times(file) == FAST


def test_stage_times_are_read_from_the_results_of_a_gpu(tmp_path: Path) -> None:
    """The section has built an engine, unless the one before had the same."""
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"stages": {**stage_times_as_json(FAST), "engine_s": 45.0, "section_s": 60.0}}))

    assert read_stage_times(file) == FAST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"execution": "magic"}, "execution must be one of"),
        ({"surprise": 1}, "surprise is unknown"),
        ({"stages_us": {"decode": {"1": 2}}}, "stages_us.prefill is missing"),
        ({"stages_us": {"nothing": {"1": 2}}}, "stages_us.nothing is unknown"),
        ({"stages_us": []}, "stages_us must be an object"),
    ],
)
def test_malformed_stage_times_are_reported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps({**stage_times_as_json(FAST), **change}))

    with pytest.raises(ConfigError, match=message):
        read_stage_times(file)


@pytest.mark.parametrize("points", [{}, {"1": "x"}, {"1": -5}, {"1": float("nan")}, 7])
def test_malformed_stage_is_named(tmp_path: Path, points: object) -> None:
    data = stage_times_as_json(FAST)
    data["stages_us"]["flow"] = points
    file = tmp_path / "times.json"
    file.write_text(json.dumps(data))

    with pytest.raises(ConfigError, match=r"stages_us\.flow"):
        read_stage_times(file)


def test_same_seed_gives_the_same_prediction() -> None:
    arrivals = Arrivals(4, 3.0, (1.0, 2.0), "simulated", seed=3)

    assert predict(FAST, SimulationConfig(), arrivals) == predict(FAST, SimulationConfig(), arrivals)


@pytest.mark.parametrize("capacity", [0, 1, 5, 37, 200])
def test_largest_load_is_found_within_five_percent(capacity: int) -> None:
    def measure(calls: int) -> dict[str, object]:
        c50 = 1.0 if calls <= capacity else 0.5
        return {"continuity_c50": c50, "first_audio_p95_ms": 10.0, "refused": 0, "failed": 0}

    found = largest_load(Goal(), measure)

    assert capacity - max(1, capacity // 20) < found <= capacity or found == capacity == 0


def test_load_without_audio_meets_the_goal() -> None:
    unheard = {"continuity_c50": None, "first_audio_p95_ms": None, "refused": 0, "failed": 0}

    assert Goal().is_met(unheard)
    assert not Goal().is_met({**unheard, "failed": 1})


@pytest.mark.parametrize("name", ["h200-modeled-written", "h200-modeled-mended"])
def test_modeled_times_say_that_they_are_modeled(name: str) -> None:
    assert read_stage_times(STAGE_TIMES / f"{name}.json").source.startswith("Modeled, not measured")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds", "nan"], "--seconds must be positive"),
        (["--seconds", "inf"], "--seconds must be positive"),
        (["--call-seconds", "nan,2"], "--call-seconds ascending"),
        (["--first-audio-ms", "nan", "--find"], "--first-audio-ms at least 0"),
        (["--pages", "0"], "must be at least 1"),
    ],
)
def test_bad_numbers_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--times", "unread.json", "--calls", "2", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_command_prints_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = STAGE_TIMES / "h200-modeled-mended.json"
    args = ["simulate", "--times", str(file), "--calls", "2,4", "--seconds", "3", "--call-seconds", "1,2"]

    assert main([*args, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)

    assert [load["calls"] for load in figures["predicted"]] == [2, 4]
    assert all(load["continuity_c50"] == 1.0 for load in figures["predicted"])
    assert main(["simulate", "--times", str(tmp_path / "none.json"), "--calls", "1"]) == 2
    assert main(["simulate", "--times", str(file)]) == 2
    assert main(["simulate", "--times", str(file), "--calls", "2", "--measure"]) == 2


def test_cosyvoice_300m_is_not_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--bundle", str(tiny("cosyvoice1")), "--calls", "1"]) == 2
    assert "not CosyVoice-300M's parts" in capsys.readouterr().err


def test_measured_times_are_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.cosyvoice.networks import load_shallow  # the other tests need no PyTorch

    monkeypatch.setattr("tts_worker.engine.cosyvoice.bundle.networks.Networks.load", load_shallow)
    quick = ["--device", "cpu", "--threads", "1", "--batches", "1", "--repeats", "1", "--live-seconds", "0.1"]
    monkeypatch.setattr("tools.bench.measure_stages.LIVE", Arrivals(2, 0.1, (0.2, 0.3), "benchmark"))
    load = ["--call-seconds", "0.2,0.3", "--calls", "2", "--seconds", "0.5", "--measure", "--json"]

    assert main(["simulate", "--bundle", str(tiny("cosyvoice3")), *quick, *load]) == 0
    printed = capsys.readouterr().out
    figures = json.loads(printed)
    file = tmp_path / "measured.json"
    file.write_text(printed)

    stages = figures["times"]["stages_us"]
    assert figures["times"]["execution"] == "serial"
    assert all(us > 0 for name in ("prefill", "decode", "flow", "vocoder", "step") for us in stages[name].values())
    assert [load["arrivals"] for load in figures["predicted"]] == [load["arrivals"] for load in figures["measured"]]
    assert stage_times_as_json(read_stage_times(file)) == figures["times"]


def test_simulated_chunks_are_those_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audio of the first chunk decides which of two calls is more urgent."""
    from tests.unit.cosyvoice.networks import load_shallow
    from tools.bench.engine import Bench, forced_tokens
    from tools.bench.measure_stages import simulated_settings
    from tts_worker.engine.cosyvoice.loader import LoadOptions

    monkeypatch.setattr("tts_worker.engine.cosyvoice.bundle.networks.Networks.load", load_shallow)
    bench = Bench(LoadOptions(tiny("cosyvoice3"), device="cpu", threads=1), 125)
    spoken = bench.speak(forced_tokens(70, 1))
    config = simulated_settings(bench.engine, 125)
    bench.engine.close()

    clock = VirtualClock()
    call = SimulatedCall(UtteranceKey("s", 1), 0, ((0, Segment.whole("a" * 35)),), paced=False)
    listener = Simulation(SimulatedEngine(FAST, config, clock=clock), clock, [call]).run(10**7).listeners[call.key]
    chunks_s: dict[float, float] = defaultdict(float)
    for at_s, samples in listener.received:
        chunks_s[at_s] += samples / SAMPLE_RATE_HZ

    assert list(chunks_s.values()) == pytest.approx(spoken.chunks_s)


@dataclass
class _Device:
    """An engine on a device, with prepared steps: each of them changes the timings, and may plan in between.

    Attributes:
        policy: The scheduler.
        steps: For each step what it collects before it plans, by timing, and whether it plans.
    """

    policy: Policy
    steps: list[tuple[dict[str, float], bool]]
    info: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(device="cuda:0"))
    timings: StageTimings = field(default_factory=StageTimings)
    components: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(
            networks=SimpleNamespace(chunked_flow=SimpleNamespace(chunk_frames=50)),
        )
    )
    sequences: tuple[int, ...] = (1,)

    def step(self, now_s: float) -> list[object]:
        collected, plans = self.steps.pop(0)
        for name, value in collected.items():
            setattr(self.timings, name, getattr(self.timings, name) + value)
        if plans:
            candidate: Any = SimpleNamespace(key=CALL, inputs=70)
            self.policy([candidate], Budgets(), 0)
        return []


CALL = UtteranceKey("s", 1)
BURST = Batch(Need.DECODE, (CALL,), 4)


def recorded(plans: list[Plan], *steps: tuple[dict[str, float], bool]) -> PassRecorder:
    """Record ``steps`` of an engine on a device whose scheduler returns ``plans``."""
    recorder = PassRecorder(lambda candidates, budgets, now_us: plans.pop(0))
    device: Any = _Device(recorder, list(steps))
    for _ in steps:
        recorder.step(device, 0.0)
    return recorder


def test_recorder_separates_launch_and_device_time() -> None:
    recorder = recorded([Plan(tokens=BURST)], ({}, True), ({"decode_ms": 8.0}, False))

    assert recorder.decodes == [(1.0, 2000.0)]
    ((steps, launch_us),) = recorder.launches[Need.DECODE]
    assert steps == 4
    assert launch_us > 0
    assert recorder.steps == []


def test_recorder_gives_a_pass_the_time_of_its_own() -> None:
    """On a device a step takes over one pass and launches the next one."""
    recorder = recorded(
        [Plan(tokens=Batch(Need.PREFILL, (CALL,))), Plan(tokens=BURST)],
        ({}, True),
        ({"prefill_ms": 3.0}, True),
        ({"decode_ms": 8.0}, False),
    )

    assert recorder.prefills == [(70.0, 3000.0)]
    assert recorder.decodes == [(1.0, 2000.0)]


def test_recorder_splits_a_first_chunk_on_the_device() -> None:
    """Its prefill draws the ids of the chunk, and its launch contains flow and vocoder."""
    recorder = recorded(
        [Plan(tokens=Batch(Need.PREFILL, (CALL,), on_device_draws=11))],
        ({}, True),
        ({"prefill_ms": 3.0, "decode_ms": 10.0}, False),
    )

    assert recorder.prefills == [(70.0, 3000.0)]
    assert recorder.decodes == [(1.0, 1000.0)]
    assert not any(recorder.launches.values())


def test_recorder_counts_the_chunks_of_finished_passes() -> None:
    render = Plan(audio=Batch(Need.RENDER, (CALL,)))
    finished = {"flow_ms": 4.0, "flow_frames": 50, "vocoder_ms": 2.0, "vocoder_frames": 75}
    recorder = recorded([render, render], ({}, True), (finished, True), (finished, False))

    assert recorder.flows == [(1.0, 4000.0)] * 2
    assert recorder.vocoders == [(1.5, 2000.0)] * 2
