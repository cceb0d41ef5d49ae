"""Audio messages are built without the WebSocket library; the bytes are the same."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from tts_worker.transports.connections import binary_header


@pytest.mark.parametrize("size", [0, 1, 125, 126, 960, 65_535, 65_536])
def test_header_of_a_binary_message(size: int) -> None:
    data = bytes(size)
    assert binary_header(size) + data == Frame(Opcode.BINARY, data).serialize(mask=False)
