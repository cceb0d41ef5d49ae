"""API keys with names, scopes and quotas, key rotation, wrong keys and the audit log, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from websockets.exceptions import InvalidStatus

from tests.conftest import serving, until
from tests.fakes.enroller import EnrollingWorker, serving_worker
from tests.fakes.recordings import speech, wav
from tests.integration.grpc_worker import TEXT, running_grpc_worker
from tests.integration.test_websocket import dial
from tts_worker.callers import current_caller
from tts_worker.client import ClientSettings, SessionOptions, connect
from tts_worker.errors import ConfigError
from tts_worker.logs import JsonLines, TextLines
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.server.keys import FREE_FAILURES, KeyRing
from tts_worker.settings import load_settings
from tts_worker.settings.keys import ApiKey, read_key_file

APP = "app-key-0123"
OPERATOR = "operator-key-0123"
READER = "reader-key-0123"


def key_file(folder: Path, **app: Any) -> Path:
    digest = hashlib.sha256(OPERATOR.encode()).hexdigest()
    keys = [
        {"name": "app", "key": APP, "scopes": ["speak"], **app},
        {"name": "operator", "sha256": digest, "scopes": ["speak", "enroll", "admin"]},
        {"name": "reader", "key": READER, "scopes": []},
    ]
    file = folder / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": keys}))
    return file


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def speak(client: httpx.AsyncClient, key: str) -> httpx.Response:
    return await client.post(
        "/v1/audio/speech", json={"model": "tone", "voice": "tone", "input": "Hi."}, headers=bearer(key)
    )


async def test_scopes_limit_a_key(tmp_path: Path) -> None:
    worker = EnrollingWorker(server={"key_file": str(key_file(tmp_path))})
    form = {"data": {"tts_text": "Hi."}, "files": {"prompt_wav": ("a.wav", wav(speech(2.0)))}}
    async with serving_worker(worker) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        for key, reads, speaks, enrolls in (
            (APP, 200, 200, 403),
            (OPERATOR, 200, 200, 200),
            (READER, 200, 403, 403),
            ("another-key", 401, 401, 401),
        ):
            assert (await client.get("/metrics", headers=bearer(key))).status_code == reads
            assert (await speak(client, key)).status_code == speaks
            answer = await client.post("/inference_cross_lingual", headers=bearer(key), **form)
            assert answer.status_code == enrolls
        for path in ("/health", "/health/ready"):
            assert (await client.get(path)).status_code == 200, "health needs no key"


async def test_only_admin_keys_load_and_unload_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_grpc_worker(server={"key_file": str(key_file(tmp_path))}) as rig:
        with caplog.at_level(logging.INFO, "tts_worker.audit"):
            for key, code in ((APP, "forbidden"), (OPERATOR, "")):
                metadata = (("x-api-key", key),)
                unloaded = await rig.stub.UnloadModel(pb.UnloadModelRequest(model_id="tone"), metadata=metadata)
                loaded = await rig.stub.LoadModel(pb.LoadModelRequest(model_id="tone"), metadata=metadata)
                assert (unloaded.error.code, loaded.error.code) == (code, code)
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [
            "unload_model 'tone' over grpc by key app: forbidden",
            "load_model 'tone' over grpc by key app: forbidden",
            "unload_model 'tone' over grpc by key operator: kept",  # the default stays
            "load_model 'tone' over grpc by key operator: done",
        ]


async def test_max_sessions_limits_a_key(tmp_path: Path) -> None:
    file = key_file(tmp_path, max_sessions=1)
    async with (
        serving(server={"key_file": str(file)}) as address,
        dial(address, additional_headers=bearer(APP)) as held,
    ):
        await held.until("ready")
        with pytest.raises(InvalidStatus) as exc_info:
            async with dial(address, additional_headers=bearer(APP)):
                pass
        assert exc_info.value.response.status_code == 429
        assert exc_info.value.response.headers["Retry-After"]
        await held.send(type="start", voice="tone-low")
        assert (await held.until("ready"))["voice"] == "tone-low", "a replacing session does not count twice"
        async with dial(address, additional_headers=bearer(OPERATOR)) as other:
            await other.until("ready")


async def test_grpc_sessions_count_toward_the_key_limit(tmp_path: Path) -> None:
    file = key_file(tmp_path, max_sessions=1)
    async with running_grpc_worker(server={"key_file": str(file)}) as rig:
        start = rig.stub.StartSession
        for name, key, code in (("a", APP, ""), ("b", APP, "quota_exceeded"), ("c", OPERATOR, "")):
            answer = await start(pb.StartSessionRequest(session_id=name), metadata=(("x-api-key", key),))
            assert answer.error.code == code


async def test_requests_per_minute_do_not_delay_controls(tmp_path: Path) -> None:
    file = key_file(tmp_path, requests_per_minute=2)
    async with running_grpc_worker(server={"key_file": str(file)}) as rig:
        metadata = (("x-api-key", APP),)
        for _ in range(2):
            await rig.stub.StartSession(pb.StartSessionRequest(session_id="s"), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as exc_info:
            await rig.stub.StartSession(pb.StartSessionRequest(session_id="t"), metadata=metadata)
        assert exc_info.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(20):
            assert (
                await rig.stub.Control(pb.ControlRequest(session_id="s", command=pb.STOP), metadata=metadata)
            ).success


async def test_requests_per_minute_over_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = key_file(tmp_path, requests_per_minute=3)
    async with (
        serving(server={"key_file": str(file)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        codes = [(await speak(client, APP)).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        (refusal,) = [record for record in caplog.records if record.__dict__.get("fields", {}).get("reason") == "rate"]
        assert (refusal.__dict__["fields"]["key"], APP in refusal.getMessage()) == ("app", False)
        assert (await speak(client, OPERATOR)).status_code == 200


async def test_characters_per_minute_refuse_the_next_utterance(tmp_path: Path) -> None:
    file = key_file(tmp_path, characters_per_minute=4)
    headers = {"additional_headers": bearer(APP)}
    async with (
        serving(server={"key_file": str(file)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
        dial(address, "/v1/stream?realtime=false", **headers) as stream,
    ):
        await stream.send(type="text", text="Hello ")
        await stream.send(type="text", text="you.", end=True)  # an utterance that has begun is spoken whole
        await stream.send(type="text", text="More.", context="queued")
        rejected = await stream.until("rejected")
        assert (rejected["code"], rejected["context"]) == ("quota_exceeded", "queued")
        assert (await stream.until("done"))["text_spoken"] == "Hello you."
        await stream.send(type="text", text="More.")
        error = await stream.until("error")
        assert (error["code"], error["retryable"], error["text_remaining"]) == ("quota_exceeded", True, "More.")
        assert 60 < error["retry_after_s"] <= 106, "the debt of six characters and the next one"
        refused = await speak(client, APP)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
        assert 60 < int(refused.headers["Retry-After"]) <= 106
        assert (await speak(client, OPERATOR)).status_code == 200
        metrics = (await client.get("/metrics", headers=bearer(READER))).text
    assert 'tts_refused_total{code="quota_exceeded",transport="openai"} 1.0' in metrics


@pytest.mark.parametrize("content", ["keys: 5", "keys: [{name: a, key: b}]", "keys: [", None])
async def test_unusable_key_file_is_blamed_by_its_setting(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=rf"^server\.key_file: .*{re.escape(str(file))}") as error:
        read_key_file(file)
    assert "environment" not in error.value.message


async def test_changed_key_file_is_reloaded(tmp_path: Path) -> None:
    file = key_file(tmp_path)
    async with (
        serving(server={"key_file": str(file)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        assert (await speak(client, APP)).status_code == 200
        new = tmp_path / "new.yaml"
        new.write_text("keys: [{name: app, key: rotated-key-0123, scopes: [speak]}]")
        new.replace(file)
        await _until_status(client, "rotated-key-0123", 200)
        assert (await speak(client, APP)).status_code == 401


async def test_sighup_reloads_the_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.server.file_watch.INTERVAL_S", 3_600.0)
    file = key_file(tmp_path)
    async with (
        serving(server={"key_file": str(file)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        assert (await speak(client, "rotated-key-0123")).status_code == 401
        file.write_text("keys: [{name: app, key: rotated-key-0123, scopes: [speak]}]")
        os.kill(os.getpid(), signal.SIGHUP)
        await _until_status(client, "rotated-key-0123", 200)


async def test_keys_of_the_file_are_redacted_from_logs(tmp_path: Path) -> None:
    file = key_file(tmp_path)
    async with (
        serving(server={"key_file": str(file)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        file.write_text("keys: [{name: app, key: rotated-key-0123, scopes: [speak]}]")
        await _until_status(client, "rotated-key-0123", 200)
    record = logging.LogRecord("library", logging.WARNING, "", 0, f"sent {APP}, then rotated-key-0123", None, None)
    for formatter in (TextLines(), JsonLines()):
        line = formatter.format(record)
        assert "sent [redacted], then [redacted]" in line


async def test_invalid_key_file_keeps_the_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = key_file(tmp_path)
    async with (
        serving(server={"key_file": str(file)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        file.write_text("keys: [{name: app, key: short}]")
        await until(lambda: any("the API keys are unchanged" in record.getMessage() for record in caplog.records))
        assert (await speak(client, APP)).status_code == 200
        assert "short" not in caplog.text, "a key is never logged"


async def _until_status(client: httpx.AsyncClient, key: str, status: int) -> None:
    while (await client.get("/v1/voices", headers=bearer(key))).status_code != status:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_wrong_keys_are_counted_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(server={"api_keys": [APP]}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        for _ in range(3):
            assert (await speak(client, "a-wrong-key-0123")).status_code == 401
        assert (await client.get("/v1/voices")).status_code == 401
        metrics = (await client.get("/metrics", headers=bearer(APP))).text
    assert 'tts_auth_failures_total{reason="wrong",transport="openai"} 3.0' in metrics
    assert 'tts_auth_failures_total{reason="missing",transport="http"} 1.0' in metrics
    warnings = [record.getMessage() for record in caplog.records if record.name == "tts_worker.server.keys"]
    assert len(warnings) == 4
    assert "127.0.0.1" in warnings[0]
    assert "a-wrong-key" not in caplog.text
    assert APP not in caplog.text


async def test_many_wrong_keys_delay_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr("tts_worker.server.keys.asyncio.sleep", sleep)
    now_s = 0.0
    ring = KeyRing([ApiKey(name="app", key=APP)], clock=lambda: now_s)  # type: ignore[arg-type]
    for _ in range(FREE_FAILURES + 5):
        await ring.rejection("wrong", "10.0.0.1", "websocket")
    assert delays == [1.0] * 5
    await ring.rejection("wrong", "10.0.0.2", "websocket")
    assert len(delays) == 5, "another address is not delayed"
    assert await ring.authenticate(APP, "websocket") is not None, "a valid key is not delayed"
    now_s = 61.0
    await ring.rejection("wrong", "10.0.0.1", "websocket")
    assert len(delays) == 5, "the count restarts after a minute"


async def test_request_rate_refills_evenly() -> None:
    now_s = 0.0
    ring = KeyRing([ApiKey(name="app", key=APP, requests_per_minute=60)], clock=lambda: now_s)  # type: ignore[arg-type]

    async def accepted_requests() -> int:
        count = 0
        while True:
            try:
                await ring.authenticate(APP, "http")
            except Exception:
                return count
            count += 1

    assert await accepted_requests() == 60
    now_s = 10.0
    assert await accepted_requests() == 10


async def test_empty_key_file_admits_no_caller(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys: []")
    async with (
        serving(server={"key_file": str(file)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        assert (await speak(client, APP)).status_code == 401


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: [{name: a, key: long-enough-1}, {name: a, key: long-enough-2}]", "same name"),
        ("keys: [{name: a}]", "either key or sha256"),
        ("- {name: a, key: long-enough-1}", r"must contain a mapping, such as 'keys: \[\{name: app, key: a-"),
        ("keys: [{name: a, key: secret}]", "8 characters"),
        ("keys: [{name: a, key: long-enough-1, scopes: [everything]}]", "scopes"),
    ],
)
def test_invalid_key_file_is_config_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        read_key_file(file)
    assert "long-enough" not in str(error.value)
    assert "secret" not in str(error.value)


def test_key_file_counts_as_authentication(tmp_path: Path) -> None:
    settings = load_settings(flags={"server": {"host": "0.0.0.0", "key_file": str(key_file(tmp_path))}})
    assert settings.server.needs_key


def certificate(folder: Path) -> tuple[Path, Path]:
    cert = folder / "cert.pem"
    key = folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(cert), "-days", "1", *subject], check=True, capture_output=True
    )
    return cert, key


async def test_grpc_over_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tls = {"tls_certificate": str(cert), "tls_key": str(key)}
    async with running_grpc_worker(grpc=tls, server={"api_keys": [APP]}) as rig:
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(rig.member.address, credentials) as channel:
            stub = tts_worker_pb2_grpc.TTSServiceStub(channel)
            answer = await stub.StartSession(pb.StartSessionRequest(session_id="s"), metadata=(("x-api-key", APP),))
            assert answer.success
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.stub.GetCapabilities(pb.GetCapabilitiesRequest())


async def test_client_connects_over_grpcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path)
    trusted = grpc.ssl_channel_credentials(cert.read_bytes())
    monkeypatch.setattr("grpc.ssl_channel_credentials", lambda: trusted)
    async with (
        running_grpc_worker(grpc={"tls_certificate": str(cert), "tls_key": str(key)}) as rig,
        connect(f"grpcs://{rig.member.address}", ClientSettings()) as client,
    ):
        session = (await client.open(SessionOptions(realtime=False))).session
        session.speak(TEXT)
        session.end_text()
        assert await session.next() is not None


async def test_missing_tls_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        async with running_grpc_worker(grpc={"tls_certificate": str(tmp_path / "missing.pem")}):
            pass


async def test_caller_is_reset_after_a_request(tmp_path: Path) -> None:
    async with serving(server={"key_file": str(key_file(tmp_path))}) as address:
        async with dial(address, additional_headers=bearer(APP)) as client:
            await client.until("ready")
        assert current_caller().key is None


async def test_usage_is_that_of_the_key(tmp_path: Path) -> None:
    async with (
        serving(server={"key_file": str(key_file(tmp_path))}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        for _ in range(2):
            assert (await speak(client, APP)).status_code == 200
        assert (await speak(client, OPERATOR)).status_code == 200

        async def used(key: str) -> list[dict[str, Any]]:
            answer = await client.get("/v1/usage", headers=bearer(key))
            assert answer.status_code == 200
            usage: list[dict[str, Any]] = answer.json()["usage"]
            return usage

        (app,) = await used(APP)
        assert (app["key"], app["sessions"], app["characters"], app["source_seconds"]) == ("app", 2, 2 * len("Hi."), 0)
        assert app["audio_seconds"] > 0.1
        assert await used(READER) == []
        assert {each["key"] for each in await used(OPERATOR)} == {"app", "operator"}
        assert (await client.get("/v1/usage")).status_code == 401
        metrics = (await client.get("/metrics", headers=bearer(OPERATOR))).text
        assert '"app"' not in metrics


async def test_session_events_name_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    async with (
        serving(server={"key_file": str(key_file(tmp_path))}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        assert (await speak(client, APP)).status_code == 200
    events = [record for record in caplog.records if record.message in ("utterance ended", "session ended")]
    assert [record.__dict__["fields"]["key"] for record in events] == ["app", "app"]
    assert APP not in caplog.text
