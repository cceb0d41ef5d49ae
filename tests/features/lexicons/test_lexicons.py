"""``/v1/lexicons`` over real sockets, and sessions that use what is stored there."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.conftest import serving, tone_settings
from tests.fakes.threaded_worker import worker_in_thread
from tests.features.lexicons.test_pls import grapheme, lexeme, pls
from tts_worker import AsyncTTS, cli
from tts_worker.errors import ConfigError, InvalidRequest, UnknownLexicon
from tts_worker.features.lexicons import library as lexicon_library
from tts_worker.features.lexicons.library import StoredLexicons, parse_references
from tts_worker.session.lexicons import LexiconContent
from tts_worker.worker import running_worker

ENTRIES: dict[str, Any] = {"nginx": "engine x, the web server", "IT": {"say": "eye tee", "case_sensitive": True}}
OTHER = {"nginx": "no"}
TEXT = "We run nginx for IT."


def speech(**options: Any) -> dict[str, Any]:
    return {"input": TEXT, "voice": "tone", "response_format": "pcm", **options}


async def spoken(client: httpx.AsyncClient, **options: Any) -> bytes:
    answer = await client.post("/v1/audio/speech", json=speech(**options))
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_lexicon_is_created_versioned_shown_and_deleted(tmp_path: Path) -> None:
    async with (
        serving(lexicons={"directory": str(tmp_path / "new")}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        assert (await client.get("/v1/lexicons")).json() == {"lexicons": []}
        created = await client.post("/v1/lexicons", json={"name": "brands", "entries": ENTRIES, "title": "Brands"})
        assert (created.status_code, created.headers["location"]) == (201, "/v1/lexicons/brands")
        about = created.json()
        assert about["created_at"].endswith("+00:00")
        assert about == {
            **{"name": "brands", "version": 1, "versions": [1], "count": 2, "title": "Brands", "description": ""},
            **{"owner": None, "created_at": about["created_at"]},
        }
        again = await client.post("/v1/lexicons", json={"name": "brands", "entries": OTHER})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "illegal_command")

        same = await client.put("/v1/lexicons/brands", json={"entries": ENTRIES})
        assert same.json() == about, "the same content makes no version"
        newer = (await client.put("/v1/lexicons/brands", json={"entries": OTHER, "description": "Shorter"})).json()
        assert (newer["version"], newer["versions"], newer["title"], newer["count"]) == (2, [1, 2], "Brands", 1)
        assert (await client.get("/v1/lexicons")).json() == {"lexicons": [newer]}
        assert (await client.get("/v1/lexicons/brands")).json() == {**newer, "entries": OTHER}
        first = (await client.get("/v1/lexicons/brands@1")).json()
        assert (first["version"], first["entries"]) == (1, ENTRIES)

        assert (await client.delete("/v1/lexicons/brands")).json() == {"name": "brands", "deleted": True}
        for answer in (
            await client.get("/v1/lexicons/brands"),
            await client.get("/v1/lexicons/brands@1"),
            await client.put("/v1/lexicons/brands", json={"entries": OTHER}),
            await client.delete("/v1/lexicons/brands"),
            await client.post("/v1/audio/speech", json=speech(lexicon="brands")),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_lexicon"), answer.text


async def test_file_is_uploaded_in_a_form(tmp_path: Path) -> None:
    file = pls(
        lexeme(grapheme("nginx"), "<alias>engine x</alias>"), lexeme(grapheme("Nike"), "<phoneme>naɪki</phoneme>")
    )
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        form = {"data": {"name": "brands", "description": "d"}, "files": {"file": ("a.pls", file)}}
        assert (await client.post("/v1/lexicons", **form)).status_code == 201
        assert (await client.get("/v1/lexicons/brands")).json()["entries"] == {"nginx": "engine x", "Nike": "/naɪki/"}
        answer = await client.put("/v1/lexicons/brands", files={"file": ("a.json", json.dumps(OTHER))})
        assert answer.json()["version"] == 2
        for bad, problem in (
            (b"<lexicon><lexeme/>", "line 1: the lexeme has no <grapheme>"),
            (b"{", "neither PLS nor valid JSON"),
            (b"x" * (5 << 20), "at most 4 MiB"),
        ):
            answer = await client.put("/v1/lexicons/brands", files={"file": ("a", bad)})
            assert answer.status_code in (400, 413)
            assert problem in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"name": "a/b", "entries": OTHER}, "a lexicon's name has"),
        ({"name": "../a", "entries": OTHER}, "a lexicon's name has"),
        ({"name": "a@1", "entries": OTHER}, "a lexicon's name has"),
        ({"name": "", "entries": OTHER}, "name"),
        ({"entries": OTHER}, "name"),
        ({"name": "a"}, "entries: send them"),
        ({"name": "a", "entries": [1]}, "entries: must be an object"),
        ({"name": "a", "entries": {"x": 1}}, "entries['x'] must be a spelling"),
        ({"name": "a", "entries": {"!": "b"}}, "entries['!']: a key needs a letter"),
        ({"name": "a", "entries": {f"w{n}": "b" for n in range(5_001)}}, "5001 entries"),
        ({"name": "a", "entries": {f"w{n}": "b" * 250 for n in range(1_000)}}, "too much text"),
        ({"name": "a", "entries": OTHER, "title": "x" * 101}, "title"),
        ({"name": "a", "entries": OTHER, "more": 1}, "more"),
    ],
)
async def test_bad_lexicon_is_refused(tmp_path: Path, body: dict[str, Any], complaint: str) -> None:
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        answer = await client.post("/v1/lexicons", json=body)
        assert answer.status_code == 400
        assert complaint in answer.json()["error"]["message"]
    assert os.listdir(tmp_path) == []


async def test_worker_without_a_directory_says_so() -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}") as client:
        for answer in (
            await client.get("/v1/lexicons"),
            await client.post("/v1/lexicons", json={"name": "a", "entries": OTHER}),
            await client.post("/v1/audio/speech", json=speech(lexicon="brands")),
        ):
            assert answer.status_code == 400
            assert "its setting lexicons.directory is not set" in answer.json()["error"]["message"]


async def test_directory_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "worker.yaml").write_text("lexicons:\n  directory: file/below\n")
    with pytest.raises(ConfigError, match=r"^lexicons\.directory: .*file is not a directory"):
        async with running_worker(tone_settings(lexicons={"directory": str(tmp_path / "file")})):
            pass
    assert await asyncio.to_thread(cli.main, ["config", "check", str(tmp_path / "worker.yaml")]) == 1
    assert f"worker.yaml:2: lexicons.directory: {tmp_path}/file is not a directory" in capsys.readouterr().out


async def test_named_lexicon_reads_like_its_entries(tmp_path: Path) -> None:
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        plain = await spoken(client)
        await client.post("/v1/lexicons", json={"name": "brands", "entries": ENTRIES})
        await client.post("/v1/lexicons", json={"name": "others", "entries": OTHER})
        assert await spoken(client, lexicon="brands") == await spoken(client, lexicon=ENTRIES) != plain
        await client.put("/v1/lexicons/brands", json={"entries": OTHER})
        for name, entries in (
            ("brands", OTHER),
            ("brands@2", OTHER),
            ("brands@1", ENTRIES),
            ("others,brands@1", {**ENTRIES, **OTHER}),
            ("brands@1, others", {**OTHER, **ENTRIES}),
        ):
            assert await spoken(client, lexicon=name) == await spoken(client, lexicon=entries), name
        assert len({await spoken(client, lexicon=each) for each in (ENTRIES, OTHER, {**ENTRIES, **OTHER})}) == 3


async def audio_of(address: str, query: str = "", **start: Any) -> bytes:
    """Speak over ``/v1/stream``."""
    async with connect(f"ws://{address}/v1/stream?realtime=false&{query}") as socket:
        assert json.loads(await socket.recv())["type"] == "ready"
        if start:
            await socket.send(json.dumps({"type": "start", "realtime": False, **start}))
        await socket.send(json.dumps({"type": "text", "text": TEXT, "end": True}))
        audio = b""
        while True:
            item = await socket.recv()
            if isinstance(item, bytes):
                audio += item
            elif (message := json.loads(item))["type"] in ("done", "rejected"):
                assert message["type"] == "done", message
                return audio


async def test_stream_takes_a_name_in_the_query_and_in_start(tmp_path: Path) -> None:
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        await client.post("/v1/lexicons", json={"name": "brands", "entries": ENTRIES})
        expected = await audio_of(address, lexicon=ENTRIES)
        assert await audio_of(address) != expected
        assert await audio_of(address, lexicon="brands") == expected
        assert await audio_of(address, "lexicon=brands@1") == expected
        async with connect(f"ws://{address}/v1/stream") as socket:
            await socket.recv()
            for lexicon, code in (
                ("brands@2", "unknown_lexicon"),
                ("a b", "invalid_request"),
                ("a,b,c,d", "invalid_request"),
            ):
                await socket.send(json.dumps({"type": "start", "lexicon": lexicon}))
                message = json.loads(await socket.recv())
                assert (message["type"], message["code"]) == ("rejected", code)
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://{address}/v1/stream?lexicon=nothing"):
                pass
        assert refused.value.response.status_code == 404


async def test_session_keeps_its_version(tmp_path: Path) -> None:
    """Neither a new version nor a deletion changes what a running session says."""
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        await client.post("/v1/lexicons", json={"name": "brands", "entries": ENTRIES})
        expected = await audio_of(address, lexicon=ENTRIES)
        async with connect(f"ws://{address}/v1/stream?realtime=false&lexicon=brands") as socket:
            await socket.recv()
            for change in (
                client.put("/v1/lexicons/brands", json={"entries": OTHER}),
                client.delete("/v1/lexicons/brands"),
            ):
                await socket.send(json.dumps({"type": "text", "text": TEXT[:12]}))
                assert (await change).status_code == 200
                await socket.send(json.dumps({"type": "text", "text": TEXT[12:], "end": True}))
                audio = b""
                while not (isinstance(item := await socket.recv(), str) and json.loads(item)["type"] == "done"):
                    audio += item if isinstance(item, bytes) else b""
                assert audio == expected


@pytest.mark.parametrize("scheme", ["ws", "grpc"])
async def test_python_client_uses_a_name(tmp_path: Path, scheme: str) -> None:
    with worker_in_thread(tone_settings(lexicons={"directory": str(tmp_path)})) as worker:
        async with httpx.AsyncClient(base_url=f"http://{worker.address}") as http:
            await http.post("/v1/lexicons", json={"name": "brands", "entries": ENTRIES})
        address = worker.address if scheme == "ws" else worker.grpc_address

        async def say(lexicon: Any) -> bytes:
            async with AsyncTTS(f"{scheme}://{address}", voice="tone", lexicon=lexicon) as tts:
                return (await tts.speak(TEXT)).pcm

        assert await say("brands") == await say(ENTRIES) != await say(None)
        with pytest.raises(UnknownLexicon, match='no lexicon "nothing"'):
            await say("nothing")


async def test_grpc_session_takes_a_name(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs the extra grpc")
    from tests.integration.grpc_worker import running_grpc_worker, say

    async with running_grpc_worker(lexicons={"directory": str(tmp_path)}) as worker:
        await worker.worker.hub.lexicons.stored.create("brands", LexiconContent(ENTRIES))

        async def said(name: str, **options: str) -> bytes:
            assert (await worker.start(name, packetize="false", **options)).success
            return (await say(worker, TEXT, session=name)).pcm

        by_name = await said("a", lexicon="brands@1")
        assert by_name == await said("b", lexicon=json.dumps(ENTRIES)) != await said("c")


async def test_batch_and_its_items_take_lexicons(tmp_path: Path) -> None:
    async with (
        serving(
            lexicons={"directory": str(tmp_path / "lexicons")}, batch={"directory": str(tmp_path / "batches")}
        ) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        await client.post("/v1/lexicons", json={"name": "brands", "entries": ENTRIES})
        items = [{"input": TEXT}, {"input": TEXT, "lexicon": OTHER}]
        body = {"voice": "tone", "response_format": "pcm", "lexicon": "brands", "items": items}
        submitted = await client.post("/v1/batch", json=body)
        assert submitted.status_code == 202, submitted.text
        results = (await client.get(f"{submitted.headers['location']}/results")).text.splitlines()
        audio = [base64.b64decode(json.loads(line)["audio"]) for line in results]
        assert audio == [await spoken(client, lexicon=each) for each in (ENTRIES, OTHER)]
        for lexicon, code in (("nothing", 404), ({"x": 1}, 400)):
            assert (await client.post("/v1/batch", json={**body, "lexicon": lexicon})).status_code == code


async def test_workers_share_a_directory(tmp_path: Path) -> None:
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as first,
        serving(lexicons={"directory": str(tmp_path)}) as second,
        httpx.AsyncClient(base_url=f"http://{first}", timeout=60) as one,
        httpx.AsyncClient(base_url=f"http://{second}", timeout=60) as two,
    ):
        await one.post("/v1/lexicons", json={"name": "brands", "entries": ENTRIES})
        assert await spoken(two, lexicon="brands") == await spoken(one, lexicon=ENTRIES)
        await two.put("/v1/lexicons/brands", json={"entries": OTHER})
        assert await spoken(one, lexicon="brands") == await spoken(one, lexicon=OTHER)
        # Created anew under the same name and number.
        await two.delete("/v1/lexicons/brands")
        await one.post("/v1/lexicons", json={"name": "brands", "entries": OTHER})
        assert await spoken(two, lexicon="brands@1") == await spoken(two, lexicon=OTHER)
        created = await asyncio.gather(
            *(client.post("/v1/lexicons", json={"name": "race", "entries": OTHER}) for client in (one, two) * 4)
        )
        assert sorted(answer.status_code for answer in created) == [201] + [409] * 7
        await asyncio.gather(
            *(
                client.put("/v1/lexicons/race", json={"entries": {"a": f"b{n}"}})
                for n, client in enumerate((one, two) * 4)
            )
        )
        assert (await one.get("/v1/lexicons/race")).json()["versions"] == [*range(1, 10)]


KEYS = {"anna": ["speak", "enroll"], "ben": ["speak", "enroll"], "boss": ["admin", "enroll"], "app": ["speak"]}


async def test_only_the_owner_or_an_admin_changes_a_lexicon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexicon_library, "MAX_OF_KEY", 2)
    keys = [{"name": name, "key": f"key-of-{name}", "scopes": scopes} for name, scopes in KEYS.items()]
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    async with (
        serving(
            lexicons={"directory": str(tmp_path / "lexicons")}, server={"key_file": str(tmp_path / "keys.yaml")}
        ) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):

        async def ask(key: str, method: str, path: str = "", **body: Any) -> int:
            headers = {"authorization": f"Bearer key-of-{key}"}
            answer = await client.request(method, f"/v1/lexicons{path}", json=body or None, headers=headers)
            return answer.status_code

        with caplog.at_level(logging.INFO, "tts_worker.audit"):
            assert (await client.get("/v1/lexicons")).status_code == 401
            assert await ask("app", "POST", name="a", entries=OTHER) == 403
            assert await ask("anna", "POST", name="a", entries=OTHER) == 201
            assert await ask("ben", "PUT", "/a", entries=ENTRIES) == 403
            assert await ask("ben", "DELETE", "/a") == 403
            assert await ask("app", "GET", "/a") == 200
            assert await ask("boss", "PUT", "/a", entries=ENTRIES) == 200
            assert await ask("anna", "PUT", "/a", entries=OTHER) == 200, "it still belongs to its owner"
            assert await ask("anna", "POST", name="b", entries=OTHER) == 201
            assert await ask("anna", "POST", name="c", entries=OTHER) == 409, "a key has at most 2 here"
            assert await ask("ben", "POST", name="c", entries=OTHER) == 201
            assert await ask("anna", "DELETE", "/b") == 200
            headers = {"authorization": "Bearer key-of-app"}
            answer = await client.post("/v1/audio/speech", json=speech(lexicon="c"), headers=headers)
            assert answer.status_code == 200, "every key uses what is stored"
    said = [message for record in caplog.records if "lexicon" in (message := record.getMessage())]
    assert said == [
        "add_lexicon 'a' over http by key app: forbidden",
        "add_lexicon 'a' over http by key anna: done",
        "update_lexicon 'a' over http by key ben: forbidden",
        "delete_lexicon 'a' over http by key ben: forbidden",
        "update_lexicon 'a' over http by key boss: done",
        "update_lexicon 'a' over http by key anna: done",
        "add_lexicon 'b' over http by key anna: done",
        "add_lexicon 'c' over http by key anna: illegal_command",
        "add_lexicon 'c' over http by key ben: done",
        "delete_lexicon 'b' over http by key anna: done",
    ]


async def test_directory_takes_a_bounded_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon_library, "MAX_STORED", 1)
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        codes = [
            (await client.post("/v1/lexicons", json={"name": name, "entries": OTHER})).status_code for name in "ab"
        ]
        assert codes == [201, 409]


async def test_damaged_lexicon_is_a_typed_error_without_a_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(lexicons={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        for name in ("good", "bad"):
            await client.post("/v1/lexicons", json={"name": name, "entries": OTHER})
        (tmp_path / "bad" / "1" / "lexicon.json").write_bytes(b"{")
        (tmp_path / "good" / "1" / "entries.json").write_bytes(b'{"nginx": "apache"}')
        for answer in (
            await client.get("/v1/lexicons/bad"),
            await client.get("/v1/lexicons/good"),
            await client.post("/v1/audio/speech", json=speech(lexicon="bad")),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "over_capacity")
            assert str(tmp_path) not in answer.text
        assert [each["name"] for each in (await client.get("/v1/lexicons")).json()["lexicons"]] == ["good"]
        assert "may come from a newer version" in caplog.text
        assert (await client.delete("/v1/lexicons/good")).status_code == 200


@pytest.mark.parametrize(
    "given", ["", ",", "a,", "a@", "a@0", "a@x", "../a", "a/b", "a@1@2", "a b", "a,b,c,d", "a" * 300]
)
def test_what_is_no_reference_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^lexicon: "):
        parse_references(given)


async def test_reading_is_cached_until_it_changes(tmp_path: Path) -> None:
    library = StoredLexicons(tmp_path)
    await library.create("a", LexiconContent({"  New \n York ": " new   yawk "}))
    assert (await library.get("a"))[1] == {"New York": "new yawk"}
    assert library.find("a") is library.find("a@1")
    await library.update("a", LexiconContent(OTHER))
    assert library.find("a") is not library.find("a@1")


def test_command_adds_lists_shows_and_deletes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("nginx: engine x\nIT: {say: eye tee, case_sensitive: true}\n")
    (tmp_path / "a.pls").write_bytes(pls(lexeme(grapheme("nginx"), "<alias>engine x</alias>")))
    (tmp_path / "bad.pls").write_bytes(pls(lexeme(grapheme("nginx"))))
    with worker_in_thread(tone_settings(lexicons={"directory": str(tmp_path / "lexicons")})) as worker:

        def run(*arguments: str) -> tuple[int, str]:
            code = cli.main(["lexicon", "--url", f"ws://{worker.address}", *arguments])
            shown = capsys.readouterr()
            return code, shown.out + shown.err

        assert run("add", "brands", str(tmp_path / "a.yaml")) == (0, "brands@1: 2 entries\n")
        assert run("add", "brands", str(tmp_path / "a.pls")) == (0, "brands@2: 1 entries\n")
        assert run("list") == (0, f"{'brands@2':40}     1 entries\n")
        assert run("show", "brands@2") == (0, '{\n  "nginx": "engine x"\n}\n')
        for arguments, problem in (
            (("add", "brands", str(tmp_path / "bad.pls")), "bad.pls, line 3: the lexeme has neither"),
            (("add", "brands", str(tmp_path / "none")), "cannot be read"),
            (("show", "nothing"), 'no lexicon "nothing"'),
            (("delete", "a/b"), "a lexicon's name has"),
        ):
            code, said = run(*arguments)
            assert code != 0
            assert problem in said

        out = tmp_path / "a.wav"
        monkeypatch.chdir(tmp_path)
        say = ["say", "--url", f"ws://{worker.address}", "--quiet", "--out", str(out)]
        assert cli.main([*say, "--lexicon", "brands@1", TEXT]) == 0
        by_name = out.read_bytes()
        assert cli.main([*say, "--lexicon", "a.yaml", TEXT]) == 0
        assert out.read_bytes() == by_name
        assert cli.main([*say, TEXT]) == 0
        assert out.read_bytes() != by_name
        assert cli.main([*say, "--lexicon", "missing.yaml", TEXT]) != 0
        assert "missing.yaml cannot be read" in capsys.readouterr().err
        assert run("delete", "brands") == (0, "")
        assert os.listdir(tmp_path / "lexicons") == []
