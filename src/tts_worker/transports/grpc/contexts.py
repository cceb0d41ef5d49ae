"""Context names: the client's ids for the utterances of a session.

Text for a context whose utterance was stopped or has ended is dropped, because the client may not know yet. Text for
another context completes the previous utterance.
"""

from __future__ import annotations

from tts_worker.session.session import LocalSession
from tts_worker.types import UtteranceKey


class ContextTracker:
    """Maps the context names of one session to its utterances."""

    def __init__(self, session: LocalSession) -> None:
        self._session = session
        self._open: tuple[str, UtteranceKey] | None = None  # context and utterance that take text now
        self._retired: str | None = None
        self._names: dict[UtteranceKey, str] = {}

    def name(self, key: UtteranceKey) -> str:
        """Return the context of an utterance, or an empty string."""
        return self._names.get(key, "")

    def say(self, context: str, text: str) -> None:
        """Add text to the utterance of ``context``. Raises the errors of ``LocalSession.speak``."""
        self._retire_if_ended()
        if context == self._retired:
            return
        if self._open is not None and self._open[0] != context:
            self._session.end_text()
            self._open = None
        key = self._session.speak(text)
        self._open = (context, key)
        self._names[key] = context

    def end(self, context: str) -> None:
        """End the text of ``context``; ignored unless that context takes text."""
        self._retire_if_ended()
        if self._open is not None and self._open[0] == context:
            self._session.end_text()
            self._open = None

    def retire(self) -> None:
        """Drop all further text of the open context, as after a STOP."""
        if self._open is not None:
            self._retired = self._open[0]
            self._open = None

    def on_ended(self, key: UtteranceKey) -> None:
        """Forget the utterance ``key``, which has ended."""
        self._names.pop(key, None)
        if self._open is not None and self._open[1] == key:
            self.retire()

    def _retire_if_ended(self) -> None:
        """Retire the open context if its utterance ended and the event is not delivered yet."""
        if self._open is not None and self._session.writing != self._open[1]:
            self.retire()
