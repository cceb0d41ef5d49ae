"""The audio track of a WebRTC peer: paced Opus packets of 20 ms.

Silence costs no encoding: once the encoder has faded out, a constant packet is sent.
"""

from __future__ import annotations

import asyncio
import fractions
from collections.abc import Callable
from typing import Any

import av
import numpy as np
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError

from tts_worker.features.webrtc.playout import TRACK_FRAME_SAMPLES, TRACK_RATE_HZ, TrackClock

_TIME_BASE = fractions.Fraction(1, TRACK_RATE_HZ)
_SILENT_PACKET = b"\xf8\xff\xfe"
"""20 ms of mono silence (RFC 6716: configuration 31, one empty frame)."""

_FADE_FRAMES = 5
"""Frames of silence that are encoded after audio, until the decoder's state has decayed."""

_BIT_RATE = 48_000


class OpusEncoder:
    """Encodes 20 ms of mono speech at 48 kHz into one packet."""

    def __init__(self) -> None:
        self._codec = av.CodecContext.create("libopus", "w")
        self._codec.sample_rate = TRACK_RATE_HZ
        self._codec.layout = "mono"
        self._codec.format = "s16"
        self._codec.bit_rate = _BIT_RATE
        self._codec.time_base = _TIME_BASE
        # Forward error correction: each packet carries a copy of the previous one.
        self._codec.options = {"application": "voip", "frame_duration": "20", "fec": "1", "packet_loss": "5"}
        self._frames = 0
        self._silent_frames = _FADE_FRAMES

    def encode(self, pcm: bytes | None) -> bytes:
        """Encode 960 samples s16le, or silence for None."""
        self._silent_frames = 0 if pcm is not None else self._silent_frames + 1
        if self._silent_frames > _FADE_FRAMES:
            return _SILENT_PACKET
        samples = np.frombuffer(pcm, "<i2") if pcm is not None else np.zeros(TRACK_FRAME_SAMPLES, np.int16)
        frame = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="mono")
        frame.sample_rate = TRACK_RATE_HZ
        frame.time_base = _TIME_BASE
        frame.pts = self._frames * TRACK_FRAME_SAMPLES
        self._frames += 1
        return b"".join(map(bytes, self._codec.encode(frame))) or _SILENT_PACKET


class SpeechTrack(MediaStreamTrack):
    """A track of speech and silence.

    Args:
        pull: Returns the next 20 ms (960 samples s16le) or None for silence; called when the frame is due.
    """

    kind = "audio"

    def __init__(self, pull: Callable[[], bytes | None]) -> None:
        super().__init__()
        self._pull = pull
        self._clock = TrackClock()
        self._encoder = OpusEncoder()

    async def recv(self) -> av.Packet[Any]:
        """Return the next packet when it is due.

        Raises:
            MediaStreamError: The track was stopped.
        """
        loop = asyncio.get_running_loop()
        if (wait_s := self._clock.due_at_s(loop.time()) - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        if self.readyState != "live":
            raise MediaStreamError
        timestamp = self._clock.tick(loop.time())
        packet = av.Packet(self._encoder.encode(self._pull()))
        packet.pts = timestamp
        packet.time_base = _TIME_BASE
        return packet
