"""Logs of a running worker: one event per session, request IDs, rejections; never a key or spoken text."""

from __future__ import annotations

import json
import logging
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.conftest import serving, until
from tests.fakes.programs import Program
from tests.integration.test_websocket import dial
from tts_worker.server.limits import ApiLimits

KEY = "s3cr3t-KEY-9f8e7d6c5b4a"
SPOKEN = "Xylophones quarrel under marmalade."
HEADERS = {"X-API-Key": KEY}


@contextmanager
def logged(tmp_path: Path, *settings: str) -> Iterator[tuple[str, list[str]]]:
    """A worker in its own process. Yields its URL and a list that holds its output once the block has ended."""
    lines: list[str] = []
    words = [word for setting in settings for word in ("--set", setting)]
    command = ["-m", "tts_worker", "serve", "--port", "0", "--engine", "tone", *words]
    with (
        (tmp_path / "stderr").open("wb") as errors,
        Program(*command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            listening = process.stdout.readline()
            ready = process.stdout.readline()
            match = re.search(r"http://[0-9.:]+", listening)
            assert match, listening
            yield match[0], lines
            process.terminate()
            assert process.wait(timeout=60) == 0
            lines += [listening, ready, *process.stdout, *(tmp_path / "stderr").read_text().splitlines()]
        finally:
            process.kill()


async def speak_everywhere(url: str) -> None:
    """Speak the same text over every kind of route, with the key in every place that is accepted."""
    socket = url.replace("http", "ws")
    async with dial(socket.removeprefix("ws://"), additional_headers=HEADERS) as client:
        await client.send(type="start", lexicon={"marmalade": "marmelade"})
        await client.send(type="text", text=SPOKEN, end=True)
        await client.until("done")
    begin = {"context_id": "c", "transcript": SPOKEN, "voice": {"id": "tone"}, "continue": False}
    begin["output_format"] = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
    async with connect(f"{socket}/tts/websocket?api_key={KEY}") as cartesia:
        await cartesia.send(json.dumps(begin))
        while not json.loads(await cartesia.recv()).get("done"):
            pass
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        speech = await http.post("/v1/audio/speech", json={"input": SPOKEN}, headers={"Authorization": f"Bearer {KEY}"})
        assert speech.status_code == 200
        form = {"tts_text": SPOKEN, "prompt_text": SPOKEN}
        await http.post("/inference_zero_shot", data=form, files={"prompt_wav": b"RIFF" * 100}, headers=HEADERS)
        assert (await http.get(f"/tts/nothing?api_key={KEY}x")).status_code == 401


async def test_debug_log_holds_neither_key_nor_text(tmp_path: Path) -> None:
    with logged(tmp_path, "log_level=debug", f"server.api_keys=[{KEY}]") as (url, lines):
        await speak_everywhere(url)
    text = "\n".join(lines)
    assert "session ended" in text
    assert KEY not in text
    assert not [word for word in SPOKEN.split() if word in text]


async def test_text_that_is_not_utf8_is_no_traceback(tmp_path: Path) -> None:
    with logged(tmp_path) as (url, lines):
        async with connect(f"{url.replace('http', 'ws')}/v1/stream") as socket:
            await socket.send(b"\xff", text=True)
            await socket.wait_closed()
            assert socket.close_code == 1007
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(f"{url}/metrics")).text
    assert 'tts_connections_closed_total{reason="invalid"} 1.0' in metrics
    assert "Traceback" not in "\n".join(lines)


async def test_json_log_is_json_only(tmp_path: Path) -> None:
    with logged(tmp_path, "log_format=json", f"server.api_keys=[{KEY}]") as (url, lines):
        await speak_everywhere(url)
    records = [json.loads(line) for line in lines if line.strip()]
    assert [record["message"] for record in records][:2] == ["listening", "ready"]
    started = next(record for record in records if record["logger"] == "tts_worker.serving" and "version" in record)
    assert (started["engines"], started["devices"]) == ("tone", "tone:cpu")
    transports = {record["transport"] for record in records if record["message"] == "session ended"}
    assert transports == {"openai", "cartesia", "websocket"}
    rejected = next(record for record in records if record["message"].startswith("rejected over"))
    assert (rejected["transport"], rejected["reason"], rejected["client"]) == ("cartesia", "wrong", "127.0.0.1")
    assert rejected["request_id"]


def ended(caplog: pytest.LogCaptureFixture, what: str = "session") -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.getMessage() == f"{what} ended"]


async def test_each_utterance_end_is_one_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    async with serving() as address, dial(address, additional_headers={"X-Request-Id": "call-44"}) as client:
        await client.send(type="start", voice="tone-low")
        await client.send(type="text", text="Hello.", end=True)
        first = await client.until("done")
        await client.send(type="start", voice="tone", realtime=False)
        await client.send(type="text", text="Hello ")
        await client.send(type="text", text=SPOKEN)
        await client.until_audio()
        await client.send(type="stop")
        await client.until("stopped")
    done, stopped = ended(caplog, "utterance")
    assert (done["voice"], done["outcome"], done["reason"], done["text_chars"]) == ("tone-low", "done", "finished", 6)
    assert done["samples"] == first["samples_sent"]
    assert 0 < done["first_audio_ms"] < done["duration_s"] * 1000
    assert (stopped["voice"], stopped["outcome"], stopped["text_chars"]) == ("tone", "stopped", 6 + len(SPOKEN))
    assert {event["request_id"] for event in (done, stopped)} == {"call-44"}
    assert {event["transport"] for event in (done, stopped)} == {"websocket"}


async def test_refused_utterance_is_an_event_with_its_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    session = {"max_sessions": 1, "slot_idle_s": 0.000001}  # a silent session loses its slot to another caller
    async with serving(session=session) as address, dial(address) as one, dial(address) as other:
        await one.send(type="text", text=SPOKEN)
        await one.until_audio()
        await other.send(type="text", text=SPOKEN, end=True)
        await other.until("error")
        await until(lambda: ended(caplog, "utterance"))
    event = ended(caplog, "utterance")[0]
    assert (event["outcome"], event["code"], event["samples"]) == ("error", "over_capacity", 0)
    assert "first_audio_ms" not in event


async def test_session_end_is_one_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    async with serving() as address, dial(address, additional_headers={"X-Request-Id": "call-42"}) as client:
        await client.send(type="start", voice="tone-low")
        await client.send(type="text", text=SPOKEN, end=True)
        report = await client.until("done")
        await client.send(type="close")
        with pytest.raises(ConnectionClosed):
            await client.until_closed()
        await until(lambda: ended(caplog))
    (event,) = ended(caplog)
    assert event["request_id"] == "call-42"
    assert (event["transport"], event["voice"], event["engine"]) == ("websocket", "tone-low", "tone")
    assert (event["reason"], event["outcome"], event["utterances"]) == ("client_closed", "done", 1)
    assert event["samples"] == report["samples_sent"]
    assert event["text_chars"] == len(SPOKEN)
    assert 0 < event["first_audio_ms"] < event["duration_s"] * 1000


async def test_finished_download_is_no_disconnection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        body = {"input": SPOKEN, "response_format": "pcm"}
        assert (await client.post("/v1/audio/speech", json=body)).status_code == 200
        body["input"] *= 100
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            await answer.aiter_bytes().__anext__()
        await until(lambda: len(ended(caplog)) == 2)
    assert [event["reason"] for event in ended(caplog)] == ["finished", "disconnected"]


async def test_failed_download_names_its_error(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{name: app, key: {KEY}, characters_per_minute: 1}}]")
    async with (
        serving(server={"key_file": str(keys)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60, headers=HEADERS) as client,
    ):
        body = {"input": SPOKEN, "response_format": "pcm"}
        statuses = [(await client.post("/v1/audio/speech", json=body)).status_code for _ in range(2)]
        await until(lambda: len(ended(caplog)) == 2)
    assert statuses == [200, 429]
    assert [event["reason"] for event in ended(caplog)] == ["finished", "quota_exceeded"]


async def test_session_end_names_outcome_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    async with serving(session={"text_idle_timeout_s": 60}) as address, dial(address) as client:
        await client.send(type="text", text=SPOKEN)
        await client.until_audio()
        client.socket.transport.abort()
        await until(lambda: ended(caplog))
    (event,) = ended(caplog)
    assert (event["outcome"], event["reason"]) == ("stopped", "disconnected")


@pytest.mark.parametrize("code", [1000, 1001, None])  # None: as close() of browsers, a frame without a code
async def test_closing_handshake_is_no_disconnection(caplog: pytest.LogCaptureFixture, code: Any) -> None:
    caplog.set_level(logging.INFO, "tts_worker")
    async with serving() as address, dial(address) as client:
        await client.until("ready")
        await client.socket.close(code)
        await until(lambda: ended(caplog))
    assert [event["reason"] for event in ended(caplog)] == ["client_closed"]


async def test_session_closed_for_a_fault_names_its_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ApiLimits, "of", lambda settings: ApiLimits(max_messages_per_s=10))
    caplog.set_level(logging.INFO, "tts_worker")
    async with serving() as address, dial(address) as client:
        for _ in range(100):
            await client.send(type="ping")
        with pytest.raises(ConnectionClosed):
            await client.until_closed()
        await until(lambda: ended(caplog))
    assert [event["reason"] for event in ended(caplog)] == ["rate_limited"]


@pytest.mark.parametrize("sane", ["a", "2f1e-77:b.c_d", "x" * 128])
async def test_request_id_of_client_is_returned(sane: str) -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        for path in ("/v1/voices", "/nothing", "/health/live"):
            assert (await http.get(path, headers={"x-request-id": sane})).headers["x-request-id"] == sane
        spoken = await http.post("/v1/audio/speech", json={"input": "Hello."}, headers={"x-request-id": sane})
        assert spoken.headers.get_list("x-request-id") == [sane]


@pytest.mark.parametrize("wild", ["", "-a", "a b", "a\tb", "x" * 129, "é".encode().decode("latin-1")])
async def test_malformed_request_id_is_replaced(wild: str) -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        answer = await http.get("/v1/voices", headers={"x-request-id": wild.encode("latin-1")})
        assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


async def test_handshake_returns_request_id() -> None:
    headers = {"x-request-id": "call-43"}
    async with serving() as address:
        async with connect(f"ws://{address}/v1/stream", additional_headers=headers) as socket:
            assert socket.response is not None
            assert socket.response.headers["x-request-id"] == "call-43"
        with pytest.raises(InvalidStatus) as exc_info:
            async with connect(f"ws://{address}/v1/stream?voice=none", additional_headers=headers):
                pass
        assert exc_info.value.response.headers["x-request-id"] == "call-43"


async def test_forbidden_origins_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}") as http:
        for _ in range(5):
            assert (await http.get("/v1/voices", headers={"origin": "http://evil.example"})).status_code == 403
    rejections = [record for record in caplog.records if record.getMessage().startswith("request rejected")]
    assert 1 <= len(rejections) < 5
    assert rejections[0].__dict__["fields"]["path"] == "/v1/voices"
