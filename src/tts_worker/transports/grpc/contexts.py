"""The client's own names for utterances, and what becomes of text whose writer does not know yet what happened.

A context names one utterance. Text for one that was stopped, or ended by itself, is dropped: whoever writes it has not
heard of that. Text for another context completes the one before. Knows the session's text methods and no message.
"""

from __future__ import annotations

from tts_worker.session.session import LocalSession
from tts_worker.types import UtteranceKey


class ContextTracker:
    """Of one session."""

    def __init__(self, session: LocalSession) -> None:
        self._session = session
        self._written: tuple[str, UtteranceKey] | None = None
        self._retired: str | None = None
        self._names: dict[UtteranceKey, str] = {}

    def name(self, key: UtteranceKey) -> str:
        """The context of an utterance, empty if it has none any more."""
        return self._names.get(key, "")

    def say(self, context: str, text: str) -> None:
        """Raises what ``speak`` raises."""
        self._notice()
        if context == self._retired:
            return
        if self._written is not None and self._written[0] != context:
            self._session.end_text()
            self._written = None
        key = self._session.speak(text)
        self._written = (context, key)
        self._names[key] = context

    def end(self, context: str) -> None:
        """Complete it. One that is not being written any more is fine."""
        self._notice()
        if self._written is not None and self._written[0] == context:
            self._session.end_text()
            self._written = None

    def retire(self) -> None:
        """A STOP: what is still written for it is not wanted."""
        if self._written is not None:
            self._retired = self._written[0]
            self._written = None

    def ended(self, key: UtteranceKey) -> None:
        """That utterance is over."""
        self._names.pop(key, None)
        if self._written is not None and self._written[1] == key:
            self.retire()

    def _notice(self) -> None:
        """The utterance may have ended by itself a moment ago."""
        if self._written is not None and self._session.writing != self._written[1]:
            self.retire()
