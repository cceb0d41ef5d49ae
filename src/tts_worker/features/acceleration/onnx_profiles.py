"""The sizes that the streaming engine runs each graph with, from its chunk plan.

TensorRT builds an engine for a range of sizes and optimizes it for one point of the range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.plan import ChunkPlan
from tts_worker.features.acceleration.onnx_graphs import ENCODER, ESTIMATOR, VOCODER, VOCODER_CHUNK, GraphSpec, Sizes

MAX_SLOWDOWN = 2  # at the slowest pace, a chunk has this many times the frames
MIN_VOCODER_FRAMES = 8  # less than any chunk; reflection padding and look-ahead need a few
OPT_PAST_CHUNKS = 8  # a sentence in the voice of a prompt of some seconds


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Smallest, most important and largest value of a size."""

    low: int
    best: int
    high: int

    def times(self, factor: int) -> SizeRange:
        return SizeRange(self.low * factor, self.best * factor, self.high * factor)

    def plus(self, other: SizeRange | int) -> SizeRange:
        if isinstance(other, int):
            other = SizeRange(other, other, other)
        return SizeRange(self.low + other.low, self.best + other.best, self.high + other.high)


Ranges = Mapping[str, SizeRange]
Bounds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Profile:
    """The sizes of one graph.

    Attributes:
        ranges: Range of each size of the inputs, by name.
        bounds: Smallest, most important and largest shape of each input, by name.
    """

    ranges: Ranges
    bounds: Mapping[str, Bounds]

    def admits(self, sizes: Sizes) -> bool:
        """Whether all sizes are in range."""
        return all(self.ranges[name].low <= size <= self.ranges[name].high for name, size in sizes.items())


def chunk_profiles(networks: Networks, specs: Mapping[str, GraphSpec], plan: ChunkPlan) -> dict[str, Profile]:
    """Return the profile of each graph in ``specs``."""
    return {file: _profile(spec, _ranges(networks, file, plan)) for file, spec in specs.items()}


def _profile(spec: GraphSpec, ranges: Ranges) -> Profile:
    def shape(name: str, end: str) -> tuple[int, ...]:
        return tuple(getattr(ranges[d], end) if isinstance(d, str) else d for d in spec.inputs[name])

    bounds = {name: (shape(name, "low"), shape(name, "best"), shape(name, "high")) for name in spec.inputs}
    return Profile(ranges, bounds)


def _ranges(networks: Networks, file: str, plan: ChunkPlan) -> Ranges:
    flow = networks.config.chunked_flow
    rows = SizeRange(1, 1, plan.batch)
    chunks = SizeRange(1, 1, plan.stride)
    past = SizeRange(1, min(OPT_PAST_CHUNKS, plan.chunks), plan.chunks)  # at least one page, of zeros
    if file == ESTIMATOR:
        frames, past_frames = (each.times(networks.chunked_flow.chunk_frames) for each in (chunks, past))
        return {
            "rows": SizeRange(1, 2, 2 * plan.batch),  # both branches of the guidance
            "frames": frames,
            "past_frames": past_frames,
            "all_frames": frames.plus(past_frames),
        }
    if file == ENCODER:
        tokens = chunks.times(flow.chunk_tokens)
        known = {"rows": rows, "tokens_ahead": tokens.plus(flow.lookahead_tokens)}
        if flow.encoder is None:
            return known
        past_tokens = past.times(flow.chunk_tokens)
        return {
            **known,
            "tokens": tokens,
            "past_tokens": past_tokens,
            "past_frames": past_tokens.times(flow.encoder.upsample),
            "all_tokens": tokens.plus(past_tokens),
        }
    assert file in (VOCODER, VOCODER_CHUNK), file
    hift = networks.hift
    chunk = networks.chunked_flow.chunk_frames
    cached = hift.history + hift.held
    frames = SizeRange(MIN_VOCODER_FRAMES, chunk + cached, MAX_SLOWDOWN * plan.stride * chunk + cached)
    return {"rows": rows, "frames": frames, "samples": frames.times(hift.dims.frame_samples)}


def profile_options(profile: Profile) -> dict[str, str]:
    """Return a profile as options of ONNX Runtime's TensorRT provider."""
    ends = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
    return {
        option: ",".join(f"{name}:{'x'.join(map(str, shapes[end]))}" for name, shapes in profile.bounds.items())
        for end, option in enumerate(ends)
    }
