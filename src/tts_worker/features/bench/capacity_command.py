"""``tts-worker bench capacity``: how many requests and calls this machine holds, what to set, and what speech costs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import math
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tts_worker.commands.common import add_settings_arguments, quiet_logs, settings_from
from tts_worker.errors import InvalidRequest
from tts_worker.features.bench.capacity import (
    MOST_CALLS,
    SCALES,
    SHARE,
    Capacity,
    Conditions,
    TrialResult,
    cost_of_1000_minutes,
    find_capacity,
    load_generator,
    sessions_to_set,
    warm_up,
)
from tts_worker.features.bench.load_generator import Kind, sentences_file
from tts_worker.features.bench.machine import hardware, versions
from tts_worker.features.bench.picture import draw
from tts_worker.features.bench.server_process import server_process
from tts_worker.settings import Settings

_TITLES: Mapping[Kind, str] = {"requests": "HTTP requests, /v1/audio/speech", "calls": "calls, /v1/stream"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help="measure a running worker, such as http://127.0.0.1:8080 (no TLS), not an own one"
    )
    parser.add_argument("--voice", help="voices, separated by commas, that take turns (default: the worker's)")
    parser.add_argument(
        "--bound", type=float, default=100.0, metavar="MS", help="p95 of audible first audio (default 100 ms)"
    )
    parser.add_argument(
        "--price-per-hour", type=float, metavar="P", help="price of the machine, for the cost of speech"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a trial (default 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw them in this SVG file")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    quiet_logs()
    _check(args)
    load_before = os.getloadavg()[0]
    default = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes of the measurement, too
    try:
        found = asyncio.run(_measure(args))
    finally:
        signal.signal(signal.SIGTERM, default)
    result = _figures(args, found)
    record = {
        "command": shlex.join(["tts-worker", "bench", "capacity", *_words(args)]),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "hardware": hardware(),
        "load_average_before": round(load_before, 2),
        "shared_machine": _is_shared(load_before),
        "versions": versions(),
        "result": result,
    }
    if args.json is not None:
        _write(args.json, json.dumps(record, indent=2) + "\n")
    if args.picture is not None:
        panels = [(_TITLES[kind], SCALES[kind].unit, capacity) for kind, capacity in found.items()]
        _write(args.picture, draw(panels, args.bound))
    print("\n".join(_summary(args, found, hardware(), load_before)))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse values that cannot be measured, before minutes have passed. Raises InvalidRequest."""
    numbers = {"--bound": args.bound, "--seconds": args.seconds, "--price-per-hour": args.price_per_hour}
    for flag, value in numbers.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InvalidRequest(f"{flag} must be above 0")
    if args.seconds > 600:
        raise InvalidRequest("--seconds must be at most 600")
    if not all(_voices(args)):
        raise InvalidRequest("--voice must name a voice")
    if args.url is not None:
        if args.engine or args.config or args.set:
            raise InvalidRequest("--engine, --config and --set are those of an own worker: leave out --url")
        _address_of(args.url)
    for flag, file in (("--json", args.json), ("--picture", args.picture)):
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise InvalidRequest(f"{flag}: {file} cannot be written: its folder must exist")


def _voices(args: argparse.Namespace) -> tuple[str, ...]:
    return () if args.voice is None else tuple(args.voice.split(","))


def _address_of(url: str) -> str:
    """Return ``host:port``. Raises InvalidRequest."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "ws") and bool(parts.hostname) and parts.path in ("", "/")
        port = parts.port or 80
    except ValueError:  # the port is not a number
        is_valid = False
    if not is_valid:
        raise InvalidRequest("--url takes http://host:port or ws://host:port, without TLS and path")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{port}"


async def _measure(args: argparse.Namespace) -> dict[Kind, Capacity]:
    key = os.environ.get("TTS_WORKER_API_KEY") if args.url is not None else None
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    conditions = Conditions("", args.bound, args.seconds, voices=_voices(args), headers=headers)
    found: dict[Kind, Capacity] = {}
    async with _server(args) as address, load_generator() as generator:
        conditions = replace(conditions, address=address)
        await warm_up(conditions)
        for kind, scale in SCALES.items():
            print(f"{_TITLES[kind]}:", file=sys.stderr)
            unit = scale.unit

            def report(trial: TrialResult, unit: str = unit) -> None:
                print(f"  {_line(trial, unit)}", file=sys.stderr, flush=True)

            found[kind] = await find_capacity(kind, scale, conditions, generator.run, report)
    return found


@contextlib.asynccontextmanager
async def _server(args: argparse.Namespace) -> AsyncIterator[str]:
    """Yield the address of the worker to measure; an own one admits more than it can hold."""
    if args.url is not None:
        yield _address_of(args.url)
        return
    settings = settings_from(args)
    chosen = {"--config": args.config, "--engine": args.engine}
    words = [word for flag, value in chosen.items() if value is not None for word in (flag, str(value))]
    words += [word for setting in (*args.set, *_without_limits(settings)) for word in ("--set", setting)]
    async with server_process([*words, "--set", "log_level=warning"]) as server:
        yield server.address


def _without_limits(settings: Settings) -> list[str]:
    """Settings with which admission does not hide what the machine holds."""
    limited = [
        name for name, engine in settings.engines.items() if isinstance(getattr(engine, "max_utterances", None), int)
    ]
    return [
        f"session.max_sessions={MOST_CALLS}",
        *(f"engines.{name}.max_utterances={MOST_CALLS}" for name in limited),
    ]


def _figures(args: argparse.Namespace, found: dict[Kind, Capacity]) -> dict[str, object]:
    """Return the result for the record."""
    calls = found["calls"].highest
    sessions = sessions_to_set(calls)
    price = args.price_per_hour
    cost = None if price is None or sessions is None else round(cost_of_1000_minutes(price, sessions), 4)
    engine = "at --url" if args.url is not None else ",".join(settings_from(args).engines)
    return {
        "engine": engine,
        "voice": args.voice,
        "bound_ms": args.bound,
        "seconds": args.seconds,
        "seed": Conditions.__dataclass_fields__["seed"].default,
        "sentences_sha256": hashlib.sha256(sentences_file()).hexdigest(),
        "requests_per_s": found["requests"].highest,
        "calls": calls,
        "max_sessions": sessions,
        "price_per_hour": price,
        "cost_of_1000_minutes": cost,
        "trials": {kind: msgspec.to_builtins(capacity) for kind, capacity in found.items()},
    }


def _words(args: argparse.Namespace) -> list[str]:
    """Return the options that were given, as words, without the files of the results."""
    words: list[str] = []
    for name, value in vars(args).items():
        if value not in (None, []) and name not in ("json", "picture"):
            values = value if isinstance(value, list) else [f"{value:g}" if isinstance(value, float) else str(value)]
            words += [word for each in values for word in (f"--{name.replace('_', '-')}", each)]
    return words


def _line(trial: TrialResult, unit: str) -> str:
    times = " / ".join(
        "-" if each is None else f"{each:.0f}" for each in (trial.first_audible_p50_ms, trial.first_audible_p95_ms)
    )
    verdict = "ok" if trial.problem is None else trial.problem
    return f"{trial.load:6g} {unit:10}  audible p50 / p95 {times:>9} ms  {trial.utterances:4} utterances  {verdict}"


def _summary(args: argparse.Namespace, found: dict[Kind, Capacity], machine: str, load: float) -> list[str]:
    """Return what the command prints at the end."""
    lines = [f"{machine}; p95 of audible first audio at most {args.bound:g} ms, no underrun, no failure:"]
    for kind, capacity in found.items():
        lines.append(f"  {_TITLES[kind]}: {_claim(capacity, SCALES[kind].unit)}")
    sessions = sessions_to_set(found["calls"].highest)
    if sessions is not None:
        lines.append(f"set session.max_sessions: {sessions} ({SHARE:.0%} of the calls, the rest for unlucky moments)")
        if args.price_per_hour is not None:
            cost = cost_of_1000_minutes(args.price_per_hour, sessions)
            lines.append(
                f"1,000 minutes of calls cost {cost:.2f} at {args.price_per_hour:g} an hour, all sessions in use"
            )
    if _is_shared(load):
        cores = os.cpu_count()
        lines.append(f"load {load:.1f} on {cores} cores before the run: a shared machine, which alone holds more")
    return lines


def _is_shared(load: float) -> bool:
    """Whether other work kept the cores of this machine busy."""
    return load > (os.cpu_count() or 1)


def _claim(capacity: Capacity, unit: str) -> str:
    if capacity.highest is None:
        return "not measured: the load generator ran late; run it again when the machine is less busy"
    if not capacity.highest:
        return f"none: {capacity.trials[-1].problem} at {capacity.trials[-1].load:g} {unit}"
    best = next(trial for trial in reversed(capacity.trials) if trial.problem is None)
    claim = f"{'at least ' if capacity.is_at_least else ''}{capacity.highest:g} {unit}"
    return f"{claim} (p50 / p95 {best.first_audible_p50_ms:.0f} / {best.first_audible_p95_ms:.0f} ms)"


def _write(file: Path, content: str) -> None:
    """Write a file. Raises InvalidRequest."""
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be written: {error.strerror}") from None
