"""The detector: what it finds in marked speech, and that it finds nothing elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

import tts_worker
from tests.features.marking.conftest import DEPLOYMENT_ID
from tts_worker.audio.decode import read_recording
from tts_worker.audio.encoders import AudioFormat, open_encoder
from tts_worker.audio.pcm import to_pcm
from tts_worker.errors import InvalidRequest
from tts_worker.features.marking.detector import THRESHOLD, detect

RATE_HZ = 24_000


def test_marked_speech_is_found_with_its_id(marked: np.ndarray) -> None:
    found = tts_worker.detect(marked, RATE_HZ)
    assert found.marked
    assert found.deployment_id == DEPLOYMENT_ID
    assert found.parts == ((0.0, pytest.approx(len(marked) / RATE_HZ, abs=0.1)),)
    assert found.speed == pytest.approx(1.0, abs=1e-3)


def test_plain_speech_is_not_marked(speech: bytes) -> None:
    found = detect(np.frombuffer(speech, "<i2"), RATE_HZ)
    assert (found.marked, found.deployment_id, found.parts) == (False, None, ())
    assert found.score < THRESHOLD


@pytest.mark.parametrize("start_s", [0.0, 1.37, 9.99])
def test_five_seconds_suffice(marked: np.ndarray, start_s: float) -> None:
    start = round(start_s * RATE_HZ)
    assert detect(marked[start : start + 5 * RATE_HZ], RATE_HZ).marked


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
def test_other_rates(marked: np.ndarray, rate_hz: int) -> None:
    assert detect(soxr.resample(marked, RATE_HZ, rate_hz), rate_hz).deployment_id == DEPLOYMENT_ID


@pytest.mark.parametrize("speed", [0.98, 0.993, 1.013, 1.02])
def test_changed_speed(marked: np.ndarray, speed: float) -> None:
    found = detect(soxr.resample(marked, RATE_HZ * speed, RATE_HZ), RATE_HZ)
    assert found.deployment_id == DEPLOYMENT_ID
    assert found.speed == pytest.approx(speed, abs=2e-3)


def test_level_and_channels_do_not_matter(marked: np.ndarray) -> None:
    stereo = np.stack((marked, marked), axis=1) * 1e-6
    assert detect(stereo, RATE_HZ).deployment_id == DEPLOYMENT_ID


@pytest.mark.parametrize("audio_format", [each for each in AudioFormat if each is not AudioFormat.AAC])
def test_formats(marked: np.ndarray, audio_format: AudioFormat) -> None:
    rate_hz = 8_000 if audio_format in (AudioFormat.MULAW, AudioFormat.ALAW) else RATE_HZ
    encoder = open_encoder(audio_format, rate_hz)
    audio = soxr.resample(marked / 32_768, RATE_HZ, rate_hz).astype(np.float32)
    data = encoder.encode(to_pcm(audio)) + encoder.finish()
    if audio_format is AudioFormat.PCM:
        found = detect(np.frombuffer(data, "<i2"), rate_hz)
    elif audio_format in (AudioFormat.MULAW, AudioFormat.ALAW):
        from tts_worker.audio.encoders import WavData, wav_header

        kind = WavData[audio_format.name]
        found = detect(read_recording(wav_header(rate_hz, len(data), kind) + data).samples, rate_hz)
    else:
        recording = read_recording(data)
        found = detect(recording.samples, recording.rate_hz)
    assert found.deployment_id == DEPLOYMENT_ID


@pytest.mark.parametrize("kind", ["noise", "tones", "clicks", "silence"])
def test_other_audio_is_not_marked(kind: str) -> None:
    rng = np.random.default_rng(5)
    seconds = np.arange(30 * RATE_HZ) / RATE_HZ
    audio = {
        "noise": rng.normal(size=len(seconds)),
        "tones": np.sin(2 * np.pi * 440 * seconds) * (np.sin(2 * np.pi * seconds / 2.06) > 0),  # the pattern's period
        "clicks": (np.arange(len(seconds)) % round(2.06 * RATE_HZ) == 0).astype(float),
        "silence": np.zeros(len(seconds)),
    }[kind]
    assert not detect(audio.astype(np.float32), RATE_HZ).marked


@pytest.mark.parametrize(
    ("samples", "rate_hz", "message"),
    [
        (np.zeros(100), RATE_HZ, "1 s to"),
        (np.zeros(80_000), 4_000, "sample rate"),
        (np.zeros((2, 2, 50_000)), RATE_HZ, "array of numbers"),
        (np.array(["a"] * 50_000), RATE_HZ, "array of numbers"),
        (np.full(50_000, np.nan), RATE_HZ, "NaN"),
    ],
)
def test_bad_input_is_a_typed_error(samples: np.ndarray, rate_hz: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        detect(samples, rate_hz)
