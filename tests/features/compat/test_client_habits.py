"""What clients send besides the documented fields: other names, null, wider ranges, recordings."""

from __future__ import annotations

import base64
import io
import json
import wave
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.conftest import serving, tone_settings
from tests.fakes.enroller import EnrollingWorker, serving_worker
from tests.fakes.late import LateModule
from tests.fakes.recordings import SAID, speech, wav
from tests.integration.test_api_keys import APP, bearer, key_file
from tests.integration.test_websocket import until_live_sessions
from tts_worker.serving import create_application
from tts_worker.worker import Worker

openai_types = LateModule("openai.types.audio.speech_model", "needs the package openai")
openai_speech = LateModule("openai.types.audio.speech_create_params", "needs the package openai")

SPEECH = "/v1/audio/speech"
PCM: dict[str, Any] = {"input": "Hello there.", "voice": "tone", "response_format": "pcm"}


def http(address: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{address}", timeout=60, **options)


async def test_every_model_name_of_the_sdk_speaks() -> None:
    names = [*get_args(openai_types.SpeechModel), "tts-1-hd-1106", "tts-1-1106", "gpt-4o-mini-tts-2026-07-01", "kokoro"]
    assert len(names) > 5
    async with serving() as address, http(address) as client:
        expected = (await client.post(SPEECH, json=PCM)).content
        for name in names:
            assert (await client.post(SPEECH, json={**PCM, "model": name})).content == expected, name
        unknown = await client.post(SPEECH, json={**PCM, "model": "gpt-5-2026-07-01"})
        assert unknown.status_code == 404
        assert "tts-1" in unknown.json()["error"]["message"], "names that work"
        assert "tone" in unknown.json()["error"]["message"]


async def test_every_format_of_the_sdk_is_spoken() -> None:
    names = get_args(get_type_hints(openai_speech.SpeechCreateParams)["response_format"])
    assert len(names) > 5
    async with serving() as address, http(address) as client:
        for name in names:
            answer = await client.post(SPEECH, json={**PCM, "response_format": name})
            assert answer.status_code == 200, name
            assert len(answer.content) > 1_000


@pytest.mark.parametrize(("asked", "spoken"), [(0.25, 0.5), (4.0, 2.0), (1.5, 1.5)])
async def test_speed_beyond_the_voice_is_the_nearest_and_named(asked: float, spoken: float) -> None:
    cpu = {"engines": {"cpu": {"kind": "hibari"}}}
    async with serving(**cpu) as address, http(address) as client:
        body = {**PCM, "voice": "heart"}
        nearest = await client.post(SPEECH, json={**body, "speed": spoken})
        answer = await client.post(SPEECH, json={**body, "speed": asked})
        assert answer.content == nearest.content
        assert answer.headers.get("x-speed") == (None if asked == spoken else f"{spoken:g}")
        for wrong in (0.1, 4.1, float("1e400")):
            content = json.dumps({**body, "speed": wrong})
            assert (await client.post(SPEECH, content=content)).status_code == 400


async def test_audio_that_is_not_streamed_states_its_length() -> None:
    async with serving() as address, http(address) as client:
        raw = (await client.post(SPEECH, json=PCM)).content
        for body, size in (({"stream": False}, len(raw) // 2), ({}, 0xFFFF_FFFF // 2)):
            answer = await client.post(SPEECH, json={**PCM, "response_format": "wav", **body})
            with wave.open(io.BytesIO(answer.content)) as file:
                assert file.getnframes() == size
                assert file.readframes(len(raw)) == raw
        missing = await client.post(SPEECH, json={**PCM, "voice": "missing", "stream": False})
        assert missing.status_code == 404


NULLS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        SPEECH,
        {**PCM, "model": "tts-1"},
        ["model", "voice", "speed", "instructions", "stream_format", "seed", "language", "stream", "ref_text"],
    ),
    (
        "/tts/bytes",
        {
            "model_id": "sonic-3",
            "transcript": "Hello there.",
            "voice": {"mode": "id", "id": "tone"},
            "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
        },
        ["model_id", "language", "speed", "generation_config", "context_id", "max_buffer_delay_ms"],
    ),
    (
        "/v1/text-to-speech/tone?output_format=pcm_24000",
        {"text": "Hello there."},
        ["voice_settings", "language_code", "seed", "model_id"],
    ),
    ("/tts", {"text": "Hello there.", "response_format": "pcm"}, ["voice_type", "speed", "stream"]),
]


@pytest.mark.parametrize(("path", "body", "optional"), NULLS, ids=[path.partition("?")[0] for path, _, _ in NULLS])
async def test_null_is_the_default(path: str, body: dict[str, Any], optional: list[str]) -> None:
    async with serving() as address, http(address) as client:
        expected = await client.post(path, json=body)
        assert expected.status_code == 200, expected.text
        answer = await client.post(path, json=dict.fromkeys(optional) | body)
        assert answer.content == expected.content
        for name in optional:
            answer = await client.post(path, json={**body, name: None})
            assert (answer.status_code, answer.content) == (200, expected.content), name


async def test_null_in_an_object_of_a_batch_is_the_default() -> None:
    async with serving() as address, http(address) as client:
        body = {"items": [{"id": None, "input": "One."}], "seed": None, "response_format": None, "voice": "tone"}
        assert (await client.post("/v1/batch", json=body)).status_code == 202


async def test_key_in_the_header_of_azure_is_read(tmp_path: Any) -> None:
    async with serving(server={"key_file": key_file(tmp_path)}) as address, http(address) as client:
        key = bearer(APP)["Authorization"].removeprefix("Bearer ")
        assert (await client.post(SPEECH, json=PCM, headers={"api-key": key})).status_code == 200
        assert (await client.post(SPEECH, json=PCM, headers={"api-key": "wrong"})).status_code == 401


async def test_ray_route_takes_either_name_of_a_voice() -> None:
    async with serving() as address, http(address) as client:
        body = {"text": "Hello there.", "response_format": "pcm"}
        low = await client.post("/tts", json={**body, "voice_type": "tone-low"})
        assert (await client.post("/tts", json={**body, "voice": "tone-low"})).content == low.content
        assert (await client.post("/tts", json={**body, "voice": "missing"})).status_code == 404


@pytest.mark.parametrize("written", ["<|en|>Hello there.", " <|endofprompt|><|zh|>Hello there."])
async def test_language_tag_of_cosyvoice_is_not_spoken(written: str) -> None:
    async with serving() as address, http(address) as client:
        plain = await client.post("/inference_sft", data={"tts_text": "Hello there.", "spk_id": "tone"})
        tagged = await client.post("/inference_sft", data={"tts_text": written, "spk_id": "tone"})
        assert (tagged.status_code, tagged.content) == (200, plain.content)


async def test_language_tag_of_cosyvoice_is_the_language() -> None:
    cpu = {"engines": {"cpu": {"kind": "hibari"}}}
    async with serving(**cpu) as address, http(address) as client:
        for tag, status in (("<|en|>", 200), ("<|jp|>", 400)):
            form = {"tts_text": f"{tag}Hello there.", "spk_id": "heart"}
            answer = await client.post("/inference_sft", data=form)
            assert answer.status_code == status
        assert "ja" in answer.json()["error"]["message"]


async def test_voices_are_not_listed_before_they_are_known() -> None:
    """An empty list would look like a worker without voices."""
    transport = httpx.ASGITransport(create_application(Worker(tone_settings())))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/v1/voices", "/v1/audio/voices"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")


async def test_recording_in_a_request_gives_its_voice() -> None:
    quiet, loud = (base64.b64encode(wav(speech(4, 16_000, level=level))).decode() for level in (0.05, 0.3))
    worker = EnrollingWorker()
    enroller = worker.enroller
    async with serving_worker(worker) as address, http(address) as client:
        first = await client.post(SPEECH, json={**PCM, "ref_audio": quiet, "ref_text": SAID})
        again = await client.post(SPEECH, json={**PCM, "ref_audio": f"data:audio/wav;base64,{quiet}", "ref_text": SAID})
        other = await client.post(SPEECH, json={**PCM, "ref_audio": loud})
        assert [answer.status_code for answer in (first, again, other)] == [200, 200, 200]
        assert first.content == again.content != other.content
        assert len(enroller.enrolled) == 2, "the same recording is enrolled once"
        assert enroller.transcripts == [SAID, ""]
        for fields, word in (
            ({"ref_audio": "file:///etc/hostname"}, "paths are not opened"),
            ({"ref_audio": "https://example.org/a.wav"}, "paths are not opened"),
            ({"ref_audio": "AAAA"}, "cannot be read"),
            ({"ref_text": SAID}, "ref_audio"),
        ):
            answer = await client.post(SPEECH, json={**PCM, **fields})
            assert (answer.status_code, word in answer.text) == (400, True), answer.text


async def test_request_that_is_refused_enrolls_no_recording() -> None:
    recording = base64.b64encode(wav(speech(4, 16_000))).decode()
    worker = EnrollingWorker()
    async with serving_worker(worker) as address, http(address) as client:
        for fields in ({"input": "a" * 500_000}, {"response_format": "opus", "sample_rate": 22_050}):
            answer = await client.post(SPEECH, json={**PCM, "ref_audio": recording, **fields})
            assert answer.status_code == 400, answer.text
    assert worker.enroller.enrolled == []


async def test_recording_without_an_engine_that_enrolls_is_refused() -> None:
    async with serving() as address, http(address) as client:
        recording = base64.b64encode(wav(speech(4, 16_000))).decode()
        answer = await client.post(SPEECH, json={**PCM, "ref_audio": recording})
        assert answer.status_code == 400, "not spoken in another voice"
        await until_live_sessions(address, 0)


async def test_unknown_path_of_a_socket_is_not_found() -> None:
    async with serving() as address:
        with pytest.raises(Exception, match="404"):
            async with connect(f"ws://{address}/v1/nothing"):
                pass


async def test_text_in_a_script_of_no_voice_is_an_error() -> None:
    """The voice cannot say it: silence would hide that."""
    async with serving(engines={"cpu": {"kind": "hibari"}}) as address, http(address) as client:
        answer = await client.post("/v1/audio/speech", json={"input": "你好", "voice": "heart"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unspeakable_text")
