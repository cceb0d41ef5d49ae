"""The table of the features, and which of them this installation has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

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
    "languages": (),
    "formulas": (),
}
"""The features, in the order in which they add to the worker and its server, and their sections of the settings."""


def present() -> Iterator[str]:
    """Yield the names of the features that this installation has."""
    yield from _specs()


def modules(name: str) -> Iterator[ModuleType]:
    """Import the module ``name`` of each feature that has one."""
    for feature, spec in _specs().items():
        module = f"tts_worker.features.{feature}.{name}"
        if PathFinder.find_spec(module, spec.submodule_search_locations) is not None:
            yield import_module(module)


def _specs() -> dict[str, ModuleSpec]:
    """Return where the features are, without importing them."""
    specs: dict[str, ModuleSpec] = {}
    with suppress(ModuleNotFoundError):  # the folder of all features
        for name in SECTIONS:
            spec = find_spec(f"tts_worker.features.{name}")
            if spec is not None and spec.origin is not None:  # not a deleted folder whose byte code is left
                specs[name] = spec
    return specs
