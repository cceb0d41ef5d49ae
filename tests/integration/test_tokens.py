"""Short-lived tokens stand for a key, with at most its rights, for a while, for some sessions, for a page."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.conftest import serving
from tests.integration.test_api_keys import APP, OPERATOR, READER, bearer, key_file
from tts_worker.callers import ApiScope
from tts_worker.server.keys import KeyRing
from tts_worker.server.tokens import MAX_S, Grant, TokenSigner
from tts_worker.settings.keys import read_key_file

SPEECH = {"input": "Hi.", "voice": "tone", "response_format": "pcm"}


def http(address: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{address}", timeout=60)


async def token_of(client: httpx.AsyncClient, key: str = APP, **wanted: Any) -> str:
    answer = await client.post("/v1/tokens", json=wanted, headers=bearer(key))
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["token"])


async def until_no_session(client: httpx.AsyncClient) -> None:
    with anyio.fail_after(60):
        while "tts_sessions 0.0" not in (await client.get("/metrics", headers=bearer(READER))).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_token_is_accepted_where_its_key_is(tmp_path: Path) -> None:
    async with serving(server={"key_file": str(key_file(tmp_path))}) as address, http(address) as client:
        token = await token_of(client, sessions=3)
        assert (await client.post("/v1/audio/speech", json=SPEECH, headers=bearer(token))).status_code == 200
        assert (await client.post("/v1/audio/speech", json=SPEECH, headers={"x-api-key": token})).status_code == 200
        url = f"ws://{address}/v1/stream"
        async with connect(url, subprotocols=["tts-worker", f"key.{token}"]) as socket:  # type: ignore[list-item]
            assert json.loads(await socket.recv())["type"] == "ready"
        path = "/v1/text-to-speech/tone/stream-input?single_use_token="
        async with connect(f"ws://{address}{path}{token}") as socket:
            await socket.send(json.dumps({"text": " "}))
        usage = (await client.get("/v1/usage", headers=bearer(APP))).json()["usage"]
        assert {each["key"] for each in usage} == {"app"}, "it counts as the key"
        await until_no_session(client)


async def test_token_has_at_most_the_rights_of_its_key(tmp_path: Path) -> None:
    async with serving(server={"key_file": str(key_file(tmp_path))}) as address, http(address) as client:
        for key, wanted, status in (
            (APP, {"scopes": ["admin"]}, 403),
            (READER, {}, 403),
            (APP, {"seconds": MAX_S + 1}, 400),
            (APP, {"seconds": 0}, 400),
            (APP, {"scopes": []}, 400),
            (APP, {"scopes": ["sing"]}, 400),
            (APP, {"origin": "app.example.com/page"}, 400),
            (APP, {"sessions": 0}, 400),
            ("wrong", {}, 401),
        ):
            answer = await client.post("/v1/tokens", json=wanted, headers=bearer(key))
            assert answer.status_code == status, (wanted, answer.text)
        token = await token_of(client, OPERATOR)
        answer = await client.post("/v1/models/tone/reload", headers=bearer(token))
        assert answer.status_code == 403, "only what was asked for"
        answer = await client.post("/v1/tokens", headers=bearer(token))
        assert answer.status_code == 403, "a token does not prolong itself"


async def test_token_limits_the_sessions_of_its_holder(tmp_path: Path) -> None:
    async with serving(server={"key_file": str(key_file(tmp_path))}) as address, http(address) as client:
        token = await token_of(client)
        url, more = f"ws://{address}/v1/stream", {"additional_headers": bearer(token)}
        async with connect(url, **more) as socket:
            assert json.loads(await socket.recv())["type"] == "ready"
            answer = await client.post("/v1/audio/speech", json=SPEECH, headers=bearer(token))
            assert (answer.status_code, "1 sessions" in answer.text) == (429, True)
            with pytest.raises(InvalidStatus):
                async with connect(url, **more):
                    pass
            other = await token_of(client)
            assert (await client.post("/v1/audio/speech", json=SPEECH, headers=bearer(other))).status_code == 200
        await until_no_session(client)
        assert (await client.post("/v1/audio/speech", json=SPEECH, headers=bearer(token))).status_code == 200


async def test_token_of_a_page_is_refused_elsewhere(tmp_path: Path) -> None:
    page = "https://app.example.com"
    server = {"key_file": str(key_file(tmp_path)), "allowed_origins": [page, "https://other.example.com"]}
    async with serving(server=server) as address, http(address) as client:
        headers = bearer(await token_of(client, origin=f"{page}/"))
        for origin, status in ((page, 200), ("https://other.example.com", 401), (None, 401)):
            more = {} if origin is None else {"origin": origin}
            answer = await client.post("/v1/audio/speech", json=SPEECH, headers={**headers, **more})
            assert answer.status_code == status, origin


async def test_worker_without_keys_gives_out_no_token() -> None:
    async with serving() as address, http(address) as client:
        answer = await client.post("/v1/tokens")
        assert (answer.status_code, "needs no API key" in answer.text) == (400, True)


async def test_token_ends_with_its_time_and_with_its_key(tmp_path: Path) -> None:
    now_s = 1_000.0
    signer = TokenSigner(clock=lambda: now_s)
    keys = read_key_file(key_file(tmp_path)).keys
    ring = KeyRing(keys, tokens=signer)
    token = signer.sign(Grant("id", "app", frozenset(ApiScope), 1_060.0))
    caller = await ring.authenticate(token, "http")
    assert caller is not None
    assert (caller.key, caller.scopes) == ("app", {ApiScope.SPEAK}), "the key has no more"
    ring.replace(key for key in keys if key.name != "app")
    assert await ring.authenticate(token, "http") is None
    ring.replace(keys)
    now_s = 1_060.0
    assert await ring.authenticate(token, "http") is None


async def test_token_of_a_replaced_key_is_refused(tmp_path: Path) -> None:
    """Also if the new key has the same name: the old one may have leaked."""
    keys = read_key_file(key_file(tmp_path)).keys
    ring = KeyRing(keys, tokens=TokenSigner(clock=lambda: 1_000.0))
    token = ring.tokens.sign(Grant("id", "app", frozenset({ApiScope.SPEAK}), 1_060.0))
    assert await ring.authenticate(token, "http") is not None
    ring.replace(
        key.model_copy(update={"key": SecretStr("another-long-key")}) if key.name == "app" else key for key in keys
    )
    assert await ring.authenticate(token, "http") is None
    ring.replace(keys)
    assert await ring.authenticate(token, "http") is not None


def test_token_of_a_newer_worker_is_refused() -> None:
    class NewerScope(str, Enum):
        SING = "sing"

    signer = TokenSigner()
    token = signer.sign(Grant("id", "app", frozenset({NewerScope.SING}), 9e9))  # type: ignore[arg-type]
    assert signer.read(token) is None


async def test_workers_with_one_key_file_accept_each_others_tokens(tmp_path: Path) -> None:
    file = key_file(tmp_path)
    file.write_text(f"{file.read_text()}\ntoken_secret: a-secret-of-all-workers\n")
    shared = {"key_file": str(file)}
    async with serving(server=shared) as one, serving(server=shared) as two:
        async with http(one) as client:
            token = await token_of(client)
        async with http(two) as client:
            assert (await client.post("/v1/audio/speech", json=SPEECH, headers=bearer(token))).status_code == 200
            file.write_text(file.read_text().replace("of-all", "that-is-new-for-all"))

            async def is_refused() -> bool:
                answer = await client.post("/v1/audio/speech", json=SPEECH, headers=bearer(token))
                return answer.status_code == 401

            with anyio.fail_after(60):
                while not await is_refused():  # noqa: ASYNC110  (the worker looks at the file now and then)
                    await asyncio.sleep(0.01)


@given(data=st.data())
def test_changed_token_grants_nothing_else(data: st.DataObject) -> None:
    signer = TokenSigner(SecretStr("a-secret-of-all-workers"), clock=lambda: 1_000.0)
    grant = Grant("id", "app", frozenset({ApiScope.SPEAK}), 1_060.0, 2, "https://example.com")
    token = signer.sign(grant)
    assert signer.read(token) == grant
    assert TokenSigner(clock=lambda: 1_000.0).read(token) is None, "another worker has another secret"
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_.é "))
    changed = token[:place] + letter + token[place + 1 :]
    assert signer.read(changed) in (None, grant), "never another grant (base64 has letters with bits that mean nothing)"


@given(st.text(max_size=200))
def test_any_text_is_no_token(text: str) -> None:
    assert TokenSigner().read(text) is None
    assert TokenSigner().read(f"ttst_{text}") is None
