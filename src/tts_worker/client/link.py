"""Interface between ``RemoteSession`` and a transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tts_worker.errors import ErrorCode, ErrorInfo, RemoteError
from tts_worker.protocol.messages import ClientMessage, ReadyMessage, WorkerMessage
from tts_worker.types import SAMPLE_RATE_HZ, Encoding, SessionOptions, SynthesisParams


class Link(Protocol):
    """Sends the messages of one session to the worker."""

    def send(self, message: ClientMessage) -> None:
        """Queue a message. Neither blocks nor raises: a lost connection is reported by ``Receiver.on_lost``.

        A context identifies an utterance and is unique on the connection.
        """
        ...

    def release(self, *, healthy: bool) -> None:
        """End the use of the link: the session is closed and all its commands are answered.

        Args:
            healthy: Whether the connection may serve another session.
        """
        ...


class Receiver(Protocol):
    """Handles the worker's messages (``remote.RemoteSession``)."""

    async def wait_for_capacity(self) -> None:
        """Wait until more may be read (backpressure)."""
        ...

    def receive(self, message: WorkerMessage | bytes) -> None:
        """Handle a message, or PCM of the utterance that was started last."""
        ...

    def on_lost(self, error: ErrorInfo) -> None:
        """The worker or the connection is lost."""
        ...


def check_format(options: SessionOptions, ready: ReadyMessage) -> None:
    """Check that the worker sends the format that was asked for: one of an older version ignores these options.

    Raises:
        RemoteError: It does not.
    """
    rate_hz = options.sample_rate
    encoding = options.encoding or Encoding.PCM.value
    if encoding != ready.format or rate_hz not in (None, ready.sample_rate):
        message = f"the worker sends {ready.format} at {ready.sample_rate} Hz, not {encoding}"
        message += "" if rate_hz is None else f" at {rate_hz} Hz"
        raise RemoteError(ErrorInfo(ErrorCode.CONFIG, f"{message}: is its version older?"))


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
        encoding: Its encoding.
        model: The engine that speaks.
    """

    session: str
    context_prefix: str
    params: SynthesisParams
    audio_timeout_s: float
    read_ahead_s: float
    sample_rate_hz: int = SAMPLE_RATE_HZ
    encoding: Encoding = Encoding.PCM
    model: str = ""
