"""CosyVoice's own front end on the way from a session to its engine (setting ``text.reading: reference``).

wetext takes about 0.1 ms per character, so it has a thread. That takes one segment of an utterance at a time, so a long
text does not delay other sessions. The rules of ``front_end.rules`` follow, also without wetext.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from tts_worker.front_end.normalizer import LANGUAGES, Normalize, needs_rewriting, normalize_segment
from tts_worker.front_end.rules import FrontEnd
from tts_worker.types import Segment

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


class SegmentReader:
    """Reads the segments of one utterance by the reference's front end, one after the other.

    Args:
        normalizer: The normalization thread; None without wetext.
        front_end: The front end of the utterance.
        time_limit_s: Time limit per segment.
    """

    def __init__(
        self, normalizer: SegmentNormalizer | None, front_end: FrontEnd, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        self._normalizer = normalizer
        self._front_end = front_end
        self._time_limit_s = time_limit_s
        self._pending: asyncio.Future[Segment] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def read(self, segment: Segment, on_read: Callable[[Segment], None]) -> Segment | None:
        """Return a segment as it is spoken; None calls ``on_read`` with it when the thread has normalized it."""
        text = segment.text
        language = self._front_end.detect(text)
        if self._normalizer is None or language not in LANGUAGES or not needs_rewriting(text, language):
            return self._front_end.apply(segment, language)

        def end(normalized: Segment) -> None:
            self.cancel()
            on_read(self._front_end.apply(normalized, language))

        def on_normalized(result: asyncio.Future[Segment]) -> None:
            error = None if result.cancelled() else result.exception()  # retrieved, also of a segment that was dropped
            if result is not self._pending:
                return
            if error is not None:
                log.error("a segment was not normalized", exc_info=error)
            end(segment if error is not None else result.result())

        def on_time_limit() -> None:
            log.warning("text normalization exceeded %g s: the segment is spoken unnormalized", self._time_limit_s)
            end(segment)

        self._pending = self._normalizer.submit(segment, language)
        self._pending.add_done_callback(on_normalized)
        self._timer = asyncio.get_running_loop().call_later(self._time_limit_s, on_time_limit)
        return None

    def cancel(self) -> None:
        """Drop the segment that is being read."""
        if self._timer is not None:
            self._timer.cancel()
        self._pending = self._timer = None
