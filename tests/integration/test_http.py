"""Health, metrics, voices and OpenAI's speech API over real HTTP, with OpenAI's SDK."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.conftest import serving, tone_settings, until
from tests.fakes.enroller import serving_worker
from tests.integration.test_websocket import dial, metric, until_live_sessions
from tests.unit.audio.test_encoders import with_flac_length
from tts_worker.engine.loop import EngineLoop
from tts_worker.features.compat import cosyvoice
from tts_worker.features.compat import openai as openai_api
from tts_worker.features.compat.openai import OPENAI_VOICES
from tts_worker.server.validation import LIVE_TYPE, MULTIPART
from tts_worker.serving import create_application
from tts_worker.worker import Worker, running_worker

if TYPE_CHECKING:
    import openai

TEXT = "Hello there, my friend. How are you today?"


@asynccontextmanager
async def http(address: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60, **options) as client:
        yield client


@asynccontextmanager
async def serving_stalled_engine(chunks: int) -> AsyncIterator[tuple[str, threading.Event]]:
    """A server whose engine stalls after ``chunks`` chunks until the event is set."""
    resume = threading.Event()
    chunk_count = itertools.count()

    def stall(seconds: float) -> None:
        if next(chunk_count) >= chunks:
            resume.wait(60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tts_worker.engine.tone.wait_out", stall)
        async with serving() as address:
            try:
                yield address, resume
            finally:
                resume.set()


@asynccontextmanager
async def open_speech(
    address: str, text: str, **options: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A plain socket on which a speech request was sent."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), **options)
    try:
        body = json.dumps(speech(input=text, response_format="pcm")).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        yield reader, writer
    finally:
        writer.close()


def speech(**fields: Any) -> dict[str, Any]:
    return {"model": "tts-1", "voice": "tone", "input": TEXT, **fields}


async def test_health_metrics_voices_models() -> None:
    async with serving() as address, http(address) as client:
        assert (await client.get("/health/live")).json() == {"status": "live"}
        assert (await client.get("/health/ready")).status_code == 200
        assert "tts_ready 1.0" in (await client.get("/metrics")).text
        voices = (await client.get("/v1/voices")).json()["voices"]
        assert {voice["id"] for voice in voices} == {"tone", "tone-low", "tone-high"}
        assert [voice["id"] for voice in voices if voice["default"]] == ["tone"]
        assert (await client.get("/v1/audio/voices")).json()["voices"] == voices
        served = [path for path in ("/webrtc", "/agent", "/detect") if (await client.get(path)).status_code == 200]
        pages = (await client.get("/static/pages.json")).json()
        assert [*pages] == served == ["/webrtc", "/agent", "/detect"]
        aiortc = find_spec("aiortc")
        assert (pages["/webrtc"] is None) == (aiortc is not None)
        assert pages["/agent"] is None, "a script answers, which needs no extra"
        models = (await client.get("/v1/models")).json()
        assert "tone" in {model["id"] for model in models["data"]}


async def test_api_describes_itself() -> None:
    async with serving() as address, http(address) as client:
        openapi = (await client.get("/openapi.json")).json()
        bodies = {
            path: operations["post"]["requestBody"]
            for path, operations in openapi["paths"].items()
            if "requestBody" in operations.get("post", {})
        }
        assert {"/v1/audio/speech", "/tts/bytes", "/v1/text-to-speech/{voice}", "/inference_sft", "/tts"} <= set(bodies)
        schemas = openapi["components"]["schemas"]
        references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(openapi))
        assert references
        assert set(references) <= set(schemas)
        stream = (await client.get("/v1/stream/schema.json")).json()
        assert {"StartMessage", "TextMessage", "DoneMessage", "Word"} <= set(stream["$defs"])
        assert "/tts/websocket" in openapi["x-websockets"]
        page = (await client.get("/docs")).text
        assert "://" not in page, "the page loads nothing from elsewhere"


FILES_OF_FORMS = {
    "/v1/voices": {"audio"},
    "/v1/audio/voices": {"audio_sample"},
    "/v1/voices/add": {"files"},
    "/v1/lexicons": {"file"},
    "/v1/pronunciation-dictionaries/add-from-file": {"file"},
    "/voices/clone": {"clip"},
    "/v1/audio/conversions": {"audio"},
    "/v1/audio/detect": {"audio"},
    "/v1/voice-changer/{voice}": {"audio"},
    "/v1/voice-changer/{voice}/stream": {"audio"},
    "/v1/speech-to-speech/{voice}": {"audio"},
    "/v1/speech-to-speech/{voice}/stream": {"audio"},
    "/inference_vc": {"source_wav", "prompt_wav"},
    "/inference_zero_shot": {"prompt_wav"},
    "/inference_cross_lingual": {"prompt_wav"},
    "/inference_instruct2": {"prompt_wav"},
    "/zero_shot_tts": {"reference_audio"},
    "/v1/model/cosyvoice/zero_shot": {"reference_audio"},
    "/cross_lingual_tts": {"reference_audio"},
    "/v1/model/cosyvoice/cross_lingual": {"reference_audio"},
    "/instruct_tts": {"reference_audio"},
    "/v1/model/cosyvoice/instruct": {"reference_audio"},
    "/inference_sft": set(),
    "/inference_instruct": set(),
    "/tts": set(),
    "/v1/model/cosyvoice/tts": set(),
}
"""By the path of every route that takes a form."""


SPEECH_QUERY = {"output_format", "language_code", "seed"}
QUERIES = {
    "/v1/audio/speech": {"checksums"},
    "/tts/sse": {"checksums"},
    "/voices": {"q", "limit", "starting_after", "ending_before", "gender", "is_owner"},
    "/v1/text-to-speech/{voice}": SPEECH_QUERY,
    "/v1/text-to-speech/{voice}/stream": SPEECH_QUERY,
    "/v1/text-to-speech/{voice}/with-timestamps": SPEECH_QUERY,
    "/v1/text-to-speech/{voice}/stream/with-timestamps": {*SPEECH_QUERY, "checksums"},
    "/v1/voice-changer/{voice}": {"output_format"},
    "/v1/models/{name}/reload": {"free_first"},
    "/v1/batch/{name}/results": {"format", "start", "wait", "checksums"},
}
"""Query parameters by path."""


async def test_api_describes_query_parameters() -> None:
    async with serving() as address, http(address) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    described: dict[str, set[str]] = {}
    for path, operations in paths.items():
        parameters = [each for operation in operations.values() for each in operation.get("parameters", ())]
        described[path] = {each["name"] for each in parameters if each["in"] == "query"}
    assert {path: described[path] for path in QUERIES} == QUERIES


async def test_api_describes_the_fields_of_every_form() -> None:
    async with serving() as address, http(address) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    bodies = {
        path: operations["post"]["requestBody"]["content"]
        for path, operations in paths.items()
        if "requestBody" in operations.get("post", {})
    }
    forms = {path: body[MULTIPART]["schema"] for path, body in bodies.items() if MULTIPART in body}
    files = {
        path: {name for name, field in form["properties"].items() if field.get("format") == "binary"}
        for path, form in forms.items()
    }
    assert files == FILES_OF_FORMS
    assert set(cosyvoice.PATHS) <= set(forms)
    for path, form in forms.items():
        assert set(form.get("required", ())) <= set(form["properties"])
        if path == "/v1/lexicons":
            continue  # a file in a form, entries in JSON
        recorded = [content for kind, content in bodies[path].items() if kind != LIVE_TYPE]
        for content in recorded:  # the recordings are base64 where a body has no files
            assert set(content["schema"]["properties"]) == set(form["properties"])
    gets = {path: paths[path]["get"] for path in paths if path.startswith("/inference_")}
    assert len(gets) == 6
    assert all(get["requestBody"]["content"] == bodies[path] for path, get in gets.items())
    assert forms["/inference_vc"]["required"] == ["source_wav"]
    assert set(forms["/inference_zero_shot"]["required"]) == {"prompt_wav", "tts_text", "prompt_text"}
    assert {"tts_text"} <= set(forms["/inference_sft"]["properties"])
    assert "audio" not in forms["/v1/voices"]["required"], "a mix takes no recording"


async def test_api_description_needs_the_key() -> None:
    async with serving(server={"api_keys": ["correct-horse"]}) as address, http(address) as client:
        assert (await client.get("/docs")).status_code == 200
        for path in ("/openapi.json", "/v1/stream/schema.json"):
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, headers={"X-API-Key": "correct-horse"})).status_code == 200


async def test_docs_page_follows_the_setting() -> None:
    async with serving(server={"web_page": False}) as address, http(address) as client:
        assert (await client.get("/docs")).status_code == 404


async def test_lost_engine_fails_liveness(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = httpx.ASGITransport(create_application(worker))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/health/live")).status_code == 200
        monkeypatch.setattr(EngineLoop, "lost", True)
        answer = await client.get("/health/live")
        assert (answer.status_code, answer.json()) == (503, {"status": "lost"})


async def test_openai_sdk_decodes_every_format() -> None:
    import openai

    async with serving() as address:
        client = openai.AsyncOpenAI(api_key="any", base_url=f"http://{address}/v1", max_retries=0)
        async with client:
            pcm = (await client.audio.speech.create(**speech(response_format="pcm"))).content
            expected = np.frombuffer(pcm, "<i2") / 32_768
            assert len(expected) > 24_000
            for name in ("wav", "flac", "mp3", "opus"):
                answer = await client.audio.speech.create(**speech(response_format=name))
                data = with_flac_length(answer.content) if name == "flac" else answer.content
                audio, rate_hz = soundfile.read(io.BytesIO(data))
                assert rate_hz == 24_000 or name == "opus"
                assert len(audio) / rate_hz == pytest.approx(len(expected) / 24_000, abs=0.15)
                if name in ("wav", "flac"):
                    assert np.array_equal(audio, expected)
            assert {model.id async for model in client.models.list()} >= {"tone", "tts-1"}


@asynccontextmanager
async def openai_sdk(address: str, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai  # takes a second: not for every process that collects the tests

    options = {"api_key": "any", "base_url": f"http://{address}/v1", "max_retries": 0, **options}
    async with openai.AsyncOpenAI(**options) as client:
        yield client


async def test_openai_sdk_retrieves_a_model() -> None:
    import openai

    async with serving() as address, openai_sdk(address) as client:
        for name in ("tone", "tts-1"):
            model = await client.models.retrieve(name)
            assert (model.id, model.object) == (name, "model")
        with pytest.raises(openai.NotFoundError) as exc_info:
            await client.models.retrieve("gpt-5")
        assert exc_info.value.code == "unknown_model"


@pytest.mark.parametrize("text", ["", " \n", "a" * 20_001], ids=["empty", "blank", "too long"])
async def test_openai_sdk_maps_invalid_input_to_bad_request(text: str) -> None:
    import openai

    async with serving() as address, openai_sdk(address) as client:
        with pytest.raises(openai.BadRequestError):
            await client.audio.speech.create(**speech(input=text))


async def test_openai_voice_names_select_default_voice() -> None:
    async with (
        serving(voices={"default": "tone-low", "aliases": {"nova": "tone-high"}}) as address,
        openai_sdk(address) as client,
    ):

        async def pcm(voice: str) -> bytes:
            answer = await client.audio.speech.create(**speech(voice=voice, response_format="pcm"))
            return answer.content

        default = await pcm("tone-low")
        for name in OPENAI_VOICES.keys() - {"nova"}:
            assert await pcm(name) == default, name
        assert await pcm("nova") == await pcm("tone-high"), "voices.aliases takes precedence"
        async with http(address) as plain:
            voices = (await plain.get("/v1/voices")).json()["voices"]
        assert {voice["id"] for voice in voices} == {"tone", "tone-low", "tone-high"}


@pytest.mark.parametrize(
    ("preferred", "text", "options", "speaks"),
    [
        (("missing", "tone-high"), "Hello.", {}, "tone-high"),
        (("missing",), "Hello.", {}, "tone-low"),
        (("tone-high",), "Guten Tag, wie geht es?", {"language": "de"}, "tone-high"),
    ],
    ids=["first that is there", "none is there", "language"],
)
async def test_voices_stand_in_for_openai_names(
    monkeypatch: pytest.MonkeyPatch, preferred: tuple[str, ...], text: str, options: dict[str, str], speaks: str
) -> None:
    monkeypatch.setattr(openai_api, "OPENAI_VOICES", {"nova": preferred})
    async with serving(voices={"default": "tone-low"}) as address, http(address) as client:

        async def pcm(voice: str) -> bytes:
            body = speech(voice=voice, input=text, response_format="pcm", **options)
            return (await client.post("/v1/audio/speech", json=body)).content

        assert await pcm("nova") == await pcm(speaks)


async def test_openai_sdk_streams_and_sse_ends_with_done() -> None:
    import openai

    async with serving_stalled_engine(3) as (address, resume):
        client = openai.AsyncOpenAI(api_key="any", base_url=f"http://{address}/v1", max_retries=0)
        body = speech(response_format="pcm")
        async with client, client.audio.speech.with_streaming_response.create(**body) as answer:
            assert answer.headers["x-sample-rate"] == "24000"
            assert answer.headers["x-request-id"]
            chunks = []
            async for chunk in answer.iter_bytes():
                chunks.append(chunk)
                resume.set()  # the rest is synthesized after the first chunk was received
        async with http(address) as plain:
            sent = await plain.post("/v1/audio/speech", json=speech(response_format="pcm", stream_format="sse"))
            assert sent.headers["content-type"].startswith("text/event-stream")
            events = [json.loads(line[6:]) for line in sent.text.splitlines() if line.startswith("data: ")]
            pcm = b"".join(base64.b64decode(e["audio"]) for e in events if e["type"] == "speech.audio.delta")
            assert pcm == b"".join(chunks)
            assert [e["type"] for e in events].count("speech.audio.done") == 1
            assert events[-1]["usage"]["input_tokens"] == len(TEXT)


async def test_sample_rates_match_their_headers() -> None:
    async with serving() as address, http(address) as client:
        lengths = {}
        for rate in (8_000, 16_000, 24_000, 48_000):
            answer = await client.post("/v1/audio/speech", json=speech(response_format="pcm", sample_rate=rate))
            assert answer.headers["x-sample-rate"] == str(rate)
            assert f"rate={rate}" in answer.headers["content-type"]
            lengths[rate] = len(answer.content) / 2 / rate
        assert max(lengths.values()) - min(lengths.values()) < 0.01
        mulaw = await client.post("/v1/audio/speech", json=speech(response_format="mulaw"))
        assert len(mulaw.content) / 8_000 == pytest.approx(lengths[8_000], abs=0.01)


async def test_same_seed_gives_same_bytes() -> None:
    async with serving() as address, http(address) as client:
        answers = [
            (await client.post("/v1/audio/speech", json=speech(response_format="pcm", seed=seed))).content
            for seed in (5, 5, 6)
        ]
        assert answers[0] == answers[1] != answers[2]


BAD_REQUESTS: list[tuple[Any, int, str]] = [
    (b"", 400, "invalid_request"),
    (b"\xff\xfe", 400, "invalid_request"),
    (b"{", 400, "invalid_request"),
    (b"[" * 100_000, 400, "invalid_request"),
    (b"[]", 400, "invalid_request"),
    (b"null", 400, "invalid_request"),
    ({"model": "tts-1", "voice": "tone"}, 400, "invalid_request"),
    (speech(input=5), 400, "invalid_request"),
    (speech(input=None), 400, "invalid_request"),
    (speech(voice="unknown"), 404, "unknown_voice"),
    (speech(voice=["tone"]), 400, "invalid_request"),
    (speech(model="gpt-5"), 404, "unknown_model"),
    (speech(speed="fast"), 400, "invalid_request"),
    (speech(speed=99), 400, "invalid_request"),
    (speech(response_format="wma"), 400, "invalid_request"),
    (speech(response_format="mulaw", sample_rate=24_000), 400, "invalid_request"),
    (speech(response_format="opus", sample_rate=44_100), 400, "invalid_request"),
    (speech(sample_rate=7), 400, "invalid_request"),
    (speech(seed=-1), 400, "invalid_request"),
    (speech(seed=10**30), 400, "invalid_request"),
    (speech(lexicon={"a": 1}), 400, "invalid_request"),
    (speech(input="a" * 20_001), 400, "text_too_long"),
    (speech(input="a" * 2_000_000), 413, "text_too_long"),
    (speech(input=""), 400, "unspeakable_text"),
    (speech(input=" \n"), 400, "unspeakable_text"),
]


async def test_bad_requests_get_typed_errors() -> None:
    async with serving() as address, http(address) as client:
        for body, status, code in BAD_REQUESTS:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = await client.post("/v1/audio/speech", content=content)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (status, code), content[:80]
            assert error["message"]
            assert "aaaa" not in error["message"]
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.post("/v1/audio/speech", json=speech())).status_code == 200
        assert await until_live_sessions(address, 0) == 0


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/audio/speech", "POST"),
        ("PUT", "/v1/voices", "GET, POST"),
        ("HEAD", "/v1/voices/tone", "DELETE, GET"),
        ("POST", "/static/page.css", "GET, HEAD"),
    ],
)
async def test_other_methods_get_the_methods_of_the_path(method: str, path: str, allowed: str) -> None:
    async with serving() as address, http(address) as client:
        answer = await client.request(method, path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


async def test_lone_surrogates_in_input_are_skipped() -> None:
    async with serving() as address, http(address) as client:
        body = b'{"model": "tts-1", "voice": "tone", "response_format": "pcm", "input": "Hello \\ud83d there."}'
        answer = await client.post("/v1/audio/speech", content=body)
        assert answer.status_code == 200
        assert len(answer.content) > 10_000


async def test_body_of_undeclared_length_is_bounded() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 65_536

    async with serving() as address, http(address) as client:
        answer = await client.post("/v1/audio/speech", content=endless())
        assert answer.status_code == 413


async def test_over_capacity_is_503_with_retry_after() -> None:
    async with (
        serving(session={"max_sessions": 1, "slot_idle_s": 600}) as address,
        http(address) as client,
        dial(address) as other,
    ):
        await other.until("ready")
        elapsed_s = []
        for _ in range(20):
            start_s = time.monotonic()
            answer = await client.post("/v1/audio/speech", json=speech())
            elapsed_s.append(time.monotonic() - start_s)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "over_capacity"
            assert answer.json()["error"]["retryable"] is True
        assert min(elapsed_s) < 0.05, "the minimum excludes stalls of the test machine"


@pytest.mark.parametrize("read_first", [False, True], ids=["before the first byte", "while streaming"])
async def test_disconnect_frees_the_slot(read_first: bool) -> None:
    # The engine is stalled and nothing is sent when the client disconnects: only the disconnect can free the slot.
    async with (
        serving_stalled_engine(3 if read_first else 0) as (address, resume),
        open_speech(address, "many words " * 900) as (reader, writer),
    ):
        if read_first:
            await reader.readexactly(1_000)
        await until_live_sessions(address, 1)
        writer.transport.abort()
        await until_live_sessions(address, 0)
        assert not resume.is_set()
        assert await metric(address, 'tts_engine_faults_total{engine="tone"}') == 0, "the engine did not fail"


async def test_disconnect_frees_the_slot_within_100_ms() -> None:
    slow = {"engines": {"tone": {"kind": "tone", "cost_per_audio_s": 5.0}}}  # no send can fail: nothing is sent
    async with running_worker(tone_settings(**slow)) as worker, serving_worker(worker) as address:
        elapsed_s = []
        for _ in range(10):
            async with open_speech(address, "many words " * 900) as (_, writer):
                await until(lambda: worker.hub.live_sessions == 1)
                writer.transport.abort()
                disconnected_s = time.monotonic()
                await until(lambda: worker.hub.live_sessions == 0)
                elapsed_s.append(time.monotonic() - disconnected_s)
        assert min(elapsed_s) < 0.1, "the minimum excludes stalls of the test machine"


async def test_client_that_stops_reading_is_disconnected() -> None:
    async with (
        serving(server={"send_timeout_s": 0.5}) as address,
        open_speech(address, "many words " * 1_800, limit=1_024) as (reader, _),
    ):
        await reader.readexactly(1_000)  # the audio has started; the client reads no more of it
        assert await metric(address, "tts_buffered_seconds") <= 1.6
        await until_live_sessions(address, 0)
        received = await reader.read(-1)
        assert not received.endswith(b"0\r\n\r\n"), "an aborted stream must not look complete"


async def test_pages_cannot_be_framed_by_others() -> None:
    async with serving() as address, http(address) as client:
        for path in ("/", "/webrtc", "/docs"):
            headers = (await client.get(path)).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        for path in ("/", "/static/app.js", "/v1/voices", "/unknown"):
            headers = (await client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff", path
            assert "server" not in headers, path


@pytest.mark.parametrize(("trusted", "client_address"), [((), "127.0.0.1"), (("127.0.0.0/8",), "10.1.2.3")])
async def test_forwarded_address_is_that_of_trusted_proxies(
    caplog: pytest.LogCaptureFixture, trusted: tuple[str, ...], client_address: str
) -> None:
    settings = {"api_keys": ["correct-horse"], "trusted_proxies": trusted}
    async with serving(server=settings) as address, http(address) as client:
        assert (await client.get("/v1/voices", headers={"X-Forwarded-For": "10.1.2.3"})).status_code == 401
    assert f"from {client_address}" in caplog.text


async def test_keys_hosts_and_origins() -> None:
    async with serving(server={"api_keys": ["correct-horse"]}) as address, http(address) as client:
        assert (await client.get("/health/ready")).status_code == 200
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong-horse"}, 401),
            ({"Authorization": "Bearer correct-horse"}, 200),
            ({"X-API-Key": "correct-horse"}, 200),
            ({"X-API-Key": "correct-horse", "Origin": "https://evil.example"}, 403),
        ):
            for path in ("/v1/voices", "/metrics"):
                assert (await client.get(path, headers=headers)).status_code == status
        assert (await client.get("/v1/voices")).headers["www-authenticate"] == "Bearer"
    async with serving(server={"allowed_origins": ["https://app.example"]}) as address, http(address) as client:
        for headers, status in (
            ({"Host": "evil.example"}, 403),
            ({"Host": f"localhost:{address.split(':')[1]}"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "https://app.example"}, 200),
            ({"Origin": f"http://{address}"}, 200),
            ({"Origin": "null"}, 403),
        ):
            assert (await client.get("/v1/voices", headers=headers)).status_code == status, headers
