"""What a ``RemoteSession`` needs of a transport, and what it must be told. No code of any transport is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tts_worker.types import SAMPLE_RATE_HZ, SynthesisParams


class Link(Protocol):
    """The way to the worker for one session. Nothing here waits or raises: what cannot go out now goes out later, what
    never can is reported by ``RemoteSession.on_lost``. ``context`` names an utterance, unique on the connection."""

    def text(self, context: str, text: str) -> None: ...
    def flush(self) -> None: ...
    def end_text(self, context: str) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self, reason: str, played_samples: int) -> None: ...
    def played(self, samples: int) -> None: ...
    def configure(self, params: SynthesisParams) -> None: ...

    def settled(self, *, healthy: bool) -> None:
        """The session is closed and the worker has answered everything: the connection may serve another one, unless
        it is not ``healthy``."""
        ...


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """``audio_timeout_s``, ``read_ahead_s``: see ``ClientSettings``. ``context_prefix`` makes contexts unique on the
    connection."""

    session: str
    context_prefix: str
    params: SynthesisParams
    audio_timeout_s: float
    read_ahead_s: float
    sample_rate_hz: int = SAMPLE_RATE_HZ
