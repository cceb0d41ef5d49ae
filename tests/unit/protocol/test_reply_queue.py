"""Replies that a client does not read are bounded in number and in size."""

from __future__ import annotations

import pytest

from tts_worker.errors import SendTimeout
from tts_worker.protocol.reply_queue import ReplyQueue


def test_unread_replies_are_bounded_in_number() -> None:
    queue = ReplyQueue()
    for number in range(256):
        queue.put({"type": "pong", "id": number})
    with pytest.raises(SendTimeout):
        queue.put({"type": "pong", "id": 256})
    assert queue.take() == {"type": "pong", "id": 0}
    queue.put({"type": "pong", "id": 256})


def test_unread_replies_are_bounded_in_size() -> None:
    queue = ReplyQueue()
    large = {"type": "done", "text_spoken": "x" * 600_000}
    for _ in range(3):
        queue.put(large)
    with pytest.raises(SendTimeout):
        queue.put(large)
    queue.take()
    queue.put(large)


def test_one_reply_of_any_size_is_queued() -> None:
    queue = ReplyQueue()
    queue.put({"type": "done", "text_spoken": "x" * 3_000_000})
    with pytest.raises(SendTimeout):
        queue.put({"type": "pong"})
    queue.clear()
    queue.put({"type": "pong"})
    assert len(queue) == 1
