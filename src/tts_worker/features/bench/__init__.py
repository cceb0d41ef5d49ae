"""What users measure on their own machine."""

from __future__ import annotations

from tts_worker.feature import Command, Feature

FEATURE = Feature(
    docs="capacity.md",
    commands={
        "bench latency": Command(
            "measure the first-audio latency", "tts_worker.features.bench.command", ("bench latency --engine cpu",)
        ),
        "bench capacity": Command(
            "find how many requests and calls this machine holds, what to set and what speech costs",
            "tts_worker.features.bench.capacity_command",
            (
                "bench capacity --engine cpu --json capacity.json --picture capacity.svg",
                "bench capacity --url http://127.0.0.1:8080 --bound 200 --price-per-hour 0.25",
            ),
        ),
    },
)
