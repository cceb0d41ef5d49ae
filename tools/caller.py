"""A recorded caller for Chromium's fake microphone, synthesized by a worker in another voice than its agent's."""

from __future__ import annotations

import io
import json
import urllib.request
import wave
from pathlib import Path

import numpy as np
import soxr

RATE_HZ = 48_000
_PITCH = 1.15
_SPEED = 0.9
_NOISE_S = 1.0
_NOISE_LEVEL = 10.0  # of 32,768


def record_caller(address: str, text: str, path: Path) -> None:
    """Write a WAV file: a moment of faint noise, then ``text`` in a higher voice.

    Args:
        address: ``host:port`` of a worker.
        text: What the caller says.
        path: The file.
    """
    body = json.dumps({"input": text, "response_format": "wav", "speed": _SPEED}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/v1/audio/speech", body, headers)
    with urllib.request.urlopen(request) as response, wave.open(io.BytesIO(response.read())) as speech:
        rate_hz = speech.getframerate()
        samples = np.frombuffer(speech.readframes(speech.getnframes()), "<i2")
    higher = soxr.resample(samples, _PITCH * rate_hz, RATE_HZ)  # the pitch rises when it is played faster
    noise = np.random.default_rng(1).normal(0, _NOISE_LEVEL, int(_NOISE_S * RATE_HZ)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(np.concatenate([noise, higher]).astype("<i2").tobytes())


def microphone_flags(recording: Path, *, repeats: bool) -> tuple[str, ...]:
    """Return the flags with which Chromium has a permitted microphone that plays a recording."""
    return (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={recording}{'' if repeats else '%noloop'}",
    )
