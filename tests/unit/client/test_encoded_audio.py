from __future__ import annotations

import pytest

from tests.fakes.dialogue import DialogueWorker
from tts_worker.client.encoded_audio import count_samples
from tts_worker.client.link import check_format
from tts_worker.errors import RemoteError
from tts_worker.protocol.messages import ReadyMessage
from tts_worker.types import Encoding, SessionOptions


@pytest.mark.parametrize(
    ("encoding", "audio", "samples"),
    [
        (Encoding.PCM, bytes(320), 160),
        (Encoding.MULAW, bytes(160), 160),
        (Encoding.ALAW, bytes(160), 160),
        (Encoding.WAV, bytes(44 + 320), 160),
        (Encoding.OPUS, b"\x08" + bytes(30), 160),  # SILK, 20 ms, one frame
        (Encoding.OPUS, b"\x00", 80),  # SILK, 10 ms
        (Encoding.OPUS, b"\xf9" + bytes(30), 320),  # CELT, 20 ms, two frames
        (Encoding.OPUS, b"\xfb\x03" + bytes(30), 480),  # the second byte counts three frames
        (Encoding.OPUS, b"", 0),
    ],
)
def test_samples_are_counted_in_each_encoding(encoding: Encoding, audio: bytes, samples: int) -> None:
    assert count_samples(encoding, audio, 8_000, is_first=True) == samples


def test_client_refuses_another_format_than_it_asked_for() -> None:
    ready = ReadyMessage(protocol=1, session="s", sample_rate=24_000, voice="v")
    check_format(SessionOptions(), ready)
    check_format(SessionOptions(sample_rate=24_000, encoding="pcm_s16le"), ready)
    for options in (SessionOptions(sample_rate=8_000), SessionOptions(encoding="mulaw")):
        with pytest.raises(RemoteError, match="older"):
            check_format(options, ready)


def test_ready_names_the_format() -> None:
    ready = DialogueWorker().dialogue.ready_message()
    assert (ready.format, ready.sample_rate) == ("pcm_s16le", 24_000)
