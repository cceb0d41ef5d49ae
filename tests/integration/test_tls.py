"""HTTPS and WSS with a certificate of a private CA."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import itertools
import json
import math
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import tts_worker
from tests.conftest import serving, until
from tests.fakes.redis import eventually
from tests.fakes.scrape import scraped
from tests.integration.grpc_worker import running_grpc_worker
from tests.integration.test_connections import open_tcp
from tts_worker.client import ClientSettings
from tts_worker.client.unreachable import unreachable_over_grpc
from tts_worker.errors import ConfigError, ConnectionLost, InvalidRequest
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.server import connections
from tts_worker.server.tls import expiry_s
from tts_worker.types import Ended, Outcome, PcmFrame


def certificate(folder: Path, *, host: str = "127.0.0.1", expires_in_days: float = 1) -> tuple[Path, Path]:
    """A self-signed certificate of an address, which is its own CA, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=expires_in_days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain_key = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    files = folder / "tls.crt", folder / "tls.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain_key))
    return files


async def test_https_answers_with_the_certificate(tmp_path: Path) -> None:
    crt, key = certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(crt))
    async with serving(server={"tls_certificate": str(crt), "tls_key": str(key)}) as address:
        assert address.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=trusting) as http:
            assert (await http.get(f"{address}/health/ready")).status_code == 200
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await http.get(f"{address}/health/ready")


async def test_client_connects_over_wss_with_private_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crt, key = certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(crt.read_bytes() + key.read_bytes())
    async with serving(server={"tls_certificate": str(both)}) as address:
        url = address.replace("https", "wss")
        async with tts_worker.connect(url) as client:
            with pytest.raises(ConnectionLost):
                await client.open()
        monkeypatch.setenv("SSL_CERT_FILE", str(crt))
        async with tts_worker.connect(url) as client, client.session() as session:
            assert await client.voices.list()
            session.speak("Hello there.")
            session.end_text()
            samples = 0
            async for item in session:
                if isinstance(item, PcmFrame):
                    samples += item.samples
                if isinstance(item, Ended):
                    assert item.outcome is Outcome.DONE
                    break
            assert samples > 5_000


@pytest.mark.parametrize(
    ("kind", "is_trusted", "message"),
    [
        ({"expires_in_days": -1}, True, "expired"),
        ({"host": "127.0.0.2"}, True, "127.0.0.1"),
        ({}, False, "SSL_CERT_FILE"),
    ],
    ids=["expired", "wrong-host", "private-ca"],
)
async def test_client_says_why_a_certificate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any], is_trusted: bool, message: str
) -> None:
    crt, key = certificate(tmp_path, **kind)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(crt))
    async with (
        serving(server={"tls_certificate": str(crt), "tls_key": str(key)}) as address,
        tts_worker.connect(address.replace("https", "wss")) as client,
    ):
        for call in (client.open, client.voices.list):
            with pytest.raises(ConnectionLost, match=f"certificate.*{message}"):
                await call()


async def test_client_of_a_worker_without_tls_is_told_so() -> None:
    async with serving() as address, tts_worker.connect(f"wss://{address}") as client:
        with pytest.raises(ConnectionLost, match="does not use TLS"):
            await client.open()


@pytest.mark.parametrize(
    ("details", "message"),
    [
        (
            "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: certificate has expired: OK",
            "refused: certificate has expired",
        ),
        ("error:1000007d:CERTIFICATE_VERIFY_FAILED: self signed certificate", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
        ("check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.", "for another host name"),
        ("Connection refused", r"\(UNAVAILABLE\): is it running"),
    ],
)
def test_details_of_grpc_say_why_a_certificate_is_refused(details: str, message: str) -> None:
    assert re.search(message, unreachable_over_grpc("UNAVAILABLE", details).message)


async def test_client_certificates_are_required_and_name_callers(tmp_path: Path) -> None:
    crt, key = certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(crt.read_bytes() + key.read_bytes())
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: gateway, certificate: a test, max_sessions: 1}, {name: app, key: app-key-0123}]")
    server = {"tls_certificate": str(both), "tls_client_ca": str(crt), "key_file": str(keys)}
    async with serving(server=server) as address:
        anonymous = ssl.create_default_context(cafile=str(crt))
        known = ssl.create_default_context(cafile=str(crt))
        known.load_cert_chain(crt, key)
        async with httpx.AsyncClient(verify=anonymous) as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"{address}/health/ready")
        async with httpx.AsyncClient(verify=known) as http:
            assert (await http.get(f"{address}/v1/voices")).status_code == 200, "the certificate is a key"
            wrong = {"Authorization": "Bearer a-wrong-key"}
            assert (await http.get(f"{address}/v1/voices", headers=wrong)).status_code == 401
        url = address.replace("https", "wss") + "/v1/stream"
        async with connect(url, ssl=known) as socket:
            assert json.loads(await socket.recv())["type"] == "ready"
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, ssl=known)
            assert refused.value.response.status_code == 429, "the quota of the certificate's key"
            async with connect(url, ssl=known, additional_headers={"X-API-Key": "app-key-0123"}) as other:
                assert json.loads(await other.recv())["type"] == "ready"


async def test_client_shows_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crt, key = certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(crt.read_bytes() + key.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(crt))
    async with serving(server={"tls_certificate": str(both), "tls_client_ca": str(crt)}) as address:
        url = address.replace("https", "wss")
        async with tts_worker.connect(url, ClientSettings(tls_certificate=both)) as client:
            assert await client.voices.list()
            assert (await client.open()).session.id
            with pytest.raises(InvalidRequest, match="speech_tokens"):  # the worker answers: its voice cannot convert
                await anext(client.convert(b"RIFF"))
            with pytest.raises(InvalidRequest, match="speech_tokens"):
                await anext(client.convert([bytes(64_000)], live_rate_hz=16_000))
        async with tts_worker.connect(url, ClientSettings(tls_certificate=tmp_path / "none")) as client:
            with pytest.raises(ConfigError, match="tls_certificate"):
                await client.open()


async def test_grpc_requires_certificates_and_reads_renewed_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crt, key = certificate(tmp_path)
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: gateway, certificate: a test}, {name: app, key: app-key-0123}]")
    tls = {"tls_certificate": str(crt), "tls_key": str(key), "tls_client_ca": str(crt)}
    async with running_grpc_worker(grpc=tls, server={"key_file": str(keys)}) as rig:
        sessions = itertools.count()

        async def voices(*pair: bytes, key: str = "") -> int:
            credentials = grpc.ssl_channel_credentials(crt.read_bytes(), *pair)
            options = [("grpc.use_local_subchannel_pool", 1)]  # a new connection
            async with grpc.aio.secure_channel(rig.member.address, credentials, options) as channel:
                metadata = (("x-api-key", key),) if key else None
                session = f"s{next(sessions)}"
                stub = tts_worker_pb2_grpc.TTSServiceStub(channel)
                models = await stub.ListModels(pb.ListModelsRequest(), metadata=metadata)
                await stub.StartSession(pb.StartSessionRequest(session_id=session), metadata=metadata)
                call = stub.Synthesize(metadata=metadata)
                await call.write(pb.TextChunk(session_id=session, text="Hello."))
                await call.done_writing()
                frames = [frame async for frame in call]
                assert frames[-1].is_final
                return len(models.models)

        pair = key.read_bytes(), crt.read_bytes()
        assert await voices(*pair) == 1
        assert await voices(*pair, key="app-key-0123") == 1
        with pytest.raises(grpc.aio.AioRpcError) as wrong:
            await voices(*pair, key="a-wrong-key-0123")
        assert wrong.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await voices()
        assert missing.value.code() is grpc.StatusCode.UNAVAILABLE
        usable = crt.read_bytes()
        crt.write_bytes(b"damaged")
        credentials = grpc.ssl_channel_credentials(usable, *pair)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(rig.member.address, credentials, options) as channel:
            models = await tts_worker_pb2_grpc.TTSServiceStub(channel).ListModels(pb.ListModelsRequest())
            assert len(models.models) == 1, "the certificate before is still used"
        assert "the TLS certificate of gRPC is unchanged: grpc.tls_certificate, grpc.tls_key" in caplog.text
        certificate(tmp_path)  # renewed; the test's client trusts the new one only
        assert await voices(key.read_bytes(), crt.read_bytes()) == 1


@pytest.mark.parametrize("damaged", ["tls_certificate", "tls_key", "tls_client_ca"])
async def test_grpc_names_the_tls_file_that_cannot_be_used(tmp_path: Path, damaged: str) -> None:
    crt, key = certificate(tmp_path)
    other = tmp_path / "other.pem"
    other.write_bytes(b"damaged")
    tls = {"tls_certificate": str(crt), "tls_key": str(key), "tls_client_ca": str(crt), damaged: str(other)}
    with pytest.raises(ConfigError, match=rf"grpc\.{damaged}.*: cannot be used"):
        async with running_grpc_worker(grpc=tls):
            pass


async def test_renewed_certificate_is_read_without_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tts_worker.server.file_watch.INTERVAL_S", 0.02)
    crt, key = certificate(tmp_path)
    async with serving(server={"tls_certificate": str(crt), "tls_key": str(key)}) as address:
        held = httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(crt)))
        assert (await held.get(f"{address}/health/ready")).status_code == 200
        crt.write_bytes(b"damaged")
        await until(lambda: "the TLS certificate is unchanged" in caplog.text)
        certificate(tmp_path)
        renewed = ssl.create_default_context(cafile=str(crt))

        async def is_renewed() -> bool:
            async with httpx.AsyncClient(verify=renewed) as http:
                try:
                    return (await http.get(f"{address}/health/ready")).status_code == 200
                except httpx.ConnectError:
                    return False

        await eventually(is_renewed)
        assert (await held.get(f"{address}/health/ready")).status_code == 200, "open connections continue"
        await held.aclose()


@pytest.mark.parametrize("days", [1, 40 * 365], ids=["UTCTime", "GeneralizedTime"])
async def test_expiry_of_the_certificates_is_a_metric(tmp_path: Path, days: int) -> None:
    crt, key = certificate(tmp_path, expires_in_days=days)
    files = {"tls_certificate": str(crt), "tls_key": str(key)}
    expected = x509.load_pem_x509_certificate(crt.read_bytes()).not_valid_after_utc.timestamp()
    grpc_section = {"enabled": True, "port": 0, **files}
    async with (
        serving(server=files, grpc=grpc_section) as address,
        httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(crt))) as http,
    ):
        text = (await http.get(f"{address}/metrics")).text
    for server in ("http", "grpc"):
        assert scraped(text, "tts_certificate_expiry_timestamp_seconds", server=server) == expected


def test_expiry_of_an_unreadable_certificate_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    assert math.isnan(expiry_s(file))
    whole = certificate(tmp_path)[0].read_text().splitlines()
    for text in ("", "\n".join([*whole[:2], whole[-1]]), "\n".join([whole[0], "AAAA", whole[-1]])):
        file.write_text(text)
        assert math.isnan(expiry_s(file))


async def test_silent_tls_handshake_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 0.2)
    crt, key = certificate(tmp_path)
    server = {"tls_certificate": str(crt), "tls_key": str(key)}
    async with serving(server=server) as address, open_tcp(address.removeprefix("https://")) as client:
        assert await client.read_all() == b""


async def test_unusable_certificate_is_config_error(tmp_path: Path) -> None:
    crt, _ = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = certificate(tmp_path / "other")
    for wrong in ({"tls_certificate": str(crt), "tls_key": str(other)}, {"tls_certificate": str(tmp_path / "none")}):
        with pytest.raises(ConfigError, match=r"server\.tls_certificate"):
            async with serving(server=wrong):
                pass


async def test_server_sends_nothing_between_handshake_and_answer(tmp_path: Path) -> None:
    """A client that reads and writes on two threads must find no session ticket to read while it writes."""
    crt, key = certificate(tmp_path)

    def ticket_after_answer(address: str) -> bool:
        trusting = ssl.create_default_context(cafile=str(crt))
        trusting.minimum_version = ssl.TLSVersion.TLSv1_3
        host, port = address.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=60) as connection,
            trusting.wrap_socket(connection, server_hostname=host) as client,
        ):
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(65_536), b""))
            assert answer.startswith(b"HTTP/1.1 200")
            return client.session is not None and client.session.has_ticket

    async with serving(server={"tls_certificate": str(crt), "tls_key": str(key)}) as address:
        assert not await asyncio.to_thread(ticket_after_answer, address)


@pytest.mark.filterwarnings("ignore:ConnectionClosed.code:DeprecationWarning")  # the SDK's own
async def test_elevenlabs_sdk_streams_text_over_wss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elevenlabs = pytest.importorskip("elevenlabs.client", reason="needs the ElevenLabs SDK")
    crt, key = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(crt))

    def convert(address: str) -> bytes:
        client = elevenlabs.ElevenLabs(api_key="any key", base_url=address)
        speech = client.text_to_speech.convert_realtime(
            "tone", text=iter(["Hello there. ", "How are you?"]), model_id="x", output_format="pcm_24000"
        )
        return b"".join(speech)

    async with serving(server={"tls_certificate": str(crt), "tls_key": str(key)}) as address:
        audio = await asyncio.to_thread(convert, address)
    letters = len("Hellothere.Howareyou?")
    assert len(audio) == 60 * letters * 48  # the tone engine: 60 ms a letter, 48 bytes a ms
