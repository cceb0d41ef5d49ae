"""Voice conversion by a running worker on the tiny model: every way in, equal to the offline one, nothing left."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import grpc
import httpx
import numpy as np
import pytest
import soundfile

from tests.fakes.recordings import SAID, speech, wav
from tests.fakes.redis import embedded_redis
from tests.fakes.threaded_worker import ThreadedWorker, worker_in_thread
from tests.unit.cosyvoice.bundles import copy_of
from tools.bench.__main__ import main as bench
from tts_worker import TTS, AsyncTTS
from tts_worker.callers import Caller, acting_as
from tts_worker.cli import main
from tts_worker.client.registry.entry import WorkerCapabilities, WorkerEntry
from tts_worker.client.registry.store import RedisStore
from tts_worker.errors import InvalidRequest, QuotaExceeded, TextTooLong, UnknownVoice
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.protocol.messages import PROTOCOL_VERSION
from tts_worker.session.conversion import RecordedSource
from tts_worker.session.quotas import Metered
from tts_worker.settings import load_settings
from tts_worker.types import SessionOptions

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.timeout(300)

SOURCE_S = 1.1
SOURCE = wav(speech(SOURCE_S, 16_000))
SAMPLES_PER_TOKEN = 960


@pytest.fixture(scope="module", autouse=True)
def few_layers() -> Iterator[None]:
    from tests.unit.cosyvoice.networks import little_work

    with little_work():
        yield


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("conversion")
    path = copy_of("cosyvoice2", root)
    (path / "spk2info.pt").unlink()
    (root / "prompt.wav").write_bytes(wav(speech(4, 16_000)))
    (root / "source.wav").write_bytes(SOURCE)
    prompt = str(root / "prompt.wav")
    assert main(["voice", "add", "anna", "--bundle", str(path), "--audio", prompt, "--text", SAID]) == 0
    return path


@pytest.fixture(scope="module")
def sections(bundle: Path) -> dict[str, Any]:
    """The settings of the workers."""
    engine = {"kind": "cosyvoice", "bundle": str(bundle), "device": "cpu", "threads": 1, "memory_gb": 0.1}
    return {
        "engines": {"cosy": {**engine, "max_utterances": 4}, "tone": {"kind": "tone"}},
        "session": {"loudness": None},
    }


@pytest.fixture(scope="module")
def worker(sections: dict[str, Any]) -> Iterator[ThreadedWorker]:
    with worker_in_thread(load_settings(flags=sections)) as served:
        yield served


@pytest.fixture(scope="module")
def offline(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The same conversion without a worker."""
    out = tmp_path_factory.mktemp("offline") / "out.wav"
    source = str(bundle.parent / "source.wav")
    command = ["say", "--bundle", str(bundle), "--voice", "anna", "--mode", "vc", "--source", source]
    assert main([*command, "--quiet", "--out", str(out)]) == 0
    return soundfile.read(out, dtype="int16")[0].tobytes()


@pytest.fixture
def http(worker: ThreadedWorker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{worker.address}", timeout=60) as client:
        yield client


def converted(http: httpx.Client, source: bytes = SOURCE, **fields: str) -> httpx.Response:
    data = {"voice": "anna", "response_format": "pcm", **fields}
    return http.post("/v1/audio/conversions", data=data, files={"audio": ("a.wav", source)})


def wait_until_idle(http: httpx.Client) -> None:
    """Wait until no session is open; the test's time limit ends it."""
    while "\ntts_sessions 0.0" not in http.get("/metrics").text:
        pass


def test_http_conversion_equals_the_offline_one(http: httpx.Client, offline: bytes) -> None:
    response = converted(http)
    assert (response.status_code, response.headers["x-sample-rate"]) == (200, "24000")
    assert response.content == offline
    assert len(offline) // 2 == pytest.approx(SOURCE_S * 24_000, abs=SAMPLES_PER_TOKEN)


@pytest.mark.parametrize("kind", ["wav", "mp3", "opus", "flac", "mulaw"])
def test_conversion_is_sent_in_every_format(http: httpx.Client, kind: str) -> None:
    response = converted(http, response_format=kind)
    assert response.status_code == 200
    if kind == "mulaw":
        assert len(response.content) == pytest.approx(SOURCE_S * 8_000, abs=400)
    else:
        samples, _ = soundfile.read(io.BytesIO(response.content), frames=24_000)
        assert np.abs(samples).max() > 0


def test_conversion_takes_json(http: httpx.Client, offline: bytes) -> None:
    audio = base64.b64encode(SOURCE).decode()
    response = http.post("/v1/audio/conversions", json={"voice": "anna", "response_format": "pcm", "audio": audio})
    assert response.content == offline


def test_inference_vc_takes_a_prompt_or_a_voice(http: httpx.Client, offline: bytes) -> None:
    files = {"source_wav": ("s.wav", SOURCE), "prompt_wav": ("p.wav", wav(speech(4, 16_000)))}
    with_prompt = http.post("/inference_vc", files=files)
    with_voice = http.post("/inference_vc", files={"source_wav": ("s.wav", SOURCE)}, data={"spk_id": "anna"})
    assert with_prompt.status_code == 200
    assert with_prompt.content == with_voice.content == offline  # the same recording, without its text


@pytest.mark.parametrize(
    ("source", "fields", "status", "message"),
    [
        (b"not audio at all", {}, 400, "cannot be read"),
        (b"", {}, 400, "empty"),
        (wav(speech(0.01, 16_000)), {}, 400, "shorter than 0.1 s"),
        (SOURCE, {"voice": "tone"}, 400, "lacks the capabilities speech_tokens"),
        (SOURCE, {"voice": "absent"}, 404, "absent"),
        (SOURCE, {"speed": "9"}, 400, "speed"),
        (SOURCE, {"response_format": "wma"}, 400, "response_format"),
    ],
)
def test_bad_requests_are_refused(
    http: httpx.Client, source: bytes, fields: dict[str, str], status: int, message: str
) -> None:
    response = converted(http, source, **fields)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    wait_until_idle(http)


def test_disconnect_releases_the_conversion(http: httpx.Client) -> None:
    long = wav(speech(20, 16_000))
    files = {"audio": ("a.wav", long)}
    for _ in range(4):  # of which the engine has as many slots
        with http.stream("POST", "/v1/audio/conversions", data={"voice": "anna"}, files=files) as response:
            next(response.iter_raw())
        wait_until_idle(http)
    assert converted(http).status_code == 200


def test_conversions_are_measured(http: httpx.Client) -> None:
    converted(http)
    lines = http.get("/metrics").text.splitlines()
    assert any(line.startswith("tts_conversion_first_audio_seconds_count") for line in lines)
    source_s = [float(line.split()[-1]) for line in lines if line.startswith("tts_source_audio_seconds_total")]
    assert sum(source_s) >= SOURCE_S


def test_conversion_is_in_the_openapi_document(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    body = json.dumps(paths["/v1/audio/conversions"]["post"]["requestBody"])
    assert '"audio"' in body
    assert "post" in paths["/inference_vc"]


@pytest.fixture(params=["ws", "grpc"])
def url(request: pytest.FixtureRequest, worker: ThreadedWorker) -> str:
    return f"{request.param}://{worker.address if request.param == 'ws' else worker.grpc_address}"


def test_client_converts_like_the_engine(url: str, offline: bytes) -> None:
    with TTS(url, voice="anna") as tts:
        speech = tts.convert(SOURCE)
    assert (speech.pcm, speech.sample_rate_hz) == (offline, 24_000)


def test_client_raises_the_error_of_the_worker(url: str) -> None:
    with TTS(url, voice="anna") as tts:
        with pytest.raises(InvalidRequest, match="cannot be read"):
            tts.convert(b"not audio at all")
        with pytest.raises(UnknownVoice):
            tts.convert(SOURCE, voice="absent")


def test_say_converts_with_a_worker(url: str, bundle: Path, offline: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    source = str(bundle.parent / "source.wav")
    command = ["say", "--url", url, "--voice", "anna", "--mode", "vc", "--source", source, "--quiet"]
    assert main([*command, "--out", str(out)]) == 0
    assert soundfile.read(out, dtype="int16")[0].tobytes() == offline


def test_say_converts_standard_input(url: str, live: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, out = tmp_path / "in.pcm", tmp_path / "out.pcm"
    raw.write_bytes(live_pcm())
    command = ["say", "--url", url, "--voice", "anna", "--mode", "vc", "--quiet", "--out", str(out), "--source"]
    assert main([*command, "-"]) == 2, "without its rate"
    assert main([*command, str(raw), "--source-rate", "16000"]) == 2
    with raw.open("rb") as file:
        monkeypatch.setattr("os.read", lambda descriptor, size: file.read(size) if descriptor == 0 else b"")
        assert main([*command, "-", "--source-rate", "16000"]) == 0
    assert out.read_bytes() == live


def test_say_refuses_a_conversion_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", "--mode", "vc", "--source", "x.wav"]) == 2
    assert "needs a worker (--url)" in capsys.readouterr().err


def live_pcm() -> bytes:
    return (speech(3, 16_000).samples * 32_767).astype("<i2").tobytes()


def live_parts(size: int) -> AsyncIterator[bytes]:
    pcm = live_pcm()

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(pcm), size):
            yield pcm[start : start + size]

    return parts()


async def live_audio(worker: ThreadedWorker, size: int) -> list[bytes]:
    async with AsyncTTS(f"grpc://{worker.grpc_address}", voice="anna") as tts:
        return [part async for part in tts.convert(live_parts(size), live_rate_hz=16_000)]


@pytest.fixture(scope="module")
def live(worker: ThreadedWorker) -> bytes:
    """The conversion of live audio that comes in one part, over gRPC."""
    return b"".join(asyncio.run(live_audio(worker, 96_000)))


async def test_live_audio_is_converted_however_it_is_split(worker: ThreadedWorker, live: bytes) -> None:
    assert b"".join(await live_audio(worker, 4_801)) == live
    assert len(live) // 2 == pytest.approx(3 * 24_000, abs=SAMPLES_PER_TOKEN)


async def test_converted_audio_has_checksums_on_request(worker: ThreadedWorker, live: bytes) -> None:
    async def requests() -> AsyncIterator[pb.ConvertRequest]:
        start = pb.ConversionStart(voice="anna", live_sample_rate=16_000, checksums=True)
        yield pb.ConvertRequest(start=start)
        yield pb.ConvertRequest(audio=live_pcm())

    async with grpc.aio.insecure_channel(worker.grpc_address) as channel:
        call = tts_worker_pb2_grpc.VoiceConversionStub(channel).Convert(requests())
        responses = [response async for response in call]
    audio = b""
    for before, response in itertools.pairwise(responses):
        if response.WhichOneof("part") == "audio":
            chunk = before.chunk
            assert chunk.sha256 == hashlib.sha256(response.audio).hexdigest()
            assert (chunk.start_sample, chunk.samples) == (len(audio) // 2, len(response.audio) // 2)
            audio += response.audio
    assert audio == live


async def both_sources(url: str) -> tuple[bytes, bytes]:
    """Convert a recording and live audio."""
    async with AsyncTTS(url, voice="anna") as tts:
        recorded = [part async for part in tts.convert(SOURCE)]
        live = [part async for part in tts.convert(live_parts(96_000), live_rate_hz=16_000)]
    return b"".join(recorded), b"".join(live)


def test_client_converts_live_audio_without_await(url: str, live: bytes) -> None:
    pcm = live_pcm()
    parts = (pcm[start : start + 9_601] for start in range(0, len(pcm), 9_601))
    with TTS(url, voice="anna") as tts:
        assert b"".join(tts.convert_stream(parts, live_rate_hz=16_000)) == live
        with pytest.raises(UnknownVoice):
            tts.convert(iter([pcm]), live_rate_hz=16_000, voice="absent")
        with pytest.raises(InvalidRequest, match="live_rate_hz"):
            tts.convert(iter([pcm]))


def test_client_gets_the_reason_for_a_refused_upload(worker: ThreadedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.features.conversion.grpc_service.MAX_AUDIO_BYTES", 100_000)
    with TTS(f"grpc://{worker.grpc_address}", voice="anna") as tts, pytest.raises(TextTooLong):
        tts.convert(bytes(8_000_000))


async def test_refusal_arrives_while_the_source_goes_on(url: str) -> None:
    async def microphone() -> AsyncIterator[bytes]:
        yield bytes(32_000)
        await asyncio.Event().wait()

    async with AsyncTTS(url, voice="absent") as tts:
        with pytest.raises(UnknownVoice):
            await anext(tts.convert(microphone(), live_rate_hz=16_000))


async def test_worker_in_this_process_converts(
    sections: dict[str, Any], offline: bytes, live: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text(json.dumps(sections))
    assert await both_sources(f"local:{file}") == (offline, live)


async def test_client_of_a_registry_converts(worker: ThreadedWorker, offline: bytes, live: bytes) -> None:
    capabilities = WorkerCapabilities(
        zero_shot=True,
        emotive_zero_prompt=False,
        cpu_ok=True,
        languages=["mul"],
        max_concurrent_sessions=8,
        voices=["anna"],
        sample_rates=[24_000],
        protocol_version=PROTOCOL_VERSION,
    )
    entry = WorkerEntry(
        name="one",
        addr=f"grpc://{worker.grpc_address}",
        capabilities=capabilities,
        resident_models=["cosy"],
        metrics={},
        last_heartbeat_ts=time.time(),
    )
    async with aclosing(RedisStore(embedded_redis())) as store:
        await store.put("conversion:one", entry.to_json(), 60.0)
    assert await both_sources(f"{embedded_redis()}?prefix=conversion:") == (offline, live)


async def test_live_audio_is_heard_before_the_source_ends(url: str) -> None:
    heard = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        async for part in live_parts(32_000):
            yield part
        await heard.wait()  # the source ends only after its first converted audio

    async with AsyncTTS(url, voice="anna") as tts:
        async for _ in tts.convert(parts(), live_rate_hz=16_000):
            heard.set()
    assert heard.is_set()


@pytest.mark.parametrize("target", ["v1/audio/conversions?voice=anna&response_format=pcm", "inference_vc?spk_id=anna"])
async def test_posted_audio_is_converted_while_it_arrives(worker: ThreadedWorker, live: bytes, target: str) -> None:
    host, port = worker.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST /{target} HTTP/1.1\r\nHost: localhost\r\n".encode()
        + b"Content-Type: audio/pcm;rate=16000\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    async for part in live_parts(31_999):
        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")

    async def read_chunk() -> bytes:
        size = int(await reader.readuntil(b"\r\n"), 16)
        return (await reader.readexactly(size + 2))[:-2]

    pcm = await read_chunk()
    assert pcm, "it is heard before the source ends"
    writer.write(b"0\r\n\r\n")
    while part := await read_chunk():
        pcm += part
    writer.close()
    assert pcm == live


def test_refused_live_audio_is_a_typed_error(http: httpx.Client) -> None:
    for content_type, voice, status in (
        ("audio/pcm", "anna", 400),
        ("audio/pcm;rate=x", "anna", 400),
        ("audio/pcm;rate=192000", "anna", 400),
        ("audio/pcm;rate=16000", "absent", 404),
        ("audio/pcm;rate=16000", "tone", 400),
    ):
        query = {"voice": voice, "response_format": "pcm"}
        headers = {"content-type": content_type}
        refused = http.post("/v1/audio/conversions", params=query, content=bytes(64_000), headers=headers)
        assert (refused.status_code, bool(refused.json()["error"]["code"])) == (status, True), content_type
    for body in (b"", b"x"):
        empty = http.post(
            "/v1/audio/conversions?voice=anna", content=body, headers={"content-type": "audio/pcm;rate=8000"}
        )
        assert (empty.status_code, "no samples" in empty.text) == (400, True)
    wait_until_idle(http)


async def test_failing_live_source_ends_its_conversion(url: str, http: httpx.Client) -> None:
    async def parts() -> AsyncIterator[bytes]:
        async for part in live_parts(32_000):
            yield part
        raise ValueError("the microphone is gone")

    async with AsyncTTS(url, voice="anna") as tts:
        with pytest.raises(ValueError, match="microphone"):
            [part async for part in tts.convert(parts(), live_rate_hz=16_000)]
    wait_until_idle(http)


async def test_source_of_text_is_an_error_at_once(url: str) -> None:
    async def parts() -> AsyncIterator[Any]:
        yield "not audio"

    async with AsyncTTS(url, voice="anna") as tts:
        with anyio.fail_after(30.0), pytest.raises(InvalidRequest, match="bytes, not str"):
            [part async for part in tts.convert(parts(), live_rate_hz=16_000)]


def test_elevenlabs_route_converts(http: httpx.Client, offline: bytes) -> None:
    path = "/elevenlabs/v1/speech-to-speech/anna/stream"
    data = {"model_id": "eleven_english_sts_v2", "voice_settings": '{"stability": 0.5}'}
    query = {"output_format": "pcm_24000"}
    response = http.post(path, params=query, data=data, files={"audio": ("a.wav", SOURCE)})
    assert (response.status_code, response.content == offline) == (200, True)
    samples, _ = soundfile.read(io.BytesIO(SOURCE), dtype="int16")
    raw = {**data, "file_format": "pcm_s16le_16"}
    assert http.post(path, params=query, data=raw, files={"audio": samples.tobytes()}).content == offline
    models = {model["model_id"]: model for model in http.get("/elevenlabs/v1/models").json()}
    assert models["cosy"]["can_do_voice_conversion"]
    assert not models["tone"]["can_do_voice_conversion"]


async def test_elevenlabs_client_converts(worker: ThreadedWorker, offline: bytes) -> None:
    elevenlabs = pytest.importorskip("elevenlabs.client", reason="needs the package elevenlabs")
    async with httpx.AsyncClient(timeout=60) as own:
        client = elevenlabs.AsyncElevenLabs(api_key="any key", base_url=f"http://{worker.address}", httpx_client=own)
        stream = client.speech_to_speech.convert("anna", audio=("a.wav", SOURCE), output_format="pcm_24000")
        assert b"".join([part async for part in stream]) == offline


def test_bench_measures_conversions(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(bundle.parent / "source.wav")
    engine = ["--engine", "cosyvoice", "--set", f"engines.cosyvoice.bundle={bundle}"]
    options = ["--set", "engines.cosyvoice.device=cpu", "--set", "engines.cosyvoice.memory_gb=0.1"]
    capsys.readouterr()
    command = ["conversion", source, "--voice", "anna", "--turns", "2", "--live", "--json"]
    assert bench([*command, *engine, *options]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert 0 < figures["first_audio_p50_ms"] <= figures["first_audio_p95_ms"]
    assert figures["audio_s"] == pytest.approx(2 * SOURCE_S, abs=0.1)


def test_source_audio_per_minute_limits_conversions(worker: ThreadedWorker) -> None:
    caller = Caller("app", source_seconds_per_minute=1, characters_per_minute=1)
    hub = worker.worker.hub
    options = SessionOptions(voice="anna", realtime=False, raw_chunks=True)

    async def convert() -> None:
        with acting_as(caller):
            hub.quotas.charge(Metered.CHARACTERS, "app", 1, 100)  # which do not apply
            conversion = await hub.convert(options, RecordedSource(wav(speech(1.5, 16_000))))
            assert [item async for item in conversion.outputs()]
            with pytest.raises(QuotaExceeded) as refused:
                await hub.convert(options, RecordedSource(wav(speech(1.0, 16_000))))
        assert refused.value.retry_after_s == pytest.approx(91, abs=3)  # the debt of half a second, and one second

    asyncio.run_coroutine_threadsafe(convert(), worker.loop).result()


def test_conversion_knows_the_charges_of_other_workers(worker: ThreadedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def learn(kind: Metered, key: str, per_minute: float) -> None:
        if kind is Metered.SOURCE:
            hub.quotas.charge(kind, key, per_minute, 60)

    async def convert() -> None:
        with acting_as(Caller("shared", source_seconds_per_minute=10)), pytest.raises(QuotaExceeded):
            await hub.convert(SessionOptions(voice="anna"), RecordedSource(SOURCE))

    hub = worker.worker.hub
    monkeypatch.setattr(hub.quotas, "refresh", learn)
    asyncio.run_coroutine_threadsafe(convert(), worker.loop).result()
