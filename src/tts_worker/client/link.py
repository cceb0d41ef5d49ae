"""Interface between ``RemoteSession`` and a transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tts_worker.types import SAMPLE_RATE_HZ, SynthesisParams


class Link(Protocol):
    """Sends the commands of one session to the worker.

    No method blocks or raises: messages are queued, and a lost connection is reported by ``RemoteSession.on_lost``.
    ``context`` identifies an utterance and is unique on the connection.
    """

    def text(self, context: str, text: str) -> None: ...
    def flush(self) -> None: ...
    def end_text(self, context: str) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self, reason: str, played_samples: int) -> None: ...
    def played(self, samples: int) -> None: ...
    def configure(self, params: SynthesisParams) -> None: ...

    def release(self, *, healthy: bool) -> None:
        """End the use of the link: the session is closed and all its commands are answered.

        Args:
            healthy: Whether the connection may serve another session.
        """
        ...


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """Parameters of a remote session.

    Attributes:
        session: Session ID.
        context_prefix: Makes context IDs unique on the connection.
        params: Voice parameters known to the worker.
        audio_timeout_s: See ``ClientSettings``.
        read_ahead_s: See ``ClientSettings``.
        sample_rate_hz: Sample rate of the worker's audio.
    """

    session: str
    context_prefix: str
    params: SynthesisParams
    audio_timeout_s: float
    read_ahead_s: float
    sample_rate_hz: int = SAMPLE_RATE_HZ
