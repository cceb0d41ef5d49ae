"""Export of OpenTelemetry traces."""

from __future__ import annotations

from tts_worker.feature import Extra, Feature

FEATURE = Feature(
    docs="tracing.md",
    extras={"otel": Extra(("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"), "OpenTelemetry traces")},
)
