"""``python -m tools.bench simulate``: how many calls an engine serves, predicted from the times of its stages.

The times come from a file, or are measured on a model directory; then the same calls can also run on the real engine.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.bench.gpu_load import Arrivals
from tools.bench.simulate import Goal, largest_load, predict
from tools.bench.stage_times import read_stage_times, stage_times_as_json
from tools.engine_simulator.config import SimulationConfig
from tools.engine_simulator.stage_times import StageTimes
from tts_worker.commands.progress import measured
from tts_worker.errors import ConfigError, InvalidRequest

PROMPT_TOKENS = 125
MAX_SECONDS = 3600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--times",
        type=Path,
        metavar="FILE",
        help="stage times: a JSON file, or the output of this command or of bench gpu",
    )
    source.add_argument("--bundle", type=Path, metavar="DIR", help="measure a model directory; random weights suffice")
    parser.add_argument("--calls", default="", help="mean numbers of live calls, such as 16,64 (default: none)")
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated time of each load (default 20)")
    parser.add_argument(
        "--call-seconds", default="4,12", help="shortest and longest call, as in bench gpu (default 4,12)"
    )
    parser.add_argument("--find", action="store_true", help="find the largest number of calls that keeps the promises")
    parser.add_argument("--c50", type=float, default=0.99, help="promise: share of calls with gaps <= 50 ms (0.99)")
    parser.add_argument(
        "--first-audio-ms", type=float, default=100.0, help="promise: p95 of the first audio; 0: none (default 100)"
    )
    parser.add_argument("--seed", type=int, help="seed of arrivals and texts (default: the number of calls)")
    parser.add_argument(
        "--render-batch", type=int, help="chunks of a flow pass (default 8; with --bundle: that of the engine)"
    )
    parser.add_argument("--stride-chunks", type=int, help="chunks rendered as one (default 1; --bundle: by device)")
    parser.add_argument("--pages", type=int, help="flow memory in seconds of audio (default 950; --bundle: by device)")
    parser.add_argument(
        "--smooth-start", action=argparse.BooleanOptionalAction, default=True, help="delay a short first chunk"
    )
    parser.add_argument(
        "--first-chunk-on-device",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="submit the first chunk of a call as one piece of work, where stages run on a device",
    )
    parser.add_argument("--measure", action="store_true", help="--bundle: also run the calls on the real engine")
    parser.add_argument("--batches", default="1,2,4,8", help="--bundle: batches to measure (default 1,2,4,8)")
    parser.add_argument("--repeats", type=int, default=3, help="--bundle: how often each is measured (default 3)")
    parser.add_argument(
        "--live-seconds",
        type=float,
        default=10.0,
        help="--bundle: how long calls are measured that arrive at random; 0: not at all (default 10)",
    )
    parser.add_argument("--threads", type=int, help="--bundle: CPU threads")
    parser.add_argument("--device", default="auto", help="--bundle: auto, cpu, cuda or cuda:N (default auto)")
    parser.add_argument("--json", action="store_true", help="print one line instead of indented JSON")


def run(args: argparse.Namespace) -> int:
    loads, call_s = _check(args)
    goal = Goal(args.c50, args.first_audio_ms or None)

    def arrivals(calls: int) -> Arrivals:
        seed = calls if args.seed is None else args.seed
        return Arrivals(calls, args.seconds, call_s, "simulated", seed=seed)

    if args.times is not None:
        config = SimulationConfig(
            pages=args.pages or 950,
            render_batch=args.render_batch or 8,
            stride_chunks=args.stride_chunks or 1,
            smooth_start=args.smooth_start,
            first_chunk_on_device=args.first_chunk_on_device,
            prompt_tokens=PROMPT_TOKENS,
        )
        figures = _predicted(read_stage_times(args.times), config, loads, goal if args.find else None, arrivals)
    else:
        figures = _measured(args, loads, goal if args.find else None, arrivals)
    print(json.dumps(figures, indent=None if args.json else 2))
    return 0


def _check(args: argparse.Namespace) -> tuple[list[int], tuple[float, float]]:
    """Return the loads and the length of calls. Raises InvalidRequest."""
    loads = _numbers(args.calls, "--calls")
    try:
        shortest_s, longest_s = (float(part) for part in args.call_seconds.split(","))
    except ValueError:
        raise InvalidRequest("--call-seconds takes two numbers, such as 4,12") from None
    if not _numbers(args.batches, "--batches") or args.repeats < 1 or not 0 <= args.live_seconds <= MAX_SECONDS:
        raise InvalidRequest(
            f"--batches takes at least one number, --repeats at least 1, --live-seconds 0 to {MAX_SECONDS:,}"
        )
    if not 0 < args.seconds <= MAX_SECONDS or not 0 < shortest_s <= longest_s <= 60:
        raise InvalidRequest(f"--seconds must be positive up to {MAX_SECONDS:,}, --call-seconds ascending up to 60")
    if not 0 < args.c50 <= 1 or not 0 <= args.first_audio_ms < math.inf:
        raise InvalidRequest("--c50 must be above 0 and at most 1, --first-audio-ms at least 0")
    if any(value is not None and value < 1 for value in (args.render_batch, args.stride_chunks, args.pages)):
        raise InvalidRequest("--render-batch, --stride-chunks and --pages must be at least 1")
    if args.measure and args.bundle is None:
        raise InvalidRequest("--measure needs --bundle DIR")
    if not loads and not args.find and args.times is not None:
        raise InvalidRequest("give --calls N,N... or --find")
    return loads, (shortest_s, longest_s)


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidRequest(f"{option} takes numbers separated by commas, such as 16,64") from None
    if any(number < 1 for number in numbers):
        raise InvalidRequest(f"{option}: every number must be at least 1")
    return numbers


def _predicted(
    times: StageTimes,
    config: SimulationConfig,
    loads: list[int],
    goal: Goal | None,
    arrivals: Callable[[int], Arrivals],
) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "engine": "simulated",
        "times": stage_times_as_json(times),
        "predicted": [predict(times, config, arrivals(calls)) for calls in measured(loads, "simulated loads")],
    }
    if goal is not None:
        figures["goal"] = {"continuity_c50": goal.continuity_c50, "first_audio_p95_ms": goal.first_audio_p95_ms}
        figures["largest_calls"] = largest_load(goal, lambda calls: predict(times, config, arrivals(calls)))
    return figures


def _measured(
    args: argparse.Namespace, loads: list[int], goal: Goal | None, arrivals: Callable[[int], Arrivals]
) -> dict[str, Any]:
    """Measure the stage times of a model directory, predict, and run the same calls on its engine.

    ``predicted_afterwards`` has the stage times of the measured calls: what remains is the error of the simulator.
    """
    from tools.bench.engine import VOICE, Bench
    from tools.bench.gpu_load import slots_for
    from tools.bench.measure_stages import (
        LIVE,
        record_batches,
        record_load,
        simulated_settings,
        stage_times,
    )
    from tts_worker.engine.cosyvoice.bundle.config import V1
    from tts_worker.engine.cosyvoice.bundle.directory import Bundle
    from tts_worker.engine.cosyvoice.loader import LoadOptions

    if Bundle.open(args.bundle).config.family == V1:
        raise ConfigError("--bundle: the simulator models chunks of CosyVoice 2 and 3, not CosyVoice-300M's parts")
    slots = max(slots_for(max(loads, default=16)), *_numbers(args.batches, "--batches"))
    options = LoadOptions(
        args.bundle,
        device=args.device,
        threads=args.threads,
        max_utterances=slots,
        decode_batch=slots,
        render_batch=args.render_batch,
        stride_chunks=args.stride_chunks,
        smooth_start=args.smooth_start,
        first_chunk_on_device=args.first_chunk_on_device,
    )
    bench = Bench(options, PROMPT_TOKENS)
    engine = bench.engine
    together = record_batches(bench, _numbers(args.batches, "--batches"), args.repeats)
    live = record_load(bench, replace(LIVE, seconds=args.live_seconds))[1] if args.live_seconds else None
    config = simulated_settings(engine, PROMPT_TOKENS)
    if args.pages is not None:
        config = replace(config, pages=args.pages)
    figures = {**bench.describe(), **_predicted(stage_times(engine, together, live), config, loads, goal, arrivals)}
    if args.measure:
        figures["measured"] = []
        figures["predicted_afterwards"] = []
        for calls in measured(loads, "measured loads"):
            heard, recorder = record_load(bench, replace(arrivals(calls), voice=VOICE))
            figures["measured"].append(heard)
            times = stage_times(engine, together, recorder)
            figures["predicted_afterwards"].append(predict(times, config, arrivals(calls)))
    engine.close()
    return figures
