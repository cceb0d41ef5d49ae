"""Modeled or measured times of the stages of a simulated engine, and its clock."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum

from tts_worker.errors import ConfigError


class VirtualClock:
    """The time of a simulation, in microseconds. It never goes back."""

    def __init__(self) -> None:
        self.now_us = 0

    def advance(self, duration_us: float) -> None:
        self.now_us += round(duration_us)

    def advance_to(self, time_us: int) -> None:
        self.now_us = max(self.now_us, time_us)


@dataclass(frozen=True)
class StageTime:
    """Time of a stage by the size of its batch, in microseconds.

    Linear between the points and beyond the last two. Below the first point, the time of the first point.

    Attributes:
        points: Sizes in ascending order, and the time of each.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes != sorted(set(sizes)) or any(us < 0 for _, us in self.points):
            raise ConfigError("a stage time needs ascending sizes and times of at least 0")

    @classmethod
    def linear(cls, fixed_us: float, each_us: float = 0.0) -> StageTime:
        return cls(((0.0, fixed_us), (1.0, fixed_us + each_us)))

    def us(self, size: float) -> float:
        """Return the time of a batch of ``size``."""
        if size <= self.points[0][0] or len(self.points) == 1:
            return self.points[0][1]
        place = min(bisect_left(self.points, (size,)), len(self.points) - 1)
        (low, low_us), (high, high_us) = self.points[place - 1], self.points[place]
        return max(0.0, low_us + (size - low) * (high_us - low_us) / (high - low))


NO_TIME = StageTime.linear(0.0)


class Execution(str, Enum):
    """Where the stages run."""

    SERIAL = "serial"  # on the engine thread, one after the other
    FLOW_THREAD = "flow_thread"  # the flow on its own thread, the rest on the engine thread
    STREAMS = "streams"  # tokens and audio on two streams of a device; the engine thread launches


@dataclass(frozen=True)
class StageTimes:
    """Modeled or measured times.

    With ``STREAMS``, the first four are times on the device and the launches occupy the engine thread. Otherwise the
    first four occupy the thread on which they run.

    Attributes:
        execution: Where the stages run.
        prefill: Prefill by inputs of the batch.
        decode: One decode step by utterances of the batch.
        flow: Flow pass by chunks of the batch.
        vocoder: Vocoder pass by chunks of the batch, with the context that each computes again.
        launch_prefill: Launch of a prefill by utterances.
        launch_decode: Launch of a burst by decode steps.
        launch_flow: Launch of a flow pass by utterances.
        launch_vocoder: Launch of a vocoder pass by utterances.
        step: Planning and bookkeeping of one step by live utterances.
        pads_audio: Whether audio batches are padded to powers of two.
        source: Where the times come from.
    """

    execution: Execution
    prefill: StageTime
    decode: StageTime
    flow: StageTime
    vocoder: StageTime
    launch_prefill: StageTime = NO_TIME
    launch_decode: StageTime = NO_TIME
    launch_flow: StageTime = NO_TIME
    launch_vocoder: StageTime = NO_TIME
    step: StageTime = NO_TIME
    pads_audio: bool = False
    source: str = ""
