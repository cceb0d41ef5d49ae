"""Capacity: verdicts on trials, the claim of a search, and a real worker at a tiny load."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.fakes.enroller import serving_worker
from tts_worker.cli import main
from tts_worker.errors import ConnectionLost, Unauthenticated, UnknownVoice
from tts_worker.features.bench import capacity_command
from tts_worker.features.bench.capacity import (
    SCALES,
    Conditions,
    Scale,
    cost_of_1000_minutes,
    find_capacity,
    judge,
    load_generator,
    sessions_to_set,
    warm_up,
)
from tts_worker.features.bench.load_generator import Figures, Kind, Plan, sentences_file
from tts_worker.settings import load_settings
from tts_worker.worker import running_worker

CONDITIONS = Conditions("127.0.0.1:1", bound_ms=100.0)
GOOD = Figures(started=2, first_audible_s=[0.03, 0.05], audio_s=20.0, lags_s=[0.001])


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        (GOOD, None),
        (Figures(1, [0.2], [], {}, 1.0, [0.0]), "audible first audio p95 200 ms"),
        (Figures(1, [0.02], [0.03, 0.01], {}, 1.0, [0.0]), "2 underruns, up to 30 ms"),
        (Figures(3, [0.02], [], {"timeout": 1, "over_capacity": 2}, 1.0, []), "2 x over_capacity, 1 x timeout"),
        (Figures(), "nothing was audible"),
        (Figures(1, [0.2], [0.3], {"timeout": 1}, 1.0, [0.05]), "the load generator ran 50 ms late"),
    ],
)
def test_trial_fails_for_the_first_of_its_problems(figures: Figures, problem: str | None) -> None:
    result = judge(figures, 4.0, 10.0, 100.0)
    assert result.problem == problem
    assert result.measures_the_generator is (problem is not None and "late" in problem)


async def search(limit: float, lag_above: float, kind: Kind = "calls") -> tuple[float | None, bool, list[float]]:
    """Search on a server that holds ``limit``, with a generator that is late above ``lag_above``."""

    async def run(plan: Plan) -> Figures:
        late = [0.05] if plan.load > lag_above else [0.0]
        return Figures(1, [0.01 if plan.load <= limit else 0.5], [], {}, 1.0, late)

    found = await find_capacity(kind, SCALES[kind], CONDITIONS, run, lambda trial: None)
    return found.highest, found.is_at_least, [trial.load for trial in found.trials]


async def test_limit_of_the_server_is_claimed() -> None:
    assert (await search(48, 1_000))[:2] == (48, False)
    assert (await search(10.5, 1_000, "requests"))[:2] == (10.5, False)
    assert (await search(0, 1_000))[:2] == (0, False)


async def test_limit_of_the_generator_is_a_lower_bound() -> None:
    highest, is_at_least, loads = await search(500, 48)
    assert (highest, is_at_least) == (48, True)
    assert loads.count(64) == 2


async def test_failed_trial_is_repeated_once() -> None:
    """A virtual machine stalls now and then; what always fails ends the search."""
    stalled: set[float] = set()

    async def run(plan: Plan) -> Figures:
        is_stalled = plan.load not in stalled
        stalled.add(plan.load)
        return Figures(1, [0.01], [0.1] if is_stalled or plan.load > 30 else [], {}, 1.0, [0.0])

    found = await find_capacity("calls", SCALES["calls"], CONDITIONS, run, lambda trial: None)
    assert (found.highest, found.is_at_least) == (30, False)
    assert [trial.load for trial in found.trials if trial.problem is not None].count(32) == 2


async def test_generator_that_is_always_late_makes_no_claim() -> None:
    assert (await search(500, 0))[:2] == (None, True)


async def test_server_that_holds_everything_is_a_lower_bound() -> None:
    assert (await search(5_000, 5_000))[:2] == (1_000, True)


async def test_low_rates_last_until_there_are_percentiles() -> None:
    plans: list[Plan] = []

    async def run(plan: Plan) -> Figures:
        plans.append(plan)
        return GOOD

    await find_capacity("requests", Scale(0.5, 1, 1, "requests/s"), CONDITIONS, run, lambda trial: None)
    assert [plan.seconds for plan in plans] == [20.0, 20.0]  # as much as twice a trial
    assert len({plan.seed for plan in plans}) == 2


def test_sessions_and_cost() -> None:
    assert (sessions_to_set(48), sessions_to_set(1), sessions_to_set(0), sessions_to_set(None)) == (38, 1, None, None)
    assert cost_of_1000_minutes(0.6, 10) == pytest.approx(1.0)


def test_sentences_are_many_and_differ() -> None:
    lines = sentences_file().decode("ascii").splitlines()
    assert len(set(lines)) == len(lines) >= 40


async def test_real_worker_holds_a_tiny_load() -> None:
    flags = {"engines": {"tone": {"kind": "tone"}}, "session": {"lead_ms": 2_000}}  # the machine may stall
    settings = load_settings(flags=flags)
    async with running_worker(settings) as worker, serving_worker(worker) as address, load_generator() as generator:
        conditions = Conditions(address, bound_ms=30_000, seconds=0.5)
        await warm_up(conditions)
        for kind in SCALES:
            found = await find_capacity(kind, Scale(10, 1, 2, "x"), conditions, generator.run, lambda trial: None)
            stalled = [trial.problem for trial in found.trials if trial.problem is not None]
            assert all("underruns" in problem for problem in stalled), "a machine that stalls, and nothing else"
            assert stalled or (found.is_at_least, found.highest) == (True, 20), found
            assert not any(trial.failures for trial in found.trials)
            last = found.trials[-1]
            assert last.utterances >= (20 if kind == "calls" else 1)
            assert last.first_audible_p95_ms is not None
            assert last.lag_p95_ms is not None
        two_voices = ("tone-low", "absent")
        refused = await generator.run(Plan(address, "requests", 20, 0.5, 1, two_voices))
        assert refused.failures == {"unknown_voice": refused.started // 2}, "every second one"
        refused = await generator.run(Plan(address, "calls", 4, 0.2, 1, two_voices))
        assert refused.failures == {"unknown_voice": 2}
        refused = await generator.run(Plan(address, "requests", 20, 0.5, 1, ("absent",)))
        assert refused.failures == {"unknown_voice": refused.started}
        refused = await generator.run(Plan(address, "calls", 2, 0.2, 1, ("absent",)))
        assert refused.failures == {"unknown_voice": 2}
        with pytest.raises(UnknownVoice):
            await warm_up(replace(conditions, voices=two_voices))
    with pytest.raises(ConnectionLost, match="cannot be reached"):
        await warm_up(conditions)


async def test_full_worker_is_a_failure_by_its_code() -> None:
    flags = {"engines": {"tone": {"kind": "tone"}}, "session": {"max_sessions": 1, "slot_idle_s": 60}}
    async with (
        running_worker(load_settings(flags=flags)) as worker,
        serving_worker(worker) as address,
        load_generator() as generator,
    ):
        figures = await generator.run(Plan(address, "calls", 4, 0.5, 1))
        assert set(figures.failures) == {"over_capacity"}


async def test_key_reaches_requests_and_calls() -> None:
    flags = {"engines": {"tone": {"kind": "tone"}}, "server": {"api_keys": ["a-long-random-key"]}}
    headers = {"authorization": "Bearer a-long-random-key"}
    async with (
        running_worker(load_settings(flags=flags)) as worker,
        serving_worker(worker) as address,
        load_generator() as generator,
    ):
        with pytest.raises(Unauthenticated):
            await warm_up(Conditions(address, 100))
        await warm_up(Conditions(address, 100, headers=headers))
        for kind in SCALES:
            assert (await generator.run(Plan(address, kind, 10, 0.5, 1, headers=headers))).failures == {}
            refused = await generator.run(Plan(address, kind, 10, 0.5, 1))
            assert set(refused.failures) == {"unauthenticated"}


def test_command_measures_an_own_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity_command, "SCALES", {kind: Scale(10, 1, 1, "x") for kind in SCALES})
    record, picture = tmp_path / "capacity.json", tmp_path / "capacity.svg"
    words = [
        "--engine",
        "tone",
        "--set",
        "session.lead_ms=2000",
        "--seconds",
        "0.5",
        "--bound",
        "30000",
        "--price-per-hour",
        "0.6",
    ]
    code = main(["bench", "capacity", *words, "--json", str(record), "--picture", str(picture)])
    shown = capsys.readouterr().out
    assert code == 0
    assert "set session.max_sessions: 8 " in shown
    assert "1,000 minutes of calls cost 1.25 at 0.6 an hour" in shown
    data = json.loads(record.read_text())
    assert data["command"] == (
        "tts-worker bench capacity --bound 30000 --price-per-hour 0.6 --seconds 0.5 --engine tone "
        "--set session.lead_ms=2000"
    )
    assert {"hardware", "versions", "load_average_before", "shared_machine", "date"} <= data.keys()
    result = data["result"]
    assert (result["engine"], result["calls"], result["max_sessions"], result["seed"]) == ("tone", 10, 8, 1)
    assert len(result["sentences_sha256"]) == 64
    circles = [each for each in ET.parse(picture).iter() if each.tag.endswith("circle")]
    assert len(circles) == sum(len(capacity["trials"]) for capacity in result["trials"].values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bound", "0"], "--bound must be above 0"),
        (["--bound", "nan"], "--bound must be above 0"),
        (["--seconds", "-1"], "--seconds must be above 0"),
        (["--seconds", "601"], "--seconds must be at most 600"),
        (["--price-per-hour", "inf"], "--price-per-hour must be above 0"),
        (["--voice", ""], "--voice must name a voice"),
        (["--voice", "tone,"], "--voice must name a voice"),
        (["--engine", "tone", "--voice", "absent"], 'unknown voice "absent"'),
        (["--url", "https://127.0.0.1"], "--url takes http://host:port"),
        (["--url", "http://127.0.0.1:x"], "--url takes http://host:port"),
        (["--url", "http://127.0.0.1:1/path"], "--url takes http://host:port"),
        (["--url", "http://127.0.0.1:1", "--engine", "tone"], "leave out --url"),
        (["--json", "no/such/folder/x.json"], "--json: no/such/folder/x.json cannot be written"),
        (["--picture", "."], "--picture: . cannot be written"),
        (["--set", "session.nothing=1"], "session.nothing"),
        (["--config", "nothing.yaml"], "nothing.yaml"),
    ],
)
def test_bad_value_is_refused_at_once(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "capacity", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_processes_of_the_measurement(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tts_worker", "bench", "capacity", "--engine", "tone"]
    signals = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores SIGINT
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=signals) as process:
        assert process.stderr is not None
        assert "HTTP requests" in process.stderr.readline()
        started = psutil.Process(process.pid).children()
        assert len(started) == 2
        process.send_signal(number)
        assert process.wait(30) == 130
    assert psutil.wait_procs(started, 30)[1] == []


def test_unreachable_worker_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "capacity", "--url", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
