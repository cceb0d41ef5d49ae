"""The interface of a session, local (``session.session``) or remote (``client.remote``).

Commands never block. All methods must be called from one event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Protocol

from tts_worker.errors import Draining, ErrorInfo
from tts_worker.types import (
    Acknowledged,
    Encoding,
    Ended,
    Expression,
    Outcome,
    Output,
    State,
    SynthesisParams,
    UtteranceKey,
)

_ENDED_BY_WORKER = {
    "drain": "the worker is shutting down; use another one",
    "reload": "the model was replaced before the end; try again",
}
"""Reasons for which the worker stops an utterance that another session can speak."""


def interruption_by_worker(ended: Ended) -> ErrorInfo | None:
    """Return the error of an utterance that the worker stopped for its own reasons, or None."""
    message = _ENDED_BY_WORKER.get(ended.receipt.reason) if ended.outcome is Outcome.STOPPED else None
    return None if message is None else Draining(message).info


class Session(Protocol):
    """One conversation with the worker: a sequence of utterances."""

    @property
    def id(self) -> str: ...
    @property
    def sample_rate_hz(self) -> int: ...
    @property
    def encoding(self) -> Encoding: ...
    @property
    def model(self) -> str:
        """The engine that speaks; empty if the worker does not tell."""
        ...

    @property
    def state(self) -> State: ...

    def speak(self, text: str | bytes) -> UtteranceKey:
        """Add text to the open utterance, or begin one. Raises SessionClosed, TextTooLong, IllegalCommand."""
        ...

    def flush(self) -> None:
        """Speak the pending text without ending the utterance."""
        ...

    def end_text(self) -> None:
        """End the text of the open utterance. Raises IllegalCommand if there is none."""
        ...

    def pause(self) -> Acknowledged:
        """Send no audio until ``resume``. The result is emitted, too, as that of ``resume`` and ``stop``."""
        ...

    def resume(self) -> Acknowledged:
        """Continue at the next sample."""
        ...

    def stop(
        self, reason: str = "stop", played_samples: int | None = None, key: UtteranceKey | None = None
    ) -> Acknowledged:
        """End all utterances now. Their playback reports are emitted, then the acknowledgement.

        Args:
            reason: Reason for the playback reports.
            played_samples: How much of the utterance ``key`` the client has played, as for ``played``, if it is known.
            key: That utterance; None is the current one. Whichever it is, all utterances end.
        """
        ...

    def played(self, samples: int, key: UtteranceKey | None = None) -> None:
        """Report how much of an utterance the client has played.

        Args:
            samples: The position. It never decreases and is capped at what was sent.
            key: The utterance; None is the current one. The position of another than the current one is ignored, since
                it comes too late.
        """
        ...

    def express(self, expression: Expression) -> None:
        """Speak so from the next word on that is not synthesized, and all later utterances. Raises InvalidRequest."""
        ...

    def configure(self, params: SynthesisParams) -> None:
        """Set the parameters of later utterances.

        A voice of another engine needs another session, except for a ``ws://`` session that speaks nothing.

        Raises:
            InvalidRequest: A parameter has an unsuitable type or value.
            TTSWorkerError: The worker refuses the parameters, such as UnknownVoice, and they do not change. Only
                ``local:`` sessions raise it; over a connection each utterance ends with this error, until ``configure``
                is called with others.
        """
        ...

    def close(self, reason: str = "closed") -> None:
        """End the session and free everything it holds. Closing twice changes nothing."""
        ...

    async def next(self) -> Output | None:
        """Wait for the next frame or notice; None once the session is closed and everything was returned."""
        ...

    def poll(self) -> Output | None:
        """Return the next frame or notice that is due now, or None."""
        ...

    def __aiter__(self) -> AsyncIterator[Output]: ...


class OutputReader(ABC):
    """The part of a session that waits for what ``poll`` returns."""

    @property
    @abstractmethod
    def state(self) -> State: ...

    @abstractmethod
    def poll(self) -> Output | None: ...

    @abstractmethod
    async def wait(self) -> None:
        """Wait until ``poll`` may return something."""

    async def next(self) -> Output | None:
        while True:
            item = self.poll()
            if item is not None or self.state is State.CLOSED:
                return item
            await self.wait()

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (item := await self.next()) is not None:
            yield item
