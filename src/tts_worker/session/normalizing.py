"""CosyVoice's own front end between a session and its engine (setting ``text.reading: reference``).

wetext takes about 0.1 ms per character, so it has a thread. That takes one segment of a session at a time, so a long
text does not delay other sessions. Segments keep their order; STOP overtakes and drops them. The rules of
``front_end.rules`` follow, also without wetext.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from tts_worker.front_end.normalizer import LANGUAGES, Normalize, needs_rewriting, normalize_segment
from tts_worker.front_end.rules import FrontEnd
from tts_worker.session.engine_port import CommandPort
from tts_worker.types import (
    Cancel,
    Command,
    Done,
    EndText,
    Event,
    Failed,
    Open,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

log = logging.getLogger(__name__)

TIME_LIMIT_S = 1.0
"""A segment that takes longer is spoken unnormalized: late speech is worse than a misread number."""


class SegmentNormalizer:
    """The normalization thread of a process, shared by all sessions.

    Args:
        normalize: Rewrites a text in a language.
        executor: Replaces the thread in tests.
    """

    def __init__(self, normalize: Normalize, executor: Executor | None = None) -> None:
        self._normalize = normalize
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="normalize")

    def prepare(self) -> None:
        """Load the rules in the background before the first session uses them."""
        for language in LANGUAGES:
            self._executor.submit(self._normalize, "1", language)

    def submit(self, segment: Segment, language: str) -> asyncio.Future[Segment]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, normalize_segment, segment, self._normalize, language)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class NormalizingPort:
    """Stands between a session and its engine, and normalizes the segments.

    Args:
        engine: Receives the commands.
        normalizer: The normalization thread; None without wetext.
        front_end_of: Returns the front end of an utterance.
        time_limit_s: Time limit per segment.
    """

    def __init__(
        self,
        engine: CommandPort,
        normalizer: SegmentNormalizer | None,
        front_end_of: Callable[[SynthesisParams], FrontEnd],
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        self._engine = engine
        self._normalizer = normalizer
        self._front_end_of = front_end_of
        self._time_limit_s = time_limit_s
        self._front_ends: dict[UtteranceKey, FrontEnd] = {}
        self._queue: deque[Text | EndText] = deque()
        self._pending: asyncio.Future[Segment] | None = None  # of the segment at the head of the queue
        self._language: str | None = None  # of that segment
        self._timer: asyncio.TimerHandle | None = None

    def post(self, command: Command) -> None:
        match command:
            case Open():
                self._front_ends[command.key] = self._front_end_of(command.params)
                self._engine.post(command)
            case Text() | EndText() if command.key in self._front_ends:
                self._queue.append(command)
                self._advance()
            case Cancel():
                self._engine.post(command)
                self._drop_utterance(command.key)
            case _:
                self._engine.post(command)

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None:
        def on_event(event: Event) -> None:
            if isinstance(event, Failed | Done):
                self._drop_utterance(event.key)
            callback(event)

        self._engine.subscribe(session, on_event)

    def unsubscribe(self, session: str) -> None:
        self._queue.clear()
        self._front_ends.clear()
        self._drop_pending()
        self._engine.unsubscribe(session)

    def _advance(self) -> None:
        """Forward commands up to the next segment that needs normalization, and submit that segment."""
        while self._queue and self._pending is None:
            head = self._queue[0]
            if isinstance(head, EndText):
                del self._front_ends[head.key]
                self._forward(head)
                continue
            text = head.segment.text
            self._language = language = self._front_ends[head.key].detect(text)
            if self._normalizer is None or language not in LANGUAGES or not needs_rewriting(text, language):
                self._forward_segment(head.key, head.segment)
                continue
            self._pending = self._normalizer.submit(head.segment, language)
            self._pending.add_done_callback(partial(self._on_normalized, head))
            self._timer = asyncio.get_running_loop().call_later(self._time_limit_s, self._on_time_limit, head)

    def _forward(self, command: Text | EndText) -> None:
        self._queue.popleft()
        self._engine.post(command)

    def _forward_segment(self, key: UtteranceKey, segment: Segment) -> None:
        self._forward(Text(key, self._front_ends[key].apply(segment, self._language)))

    def _on_normalized(self, head: Text, result: asyncio.Future[Segment]) -> None:
        if result is not self._pending:
            if not result.cancelled():
                result.exception()  # mark it as retrieved: the segment was dropped
            return
        self._drop_pending()
        if (error := result.exception()) is not None:
            log.error("a segment was not normalized", exc_info=error)
        self._forward_segment(head.key, head.segment if error is not None else result.result())
        self._advance()

    def _on_time_limit(self, head: Text) -> None:
        log.warning("text normalization exceeded %g s: the segment is spoken unnormalized", self._time_limit_s)
        self._drop_pending()
        self._forward_segment(head.key, head.segment)
        self._advance()

    def _drop_utterance(self, key: UtteranceKey) -> None:
        """Drop the queued text of an utterance."""
        if self._front_ends.pop(key, None) is None:
            return
        if self._queue and self._queue[0].key == key:
            self._drop_pending()
        self._queue = deque(command for command in self._queue if command.key != key)
        self._advance()

    def _drop_pending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pending = self._timer = None
