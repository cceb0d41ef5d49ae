"""Pronunciation dictionaries of ElevenLabs and Cartesia, with their SDKs and LiveKit's plug-ins."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.conftest import serving
from tests.fakes.late import LateModule
from tests.features.lexicons.test_pls import grapheme, lexeme, pls

cartesia_sdk = LateModule("cartesia", "needs the package cartesia")
elevenlabs_client = LateModule("elevenlabs.client", "needs the package elevenlabs")

TEXT = "We run nginx for IT."
ALIAS: dict[str, Any] = {"type": "alias", "string_to_replace": "nginx", "alias": "engine x, the server"}
ENTRIES = {"nginx": {"say": "engine x, the server", "case_sensitive": True}}
FORMAT = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
VOICE = {"mode": "id", "id": "tone"}
SOCKET = "/v1/text-to-speech/tone"


@asynccontextmanager
async def worker(folder: Path | None) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    sections = {} if folder is None else {"lexicons": {"directory": str(folder)}}
    async with (
        serving(**sections) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http,
    ):
        yield address, http


async def spoken(http: httpx.AsyncClient, lexicon: Any = None) -> bytes:
    """Speak with the worker's own option, to compare with."""
    body = {"input": TEXT, "voice": "tone", "response_format": "pcm", "lexicon": lexicon}
    answer = await http.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_elevenlabs_sdk_manages_dictionaries(tmp_path: Path) -> None:
    async with worker(tmp_path) as (address, http), httpx.AsyncClient(timeout=60) as own:
        sdk = elevenlabs_client.AsyncElevenLabs(api_key="any", base_url=f"http://{address}", httpx_client=own)
        dictionaries = sdk.pronunciation_dictionaries
        made = await dictionaries.create_from_rules(rules=[ALIAS], name="My Brands", description="How we are called")
        assert made.id.startswith("My-Brands-")
        assert (made.name, made.version_id, made.version_rules_num) == ("My Brands", "1", 1)
        nike = lexeme(grapheme("Nike"), "<phoneme>naɪki</phoneme>")
        from_file = await dictionaries.create_from_file(name="Other", file=("a.pls", pls(nike)))
        assert (await dictionaries.get(from_file.id)).rules[0].dict() == {
            **{"type": "phoneme", "string_to_replace": "Nike", "phoneme": "naɪki", "alphabet": "ipa"},
            **{"case_sensitive": False, "word_boundaries": True},
        }

        listed = await dictionaries.list(page_size=1, sort="name", sort_direction="ascending")
        assert [each.id for each in listed.pronunciation_dictionaries] == [made.id]
        assert listed.has_more
        listed = await dictionaries.list(
            page_size=1, sort="name", sort_direction="ascending", cursor=listed.next_cursor
        )
        assert ([each.name for each in listed.pronunciation_dictionaries], listed.has_more) == (["Other"], False)

        rules = dictionaries.rules
        phoneme = {"type": "phoneme", "string_to_replace": "IT", "phoneme": "AY1 T IY1", "alphabet": "cmu-arpabet"}
        assert (await rules.add(made.id, rules=[phoneme])).version_rules_num == 2
        shown = await dictionaries.get(made.id)
        assert [rule.string_to_replace for rule in shown.rules] == ["nginx", "IT"]
        assert shown.rules[1].alphabet == "cmu-arpabet"
        assert (await rules.remove(made.id, rule_strings=["nginx", "IT"])).version_rules_num == 0
        last = await rules.set(made.id, rules=[{**ALIAS, "alias": "x"}])
        assert (last.version_id, last.version_rules_num) == ("4", 1)

        locator = {"pronunciation_dictionary_id": made.id, "version_id": "1"}
        said = sdk.text_to_speech.stream(
            "tone", text=TEXT, output_format="pcm_24000", pronunciation_dictionary_locators=[locator]
        )
        assert b"".join([part async for part in said]) == await spoken(http, ENTRIES) != await spoken(http)


@pytest.mark.parametrize("path", ["/multi-stream-input", "/stream-input"])
async def test_elevenlabs_socket_uses_dictionaries_in_order(tmp_path: Path, path: str) -> None:
    async with worker(tmp_path) as (address, http):
        for name, alias in (("one", "engine x, the server"), ("two", "no")):
            await http.post("/v1/lexicons", json={"name": name, "entries": {"nginx": alias, name: "word"}})
        locators = [{"pronunciation_dictionary_id": "one", "version_id": "1"}, {"pronunciation_dictionary_id": "two"}]
        begin = {"text": " ", "context_id": "a", "pronunciation_dictionary_locators": locators}
        end = {"context_id": "a", "close_context": True} if "multi" in path else {"text": ""}
        async with connect(f"ws://{address}{SOCKET}{path}?output_format=pcm_24000") as socket:
            for message in (begin, {"text": TEXT, "context_id": "a"}, end):
                await socket.send(json.dumps(message))
            audio = b""
            while not (answer := json.loads(await socket.recv())).get("isFinal"):
                audio += base64.b64decode(answer["audio"])
        assert audio == await spoken(http, "one,two") != await spoken(http, "two")
        async with connect(f"ws://{address}{SOCKET}{path}?output_format=pcm_24000") as socket:
            unknown = [{"pronunciation_dictionary_id": "nothing"}]
            await socket.send(json.dumps({**begin, "pronunciation_dictionary_locators": unknown}))
            assert json.loads(await socket.recv())["code"] == "unknown_lexicon"


async def test_rules_that_are_added_at_once_are_all_kept(tmp_path: Path) -> None:
    """Also those that clients of two workers add."""
    words = [f"word{number}" for number in range(8)]
    async with worker(tmp_path) as (_, one), worker(tmp_path) as (_, two):
        await one.post("/v1/lexicons", json={"name": "x", "entries": {}})

        async def add(http: httpx.AsyncClient, word: str) -> None:
            rule = {**ALIAS, "string_to_replace": word}
            answer = await http.post("/v1/pronunciation-dictionaries/x/add-rules", json={"rules": [rule]})
            assert answer.status_code == 200, answer.text

        await asyncio.gather(*(add((one, two)[number % 2], word) for number, word in enumerate(words)))
        assert {*(await two.get("/v1/lexicons/x")).json()["entries"]} == {*words}


async def test_elevenlabs_errors_have_its_shape(tmp_path: Path) -> None:
    async with worker(tmp_path) as (_, http):
        for answer, status, code in (
            (await http.get("/v1/pronunciation-dictionaries/nothing"), 404, "unknown_lexicon"),
            (
                await http.post(
                    "/v1/pronunciation-dictionaries/add-from-rules",
                    json={"name": "a", "rules": [{**ALIAS, "type": "x"}]},
                ),
                400,
                None,
            ),
            (
                await http.post("/v1/pronunciation-dictionaries/add-from-file", data={"name": "a"}, files={"x": b""}),
                400,
                None,
            ),
            (
                await http.post("/v1/pronunciation-dictionaries/nothing/set-rules", json={"rules": []}),
                404,
                "unknown_lexicon",
            ),
            (
                await http.post("/v1/pronunciation-dictionaries/nothing/add-rules", json={"rules": []}),
                404,
                "unknown_lexicon",
            ),
            (
                await http.post("/v1/pronunciation-dictionaries/nothing/remove-rules", json={"rule_strings": []}),
                404,
                "unknown_lexicon",
            ),
        ):
            assert answer.status_code == status, answer.text
            assert answer.json()["detail"]["status"] == (code or "invalid_request")


async def test_cartesia_sdk_manages_dictionaries(tmp_path: Path) -> None:
    async with (
        worker(tmp_path) as (address, http),
        cartesia_sdk.AsyncCartesia(api_key="any", base_url=f"http://{address}") as sdk,
    ):
        dictionaries = sdk.pronunciation_dicts
        items = [{"text": "nginx", "alias": "engine x, the server"}, {"text": "Nike", "alias": "<<n|aɪ|k|i>>"}]
        made = await dictionaries.create(name="My Brands", items=items)
        assert (made.name, made.pinned, len(made.items)) == ("My Brands", False, 2)
        assert (await http.get(f"/v1/lexicons/{made.id}")).json()["entries"] == {
            "nginx": {"say": "engine x, the server", "case_sensitive": False},
            "Nike": {"say": "/naɪki/", "case_sensitive": False},
        }
        empty = await dictionaries.create(name="Empty")
        assert [each.id async for each in dictionaries.list(limit=1)] == [empty.id, made.id]
        changed = await dictionaries.update(empty.id, name="Full", items=items[:1])
        assert (changed.name, [item.alias for item in changed.items]) == ("Full", ["engine x, the server"])
        assert (await dictionaries.retrieve(empty.id)).name == "Full"

        fields = {"model_id": "sonic-3", "transcript": TEXT, "voice": VOICE, "output_format": FORMAT}
        answer = await sdk.tts.generate(**fields, pronunciation_dict_id=made.id)
        assert await answer.read() == await spoken(http, {"nginx": "engine x, the server"}) != await spoken(http)
        await dictionaries.delete(made.id)
        with pytest.raises(cartesia_sdk.NotFoundError, match="no lexicon"):
            await dictionaries.retrieve(made.id)
        with pytest.raises(cartesia_sdk.NotFoundError, match="no lexicon"):
            await sdk.tts.generate(**fields, pronunciation_dict_id=made.id)


@pytest.mark.parametrize("path", ["/tts/sse", "/tts/websocket"])
async def test_cartesia_routes_use_a_dictionary(tmp_path: Path, path: str) -> None:
    async with worker(tmp_path) as (address, http):
        answer = await http.post("/pronunciation-dicts", json={"name": "a", "items": [{"text": "nginx", "alias": "x"}]})
        assert (await http.get("/pronunciation-dicts")).json() == {"data": [answer.json()], "has_more": False}
        name = answer.json()["id"]
        assert (await http.get(f"/pronunciation-dicts/{name}")).json() == answer.json()
        body = {
            "model_id": "m",
            "transcript": TEXT,
            "voice": VOICE,
            "output_format": FORMAT,
            "pronunciation_dict_id": name,
        }
        audio = b""
        if path == "/tts/sse":
            lines = (await http.post(path, json=body)).text.splitlines()
            messages = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        else:
            async with connect(f"ws://{address}{path}") as socket:
                await socket.send(json.dumps({**body, "context_id": "a", "continue": False}))
                messages = []
                while not messages or messages[-1]["type"] == "chunk":
                    messages.append(json.loads(await socket.recv()))
        assert messages[-1]["type"] == "done"
        audio = b"".join(base64.b64decode(message["data"]) for message in messages[:-1])
        assert audio == await spoken(http, {"nginx": "x"}) != await spoken(http)


async def test_worker_without_lexicons_ignores_the_dictionaries_of_a_vendor() -> None:
    """Clients bring them along when they switch."""
    async with worker(None) as (_, http):
        locators = [{"pronunciation_dictionary_id": "21m00Tcm4TlvDq8ikWAM", "version_id": "abc"}]
        body = {"text": TEXT, "pronunciation_dictionary_locators": locators}
        answer = await http.post(f"{SOCKET}?output_format=pcm_24000", json=body)
        assert answer.content == await spoken(http)
        fields = {"model_id": "m", "transcript": TEXT, "voice": VOICE, "output_format": FORMAT}
        answer = await http.post("/tts/bytes", json={**fields, "pronunciation_dict_id": "pd_123"})
        assert answer.content == await spoken(http)
        assert (await http.get("/v1/pronunciation-dictionaries")).status_code == 400
