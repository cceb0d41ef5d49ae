"""Time limits of a session, and the timers of its text.

When a client stops sending text, its words are spoken without punctuation, then its text is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tts_worker.session.frame_clock import TIMER_RESOLUTION_S
from tts_worker.session.machine import SessionMachine
from tts_worker.types import State

LAST_WORD_FACTOR = 5
"""The last word may be incomplete ("hel", then "lo"). It is spoken after this many times ``flush_after_s``, as is
unfinished markup."""


@dataclass(frozen=True, slots=True)
class SessionTimeouts:
    """Time limits of a session.

    Attributes:
        pause_s: A longer pause is ended by a STOP with reason "pause_timeout".
        text_idle_s: The text of an utterance is ended after this time without new text; its audio still plays.
        flush_after_s: Complete words are spoken after this time without new text, the last word after
            ``LAST_WORD_FACTOR`` times as much; 0 waits for punctuation.
    """

    pause_s: float = 30.0
    text_idle_s: float = 300.0
    flush_after_s: float = 0.4


class _Flushed(Enum):
    """What has been spoken without punctuation since the last text."""

    NOTHING = "nothing"
    WORDS = "complete words"
    EVERYTHING = "everything"


class TextTimers:
    """The timers of an utterance whose text is being written.

    They are re-armed lazily: new text only updates a timestamp, which is checked when a timer fires.

    Args:
        machine: State of the session.
        timeouts: Time limits.
        rate_hz: Sample rate of the session.
        on_change: Called after a timer changed the machine.
    """

    def __init__(
        self, machine: SessionMachine, timeouts: SessionTimeouts, rate_hz: int, on_change: Callable[[], None]
    ) -> None:
        self.text_at_s = 0.0
        """When the last text came, in seconds of the event loop's clock."""
        self._machine = machine
        self._timeouts = timeouts
        self._rate_hz = rate_hz
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._flushed = _Flushed.NOTHING

    def note_input(self) -> None:
        """Text has come, or speech tokens."""
        self.text_at_s = self._loop.time()
        self._flushed = _Flushed.NOTHING
        if self._idle is None:
            self._idle = self._loop.call_later(self._timeouts.text_idle_s, self._on_idle)

    def expect_text(self) -> None:
        """Speak what has come so far if no more text comes soon."""
        if self._flush is None and self._timeouts.flush_after_s > 0:
            self._flush = self._loop.call_later(self._timeouts.flush_after_s, self._on_flush_due)

    def restart(self, timeouts: SessionTimeouts) -> None:
        """Use other limits for the next utterance."""
        self._timeouts = timeouts
        self.cancel()

    def cancel(self) -> None:
        """Stop the timers."""
        for timer in (self._idle, self._flush):
            if timer is not None:
                timer.cancel()
        self._idle = None
        self._flush = None

    def _on_idle(self) -> None:
        """End idle text."""
        self._idle = None
        if self._machine.writing is None:
            return
        remaining_s = self.text_at_s + self._timeouts.text_idle_s - self._loop.time()
        if remaining_s > 0:
            self._idle = self._loop.call_later(remaining_s, self._on_idle)
        else:
            self._machine.end_text()
            self._on_change()

    def _on_flush_due(self) -> None:
        """Speak pending words. While there is audio to play, pending text can wait."""
        self._flush = None
        if self._machine.writing is None or self._flushed is _Flushed.EVERYTHING:
            return
        after_s = self._timeouts.flush_after_s
        due_at_s = self.text_at_s + after_s * (LAST_WORD_FACTOR if self._flushed is _Flushed.WORDS else 1)
        remaining_s = max(due_at_s - self._loop.time(), self._machine.buffered_samples / self._rate_hz - after_s)
        if self._machine.state is State.PAUSED or self._machine.has_unread_text:
            remaining_s = max(remaining_s, after_s)
        if remaining_s > TIMER_RESOLUTION_S:
            self._flush = self._loop.call_later(remaining_s, self._on_flush_due)
            return
        if self._flushed is _Flushed.NOTHING:
            self._flushed = _Flushed.WORDS
            self._machine.flush_words()
            self._flush = self._loop.call_later(after_s * (LAST_WORD_FACTOR - 1), self._on_flush_due)
        else:
            self._flushed = _Flushed.EVERYTHING
            self._machine.flush()
        self._on_change()
