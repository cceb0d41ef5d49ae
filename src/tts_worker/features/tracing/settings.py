"""The section ``tracing`` of the settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tts_worker.section import FeatureSection


class TracingSettings(FeatureSection):
    """Export of OpenTelemetry traces (extra "otel").

    Attributes:
        endpoint: URL that receives OTLP over HTTP, such as ``http://127.0.0.1:4318/v1/traces``; None exports nothing.
            The variable ``OTEL_EXPORTER_OTLP_HEADERS`` adds headers.
        sample_ratio: Share of the traces without a sampled parent that is exported; with a parent, its choice holds.
    """

    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s]+$")] | None = None
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0


SECTIONS = {"tracing": TracingSettings}
