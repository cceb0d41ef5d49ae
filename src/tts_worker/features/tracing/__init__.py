"""Export of OpenTelemetry traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Extra, Feature

if TYPE_CHECKING:
    from tts_worker.session.record import UtteranceExporter
    from tts_worker.settings import Settings


def _open_traces(settings: Settings) -> UtteranceExporter | None:
    from tts_worker.features.tracing.settings import TracingSettings

    section = settings.section(TracingSettings)
    if section.endpoint is None:
        return None
    from tts_worker.features.tracing.traces import open_traces

    return open_traces(section.endpoint, section.sample_ratio)


FEATURE = Feature(
    docs="tracing.md",
    exporter=_open_traces,
    extras={"otel": Extra(("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"), "OpenTelemetry traces")},
)
