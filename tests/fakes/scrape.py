"""Parsing of the metrics endpoint."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def scraped(text: str | bytes, name: str, **labels: str) -> float:
    """The sum of the samples of a metric with these labels; 0 if there are none."""
    text = text.decode() if isinstance(text, bytes) else text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
