"""CosyVoice's own HTTP routes and those of its public Ray Serve API, called over real HTTP like their clients do."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.conftest import serving
from tests.fakes.enroller import EnrollingWorker, serving_worker
from tts_worker.features.compat.vendor_requests import split_language
from tts_worker.types import PcmFrame, SessionOptions
from tts_worker.voices.enrollment import MAX_PROMPT_BYTES
from tts_worker.worker import Worker

TEXT = "Hello there, my friend. How are you today?"
BASE = "/v1/model/cosyvoice"


def recording(seconds: float = 2.0, level: float = 0.9, rate_hz: int = 16_000, kind: str = "WAV") -> bytes:
    out = io.BytesIO()
    samples = level * np.sin(np.arange(int(seconds * rate_hz)) * 0.05)
    soundfile.write(out, samples.astype(np.float32), rate_hz, format=kind)
    return out.getvalue()


LOUD = recording()
QUIET = recording(level=0.2)


@asynccontextmanager
async def enrolling(**sections: Any) -> AsyncIterator[tuple[EnrollingWorker, httpx.AsyncClient]]:
    worker = EnrollingWorker(**sections)
    async with (
        serving_worker(worker) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        yield worker, client


async def local_pcm(worker: Worker, voice: str, text: str = TEXT) -> bytes:
    """Synthesize in process, without HTTP."""
    session = worker.hub.open(SessionOptions(voice=voice, realtime=False, raw_chunks=True))
    session.speak(text)
    session.end_text()
    pcm = bytearray()
    async for item in session:
        if isinstance(item, PcmFrame):
            pcm += item.pcm
        elif type(item).__name__ == "Ended":
            break
    session.close()
    return bytes(pcm)


def upload(data: bytes = LOUD, name: str = "prompt_wav") -> dict[str, Any]:
    return {name: (name, data, "application/octet-stream")}


# -- CosyVoice's own routes -------------------------------------------------------------------------------------------


async def test_a_named_voice_over_get_and_post() -> None:
    async with enrolling() as (worker, client):
        expected = await local_pcm(worker, "tone-low")
        for method in ("GET", "POST"):  # the published client sends a form with GET
            answer = await client.request(method, "/inference_sft", data={"tts_text": TEXT, "spk_id": "tone-low"})
            assert answer.content == expected
            assert answer.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
            assert answer.headers["x-sample-rate"] == "24000"
        answer = await client.request("GET", "/inference_sft", data={"tts_text": TEXT, "spk_id": "unknown"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_voice")


async def test_a_recording_is_enrolled_once_and_unlisted() -> None:
    async with enrolling() as (worker, client):
        high = await local_pcm(worker, "tone-high")
        low = await local_pcm(worker, "tone-low")
        form = {"tts_text": TEXT, "prompt_text": "what is said in it"}
        for method, data, expected in (("GET", LOUD, high), ("POST", LOUD, high), ("POST", QUIET, low)):
            answer = await client.request(method, "/inference_zero_shot", data=form, files=upload(data))
            assert answer.content == expected
        assert worker.enroller.transcripts == ["what is said in it"] * 2
        # Concurrent uploads of the same audio as FLAC are enrolled once.
        flac = recording(kind="FLAC")
        await asyncio.gather(
            *(client.post("/inference_cross_lingual", data=form, files=upload(flac)) for _ in range(5))
        )
        assert worker.enroller.transcripts[2:] == [""]
        listed = (await client.get("/v1/voices")).json()["voices"]
        assert {voice["id"] for voice in listed} == {"tone", "tone-low", "tone-high"}


async def test_unused_voices_are_evicted() -> None:
    async with enrolling() as (worker, client):
        for level in (0.1, 0.2, 0.3, 0.4, 0.6):
            sent = await client.post(
                "/inference_cross_lingual", data={"tts_text": TEXT}, files=upload(recording(level=level))
            )
            assert sent.status_code == 200
        enroller = worker.enroller
        assert set(enroller.tones) == set(enroller.enrolled[2:])  # three remain
        assert enroller.forgotten == enroller.enrolled[:2]
        response = await client.post("/inference_sft", data={"tts_text": TEXT, "spk_id": enroller.enrolled[0]})
        assert response.status_code == 404


@pytest.mark.parametrize(
    ("prefix", "voice"), [("low", "tone-low"), ("You are a helpful assistant.", "tone")], ids=["instruction", "system"]
)
async def test_instruction_in_the_text_is_not_spoken(prefix: str, voice: str) -> None:
    async with enrolling() as (worker, client):
        body = {"tts_text": f"{prefix}<|endofprompt|>{TEXT}", "spk_id": "tone"}
        answer = await client.post("/inference_sft", data=body)
        assert answer.content == await local_pcm(worker, voice)
        written, spoken = [
            await client.post("/v1/audio/speech", json={"input": text, "voice": name, "response_format": "pcm"})
            for text, name in ((body["tts_text"], "tone"), (TEXT, voice))
        ]
        assert written.content == spoken.content


@pytest.mark.parametrize(
    ("text", "spoken", "language"),
    [
        ("Hi.", "Hi.", None),
        ("<|en|>Hi.", "Hi.", "en"),
        (" <|jp|> Hi.", " Hi.", "ja"),
        ("Hi. <|en|>", "Hi. <|en|>", None),
        ("<|xx|>Hi.", "<|xx|>Hi.", None),
        ("<|yue|>", "", "yue"),
    ],
)
def test_leading_language_tag_is_the_language(text: str, spoken: str, language: str | None) -> None:
    assert split_language(text) == (spoken, language)


async def test_instructions_need_the_capability() -> None:
    async with enrolling() as (worker, client):
        low = await local_pcm(worker, "tone-low")
        answer = await client.post(
            "/inference_instruct", data={"tts_text": TEXT, "spk_id": "tone", "instruct_text": "low"}
        )
        assert answer.content == low
        answer = await client.post(
            "/inference_instruct2", data={"tts_text": TEXT, "instruct_text": "low"}, files=upload()
        )
        assert answer.content == low
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        body = {"tts_text": TEXT, "spk_id": "tone", "instruct_text": "low"}
        answer = await client.post("/inference_instruct", data=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        assert "instruct" in answer.json()["error"]["message"]
        body = {"tts_text": f"low<|endofprompt|>{TEXT}", "spk_id": "tone"}
        assert (await client.post("/inference_sft", data=body)).status_code == 400
        answer = await client.post("/inference_zero_shot", data={"tts_text": TEXT, "prompt_text": "x"}, files=upload())
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        assert "enroll" in answer.json()["error"]["message"]


def wav_that_claims(rate_hz: int, channels: int) -> bytes:
    data = bytearray(recording(0.1))
    data[22:24] = channels.to_bytes(2, "little")
    data[24:28] = rate_hz.to_bytes(4, "little")
    return bytes(data)


BAD_RECORDINGS = {
    "nothing": (b"", 400),
    "text": (b"not audio" * 100, 400),
    "half a header": (LOUD[:20], 400),
    "no samples": (LOUD[:44], 400),
    "a tenth of a second": (recording(0.1), 400),
    "too long": (recording(31, rate_hz=8_000), 400),
    "an absurd rate": (wav_that_claims(4_000_000, 1), 400),
    "many channels": (wav_that_claims(16_000, 64), 400),
    "not finite": (b"", 400),
    "too large": (LOUD + bytes(MAX_PROMPT_BYTES), 413),
    "far too large": (bytes(20 << 20), 413),
}


def not_finite() -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.full(32_000, np.nan, np.float32), 16_000, format="WAV", subtype="FLOAT")
    return out.getvalue()


BAD_RECORDINGS["not finite"] = (not_finite(), 400)


async def test_invalid_recordings_are_rejected_with_a_message() -> None:
    async with enrolling() as (worker, client):
        for name, (data, status) in BAD_RECORDINGS.items():
            answer = await client.post("/inference_cross_lingual", data={"tts_text": TEXT}, files=upload(data))
            assert answer.status_code == status, name
            assert answer.json()["error"]["message"], name
            assert TEXT not in answer.text
        assert worker.enroller.enrolled == []
        assert worker.hub.live_sessions == 0
        assert worker.hub.count_sessions("tone") == 0


async def test_invalid_forms_name_the_field() -> None:
    async with enrolling() as (worker, client):
        form = {"tts_text": TEXT, "prompt_text": "x"}
        for path, data, files, word in (
            ("/inference_sft", {"tts_text": TEXT}, None, "spk_id"),
            ("/inference_zero_shot", {"tts_text": TEXT}, upload(), "prompt_text"),
            ("/inference_zero_shot", form, None, "prompt_wav"),
            ("/inference_zero_shot", {**form, "prompt_wav": "/etc/hostname"}, None, "paths are not opened"),
            ("/inference_zero_shot", form, {**upload(), **upload(name="more")}, "files"),
            ("/inference_sft", {f"field{i}": "x" for i in range(100)}, upload(), "fields"),
        ):
            answer = await client.post(path, data=data, files=files)
            assert answer.status_code == 400
            assert word in answer.json()["error"]["message"]
        broken = {"content-type": "multipart/form-data; boundary=x"}
        for body in (b"", b"no boundary at all", b"--x\r\nContent-Disposition: form-data\r\n\r\n"):
            answer = await client.post("/inference_sft", content=body, headers=broken)
            assert answer.status_code == 400
        answer = await client.post("/inference_sft", data={"tts_text": "x" * 30_000, "spk_id": "tone"})
        assert answer.status_code == 413
        answer = await client.post("/inference_sft", data={"tts_text": "  \n", "spk_id": "tone"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unspeakable_text")
        assert worker.hub.live_sessions == 0


async def test_a_body_without_content_length_is_limited() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="prompt_wav"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield bytes(1 << 20)

    async with enrolling(server={"max_upload_bytes": 200_000}) as (_, client):
        answer = await client.post(
            "/inference_cross_lingual", content=endless(), headers={"content-type": "multipart/form-data; boundary=x"}
        )
        assert answer.status_code == 413
        assert "at most 200000 bytes" in answer.json()["error"]["message"]


# -- cosyvoice-ray-serve-api ------------------------------------------------------------------------------------------


async def test_tts_in_every_format() -> None:
    async with enrolling() as (worker, client):
        pcm = await local_pcm(worker, "tone-low")
        body = {"text": TEXT, "voice_type": "tone-low"}
        for path in (f"{BASE}/tts", "/tts"):
            answer = await client.post(path, json=body)
            assert answer.headers["content-type"] == "audio/mpeg"
            samples, rate_hz = soundfile.read(io.BytesIO(answer.content))
            assert rate_hz == 24_000
            assert len(samples) / rate_hz == pytest.approx(len(pcm) / 48_000, abs=0.15)
        streamed = await client.post(f"{BASE}/tts", json={**body, "stream": True})
        assert streamed.content == answer.content
        for stream in (False, True):
            answer = await client.post(f"{BASE}/tts", json={**body, "response_format": "pcm", "stream": stream})
            assert answer.content == pcm
        wav = await client.post(f"{BASE}/tts", data={**body, "response_format": "wav"})  # forms work too
        samples, _ = soundfile.read(io.BytesIO(wav.content), dtype="int16")
        assert samples.tobytes() == pcm
        assert int.from_bytes(wav.content[40:44], "little") == len(pcm)  # the header has the length


async def test_recordings_in_forms_and_json() -> None:
    async with enrolling() as (worker, client):
        high = await local_pcm(worker, "tone-high")
        fields = {"text": TEXT, "reference_text": "what is said", "response_format": "pcm", "stream": "true"}
        for path in (f"{BASE}/zero_shot", "/zero_shot_tts", f"{BASE}/cross_lingual", "/cross_lingual_tts"):
            answer = await client.post(path, data=fields, files=upload(name="reference_audio"))
            assert answer.content == high
        encoded = base64.b64encode(LOUD).decode()
        for value in (encoded, f"data:audio/wav;base64,{encoded}"):
            answer = await client.post(f"{BASE}/zero_shot", json={**fields, "reference_audio": value})
            assert answer.content == high
        assert worker.enroller.transcripts == ["what is said", ""]  # cached by content
        answer = await client.post(
            f"{BASE}/instruct", json={"text": TEXT, "instruction": "low", "response_format": "pcm"}
        )
        assert answer.content == await local_pcm(worker, "tone-low")
        answer = await client.post(
            f"{BASE}/instruct",
            data={"text": TEXT, "instruction": "as you like", "response_format": "pcm"},
            files=upload(name="reference_audio"),
        )
        assert answer.content == high


async def test_invalid_fields_are_named_and_no_path_is_opened(tmp_path: Any) -> None:
    secret = tmp_path / "a.wav"
    secret.write_bytes(LOUD)
    async with enrolling() as (worker, client):
        for path, body, status, word in (
            ("/tts", {}, 400, "text"),
            ("/tts", {"text": ""}, 400, "text"),
            ("/tts", {"text": TEXT, "voice_type": "qwen"}, 404, "qwen"),  # no fallback voice
            ("/tts", {"text": TEXT, "speed": 9}, 400, "speed"),
            ("/tts", {"text": TEXT, "speed": "nan"}, 400, "speed"),
            ("/tts", {"text": TEXT, "response_format": "aiff"}, 400, "response_format"),
            ("/tts", {"text": "x" * 30_000}, 413, "text"),
            ("/tts", {"text": " "}, 422, "spoken"),
            ("/zero_shot", {"text": TEXT, "reference_text": "x"}, 400, "reference_audio"),
            ("/zero_shot", {"text": TEXT, "reference_text": "x", "reference_audio": str(secret)}, 400, "paths"),
            ("/zero_shot", {"text": TEXT, "reference_text": "x", "reference_audio": f"file://{secret}"}, 400, "paths"),
            ("/zero_shot", {"text": TEXT, "reference_audio": "AAAA"}, 400, "reference_text"),
            ("/cross_lingual", {"text": TEXT, "reference_audio": "AAAA"}, 400, "cannot be read"),
            ("/cross_lingual", {"text": TEXT, "reference_audio": 5}, 400, "reference_audio"),
            ("/instruct", {"text": TEXT}, 400, "instruction"),
        ):
            answer = await client.post(BASE + path, json=body)
            assert (answer.status_code, word in answer.text) == (status, True), (path, list(body), answer.text)
        for content in (b"", b"[1]", b"{" * 100_000, b"\xff"):
            answer = await client.post(f"{BASE}/tts", content=content, headers={"content-type": "application/json"})
            assert answer.status_code == 400
        assert worker.enroller.enrolled == []
        assert worker.hub.live_sessions == 0


async def test_healthcheck_follows_readiness() -> None:
    async with enrolling() as (worker, client):
        for method in ("GET", "POST"):
            answer = await client.request(method, f"{BASE}/healthcheck")
            assert (answer.status_code, answer.json()) == (200, {"status": "healthy"})
        await worker.hub.drain(0.0)
        answer = await client.get(f"{BASE}/healthcheck")
        assert (answer.status_code, answer.json()) == (503, {"status": "unhealthy"})
