"""Messages become WebSocket frames without the WebSocket library; the bytes are the same."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from tts_worker.server.websocket_protocol import message_frame


@pytest.mark.parametrize("size", [0, 1, 125, 126, 960, 65_535, 65_536])
def test_frame_of_a_binary_message(size: int) -> None:
    data = bytes(size)
    assert message_frame(data) == Frame(Opcode.BINARY, data).serialize(mask=False)


def test_frame_of_a_text_message() -> None:
    assert message_frame("grün" * 40) == Frame(Opcode.TEXT, ("grün" * 40).encode()).serialize(mask=False)
