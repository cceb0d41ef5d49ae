"""Chooses what marks speech: the watermark, or a marker of the user's own that a package announces.

The entry point's name is what ``marking.marker`` says. Its value is a callable that takes the keyword argument
``deployment_id`` and returns what builds the marker of an utterance (``audio.output.Marker``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from tts_worker.audio.output import Marker
from tts_worker.errors import ConfigError
from tts_worker.features.marking.settings import OFF, WATERMARK, MarkingSettings
from tts_worker.features.marking.watermark import Watermark, watermark_gains
from tts_worker.types import BYTES_PER_SAMPLE, SAMPLE_RATE_HZ

log = logging.getLogger(__name__)

GROUP = "tts_worker.markers"
_MOST_HELD_SAMPLES = SAMPLE_RATE_HZ // 50


def make_marker(settings: MarkingSettings) -> Callable[[], Marker] | None:
    """Return what builds the marker of an utterance; None if none is marked. Raises ConfigError."""
    if settings.marker == OFF:
        return None
    if settings.marker == WATERMARK:
        return partial(Watermark, watermark_gains(settings.deployment_id))
    points = {point.name: point for point in entry_points(group=GROUP)}
    if settings.marker not in points:
        known = ", ".join((OFF, WATERMARK, *sorted(points)))
        raise ConfigError(f"marking.marker: there is no marker {settings.marker!r}; known: {known}")
    try:
        make: Callable[[], Marker] = points[settings.marker].load()(deployment_id=settings.deployment_id)
        problem = _find_problem(make)
    except Exception as error:
        problem = f"it fails: {type(error).__name__}: {error}"
    if problem:
        raise ConfigError(f"marking.marker: {settings.marker!r} cannot be used: {problem}")
    return lambda: _GuardedMarker(make())


def _find_problem(make: Callable[[], Marker]) -> str:
    """Try a marker on a second of noise; return what is wrong with it, or an empty text."""
    noise = np.random.default_rng(0).normal(0, 3_000, SAMPLE_RATE_HZ)
    pcm = np.clip(noise, -30_000, 30_000).astype("<i2").tobytes()
    whole = make()
    at_once = whole.process(pcm) + whole.flush()
    if len(at_once) != len(pcm):
        return f"it makes {len(at_once)} bytes of {len(pcm)}"
    divided = make()
    parts, received = [], 0
    for at in range(0, len(pcm), 1_234):
        part = pcm[at : at + 1_234]
        received += len(part)
        parts.append(divided.process(part))
        if received - sum(map(len, parts)) > _MOST_HELD_SAMPLES * BYTES_PER_SAMPLE:
            return "it holds back more than 20 ms"
    parts.append(divided.flush())
    return "" if b"".join(parts) == at_once else "its output depends on how the input is divided"


class _GuardedMarker:
    """Passes the audio on unmarked, and logs it, once a foreign marker raises: a call must not end for it."""

    def __init__(self, marker: Any) -> None:
        self._marker: Marker | None = marker
        self._held = b""  # what the marker has not returned yet, unmarked

    def process(self, pcm: bytes) -> bytes:
        return self._call(lambda marker: marker.process(pcm), pcm)

    def flush(self) -> bytes:
        return self._call(lambda marker: marker.flush(), b"", is_last=True)

    def _call(self, call: Callable[[Marker], bytes], pcm: bytes, *, is_last: bool = False) -> bytes:
        self._held += pcm
        if self._marker is not None:
            try:
                out = call(self._marker)
                if (
                    len(out) > len(self._held)
                    or len(out) % BYTES_PER_SAMPLE
                    or (is_last and len(out) < len(self._held))
                ):
                    raise ValueError(f"it returned {len(out)} bytes, not up to {len(self._held)}")
                self._held = self._held[len(out) :]
                return out
            except Exception as error:
                log.error("a marker failed, and the utterance goes on unmarked: %s: %s", type(error).__name__, error)
                self._marker = None
        out, self._held = self._held, b""
        return out
