"""Formats of the compatibility APIs: every rate and encoding has the same audio and times, or is refused clearly."""

from __future__ import annotations

import io
import json

import pytest
import soundfile

from tests.conftest import serving
from tests.integration.test_http import http
from tests.unit.audio.test_encoders import with_flac_length
from tts_worker.types import SAMPLE_RATES_HZ

TEXT = "Hello there, my friend."
RATES_OF = {"opus": {8_000, 16_000, 24_000, 48_000}, "mulaw": {8_000}, "alaw": {8_000}}
MP3_DELAY_SAMPLES = 1_105 + 2 * 1_152
"""Most that MP3 adds: the delay of the encoder, and frames at the end."""


def seconds_of(name: str, data: bytes, rate_hz: int) -> float:
    if name in ("pcm", "mulaw", "alaw"):
        return len(data) / (2 if name == "pcm" else 1) / rate_hz
    samples, found_hz = soundfile.read(io.BytesIO(with_flac_length(data) if name == "flac" else data))
    assert found_hz == rate_hz
    return len(samples) / rate_hz


async def test_openai_formats_work_at_every_rate_or_name_theirs() -> None:
    async with serving() as address, http(address) as client:
        lengths_s = {}
        for name in ("pcm", "wav", "mp3", "flac", "opus", "mulaw", "alaw"):
            for rate_hz in SAMPLE_RATES_HZ:
                body = {"input": TEXT, "response_format": name, "sample_rate": rate_hz}
                answer = await client.post("/v1/audio/speech", json=body)
                if rate_hz in RATES_OF.get(name, SAMPLE_RATES_HZ):
                    assert answer.status_code == 200, (name, rate_hz, answer.text)
                    lengths_s[name, rate_hz] = seconds_of(name, answer.content, rate_hz)
                else:
                    message = answer.json()["error"]["message"]
                    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
                    assert all(str(supported) in message for supported in RATES_OF[name])
    expected_s = lengths_s["pcm", 24_000]
    assert expected_s > 1
    for (name, rate_hz), length_s in lengths_s.items():
        allowed_samples = MP3_DELAY_SAMPLES if name == "mp3" else 3
        assert length_s == pytest.approx(expected_s, abs=allowed_samples / rate_hz), (name, rate_hz)


async def test_vendors_times_do_not_depend_on_the_rate() -> None:
    async with serving() as address, http(address) as client:
        cartesia = []
        elevenlabs = []
        for rate_hz in (24_000, 8_000, 48_000):
            body = {
                "transcript": TEXT,
                "voice": {"mode": "id", "id": "tone"},
                "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": rate_hz},
                "add_timestamps": True,
            }
            events = (await client.post("/tts/sse", json=body)).text.split("\n\n")
            messages = [json.loads(event.split("data: ")[1]) for event in events if event]
            words = [message["word_timestamps"] for message in messages if message["type"] == "timestamps"]
            cartesia.append([time for word in words for time in (*word["start"], *word["end"])])
            path = f"/v1/text-to-speech/tone/with-timestamps?output_format=pcm_{rate_hz}"
            alignment = (await client.post(path, json={"text": TEXT})).json()["alignment"]
            elevenlabs.append(alignment["character_end_times_seconds"])
    for other in (1, 2):
        assert cartesia[other] == pytest.approx(cartesia[0], abs=2 / 8_000)
        assert elevenlabs[other] == pytest.approx(elevenlabs[0], abs=0.002)  # whole milliseconds
