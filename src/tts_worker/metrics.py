"""What an operator watches, as Prometheus metrics. Never the text that was spoken.

One ``Metrics`` per process, built in ``app.py`` with a registry of its own. It implements ``SessionObserver``; gauges
that somebody else counts (live sessions, engine steps) are read from their owner at scrape time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tts_worker.types import SAMPLE_RATE_HZ, ControlName, Ended

_FAST_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_AUDIO_S = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_LAG_INTERVAL_S = 0.1


class Metrics:
    """All metrics of a worker."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._first_audio = Histogram(
            "tts_first_audio_seconds",
            "From the first text of an utterance to its first frame leaving.",
            buckets=_AUDIO_S,
            registry=registry,
        )
        self._queue_wait = Histogram(
            "tts_queue_wait_seconds",
            "From an utterance's first speakable text to the engine beginning with it.",
            buckets=_AUDIO_S,
            registry=registry,
        )
        self._underruns = Counter("tts_underruns_total", "Holes that a listener heard.", registry=registry)
        self._underrun_s = Counter("tts_underrun_seconds_total", "Length of those holes.", registry=registry)
        self._control = Histogram(
            "tts_control_seconds",
            "From a control command to its acknowledgement leaving; no old sound leaves after it.",
            ["command"],
            buckets=_FAST_S,
            registry=registry,
        )
        self._utterances = Counter(
            "tts_utterances_total", "Utterances by how they ended.", ["outcome", "code"], registry=registry
        )
        self._sent_s = Counter("tts_audio_sent_seconds_total", "Sound that left the worker.", registry=registry)
        self._wasted_s = Counter(
            "tts_audio_wasted_seconds_total", "Sound that was generated and never sent.", registry=registry
        )
        self._refused = Counter("tts_refused_total", "Sessions refused, by error code.", ["code"], registry=registry)
        self._connections = Gauge(
            "tts_connections", "TCP connections of the HTTP server, by state.", ["state"], registry=registry
        )
        self._closed_connections = Counter(
            "tts_connections_closed_total",
            "TCP connections that the worker closed because of a limit, by reason.",
            ["reason"],
            registry=registry,
        )
        self._auth_failures = Counter(
            "tts_auth_failures_total",
            "Requests refused for their API key, by transport and reason (missing, wrong, rate).",
            ["transport", "reason"],
            registry=registry,
        )
        self._sessions = Gauge("tts_sessions", "Live sessions.", registry=registry)
        self._lead = Gauge("tts_buffered_seconds", "Sound generated and not yet sent, all sessions.", registry=registry)
        self._ready = Gauge("tts_ready", "1 if the worker takes sessions.", registry=registry)
        self._loop_lag = Histogram(
            "tts_loop_lag_seconds", "How late the event loop runs its timers.", buckets=_FAST_S, registry=registry
        )
        self._resident = Gauge("tts_model_resident", "1 if the model is in memory.", ["model"], registry=registry)
        self._load_s = Histogram(
            "tts_model_load_seconds",
            "From the wish for a model to its being warm.",
            ["model"],
            buckets=(0.1, 0.5, 1, 2, 5, 10, 20, 40, 80, 160),
            registry=registry,
        )
        self._load_failures = Counter(
            "tts_model_load_failures_total", "Loads that failed, by error code.", ["model", "code"], registry=registry
        )
        self._unloads = Counter(
            "tts_model_unloads_total", "Models given up, by reason.", ["model", "reason"], registry=registry
        )
        self._steps = Gauge("tts_engine_steps", "Engine steps so far.", ["engine"], registry=registry)
        self._busy = Gauge("tts_engine_busy_seconds", "Engine time spent so far.", ["engine"], registry=registry)
        self._faults = Gauge("tts_engine_faults", "Engine faults so far.", ["engine"], registry=registry)
        self._stale = Gauge(
            "tts_engine_stale_events", "Events of utterances that were over, dropped.", ["engine"], registry=registry
        )

    # -- SessionObserver ----------------------------------------------------------------------------------------------

    def first_audio(self, seconds: float) -> None:
        self._first_audio.observe(seconds)

    def queue_wait(self, seconds: float) -> None:
        self._queue_wait.observe(seconds)

    def underrun(self, seconds: float) -> None:
        self._underruns.inc()
        self._underrun_s.inc(seconds)

    def control(self, command: ControlName, seconds: float) -> None:
        self._control.labels(command.value).observe(seconds)

    def ended(self, event: Ended) -> None:
        receipt = event.receipt
        self._utterances.labels(event.outcome.value, event.error.code.value if event.error else "").inc()
        self._sent_s.inc(receipt.samples_sent / SAMPLE_RATE_HZ)
        self._wasted_s.inc((receipt.samples_generated - receipt.samples_sent) / SAMPLE_RATE_HZ)

    # -- models.manager.ModelObserver ---------------------------------------------------------------------------------

    def model_loaded(self, name: str, seconds: float) -> None:
        self._resident.labels(name).set(1)
        self._load_s.labels(name).observe(seconds)

    def model_failed(self, name: str, code: str) -> None:
        self._load_failures.labels(name, code).inc()

    def model_unloaded(self, name: str, reason: str) -> None:
        self._resident.labels(name).set(0)
        self._unloads.labels(name, reason).inc()

    # -- transports.keys ----------------------------------------------------------------------------------------------

    def auth_failure(self, transport: str, reason: str) -> None:
        self._auth_failures.labels(transport, reason).inc()

    # -- the hub ------------------------------------------------------------------------------------------------------

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def watch_connections(self, active: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Read these at every scrape."""
        self._connections.labels("active").set_function(active)
        self._connections.labels("waiting").set_function(waiting)

    def connection_closed(self, reason: str) -> None:
        """The worker closed a connection because of a limit."""
        self._closed_connections.labels(reason).inc()

    def watch_hub(
        self, sessions: Callable[[], float], buffered_s: Callable[[], float], ready: Callable[[], bool]
    ) -> None:
        """Read these at every scrape."""
        self._sessions.set_function(sessions)
        self._lead.set_function(buffered_s)
        self._ready.set_function(lambda: 1.0 if ready() else 0.0)

    def watch_engine(
        self,
        name: str,
        steps: Callable[[], float],
        busy_s: Callable[[], float],
        faults: Callable[[], float],
        stale: Callable[[], float],
    ) -> None:
        """Read these at every scrape."""
        self._steps.labels(name).set_function(steps)
        self._busy.labels(name).set_function(busy_s)
        self._faults.labels(name).set_function(faults)
        self._stale.labels(name).set_function(stale)

    async def measure_loop_lag(self) -> None:
        """Runs for ever: how late a timer fires is how late a STOP would be handled."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            self._loop_lag.observe(max(0.0, loop.time() - due_s))

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
