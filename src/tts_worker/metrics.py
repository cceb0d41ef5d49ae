"""Prometheus metrics of a worker, listed in ``docs/metrics.md``. They never contain user text.

Counters that other parts keep (open sessions, engine steps) are read at scrape time. Label cardinality is bounded:
transports and engines are fixed sets; voices beyond ``MAX_VOICES`` and enrolled voices share one value each.
"""

from __future__ import annotations

import asyncio
import platform
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tts_worker.gpus import GpuMonitor
from tts_worker.types import ComputationCounts, ControlName, Ended
from tts_worker.version import __version__

_FAST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_AUDIO_S = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_LEAD_S = (0.0, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0, 5.0)
_LAG_INTERVAL_S = 0.1

_SESSION_LABELS = ("transport", "engine", "voice")
MAX_VOICES = 64
"""Number of voices with a separate label value."""
WITHOUT_LISTENER = "batch"
"""Transport whose audio is not played while it is generated, so that no buffer of a listener runs empty."""
ENROLLED_PREFIX = "prompt-"
"""Prefix of the names of enrolled voices."""


class EngineCounts(Protocol):
    """Counters of an engine (``engine.handle.EngineStats``)."""

    @property
    def steps(self) -> int: ...
    @property
    def busy_s(self) -> float: ...
    @property
    def slowest_step_s(self) -> float: ...
    @property
    def audio_s(self) -> float: ...
    @property
    def faults(self) -> int: ...
    @property
    def stale_events(self) -> int: ...
    @property
    def slowest_step_cause(self) -> str: ...
    @property
    def computations(self) -> Sequence[ComputationCounts]: ...
    @property
    def degraded(self) -> Sequence[str]: ...
    @property
    def stages_s(self) -> Sequence[tuple[str, float]]: ...
    @property
    def process_cpu_s(self) -> float: ...
    @property
    def process_memory_bytes(self) -> int: ...


class _GpuCollector(Collector):
    """Exports the last readings of the GPUs that engines use."""

    def __init__(self, monitor: GpuMonitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterator[Metric]:
        labels = ["gpu"]
        used = GaugeMetricFamily("tts_gpu_memory_used_bytes", "Memory in use, of all processes.", labels=labels)
        total = GaugeMetricFamily("tts_gpu_memory_total_bytes", "Memory of the GPU.", labels=labels)
        busy = GaugeMetricFamily(
            "tts_gpu_utilization_ratio", "Share of time in which a kernel ran, of all processes.", labels=labels
        )
        for uuid, state in self._monitor.states.items():
            used.add_metric([uuid], state.memory_used_bytes)
            total.add_metric([uuid], state.memory_total_bytes)
            if state.utilization is not None:
                busy.add_metric([uuid], state.utilization)
        yield from (used, total, busy)


class _FrameBuckets:
    """A histogram that is cheap to fill: it is filled for every frame, and turned into samples at a scrape."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative buckets by upper bound, and the sum."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True)), self._sum


class FrameTimes:
    """How the paced frames of one transport and engine were timed."""

    __slots__ = ("jitter", "lead")

    def __init__(self) -> None:
        self.jitter = _FrameBuckets(_FAST_S)
        self.lead = _FrameBuckets(_LEAD_S)


class _FrameCollector(Collector):
    """Exports the timing of frames. Voices are no label of it: sessions of all voices are paced alike."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, str], FrameTimes] = {}

    def collect(self) -> Iterator[Metric]:
        labels = ["transport", "engine"]
        jitter = HistogramMetricFamily(
            "tts_frame_jitter_seconds", "How late a paced frame is sent after it is due.", labels=labels
        )
        lead = HistogramMetricFamily(
            "tts_playout_lead_seconds",
            "Audio that the client has left to play when a paced frame is sent.",
            labels=labels,
        )
        for key, times in self.times.items():
            jitter.add_metric(key, *times.jitter.samples())
            lead.add_metric(key, *times.lead.samples())
        yield from (jitter, lead)


class _EngineCollector(Collector):
    """Reads the counters of the loaded engines at every scrape."""

    def __init__(self) -> None:
        self.engines: dict[str, EngineCounts] = {}

    def collect(self) -> Iterator[Metric]:
        labels = ["engine"]
        steps = CounterMetricFamily("tts_engine_steps", "Engine steps.", labels=labels)
        busy = CounterMetricFamily("tts_engine_busy_seconds", "Time spent in engine steps.", labels=labels)
        slowest = GaugeMetricFamily(
            "tts_engine_slowest_step_seconds",
            "Longest engine step since the engine was loaded.",
            labels=[*labels, "cause"],
        )
        audio = CounterMetricFamily("tts_engine_audio_seconds", "Audio generated.", labels=labels)
        faults = CounterMetricFamily("tts_engine_faults", "Engine faults.", labels=labels)
        stale = CounterMetricFamily("tts_engine_stale_events", "Dropped events of ended utterances.", labels=labels)
        rtf = GaugeMetricFamily(
            "tts_engine_rtf", "Engine time per second of audio since the engine was loaded.", labels=labels
        )
        degraded = GaugeMetricFamily("tts_engine_degraded", "Whether the engine is degraded.", labels=labels)
        computations = CounterMetricFamily(
            "tts_engine_computations",
            "Computations of the engine, by whether a CUDA graph was replayed.",
            labels=[*labels, "computation", "mode"],
        )
        graphs = GaugeMetricFamily(
            "tts_engine_graphs",
            "CUDA graphs of the engine, by whether the capture succeeded.",
            labels=[*labels, "computation", "state"],
        )
        stages = CounterMetricFamily(
            "tts_engine_stage_seconds", "Time in a stage of the engine.", labels=[*labels, "stage"]
        )
        cpu = CounterMetricFamily(
            "tts_engine_process_cpu_seconds", "Processor time of the engine's own process.", labels=labels
        )
        memory = GaugeMetricFamily(
            "tts_engine_process_memory_bytes", "Resident memory of the engine's own process.", labels=labels
        )
        for name, counts in self.engines.items():
            if counts.process_memory_bytes:
                cpu.add_metric([name], counts.process_cpu_s)
                memory.add_metric([name], counts.process_memory_bytes)
            for stage, seconds in counts.stages_s:
                stages.add_metric([name, stage], seconds)
            steps.add_metric([name], counts.steps)
            busy.add_metric([name], counts.busy_s)
            slowest.add_metric([name, counts.slowest_step_cause], counts.slowest_step_s)
            audio.add_metric([name], counts.audio_s)
            faults.add_metric([name], counts.faults)
            stale.add_metric([name], counts.stale_events)
            rtf.add_metric([name], counts.busy_s / counts.audio_s if counts.audio_s else 0.0)
            degraded.add_metric([name], bool(counts.degraded))
            for each in counts.computations:
                computations.add_metric([name, each.name, "graph"], each.replays)
                computations.add_metric([name, each.name, "eager"], each.eager_calls)
                graphs.add_metric([name, each.name, "captured"], each.captured)
                graphs.add_metric([name, each.name, "refused"], each.refused)
        yield from (steps, busy, slowest, audio, faults, stale, rtf, degraded, computations, graphs)
        yield from (stages, cpu, memory)


class SlotCounts(Protocol):
    """The part of ``session.slots.SlotTable`` that is exported."""

    @property
    def slots(self) -> int: ...
    @property
    def max_open(self) -> int: ...


class HubCounts(Protocol):
    """The part of ``session.hub.SessionHub`` that is exported."""

    @property
    def slots(self) -> SlotCounts: ...
    @property
    def live_sessions(self) -> int: ...
    @property
    def speaking_sessions(self) -> int: ...
    @property
    def free_slots(self) -> int: ...
    @property
    def buffered_s(self) -> float: ...
    @property
    def ready(self) -> bool: ...


class Metrics:
    """The metrics of a worker, in a separate registry."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        # The "process_" and "python_gc_" metrics.
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        Info("tts_build", "Version of the worker.", registry=registry).info(
            {"version": __version__, "python": platform.python_version()}
        )
        self._voices: set[str] = set()
        self._frames = _FrameCollector()
        registry.register(self._frames)
        self._engines = _EngineCollector()
        registry.register(self._engines)
        self.gpus = GpuMonitor()
        registry.register(_GpuCollector(self.gpus))
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.first_audio_s = histogram(
            "tts_first_audio_seconds",
            "From the first speakable text of an utterance until its first frame is sent.",
            _SESSION_LABELS,
            buckets=_AUDIO_S,
        )
        self.converted_s = histogram(
            "tts_conversion_first_audio_seconds",
            "From the first window of source audio of a conversion until its first converted frame is sent.",
            _SESSION_LABELS,
            buckets=_AUDIO_S,
        )
        self.source_s = counter("tts_source_audio_seconds_total", "Source audio of conversions.", _SESSION_LABELS)
        self.queue_wait_s = histogram(
            "tts_queue_wait_seconds",
            "From the first speakable text of an utterance until the engine starts with it.",
            _SESSION_LABELS,
            buckets=_AUDIO_S,
        )
        self.underruns = counter("tts_underruns_total", "Times that a client's buffer ran empty.", _SESSION_LABELS)
        self.underrun_s = counter("tts_underrun_seconds_total", "Duration of those underruns.", _SESSION_LABELS)
        self.control_s = histogram(
            "tts_control_seconds",
            "From a control command until its acknowledgement is sent; no stopped audio is sent after it.",
            ["command"],
            buckets=_FAST_S,
        )
        self.utterances = counter(
            "tts_utterances_total", "Utterances by outcome.", (*_SESSION_LABELS, "outcome", "code")
        )
        self.sent_s = counter("tts_audio_sent_seconds_total", "Audio sent to clients.", _SESSION_LABELS)
        self.wasted_s = counter("tts_audio_wasted_seconds_total", "Audio generated and never sent.", _SESSION_LABELS)
        self._refused = counter(
            "tts_refused_total", "Sessions and utterances refused, by error code.", ["transport", "code"]
        )
        self._connections = gauge("tts_connections", "TCP connections of the HTTP server, by state.", ["state"])
        self._grpc_connections = gauge(
            "tts_grpc_connections",
            "TCP connections of a gRPC port; those that wait have shown no valid key.",
            ["port", "state"],
        )
        self._closed_connections = counter(
            "tts_connections_closed_total",
            "TCP connections that the worker closed because of a limit, by reason.",
            ["reason"],
        )
        self._certificate_expiry = gauge(
            "tts_certificate_expiry_timestamp_seconds",
            "When the TLS certificate of a server expires, as a Unix time.",
            ["server"],
        )
        self._auth_failures = counter(
            "tts_auth_failures_total",
            "Requests refused for their API key, by transport and reason (missing, wrong, rate).",
            ["transport", "reason"],
        )
        self._sessions = gauge("tts_sessions", "Open sessions, idle ones included.")
        self._max_open = gauge("tts_max_open_sessions", "Sessions that may be open.")
        self._slots = gauge("tts_max_sessions", "Slots: sessions that may speak at the same time.")
        self._slots_used = gauge("tts_slots_used", "Slots that a new session cannot take.")
        self._speaking = gauge("tts_speaking_sessions", "Sessions that speak or are paused.")
        self._lead = gauge("tts_buffered_seconds", "Audio generated and not yet sent, all sessions.")
        self._ready = gauge("tts_ready", "1 if the worker accepts sessions.")
        self._loop_lag = histogram("tts_loop_lag_seconds", "How late the event loop runs its timers.", buckets=_FAST_S)
        self._resident = gauge("tts_model_resident", "1 if the model is in memory.", ["model"])
        self._load_s = histogram(
            "tts_model_load_seconds",
            "From the request for a model until it is warm.",
            ["model"],
            buckets=(0.1, 0.5, 1, 2, 5, 10, 20, 40, 80, 160),
        )
        self._load_failures = counter(
            "tts_model_load_failures_total", "Loads that failed, by error code.", ["model", "code"]
        )
        self._unloads = counter("tts_model_unloads_total", "Models unloaded, by reason.", ["model", "reason"])

    # -- sessions -----------------------------------------------------------------------------------------------------

    def session_observer(self, transport: str, engine: str, voice: str) -> SessionMetrics:
        """Create the observer of what one voice speaks in a session."""
        times = self._frames.times.setdefault((transport, engine), FrameTimes())
        return SessionMetrics(self, transport, engine, voice, times)

    def voice_label(self, voice: str) -> str:
        """Map a voice to a label value of bounded cardinality."""
        if voice.startswith(ENROLLED_PREFIX):
            return "enrolled"
        if voice not in self._voices and len(self._voices) >= MAX_VOICES:
            return "other"
        self._voices.add(voice)
        return voice

    # -- models.manager.ModelObserver ---------------------------------------------------------------------------------

    def model_loaded(self, name: str, seconds: float) -> None:
        self._resident.labels(name).set(1)
        self._load_s.labels(name).observe(seconds)

    def model_failed(self, name: str, code: str) -> None:
        self._load_failures.labels(name, code).inc()

    def model_unloaded(self, name: str, reason: str) -> None:
        self._resident.labels(name).set(0)
        self._unloads.labels(name, reason).inc()

    # -- server.keys --------------------------------------------------------------------------------------------------

    def auth_failure(self, transport: str, reason: str) -> None:
        self._auth_failures.labels(transport, reason).inc()

    # -- the hub ------------------------------------------------------------------------------------------------------

    def refused(self, code: str, transport: str) -> None:
        self._refused.labels(transport, code).inc()

    def watch_connections(self, active: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Read the number of connections at every scrape."""
        self._connections.labels("active").set_function(active)
        self._connections.labels("waiting").set_function(waiting)

    def watch_grpc(self, port: int, active: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Read the number of connections of a gRPC port at every scrape."""
        self._grpc_connections.labels(str(port), "active").set_function(active)
        self._grpc_connections.labels(str(port), "waiting").set_function(waiting)

    def watch_certificate(self, server: str, expiry_s: Callable[[], float]) -> None:
        """Read when the certificate of a server expires at every scrape."""
        self._certificate_expiry.labels(server).set_function(expiry_s)

    def connection_closed(self, reason: str) -> None:
        """Count a connection that was closed because of a limit."""
        self._closed_connections.labels(reason).inc()

    def watch_hub(self, hub: HubCounts) -> None:
        """Read the hub at every scrape."""
        self._sessions.set_function(lambda: hub.live_sessions)
        self._max_open.set_function(lambda: hub.slots.max_open)
        self._slots.set_function(lambda: hub.slots.slots)
        self._slots_used.set_function(lambda: hub.slots.slots - hub.free_slots)
        self._speaking.set_function(lambda: hub.speaking_sessions)
        self._lead.set_function(lambda: hub.buffered_s)
        self._ready.set_function(lambda: 1.0 if hub.ready else 0.0)

    def watch_engine(self, name: str, counts: EngineCounts) -> None:
        """Read the counters of an engine at every scrape, until ``forget_engine``."""
        self._engines.engines[name] = counts

    def forget_engine(self, name: str) -> None:
        """Drop the counters of an unloaded engine."""
        self._engines.engines.pop(name, None)

    async def measure_loop_lag(self) -> None:
        """Measure timer delay until cancelled; a STOP would be handled with the same delay."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            self._loop_lag.observe(max(0.0, loop.time() - due_s))

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)


@dataclass(frozen=True, slots=True)
class SessionMetrics:
    """Metrics of one session and voice with their labels (``session.record.SessionObserver``)."""

    _metrics: Metrics
    _transport: str
    _engine: str
    _voice: str
    _frames: FrameTimes

    @property
    def _labels(self) -> tuple[str, str, str]:
        return self._transport, self._engine, self._metrics.voice_label(self._voice)

    def first_audio(self, seconds: float) -> None:
        self._metrics.first_audio_s.labels(*self._labels).observe(seconds)

    def converted(self, seconds: float) -> None:
        self._metrics.converted_s.labels(*self._labels).observe(seconds)

    def source(self, seconds: float) -> None:
        self._metrics.source_s.labels(*self._labels).inc(seconds)

    def queue_wait(self, seconds: float) -> None:
        self._metrics.queue_wait_s.labels(*self._labels).observe(seconds)

    def frame(self, late_s: float, lead_s: float) -> None:
        self._frames.jitter.observe(late_s)
        self._frames.lead.observe(lead_s)

    def underrun(self, seconds: float) -> None:
        if self._transport == WITHOUT_LISTENER:
            return
        self._metrics.underruns.labels(*self._labels).inc()
        self._metrics.underrun_s.labels(*self._labels).inc(seconds)

    def control(self, command: ControlName, seconds: float) -> None:
        self._metrics.control_s.labels(command.value).observe(seconds)

    def ended(self, event: Ended, sample_rate_hz: int) -> None:
        labels = self._labels
        report = event.receipt
        code = event.error.code.value if event.error else ""
        self._metrics.utterances.labels(*labels, event.outcome.value, code).inc()
        self._metrics.sent_s.labels(*labels).inc(report.samples_sent / sample_rate_hz)
        wasted = report.samples_generated - report.samples_sent
        self._metrics.wasted_s.labels(*labels).inc(wasted / sample_rate_hz)
