"""Export of OpenTelemetry traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Extra, Feature

if TYPE_CHECKING:
    from tts_worker.session.record import UtteranceExporter
    from tts_worker.settings import Settings


def _open_traces(settings: Settings) -> UtteranceExporter | None:
    if (endpoint := settings.tracing.endpoint) is None:
        return None
    from tts_worker.features.tracing.traces import open_traces

    return open_traces(endpoint, settings.tracing.sample_ratio)


FEATURE = Feature(
    docs="tracing.md",
    exporter=_open_traces,
    extras={"otel": Extra(("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"), "OpenTelemetry traces")},
)
