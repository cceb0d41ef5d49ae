"""All figures of a GPU machine in one run, section by section, within a time budget.

Each section adds its figures to one JSON file as soon as it is done, so that an interrupted run keeps what it has
measured. A section that cannot run (no CUDA device, no time left) is listed with the reason; one that fails is listed
with its error, and the next one runs (``gpu_process``: even if the device or the process is lost). On a CPU the same
sections run with a small model.

Loading and warming up an engine takes longer than most measurements. All engines of a model and precision share its
weights, sections that need the same engine follow each other, and settings of the scheduler are changed on an engine
that is warm already.

Needs only torch, numpy, tokenizers, PyYAML and safetensors, like the engine.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.autograd.profiler_util import FunctionEventAvg

from tools.bench.engine import VOICE, Bench, forced_tokens
from tools.bench.gpu_attention import Sizes, measure_attention
from tools.bench.gpu_convolutions import measure_convolutions
from tools.bench.gpu_counts import EngineCounts, computations_of, fallbacks_of, stage_times_of
from tools.bench.gpu_flashinfer import flashinfer_library
from tools.bench.gpu_load import Arrivals, CallScript, measure_arrivals, slots_for
from tools.bench.gpu_machine import describe_machine
from tools.bench.gpu_outputs import Outputs, compare_outputs, draw_ids, scores_after
from tools.bench.gpu_plan import Figures, Plan, Results
from tools.bench.measure_stages import measure_stage_times, speak_together
from tools.bench.stage_times import stage_times_as_json
from tools.random_bundle.writer import write_random_bundle
from tts_worker.engine.cosyvoice.bundle.config import V1, V2, V3
from tts_worker.engine.cosyvoice.bundle.directory import Bundle
from tts_worker.engine.cosyvoice.bundle.networks import Networks
from tts_worker.engine.cosyvoice.execution.graph_runner import captured_rows
from tts_worker.engine.cosyvoice.execution.settings import CompileMode
from tts_worker.engine.cosyvoice.loader import LoadOptions, resolve_device
from tts_worker.engine.cosyvoice.memory import CPU_UTTERANCES, cuda_utterances
from tts_worker.engine.cosyvoice.networks.flow import Flow
from tts_worker.errors import DeviceLost
from tts_worker.features.acceleration import kernels
from tts_worker.features.acceleration.compiling import BUDGET_S
from tts_worker.features.acceleration.graphs import CapturingRunner
from tts_worker.features.bench.stats import percentile
from tts_worker.features.bench.texts import SENTENCES
from tts_worker.types import Segment, UtteranceKey

log = logging.getLogger(__name__)

PROMPT_TOKENS = 125
SCORE_LENGTHS = (8, 64, 200, 700)
VARIANT_TEXTS = 10  # first chunks of a section that compares a switch
DRAWN_IDS = 64
REPLAYED_TOKENS = 90  # of each utterance whose replays are timed
SHORT_TURNS_S = (1.6, 3.6)
PROFILE_ROWS = 30
ENGINE_S = 45.0
"""What building and warming up an engine is expected to take before one has been built."""

CLOSE_LIMIT_S = 60.0
"""Closing an engine that takes longer hangs for sure."""

LOAD_VARIANT_SHARE = 0.5  # of the time of a load


Watch = Callable[[float], AbstractContextManager[None]]
"""Ends the process if a block takes longer than so many seconds."""


@dataclass(frozen=True)
class Section:
    """One part of the run.

    Attributes:
        name: Its key in the results.
        run: Measures and returns the figures.
        expected_s: Time that the measurement is expected to take, with the engine at hand.
        options: The engine that it needs; None: it takes care of that itself.
        utterances: How many that engine must take. If it takes fewer as served, another one is built.
        takes_any: Whether it takes the engine at hand, and the one as served if there is none.
        engines: Further engines that it builds.
        needs_cuda: Whether it makes sense only on a CUDA device.
        excludes_v1: Whether CosyVoice-300M lacks what it is about: chunks of a fixed size, or fused kernels.
    """

    name: str
    run: Callable[[GpuBench], Figures]
    expected_s: float
    options: LoadOptions | None = None
    utterances: int = 1
    takes_any: bool = False
    engines: int = 0
    needs_cuda: bool = False
    excludes_v1: bool = False


def run_sections(
    plan: Plan, results: Results, clock: Callable[[], float] = perf_counter, watch: Watch | None = None
) -> Results:
    """Run the sections of ``plan`` in order.

    Args:
        plan: What to measure.
        results: Takes the figures.
        clock: Returns the time in seconds.
        watch: Guards each section, and closing an engine; None: nothing does.

    Raises:
        DeviceLost: The device does not respond any more; the section that lost it has its error.
    """
    began_s = clock()
    guard = watch or nullcontext
    with GpuBench(plan) as bench:
        for section in sections(plan):
            left_s = plan.budget_s - (clock() - began_s)
            reason = bench.reason_to_skip(section, left_s)
            if reason is not None:
                results.add(section.name, {"skipped": reason})
                continue
            log.info("%s (%.0f s left)", section.name, left_s)
            results.begin(section.name)
            section_began_s = clock()
            try:
                with guard(bench.limit_s(section, left_s)):
                    figures = bench.measure(section)
            except Exception as error:  # the other sections must not be lost
                figures = {"error": _described(error)}
                log.warning("%s failed: %s", section.name, figures["error"])
            results.add(section.name, {**figures, "section_s": round(clock() - section_began_s, 1)})
            if "error" in figures:
                with guard(CLOSE_LIMIT_S):
                    bench.unload()
        with guard(CLOSE_LIMIT_S):
            bench.close()
    return results


def _described(error: BaseException) -> str:
    """Describe an error in a line; those of CUDA go on with advice."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def sections(plan: Plan) -> list[Section]:
    """Return all sections, those that matter most on a rented machine first, and those of one engine together."""
    served = plan.options
    cuda = {"needs_cuda": True}
    not_v1 = {"excludes_v1": True}
    variants = _variant_sections(plan)
    compiled, short = ([each for each in variants if (each.expected_s > BUDGET_S) is slow] for slow in (True, False))
    everything = [
        Section("machine", GpuBench.machine, 0.0),
        Section("start", GpuBench.start, 5.0, engines=1),
        Section("first_audio", GpuBench.first_audio, 5.0 + 0.1 * plan.texts, served),
        Section("speed", GpuBench.speed, 0.3 * plan.speed_seconds, served),
        Section("replays", GpuBench.replays, 20.0, served, **cuda),
        Section("stages", GpuBench.stages, 30.0, served, max(plan.stage_batches), **not_v1),
        Section("attention", GpuBench.attention, 20.0, served, **not_v1),
        Section("convolutions", GpuBench.convolutions, 10.0, served, **not_v1),
        Section("growth", GpuBench.growth, 10.0 + 0.4 * plan.growth_seconds, _growth_options(plan)),
        Section("cancels", GpuBench.cancels, 5.0 + 0.03 * plan.cancels, served),
        *_load_sections(plan),
        # PyTorch's profiler stays attached to the driver until the process ends, and slows what follows.
        Section("profile", GpuBench.profile, 20.0, takes_any=True),
        *short,
        Section("other_family", GpuBench.other_family, 45.0, engines=1),
        *compiled[:1],
        Section("correct", GpuBench.correct, 60.0, engines=4),
        *compiled[1:],
    ]
    return [section for section in everything if not plan.sections or section.name in plan.sections]


def _growth_options(plan: Plan) -> LoadOptions:
    """Return the engine as served if ``speed_seconds`` of speech without a sentence end fit into a segment."""
    needed_s = int(plan.speed_seconds) + 8
    if needed_s <= plan.options.max_segment_s:
        return plan.options
    return replace(plan.options, max_segment_s=needed_s)


def _load_sections(plan: Plan) -> list[Section]:
    """Return a section for each load, and one for each setting of the scheduler under the first of them.

    One engine has slots for all of them.
    """
    if not plan.loads:
        return []
    served = plan.options
    most = max(slots_for(calls) for calls in plan.loads)
    around_s = sum(plan.call_s) / 2 + plan.call_s[1] + 3.0  # until as many calls are live, and until all have ended
    loads = [
        Section(f"load_{calls}", _load_of(calls, plan.load_seconds), plan.load_seconds + around_s, served, most)
        for calls in plan.loads
    ]
    seconds = plan.load_seconds * LOAD_VARIANT_SHARE
    settings: dict[str, Figures] = {"as_served": {}, **_SCHEDULER_VARIANTS, "render_batch_4": {"render_batch": 4}}
    variants = [
        Section(f"variant_load_{name}", _load_of(plan.loads[0], seconds, changes), seconds + around_s, served, most)
        for name, changes in settings.items()
    ]
    return [*loads, *variants]


_SCHEDULER_VARIANTS: dict[str, Figures] = {
    "no_smooth_start": {"smooth_start": False},
    "first_chunk_by_host": {"first_chunk_on_device": False},
    "burst_4": {"burst_tokens": 4},
    "burst_16": {"burst_tokens": 16},
}
"""Settings that an engine can change without another warm-up."""


def _variant_sections(plan: Plan) -> list[Section]:
    """Return a section for each switch of the engine, with ``variant_as_served`` first to compare with.

    All of them are for one call at a time: an engine for a single call has a fifth of the graphs to capture.
    """
    alone = _alone(plan.options)
    cuda = {"needs_cuda": True}
    not_v1 = {"excludes_v1": True}
    expected_s = 8.0 + 0.15 * plan.speed_seconds
    switches: dict[str, tuple[Figures, dict[str, bool]]] = {
        "compiled": ({"kernels": False, "compile": "on"}, cuda),
        "no_kernels": ({"kernels": False, "compile": "off"}, cuda | not_v1),
        "gather": ({"gathers": True}, cuda | not_v1),
        "no_graphs": ({"graphs": False}, cuda),
        "flashinfer": ({"library": flashinfer_library}, cuda | not_v1),
        "stride_2": ({"stride_chunks": 2}, not_v1),
        "kernels_compiled": ({"compile": "on"}, cuda | not_v1),
        "float32": ({"half": False}, {}),
    }
    scheduler = {"as_served": {}, **_SCHEDULER_VARIANTS}
    return [
        *(
            Section(f"variant_{name}", _variant_of({}, changes), expected_s, alone)
            for name, changes in scheduler.items()
        ),
        *(
            # Compiling takes minutes, but no longer than that.
            Section(
                f"variant_{name}",
                _variant_of(changes, {}),
                expected_s + (BUDGET_S if changes.get("compile") == "on" else 0.0),
                replace(alone, **changes),
                **needs,
            )
            for name, (changes, needs) in switches.items()
        ),
    ]


def _alone(options: LoadOptions) -> LoadOptions:
    """Return options for one call at a time."""
    return replace(options, max_utterances=2, decode_batch=1, render_batch=1)


def _variant_of(options: Figures, settings: Figures) -> Callable[[GpuBench], Figures]:
    return lambda bench: bench.variant(options, settings)


def _load_of(calls: int, seconds: float, settings: Figures | None = None) -> Callable[[GpuBench], Figures]:
    return lambda bench: bench.load(calls, seconds, settings or {})


class GpuBench:
    """The engine under measurement. It is loaded by the first section that needs it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._device = resolve_device(plan.options.device)
        self._config = Bundle.open(plan.options.bundle).config
        self._bench: Bench | None = None
        self._options: LoadOptions | None = None  # of the engine
        self.networks: tuple[tuple[Any, ...], Networks] | None = None  # of the last engine
        self.engine_s = {False: ENGINE_S, True: ENGINE_S}  # what building one took, by whether it shared weights
        self.last_engine_s = 0.0
        self._temporary: list[Path] = []

    def __enter__(self) -> GpuBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for path in self._temporary:
            shutil.rmtree(path, ignore_errors=True)

    def reason_to_skip(self, section: Section, left_s: float) -> str | None:
        """Return why ``section`` cannot run now, or None."""
        if section.needs_cuda and not self.on_cuda:
            return "needs a CUDA device"
        if section.excludes_v1 and self._config.family == V1:
            return "CosyVoice-300M renders overlapping parts, and has no fused kernels"
        needed_s = self.expected_s(section)
        if left_s < needed_s:
            return f"{max(0.0, left_s):.0f} s of the time budget are left, about {needed_s:.0f} s are needed"
        return None

    @property
    def on_cuda(self) -> bool:
        return self._device.type == "cuda"

    def expected_s(self, section: Section) -> float:
        """Return what ``section`` is expected to take, with the engines that must be built for it."""
        expected_s = section.expected_s + section.engines * self.engine_s[False]
        options = self.options_of(section)
        if section.takes_any and self._bench is None:
            options = self._plan.options
        if options is not None and options != self._options:
            expected_s += self.engine_s[self._has_weights_of(options)]
        return expected_s

    def options_of(self, section: Section) -> LoadOptions | None:
        """Return the engine that ``section`` needs, as served unless it takes too few utterances."""
        options = section.options
        if options is None or section.utterances <= self._utterances_of(options):
            return options
        return replace(options, max_utterances=section.utterances, decode_batch=section.utterances)

    def _utterances_of(self, options: LoadOptions) -> int:
        """Return how many utterances an engine takes."""
        if options.max_utterances is not None:
            return options.max_utterances
        if not self.on_cuda:
            return CPU_UTTERANCES
        memory_bytes = options.memory_share * torch.cuda.get_device_properties(self._device).total_memory
        return cuda_utterances(self._config, torch.float32 if options.half is False else torch.bfloat16, memory_bytes)

    @staticmethod
    def weights_of(options: LoadOptions) -> tuple[Any, ...]:
        """Return what engines with the same weights have in common."""
        return options.bundle, options.rl, options.device, options.half, options.backend

    def _has_weights_of(self, options: LoadOptions) -> bool:
        return self.networks is not None and self.networks[0] == self.weights_of(options)

    def limit_s(self, section: Section, left_s: float) -> float:
        """Return after what time ``section`` hangs for sure, or exceeds the budget by a minute.

        The speed of a CPU is unknown.
        """
        return min(3 * self.expected_s(section), left_s) + 60 if self.on_cuda else math.inf

    def measure(self, section: Section) -> Figures:
        """Run ``section`` with the engine that it needs, and add what building it took."""
        figures: Figures = {}
        options = self.options_of(section)
        if options is not None and options != self._options:
            self.load_engine(options)
            figures["engine_s"] = round(self.last_engine_s, 1)
        return {**section.run(self), **figures}

    # -- the engine ---------------------------------------------------------------------------------------------------

    @property
    def bench(self) -> Bench:
        """The loaded engine; loads the default one first if necessary."""
        return self._bench or self.load_engine(self._plan.options)

    def load_engine(self, options: LoadOptions) -> Bench:
        """Load and warm up an engine in place of the present one."""
        self.unload()
        began_s = perf_counter()
        if not self._has_weights_of(options):
            self.networks = None
        loaded = None if self.networks is None else self.networks[1]
        self._bench = Bench(options, PROMPT_TOKENS, loaded)
        self._options = options
        self.networks = self.weights_of(options), self._bench.engine.components.networks
        gc.collect()
        gc.freeze()  # as a server does when it has started: a full collection takes longer than most steps
        self.last_engine_s = perf_counter() - began_s
        if options.compile != CompileMode.ON.value:  # sections that compile expect that time themselves
            self.engine_s[loaded is not None] = self.last_engine_s
        if loaded is None:  # the next one has the weights, and the kernels are compiled
            self.engine_s[True] = min(self.engine_s[True], self._bench.warm_up_s)
        return self._bench

    def close(self) -> None:
        """Close the engine, after its work on the device."""
        if self._bench is not None:
            self._bench.engine.close()
        self._bench = None
        self._options = None
        gc.unfreeze()  # it refers to itself

    def unload(self) -> None:
        """Close the engine and free its memory.

        Raises:
            DeviceLost: The device does not respond any more.
        """
        self.close()
        kernels.forget_faults()  # what fails in float32 may serve in bfloat16
        gc.collect()
        if self.on_cuda:
            try:
                torch.cuda.synchronize(self._device)
                torch.cuda.empty_cache()
            except RuntimeError as error:
                raise DeviceLost(f"the device was lost: {_described(error)}") from None

    # -- sections -----------------------------------------------------------------------------------------------------

    def machine(self) -> Figures:
        """Describe hardware, driver and packages."""
        return describe_machine(self._device)

    def start(self) -> Figures:
        """Load and warm up the engine; list what was captured."""
        bench = self.load_engine(self._plan.options)
        figures: Figures = {**bench.describe(), "load_and_warm_up_s": round(self.last_engine_s, 1)}
        if self.on_cuda:
            figures["allocated_gb"] = round(torch.cuda.memory_allocated(self._device) / 1e9, 2)
            figures["reserved_gb"] = round(torch.cuda.memory_reserved(self._device) / 1e9, 2)
        figures["pages"] = bench.engine.settings.pages
        figures["parts_s"] = {part: round(s, 2) for part, s in bench.engine.components.start_s.items()}
        figures["computations"] = computations_of(bench.engine)
        return {**figures, **fallbacks_of(bench.engine)}

    def first_audio(self) -> Figures:
        """Measure the first-audio latency of one call at a time, every text of another length."""
        bench = self.bench
        rng = random.Random(5)
        before = EngineCounts.of(bench.engine)
        firsts_ms = []
        slowest: list[tuple[float, int, int]] = []
        for words in _text_lengths(self._plan.texts, rng):
            text = _words(words, rng)
            tokens = forced_tokens(int(rng.uniform(*SHORT_TURNS_S) * self._config.token_rate_hz), words)
            spoken = bench.speak(tokens, (Segment.whole(text),))
            firsts_ms.append(1000 * spoken.first_s)
            slowest.append((round(firsts_ms[-1], 2), words, len(tokens)))
        slowest.sort(reverse=True)
        return {
            "texts": len(firsts_ms),
            "p50_ms": _rounded(percentile(firsts_ms, 50)),
            "p95_ms": _rounded(percentile(firsts_ms, 95)),
            "p99_ms": _rounded(percentile(firsts_ms, 99)),
            "max_ms": _rounded(max(firsts_ms)),
            "min_ms": _rounded(min(firsts_ms)),
            "slowest": [{"ms": ms, "words": words, "tokens": count} for ms, words, count in slowest[:5]],
            **before.since(bench.engine),
        }

    def speed(self) -> Figures:
        """Measure the real-time factor and the time by stage."""
        return dict(self.bench.speed(self._plan.speed_seconds, 3))

    def stages(self) -> Figures:
        """Measure the stage times by batch; ``bench simulate --times`` reads them from the results."""
        plan = self._plan
        with self._other_tokens() as bench:
            return stage_times_as_json(measure_stage_times(bench, plan.stage_batches, 2, plan.stage_live))

    @contextmanager
    def _other_tokens(self) -> Iterator[Bench]:
        """The engine, for utterances with tokens that the block gives them."""
        bench = self.bench
        try:
            yield bench
        finally:
            bench.tokens_of = None

    def attention(self) -> Figures:
        """Measure everything that computes attention on this machine, alone: times and numbers."""
        parts = self.bench.engine.components
        lm = self._config.qwen
        weight = parts.networks.lm.llm_decoder.weight
        cache = weight.new_empty(1, 2, 0, lm.kv_heads, 0, lm.head_dim)
        sizes = Sizes() if self.on_cuda else Sizes(past_pages=(4,), contexts=(256,), repeats=3)
        flow = parts.networks.flow
        assert isinstance(flow, Flow)
        return measure_attention(flow, cache, lm.heads // lm.kv_heads, sizes)

    def convolutions(self) -> Figures:
        """Measure the convolutions that may be slow, alone: times and numbers."""
        return measure_convolutions(self.bench.engine.components.networks, 50 if self.on_cuda else 2)

    def replays(self) -> Figures:
        """Time every graph on the device as calls replay it: 1, 2, 4 ... of them that begin together.

        The work of a graph follows from the lengths and pages of its calls: alone, on the inputs that it was captured
        with, it would show less. Tokens and audio overlap as in service.
        """
        with self._other_tokens() as bench:
            engine = bench.engine
            runners = [runner for runner in engine.components.graph_runners if isinstance(runner, CapturingRunner)]
            bench.tokens_of = lambda key, run: forced_tokens(REPLAYED_TOKENS, key.generation).tolist()
            speak_together(engine, engine.step, 1)
            with ExitStack() as stack:
                timed = [stack.enter_context(runner.timing()) for runner in runners]
                for rows in reversed(captured_rows(engine.settings.max_utterances)):
                    speak_together(engine, engine.step, min(rows, engine.settings.max_utterances))
        replayed = {" ".join(map(str, key)): ms for times in timed for key, ms in times.items()}
        captured = {" ".join(map(str, key)) for runner in runners for key in runner.keys}
        return {
            "ms": {
                key: {
                    "replays": len(ms),
                    "min": round(min(ms), 4),
                    "p50": round(percentile(ms, 50) or 0.0, 4),
                    "max": round(max(ms), 4),
                }
                for key, ms in sorted(replayed.items())
            },
            "never_replayed": sorted(captured - set(replayed)),
        }

    def growth(self) -> Figures:
        """Measure how the cost of a second grows within a turn and within one sentence."""
        before = EngineCounts.of(self.bench.engine)
        return {
            **self.bench.growth(self._plan.growth_seconds, 2),
            **self.bench.unbroken(self._plan.speed_seconds, 2),
            **before.since(self.bench.engine),
        }

    def correct(self) -> Figures:
        """Compare scores, drawn ids and audio of the device with float32 on the CPU, with the same tokens."""
        alone = _alone(self._plan.options)
        reference = self._measure_outputs(replace(alone, device="cpu", half=False, graphs=False))
        figures: Figures = {}
        variants = {
            "float32": replace(alone, half=False, graphs=False),
            "float32_graphs": replace(alone, half=False),
            "bfloat16_graphs": replace(alone, half=True),
        }
        for name, options in variants.items():
            figures[name] = compare_outputs(reference, self._measure_outputs(options))
            figures[name]["degraded"] = list(self.bench.engine.info.degraded)
        return figures

    def _measure_outputs(self, options: LoadOptions) -> Outputs:
        bench = self.load_engine(options)
        engine = bench.engine
        audio = [bench.speak(forced_tokens(count, count)).pcm for count in self._plan.correct_tokens]
        return Outputs(
            [scores_after(engine, length) for length in SCORE_LENGTHS],
            draw_ids(engine, DRAWN_IDS),
            [np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768) for pcm in audio],
        )

    def profile(self) -> Figures:
        """List the kernels of one utterance by device time, and how many were launched."""
        bench = self.bench
        bench.speak(forced_tokens(100, 1))
        cuda = self.on_cuda
        activities = [torch.profiler.ProfilerActivity.CPU]
        if cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profiler:
            began_s = perf_counter()
            bench.speak(forced_tokens(100, 1))
            if cuda:
                torch.cuda.synchronize(self._device)
            wall_ms = 1000 * (perf_counter() - began_s)
        rows = kernel_times(profiler.key_averages(), self._device.type)
        return {
            "wall_ms": round(wall_ms, 1),
            "busy_share": round(sum(ms for ms, _, _ in rows) / wall_ms, 3),
            "launches": sum(count for _, count, _ in rows),
            "kernels": [
                {"name": name[:90], "calls": count, "ms": round(ms, 3)} for ms, count, name in rows[:PROFILE_ROWS]
            ],
        }

    def load(self, calls: int, seconds: float, settings: Figures) -> Figures:
        """Measure random arrivals with ``calls`` live calls on average, with other settings of the scheduler."""
        with self._other_settings(settings), self._other_tokens() as bench:
            engine = bench.engine
            before = EngineCounts.of(engine)
            tokens: dict[UtteranceKey, CallScript] = {}
            bench.tokens_of = lambda key, run: forced_tokens(tokens[key].tokens[run], run).tolist()
            figures = asyncio.run(
                measure_arrivals(
                    engine,
                    Arrivals(calls, seconds, self._plan.call_s, VOICE, self._config.token_rate_hz, seed=calls),
                    stages=lambda: stage_times_of(engine),
                    announce=tokens.__setitem__,
                )
            )
            return {
                **settings,
                **figures,
                "slots": engine.settings.max_utterances,
                "degraded": list(engine.info.degraded),
                **before.since(engine),
            }

    @contextmanager
    def _other_settings(self, changes: Figures) -> Iterator[None]:
        """Use an engine with other settings of the scheduler on the components of the one at hand."""
        bench = self.bench
        engine = bench.engine
        bench.engine = engine.with_settings(replace(engine.settings, **changes))
        try:
            yield
        finally:
            bench.engine = engine

    def cancels(self) -> Figures:
        """Measure memory after cancelled utterances."""
        return dict(self.bench.cancels(self._plan.cancels)) if self._plan.cancels else {}

    def variant(self, options: Figures, settings: Figures) -> Figures:
        """Measure first audio and speed with other ``options``, which the engine has, and ``settings``."""
        with self._other_settings(settings):
            bench = self.bench
            figures = {
                **options,
                **settings,
                **bench.first_audio(VARIANT_TEXTS),
                **bench.speed(self._plan.speed_seconds / 2, 2),
            }
            return figures | fallbacks_of(bench.engine)

    def other_family(self) -> Figures:
        """Measure start, first audio and speed of another model family with random weights of the same size."""
        bundle = Bundle.open(self._plan.options.bundle)
        family = V2 if bundle.config.family == V3 else V3
        path = Path(tempfile.mkdtemp(prefix="bench-gpu-"))
        self._temporary.append(path)
        write_random_bundle(path / family, family, bundle_size(bundle))
        bench = self.load_engine(replace(_alone(self._plan.options), bundle=path / family))
        figures = {**bench.describe(), **bench.first_audio(VARIANT_TEXTS), **bench.speed(self._plan.speed_seconds, 2)}
        return figures | fallbacks_of(bench.engine)


def bundle_size(bundle: Bundle) -> str:
    """Return the name of the random size with the width of ``bundle``."""
    hidden = bundle.config.lm.hidden_size
    return "tiny" if hidden < 128 else "mid" if hidden < 512 else "full"


# -- texts and profiles -----------------------------------------------------------------------------------------------


def _text_lengths(count: int, rng: random.Random) -> list[int]:
    """Return numbers of words from 3 to 60, evenly spread and shuffled."""
    lengths = [3 + n * 57 // max(1, count - 1) for n in range(count)]
    rng.shuffle(lengths)
    return lengths


def _words(count: int, rng: random.Random) -> str:
    words: list[str] = []
    while len(words) < count:
        words += rng.choice(SENTENCES).split()
    return " ".join(words[:count]).rstrip(".,;") + "."


def kernel_times(events: Iterable[FunctionEventAvg], device: str) -> list[tuple[float, int, str]]:
    """Return milliseconds, calls and name of what a profile recorded on ``device``, the longest first.

    On CUDA these are kernels and copies. Operators are left out: they repeat the time of the kernels that they launch.
    """
    rows = []
    for event in events:
        if event.device_type.name == device.upper() and not getattr(event, "is_user_annotation", False):
            total_us = event.self_cpu_time_total if device == "cpu" else event.self_device_time_total
            if total_us:
                rows.append((total_us / 1000, event.count, str(event.key)))
    return sorted(rows, reverse=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
