"""The table of the features, and which of them this installation has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "grpc": (),
    "compat": (),
    "conversion": (),
    "webrtc": ("webrtc",),
    "telephony": ("telephony",),
    "batch": ("batch",),
    "lexicons": ("lexicons",),
    "fleet": ("registry", "ray"),
    "tracing": ("tracing",),
    "marking": ("marking",),
    "page": (),
    "agent": (),
    "voicepack": (),
    "acceleration": (),
    "offline": (),
    "bench": (),
    "completion": (),
}
"""The features, in the order in which they add to the worker and its server, and their sections of the settings."""


def present() -> Iterator[str]:
    """Yield the names of the features that this installation has."""
    for name in SECTIONS:
        with suppress(ModuleNotFoundError):  # the folder of all features
            spec = find_spec(f"tts_worker.features.{name}")
            if spec is not None and spec.origin is not None:  # not a deleted folder whose byte code is left
                yield name
