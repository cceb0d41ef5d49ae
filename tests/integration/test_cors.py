"""Cross-origin requests as a browser sends them, over plain HTTP; ``tests/browser`` repeats them in Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.conftest import serving, tone_settings
from tts_worker.errors import ConfigError

ORIGIN = "https://app.example"
KEY = "a-long-secret"
SPEECH = {"model": "tts-1", "voice": "tone", "input": "Hello there."}


@asynccontextmanager
async def client_of(**server: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = {"allowed_origins": [ORIGIN], "api_keys": [KEY], **server}
    async with serving(server=server) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        yield http


def preflight(origin: str = ORIGIN, headers: str = "") -> dict[str, str]:
    requested = {"Access-Control-Request-Headers": headers} if headers else {}
    return {"Origin": origin, "Access-Control-Request-Method": "POST", **requested}


def header_names(answer: httpx.Response, header: str) -> set[str]:
    return {name.strip().lower() for name in answer.headers.get(header, "").split(",") if name.strip()}


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/tts/sse", "/v1/text-to-speech/tone/stream", "/v1/voices"])
async def test_preflight_needs_no_key(path: str) -> None:
    async with client_of() as http:
        answer = await http.options(path, headers=preflight(headers="authorization,content-type"))
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert header_names(answer, "access-control-allow-methods") >= {"get", "post"}
        assert header_names(answer, "access-control-allow-headers") == {"authorization", "content-type"}
        assert "origin" in header_names(answer, "vary")


@pytest.mark.parametrize(
    "header",
    [
        *("authorization", "content-type", "xi-api-key", "X-API-Key", "Cartesia-Version"),
        *("openai-organization", "x-stainless-os", "x-stainless-retry-count", "x-fern-language"),
    ],
)
async def test_preflight_allows_sdk_headers(header: str) -> None:
    async with client_of() as http:
        answer = await http.options("/v1/audio/speech", headers=preflight(headers=f"x-other, {header}"))
        assert header_names(answer, "access-control-allow-headers") == {header.lower()}


async def test_credentials_and_wildcards_are_never_allowed() -> None:
    async with client_of() as http:
        answers = [
            await http.options("/v1/voices", headers=preflight(headers="*, cookie")),
            await http.get("/v1/voices", headers={"Origin": ORIGIN, "X-API-Key": KEY}),
        ]
        for answer in answers:
            assert "access-control-allow-credentials" not in answer.headers
            assert "*" not in "".join(value for name, value in answer.headers.items() if name.startswith("access-"))


async def test_allowed_page_may_read_every_response() -> None:
    async with client_of() as http:
        allowed = {"Origin": ORIGIN, "Authorization": f"Bearer {KEY}"}
        for answer, status in (
            (await http.post("/v1/audio/speech", json=SPEECH, headers=allowed), 200),
            (await http.post("/v1/audio/speech", json=SPEECH, headers={"Origin": ORIGIN}), 401),
            (await http.get("/v1/nothing", headers=allowed), 404),
            (await http.post("/v1/audio/speech", content=b" " * 2_000_000, headers=allowed), 413),
        ):
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert header_names(answer, "access-control-expose-headers") >= {
                "x-request-id",
                "x-sample-rate",
                "retry-after",
            }
            assert "origin" in header_names(answer, "vary")


@pytest.mark.parametrize("origin", ["https://evil.example", "https://app.example.evil", "http://app.example", "null"])
async def test_other_origins_are_rejected_without_cors_headers(origin: str) -> None:
    async with client_of() as http:
        for answer in (
            await http.options("/v1/audio/speech", headers=preflight(origin)),
            await http.get("/v1/voices", headers={"Origin": origin, "X-API-Key": KEY}),
        ):
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_requests_without_an_origin_have_no_cors_headers() -> None:
    async with client_of() as http:
        answer = await http.get("/v1/voices", headers={"X-API-Key": KEY})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert "origin" in header_names(answer, "vary"), "a cache must not give this to a page"


async def test_plain_options_request_needs_key() -> None:
    async with client_of() as http:
        assert (await http.options("/v1/voices", headers={"Origin": ORIGIN})).status_code == 401


@pytest.mark.parametrize("origin", ["*", "app.example", "https://app.example/page", "https://", "https://*.example"])
def test_invalid_allowed_origin_is_config_error(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.allowed_origins"):
        tone_settings(server={"allowed_origins": [origin]})


def test_allowed_origins_accept_ports_and_schemes() -> None:
    origins = ("https://app.example:8443", "http://localhost:3000/", "tauri://localhost", "http://[::1]:3000")
    assert tone_settings(server={"allowed_origins": origins}).server.allowed_origins == origins
