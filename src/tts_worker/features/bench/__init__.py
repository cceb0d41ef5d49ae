"""What users measure on their own machine."""

from __future__ import annotations

from tts_worker.feature import Command, Feature

FEATURE = Feature(
    docs="benchmarks.md",
    commands={
        "bench latency": Command(
            "measure the first-audio latency", "tts_worker.features.bench.command", ("bench latency --engine cpu",)
        )
    },
)
