"""Text normalization on the way from a session to its engine, away from the event loop.

Writing numbers out takes some 0.2 ms a character, so a thread does it, one segment of a session at a time: sessions
take turns, however long their texts are. Segments keep their order; STOP overtakes them and drops those that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from tts_worker.session.session import EnginePort
from tts_worker.text.language import LanguageDetector
from tts_worker.text.normalizer import LANGUAGES, Normalize, needs_rewriting, normalize_segment
from tts_worker.types import Cancel, Command, Done, EndText, Event, Failed, Open, Segment, SynthesisParams, Text
from tts_worker.types import UtteranceKey as Key

log = logging.getLogger(__name__)

LIMIT_S = 1.0
"""A segment that is not written out by then is spoken as it stands: late speech is worse than a number read oddly."""


class SegmentNormalizer:
    """The thread that writes segments out, for all sessions of a process. ``executor`` replaces it in tests."""

    def __init__(self, normalise: Normalize, executor: Executor | None = None) -> None:
        self._normalise = normalise
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="normalize")

    def prepare(self) -> None:
        """Load the rules in the background, so that no caller waits for them."""
        for language in LANGUAGES:
            self._executor.submit(self._normalise, "1", language)

    def submit(self, segment: Segment, language: str) -> asyncio.Future[Segment]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, normalize_segment, segment, self._normalise, language)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class NormalizingPort:
    """The engine as one session sees it. ``detector_of``: the language detector for an utterance, None if its text is
    to be left alone."""

    def __init__(
        self,
        engine: EnginePort,
        normalizer: SegmentNormalizer,
        detector_of: Callable[[SynthesisParams], LanguageDetector | None],
        limit_s: float = LIMIT_S,
    ) -> None:
        self._engine = engine
        self._normalizer = normalizer
        self._detector_of = detector_of
        self._limit_s = limit_s
        self._detectors: dict[Key, LanguageDetector] = {}
        self._queue: deque[Text | EndText] = deque()
        self._pending: asyncio.Future[Segment] | None = None  # the head of the queue on the thread
        self._timer: asyncio.TimerHandle | None = None

    def post(self, command: Command) -> None:
        match command:
            case Open():
                detector = self._detector_of(command.params)
                if detector is not None:
                    self._detectors[command.key] = detector
                self._engine.post(command)
            case Text() | EndText() if command.key in self._detectors:
                self._queue.append(command)
                self._advance()
            case Cancel():
                self._engine.post(command)
                self._forget(command.key)
            case _:
                self._engine.post(command)

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None:
        def on_event(event: Event) -> None:
            if isinstance(event, Failed | Done):
                self._forget(event.key)
            callback(event)

        self._engine.subscribe(session, on_event)

    def unsubscribe(self, session: str) -> None:
        self._queue.clear()
        self._detectors.clear()
        self._drop_pending()
        self._engine.unsubscribe(session)

    def _advance(self) -> None:
        """Pass on the head of the queue, as far as nothing has to be written out."""
        while self._queue and self._pending is None:
            head = self._queue[0]
            if isinstance(head, EndText):
                del self._detectors[head.key]
                self._pass_on(head)
                continue
            language = self._detectors[head.key].detect(head.segment.text)
            if language not in LANGUAGES or not needs_rewriting(head.segment.text):
                self._pass_on(head)
                continue
            self._pending = self._normalizer.submit(head.segment, language)
            self._pending.add_done_callback(partial(self._on_written, head))
            self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._on_late, head)

    def _pass_on(self, command: Text | EndText) -> None:
        self._queue.popleft()
        self._engine.post(command)

    def _on_written(self, head: Text, written: asyncio.Future[Segment]) -> None:
        if written is not self._pending:
            if not written.cancelled():
                written.exception()  # of a segment that nothing waits for any more
            return
        self._drop_pending()
        if (problem := written.exception()) is not None:
            log.error("a segment was not normalized", exc_info=problem)
        self._queue.popleft()
        self._engine.post(head if problem is not None else Text(head.key, written.result()))
        self._advance()

    def _on_late(self, head: Text) -> None:
        log.warning("text normalization takes more than %g s: a segment is spoken as it stands", self._limit_s)
        self._drop_pending()
        self._pass_on(head)
        self._advance()

    def _forget(self, key: Key) -> None:
        """No text of this utterance is wanted any more."""
        if self._detectors.pop(key, None) is None:
            return
        if self._queue and self._queue[0].key == key:
            self._drop_pending()
        self._queue = deque(command for command in self._queue if command.key != key)
        self._advance()

    def _drop_pending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pending = self._timer = None
