"""Stage times as JSON, and their fit to measured passes."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tools.engine_simulator.stage_times import Execution, StageTime, StageTimes
from tts_worker.errors import ConfigError

_STAGES = tuple(field.name for field in fields(StageTimes) if field.type == "StageTime")
_REQUIRED = ("prefill", "decode", "flow", "vocoder")
_ADDED = {"section_s", "engine_s"}  # by bench gpu: what it took
_MAX_BYTES = 1 << 20


def read_stage_times(path: Path) -> StageTimes:
    """Read stage times that a person wrote, or those in the results of ``tools.bench simulate`` or ``tools.bench gpu``.

    Each stage is an object of batch sizes and microseconds, such as ``{"1": 1700, "8": 9800}``.

    Raises:
        ConfigError: The file is missing or malformed; says where.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: is larger than {_MAX_BYTES} bytes")
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{path}: is not JSON") from None
    for section in ("result", "times", "stages"):  # of tools/record.py, bench simulate and bench gpu
        if isinstance(data, dict) and isinstance(data.get(section), dict):
            data = data[section]
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be an object")
    known = {"execution", "source", "pads_audio", "stages_us"}
    if unknown := sorted(data.keys() - known - _ADDED):
        raise ConfigError(f"{path}: {unknown[0]} is unknown; there are {', '.join(sorted(known))}")
    executions = [execution.value for execution in Execution]
    if data.get("execution") not in executions:
        raise ConfigError(f"{path}: execution must be one of {', '.join(executions)}")
    stages = data.get("stages_us")
    if not isinstance(stages, dict):
        raise ConfigError(f"{path}: stages_us must be an object")
    if wrong := sorted(stages.keys() - set(_STAGES)):
        raise ConfigError(f"{path}: stages_us.{wrong[0]} is unknown; there are {', '.join(_STAGES)}")
    if missing := [name for name in _REQUIRED if name not in stages]:
        raise ConfigError(f"{path}: stages_us.{missing[0]} is missing")
    return StageTimes(
        execution=Execution(data["execution"]),
        pads_audio=bool(data.get("pads_audio", False)),
        source=str(data.get("source", "")),
        **{name: _stage_time(path, name, value) for name, value in stages.items()},
    )


def _stage_time(path: Path, name: str, value: Any) -> StageTime:
    where = f"{path}: stages_us.{name}"
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be an object of batch sizes and microseconds")
    try:
        points = sorted((float(size), float(us)) for size, us in value.items())
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: batch sizes and microseconds must be numbers") from None
    if not all(math.isfinite(number) for point in points for number in point):
        raise ConfigError(f"{where}: batch sizes and microseconds must be finite")
    try:
        return StageTime(tuple(points))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from None


def stage_times_as_json(times: StageTimes) -> dict[str, Any]:
    """Return what ``read_stage_times`` reads."""
    stages = {name: {f"{size:g}": round(us, 1) for size, us in getattr(times, name).points} for name in _STAGES}
    return {
        "execution": times.execution.value,
        "source": times.source,
        "pads_audio": times.pads_audio,
        "stages_us": stages,
    }


def fit(samples: Iterable[tuple[float, float]]) -> StageTime:
    """Return the stage time through the median of the samples of each size, never falling with the size.

    Medians that would fall are replaced by their mean, weighted by their samples: the closest rising line.

    Args:
        samples: Size of a batch and its time in microseconds.

    Raises:
        ConfigError: There are no samples.
    """
    by_size = defaultdict[float, list[float]](list)
    for size, us in samples:
        by_size[size].append(us)
    levels: list[_Level] = []
    for size in sorted(by_size):
        levels.append(_Level(median(by_size[size]), len(by_size[size]), (size,)))
        while len(levels) > 1 and levels[-2].us > levels[-1].us:
            last = levels.pop()
            levels[-1] = levels[-1].joined(last)
    return StageTime(tuple((size, level.us) for level in levels for size in level.sizes))


class _Level(NamedTuple):
    """Sizes with the same time."""

    us: float
    samples: int
    sizes: tuple[float, ...]

    def joined(self, other: _Level) -> _Level:
        samples = self.samples + other.samples
        us = (self.us * self.samples + other.us * other.samples) / samples
        return _Level(us, samples, self.sizes + other.sizes)


def adjusted(stage: StageTime, samples: Sequence[tuple[float, float]]) -> StageTime:
    """Return ``stage`` multiplied so that it gives the total time of ``samples``; without samples, as it is."""
    expected_us = sum(stage.us(size) for size, _ in samples)
    if expected_us <= 0:
        return stage
    factor = sum(us for _, us in samples) / expected_us
    return StageTime(tuple((size, us * factor) for size, us in stage.points))
