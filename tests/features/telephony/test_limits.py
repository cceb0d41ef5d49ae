"""What media streams hold before they have shown their key."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tts_worker.features.telephony.routes import MAX_UNSTARTED, Telephony


class WaitingStream:
    """A stream whose task has not run since it was evicted."""

    evictions = 0

    def evict(self) -> None:
        self.evictions += 1


def test_each_stream_of_a_burst_ends_another_one() -> None:
    unused: Any = None
    telephony = Telephony(unused, unused, unused, unused)
    streams: list[Any] = [WaitingStream() for _ in range(MAX_UNSTARTED + 3)]
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(telephony.waiting(stream))
        assert [stream.evictions for stream in streams] == [1, 1, 1] + MAX_UNSTARTED * [0]
