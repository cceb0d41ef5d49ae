"""OpenTelemetry traces: one span per utterance, with children for its parts.

Spans are built from the record of an utterance when it has ended, so that they do not delay its audio, and a worker
that exports no traces does no work for them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from tts_worker.errors import MissingExtra
from tts_worker.session.record import UtteranceTimeline
from tts_worker.types import TRACEPARENT, Ended, Outcome
from tts_worker.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

SPAN = "tts.utterance"
EXIT_TIMEOUT_S = 3.0
"""How long the end of the worker waits for the collector."""

log = logging.getLogger(__name__)


class UtteranceTraces:
    """Exports ended utterances as spans.

    Args:
        provider: Samples the spans and passes them to the exporter.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self.tracer = provider.get_tracer("tts_worker", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, record: UtteranceTimeline, event: Ended, now_s: float) -> None:
        """Export one utterance, if its trace is sampled.

        Args:
            record: What happened to it.
            event: Its terminal event.
            now_s: The time of that, on the clock of the record.
        """
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        offset_s = time.time() - now_s  # from the clock of the event loop to wall time
        parent = self._propagator.extract({TRACEPARENT: record.traceparent}) if record.traceparent else None
        span = self.tracer.start_span(
            SPAN, context=parent, kind=SpanKind.SERVER, start_time=_nanoseconds(record.text_at_s + offset_s)
        )
        if not span.is_recording():
            return
        _describe(span, record, event)
        if event.outcome is Outcome.ERROR:
            span.set_status(StatusCode.ERROR, event.error.code.value if event.error is not None else None)
        context = set_span_in_context(span)
        for name, start_s, end_s in _parts(record, now_s):
            part = self.tracer.start_span(name, context=context, start_time=_nanoseconds(start_s + offset_s))
            part.end(_nanoseconds(end_s + offset_s))
        span.end(_nanoseconds(now_s + offset_s))

    def close(self) -> None:
        """Export what is left, within ``EXIT_TIMEOUT_S``. Blocks: call it on a thread."""
        # OpenTelemetry ignores the timeout of force_flush(), and its exporter waits and retries for 10 s.
        export = threading.Thread(target=self._provider.shutdown, name="last-traces", daemon=True)
        export.start()
        export.join(EXIT_TIMEOUT_S)
        if export.is_alive():
            log.warning("the last traces are lost: the collector does not answer")


def open_traces(endpoint: str, sample_ratio: float, exporter: SpanExporter | None = None) -> UtteranceTraces:
    """Return what exports traces.

    Args:
        endpoint: URL of the collector.
        sample_ratio: Part of the traces that begin here and are exported.
        exporter: Receives the spans instead of the endpoint.

    Raises:
        MissingExtra: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ModuleNotFoundError:
        raise MissingExtra("the export of traces", "otel") from None
    service = os.environ.get("OTEL_SERVICE_NAME") or "tts-worker"
    provider = TracerProvider(
        resource=Resource.create({"service.name": service, "service.version": __version__}),
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint)))
    return UtteranceTraces(provider)


def _describe(span: Span, record: UtteranceTimeline, event: Ended) -> None:
    attributes: dict[str, str | int | float] = {
        "tts.session": record.key.session,
        "tts.utterance": record.key.generation,
        "tts.request_id": record.request_id,
        "tts.transport": record.transport,
        "tts.engine": record.engine,
        "tts.voice": record.voice,
        "tts.outcome": event.outcome.value,
        "tts.reason": event.receipt.reason,
        "tts.samples": event.receipt.samples_sent,
        "tts.characters": record.text_chars,
    }
    if record.first_audio_ms is not None:
        attributes["tts.first_audio_ms"] = record.first_audio_ms
    span.set_attributes(attributes)


def _parts(record: UtteranceTimeline, now_s: float) -> list[tuple[str, float, float]]:
    """Return the parts of an utterance that took place: name, start and end in seconds."""
    parts = []
    begun_at_s = record.begun_at_s
    if record.posted_at_s is not None:
        parts.append(("queue", record.posted_at_s, now_s if begun_at_s is None else begun_at_s))
    if begun_at_s is not None and record.chunk_at_s is not None:
        prefill_ms = record.stages_ms[0][1] if record.stages_ms else 0.0
        prefilled_at_s = min(begun_at_s + prefill_ms / 1000, record.chunk_at_s)
        if record.stages_ms:
            parts.append(("prefill", begun_at_s, prefilled_at_s))
        parts.append(("first chunk", prefilled_at_s, record.chunk_at_s))
    if record.frame_at_s is not None:
        parts.append(("playout", record.frame_at_s, now_s))
    if record.stop_at_s is not None:
        parts.append(("stop", record.stop_at_s, now_s))
    return parts


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
