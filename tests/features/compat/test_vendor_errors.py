"""Errors of unknown and shared routes use the format of the client's vendor; incomplete speech is one in every API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.behavior.faults import fault_at
from tests.behavior.table import LONG
from tests.behavior.transports import Setup, serve_setup
from tests.conftest import serving
from tests.fakes.late import LateModule
from tts_worker.engine.tone import Fault

openai = LateModule("openai", "needs the package openai")
cartesia_sdk = LateModule("cartesia", "needs the package cartesia")
elevenlabs_client = LateModule("elevenlabs.client", "needs the package elevenlabs")
elevenlabs_core = LateModule("elevenlabs.core")


@asynccontextmanager
async def sdks(address: str, key: str = "any key") -> AsyncIterator[tuple[Any, Any, Any]]:
    """The clients of OpenAI, Cartesia and ElevenLabs."""
    async with (
        openai.AsyncOpenAI(api_key=key, base_url=f"http://{address}/v1", max_retries=0) as openai_client,
        cartesia_sdk.AsyncCartesia(api_key=key, base_url=f"http://{address}", max_retries=0) as cartesia_client,
        httpx.AsyncClient(timeout=60) as http,
    ):
        yield (
            openai_client,
            cartesia_client,
            elevenlabs_client.AsyncElevenLabs(api_key=key, base_url=f"http://{address}", httpx_client=http),
        )


ELEVENLABS = {"xi-api-key": "any key"}
WITHOUT_KEY = {"x-fern-sdk-name": "elevenlabs"}
CARTESIA = {"cartesia-version": "2025-04-16"}


def error_format(body: dict[str, Any]) -> str:
    if "detail" in body:
        assert body["detail"]["message"]
        return "elevenlabs"
    if "error_code" in body:
        assert body["message"]
        return "cartesia"
    assert body["error"]["message"]
    return "openai"


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/v1/nothing", {}, "openai"),
        ("/v1/nothing", ELEVENLABS, "elevenlabs"),
        ("/v1/nothing", CARTESIA, "cartesia"),
        ("/v1/voices/unknown", {}, "openai"),
        ("/v1/voices/unknown", ELEVENLABS, "elevenlabs"),
        ("/v1/voices/unknown", WITHOUT_KEY, "elevenlabs"),
        ("/v1/voices/unknown", {"x-fern-sdk-name": "another"}, "openai"),
        ("/elevenlabs/v1/nothing", {}, "elevenlabs"),
        ("/v1/text-to-speech/tone/nothing", {}, "elevenlabs"),
        ("/v2/voices/nothing", {}, "elevenlabs"),
        ("/tts/nothing", {}, "cartesia"),
        ("/voices/unknown", {}, "cartesia"),
    ],
)
async def test_not_found_uses_the_clients_format(path: str, headers: dict[str, str], expected: str) -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        answer = await http.get(path, headers=headers)
        assert (answer.status_code, error_format(answer.json())) == (404, expected)


async def test_elevenlabs_sdk_without_a_key_gets_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELEVENLABS_API_KEY", raising=False)
    async with serving() as address, httpx.AsyncClient(timeout=60) as http:
        client = elevenlabs_client.AsyncElevenLabs(base_url=f"http://{address}", httpx_client=http)
        assert [model.model_id for model in await client.models.list()] == ["tone"]
        with pytest.raises(elevenlabs_core.ApiError) as caught:
            await client.voices.get("unknown")
        assert caught.value.body["detail"]["status"] == "unknown_voice"


async def test_wrong_key_uses_the_clients_format() -> None:
    async with serving(server={"api_keys": ["a-long-secret"]}) as address, sdks(address, "wrong") as clients:
        for_openai, for_cartesia, for_elevenlabs = clients
        with pytest.raises(openai.AuthenticationError) as exc_info:
            await for_openai.models.list()
        assert exc_info.value.code == "unauthenticated"
        with pytest.raises(cartesia_sdk.AuthenticationError) as exc_info:
            await for_cartesia.voices.list()
        assert exc_info.value.body["error_code"] == "unauthenticated"
        with pytest.raises(elevenlabs_core.ApiError) as exc_info:
            await for_elevenlabs.models.list()
        assert exc_info.value.status_code == 401
        assert exc_info.value.body["detail"]["status"] == "unauthenticated"


async def test_sdk_methods_without_a_route_raise_not_found() -> None:
    async with serving() as address, sdks(address) as (for_openai, for_cartesia, for_elevenlabs):
        with pytest.raises(openai.NotFoundError):
            await for_openai.files.list()
        with pytest.raises(cartesia_sdk.NotFoundError) as exc_info:
            await for_cartesia.datasets.list()
        assert exc_info.value.body["status_code"] == 404
        with pytest.raises(elevenlabs_core.ApiError) as exc_info:
            await for_elevenlabs.user.get()
        assert exc_info.value.status_code == 404
        assert exc_info.value.body["detail"]["message"]


async def test_models_use_openai_format_by_default() -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        assert (await http.get("/v1/models")).json()["object"] == "list"
        assert isinstance((await http.get("/v1/models", headers=ELEVENLABS)).json(), list)
        assert isinstance((await http.get("/elevenlabs/v1/models")).json(), list)


async def test_voice_uses_worker_format_by_default() -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        listed = {voice["id"]: voice for voice in (await http.get("/v1/voices")).json()["voices"]}
        assert (await http.get("/v1/voices/tone-low")).json() == listed["tone-low"]


async def test_batch_item_that_ends_before_its_text_fails() -> None:
    async with (
        serve_setup(Setup(engine=fault_at(Fault.TRUNCATE, chunk=5, generation=1))) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        answer = await client.post("/v1/batch", json={"items": [{"input": LONG}], "voice": "tone"})
        results = await client.get(f"/v1/batch/{answer.json()['id']}/results")
        assert json.loads(results.content)["error"]["code"] == "synthesis_failed"
