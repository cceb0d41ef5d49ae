"""``/v1/batch`` over real sockets: results, errors of items, limits, keys, crashes and cancellation."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import tempfile
import threading
import time
import zipfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.conftest import serving, tone_settings, until
from tests.fakes.clock import in_virtual_time
from tests.fakes.tone_factory import FaultAt, ToneFactory
from tests.integration.test_api_keys import APP, OPERATOR, READER, bearer, key_file
from tts_worker.callers import Caller, acting_as
from tts_worker.engine.tone import Fault
from tts_worker.errors import Draining, ErrorCode, OverCapacity, TextTooLong
from tts_worker.features.batch import request as batch_request
from tts_worker.features.batch import runner as batch_runner
from tts_worker.features.batch.request import BatchRequest
from tts_worker.features.batch.runner import Batch, BatchRunner
from tts_worker.features.batch.store import (
    BatchFolder,
    StoredBatch,
    TemporaryFolder,
    new_id,
    remove_abandoned_folders,
    stored_ids,
)
from tts_worker.session.quotas import Metered, Quotas
from tts_worker.types import SessionOptions
from tts_worker.worker import Worker, running_worker

PCM: dict[str, Any] = {"response_format": "pcm", "voice": "tone"}


def batches_of(worker: Worker) -> BatchRunner:
    """Return what runs the batches of a worker."""
    runner = worker.parts["batch"]
    assert isinstance(runner, BatchRunner)
    return runner


def items(*texts: str) -> list[dict[str, Any]]:
    return [{"input": text} for text in texts]


def new_folder(directory: Path) -> BatchFolder:
    """Store a batch of one item, locked as that of a process that runs it."""
    folder = BatchFolder(directory, new_id())
    request = BatchRequest.model_validate({**PCM, "items": items("One.")})
    folder.create(StoredBatch(id=folder.path.name, owner=None, created_at_s=time.time(), request=request))
    return folder


async def submit(client: httpx.AsyncClient, texts: list[dict[str, Any]], **fields: Any) -> str:
    answer = await client.post("/v1/batch", json={**PCM, "items": texts, **fields})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/batch/{answer.json()['id']}"
    return str(answer.headers["location"])


async def lines(client: httpx.AsyncClient, batch: str, query: str = "") -> list[dict[str, Any]]:
    answer = await client.get(f"{batch}/results{query}", timeout=60)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_results_are_those_of_single_requests() -> None:
    texts = ["One.", "Number two.", "And the third."]
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        single = [(await client.post("/v1/audio/speech", json={**PCM, "input": text})).content for text in texts]
        batch = await submit(client, [{"input": texts[0], "id": "first"}, *items(*texts[1:])])
        results = await lines(client, batch)
        assert [base64.b64decode(result["audio"]) for result in results] == single
        assert [(result["index"], result["id"]) for result in results] == [(0, "first"), (1, "00002"), (2, "00003")]
        assert [round(result["duration_s"] * 48_000) for result in results] == [len(pcm) for pcm in single]
        assert await lines(client, batch, "?start=1") == results[1:], "an interrupted download continues"
        archive = zipfile.ZipFile(io.BytesIO((await client.get(f"{batch}/results?format=zip")).content))
        assert archive.testzip() is None
        assert [archive.read(f"{name}.pcm") for name in ("first", "00002", "00003")] == single
        sums = [hashlib.sha256(pcm).hexdigest() for pcm in single]
        assert [result["sha256"] for result in await lines(client, batch, "?checksums=true")] == sums
        answer = await client.get(f"{batch}/results?format=zip&checksums=true")
        records = json.loads(zipfile.ZipFile(io.BytesIO(answer.content)).read("results.json"))["results"]
        assert [record["sha256"] for record in records] == sums
        assert not any("sha256" in result for result in results)
        progress = (await client.get(batch)).json()
        assert (progress["state"], progress["finished"], progress["failed"]) == ("done", 3, 0)
        assert [each["id"] for each in (await client.get("/v1/batch")).json()["batches"]] == [progress["id"]]


async def test_failed_items_are_typed_and_lose_no_others() -> None:
    texts = [*items("One.", "x" * 100, "..."), {"input": "Two.", "voice": "missing"}, *items("Three.")]
    limit = {"max_input_chars": 50}
    async with (
        serving(server=limit) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        batch = await submit(client, texts)
        codes = [result.get("error", {}).get("code") for result in await lines(client, batch)]
        assert codes == [None, "text_too_long", "unspeakable_text", "unknown_voice", None]
        progress = (await client.get(batch)).json()
        assert (progress["state"], progress["failed"]) == ("done", 3)
        assert [error["error"]["code"] for error in progress["errors"]] == codes[1:4]
        archive = zipfile.ZipFile(io.BytesIO((await client.get(f"{batch}/results?format=zip")).content))
        assert archive.namelist() == ["00001.pcm", "00005.pcm", "results.json"]


async def test_unusable_batches_are_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_request, "MAX_ITEMS", 2)
    monkeypatch.setattr(batch_request, "MAX_CHARS", 20)
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}") as client:
        for body, code in (
            ({"items": []}, "invalid_request"),
            ({"items": items("a", "b", "c")}, "invalid_request"),
            ({"items": items("a" * 21)}, "text_too_long"),
            ({"items": [{"input": "a", "id": "x"}, {"input": "b", "id": "x"}]}, "invalid_request"),
            ({"items": [{"input": "a", "id": "../x"}]}, "invalid_request"),
            ({"items": items("a"), "response_format": "mp3", "sample_rate": 9_000}, "invalid_request"),
            ({"items": items("a"), "another": 1}, "invalid_request"),
        ):
            answer = await client.post("/v1/batch", json=body)
            assert answer.status_code < 500
            assert answer.json()["error"]["code"] == code, body
        answer = await client.post("/v1/batch", json={"items": 3})
        assert answer.json()["error"]["message"] == "items: must be a list"
        for path in ("/v1/batch/nothing", "/v1/batch/AAAAAAAAAAAAAAAA", "/v1/batch/AAAAAAAAAAAAAAAA/results"):
            assert (await client.get(path)).status_code == 404
        batch = await submit(client, items("a"))
        for query in ("?start=2", "?format=tar", "?start=-1", "?unknown=1"):
            assert (await client.get(f"{batch}/results{query}")).status_code == 400
        parameters = (await client.get("/openapi.json")).json()["paths"]["/v1/batch/{name}/results"]["get"][
            "parameters"
        ]
        assert {"format", "start", "wait"} <= {parameter["name"] for parameter in parameters}


async def test_text_with_lone_surrogates_is_spoken() -> None:
    body = json.dumps({**PCM, "items": items("On\ud800e.")})  # as JavaScript cuts an emoji in half
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        answer = await client.post("/v1/batch", content=body)
        assert answer.status_code == 202, answer.text
        (result,) = await lines(client, answer.headers["location"])
        single = await client.post("/v1/audio/speech", content=json.dumps({**PCM, "input": "On\ud800e."}))
        assert base64.b64decode(result["audio"]) == single.content


@pytest.mark.parametrize("speed", ["NaN", "Infinity", "-Infinity"])
async def test_speed_that_json_cannot_store_is_refused(speed: str) -> None:
    """JSON stores it as null, and a batch without a speed would be lost at the next start."""
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}") as client:
        for body in (
            f'{{"speed": {speed}, "items": [{{"input": "a"}}]}}',
            f'{{"items": [{{"input": "a", "speed": {speed}}}]}}',
        ):
            answer = await client.post("/v1/batch", content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
            assert "speed" in answer.json()["error"]["message"]


async def test_messages_name_fields_in_the_words_of_json() -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}") as client:
        for given, message in (
            ([], "items: must have at least 1 item"),
            (["a"], "items.0: must be an object"),
            ([{"input": "a", "id": "x"}, {"input": "b"}, {"input": "c", "id": "x"}], "items.2: has the id of items.0"),
        ):
            answer = await client.post("/v1/batch", json={"items": given})
            assert answer.json()["error"]["message"] == message
        answer = await client.post("/v1/batch", json={"items": items("a"), "x" * 1_000: 1})
        assert answer.json()["error"]["message"] == "x" * 64 + ": Extra inputs are not permitted"


@pytest.mark.parametrize("query", ["", "?format=zip"])
async def test_deletion_cuts_off_a_download(query: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        # 20 items of 1.4 MB: more than the sockets of a client that does not read take.
        batch = await submit(client, items(*["x" * 500] * 20))
        await lines(client, batch)
        async with client.stream("GET", f"{batch}/results{query}") as download:
            parts = download.aiter_raw()
            await anext(parts)
            assert (await client.delete(batch)).status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in parts:
                    pass
        await until(lambda: "a response was cut off: the batch was deleted" in caplog.text)
        assert "Traceback" not in caplog.text


async def test_drain_ends_downloads_that_wait() -> None:
    """Items that are not begun are synthesized by the next process."""
    async with running_worker(tone_settings(batch={"parallel": 1})) as worker:
        runner = batches_of(worker)
        batch = await runner.submit(BatchRequest.model_validate({**PCM, "items": items("x" * 15_000, "Two.")}))
        await until(lambda: worker.hub.live_sessions == 1)
        first, second = (asyncio.create_task(runner.wait(batch, index)) for index in range(2))
        await worker.hub.drain(60)
        assert (await first) is not None, "an item that is begun is finished"
        with pytest.raises(Draining), anyio.fail_after(20):
            await second


async def test_token_of_a_key_gives_no_access_to_its_batches(tmp_path: Path) -> None:
    server = {"key_file": str(key_file(tmp_path))}
    async with (
        serving(server=server) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http,
    ):
        body = {**PCM, "items": items("One.")}
        path = f"/v1/batch/{(await http.post('/v1/batch', json=body, headers=bearer(OPERATOR))).json()['id']}"
        wanted = {"scopes": ["speak", "admin"]}
        token = bearer((await http.post("/v1/tokens", json=wanted, headers=bearer(OPERATOR))).json()["token"])
        for answer in (
            await http.post("/v1/batch", json=body, headers=token),
            await http.get("/v1/batch", headers=token),
            await http.get(path, headers=token),
            await http.get(f"{path}/results", headers=token),
            await http.delete(path, headers=token),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert (await http.get(path, headers=bearer(OPERATOR))).status_code == 200


async def test_finished_batches_hold_no_lock(tmp_path: Path) -> None:
    """Each lock is an open file, and batches are kept for a day."""
    settings = tone_settings(batch={"directory": str(tmp_path)})
    async with running_worker(settings) as worker, running_worker(settings) as other:
        batch = await batches_of(worker).submit(BatchRequest.model_validate({**PCM, "items": items("One.")}))
        await batches_of(worker).wait(batch, 0)
        name = batch.stored.id
        await batches_of(other).maintain()
        third = BatchFolder(tmp_path, name)
        await until(third.claim)
        third.release()
        await batches_of(worker).delete(batch)
        assert await batches_of(other).find(name) is None, "the other worker sees that it is deleted"


async def test_expiry_spares_a_batch_that_was_submitted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may delete an expired batch and accept its idempotency key again before this one looks."""
    monkeypatch.setattr("tts_worker.features.batch.runner.MAINTENANCE_S", 600.0)
    request = BatchRequest.model_validate({**PCM, "items": items("One.")})
    settings = tone_settings(batch={"directory": str(tmp_path)})
    async with running_worker(settings) as worker, running_worker(settings) as other:
        old = await batches_of(worker).submit(request, "key")
        await batches_of(worker).wait(old, 0)
        found = await batches_of(other).find(old.stored.id)
        assert found is not None
        await batches_of(other).delete(found)
        new = await batches_of(other).submit(request, "key")
        await batches_of(worker).delete(old)
        assert await asyncio.to_thread(new.folder.path.exists), "only the old one is forgotten"
        found = await batches_of(worker).find(new.stored.id)
        assert found is not None
        assert found.stored == new.stored


def test_batch_appears_whole_and_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workers look for batches to continue at any time, also while one is accepted."""
    claimed: list[str] = []

    def let_others_look(owner: type, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            claimed.extend(each for each in stored_ids(tmp_path) if BatchFolder(tmp_path, each).claim())
            return result

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((Path, "mkdir"), (Path, "replace"), (Path, "rename")):
        let_others_look(owner, name)
    folder = new_folder(tmp_path)
    assert stored_ids(tmp_path) == [folder.path.name]
    assert claimed == []
    folder.release()


def test_id_is_accepted_once(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    content = folder.read()
    assert content is not None
    again = BatchFolder(tmp_path, folder.path.name)
    with pytest.raises(FileExistsError):
        again.create(content[0])
    assert os.listdir(tmp_path) == [folder.path.name], "nothing is left of the second one"
    folder.release()


def test_abandoned_batches_are_removed(tmp_path: Path) -> None:
    new, abandoned, deleted = (tmp_path / name for name in (".new-A", ".new-B", ".deleted-C"))
    for folder in (new, abandoned, deleted):
        folder.mkdir()
    os.utime(abandoned, (0, 0))
    assert stored_ids(tmp_path) == []
    assert list(tmp_path.iterdir()) == [new], "it may be accepted right now"


def test_temporary_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = tmp_path / "tts-worker-batch-killed"
    new = tmp_path / "tts-worker-batch-new"
    other = tmp_path / "another-program"
    for folder in (killed, new, other):
        folder.mkdir()
    (killed / "lock").touch()
    (killed / "text").write_text("Secret.")
    own = TemporaryFolder()
    remove_abandoned_folders()
    assert set(tmp_path.iterdir()) == {own.path, new, other}
    own.remove()
    assert not own.path.exists()


@pytest.mark.parametrize("jump_s", [90_000.0, 3_000_000.0])
async def test_clock_that_jumps_deletes_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, jump_s: float
) -> None:
    wall_s = time.time()
    monotonic_s = 1_000.0
    monkeypatch.setattr(batch_runner, "unix_time_s", lambda: wall_s)
    monkeypatch.setattr(batch_runner, "monotonic", lambda: monotonic_s)
    async with running_worker(tone_settings(batch={"directory": str(tmp_path)})) as worker:
        runner = batches_of(worker)
        batch = await runner.submit(BatchRequest.model_validate({**PCM, "items": items("a")}))
        await runner.wait(batch, 0)
        wall_s += jump_s
        for _ in range(3):
            await runner.maintain()
            wall_s, monotonic_s = wall_s + 600, monotonic_s + 600
        assert "clock has jumped" in caplog.text
        assert await runner.find(batch.stored.id) is batch
        wall_s -= jump_s  # it is set right again
        await runner.maintain()
        wall_s, monotonic_s = wall_s + 86_500, monotonic_s + 86_500
        await runner.maintain()
        assert await runner.list() == [], "a day has passed"


async def test_kept_batches_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(batch_runner, "MAX_KEPT", 2)
    settings = tone_settings(batch={"directory": str(tmp_path)})
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        batches = []
        for _ in range(4):
            batches.append(await runner.submit(BatchRequest.model_validate({**PCM, "items": items("")})))
            await runner.wait(batches[-1], 0)
        assert {each.stored.id for each in await runner.list()} == {each.stored.id for each in batches[1:]}


async def test_texts_count_in_the_storage(tmp_path: Path) -> None:
    settings = tone_settings(batch={"directory": str(tmp_path), "max_bytes": 30_000})
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        batches = []
        for _ in range(2):
            unspeakable = {"input": "." * 5_000, "instructions": "x" * 4_000}
            batches.append(await runner.submit(BatchRequest.model_validate({**PCM, "items": [unspeakable] * 2})))
            for index in range(2):  # they are spoken side by side
                await runner.wait(batches[-1], index)
        assert [each.stored.id for each in await runner.list()] == [batches[1].stored.id]


async def test_batch_belongs_to_its_key_and_its_quota(tmp_path: Path) -> None:
    file = key_file(tmp_path, characters_per_minute=600)
    async with serving(server={"key_file": str(file)}) as address:

        def client_of(key: str) -> httpx.AsyncClient:
            return httpx.AsyncClient(base_url=f"http://{address}", headers=bearer(key), timeout=60)

        async with client_of(APP) as app, client_of(READER) as reader, client_of(OPERATOR) as operator:
            assert (await reader.post("/v1/batch", json={**PCM, "items": items("a")})).status_code == 403
            # 605 characters are spoken at once, the debt of 5 and one more is refilled in 0.6 s.
            batch = await submit(app, items("a" * 605, "b", "c"))
            assert len(await lines(app, batch)) == 3, "items wait for the quota of their key"
            metrics = (await operator.get("/metrics")).text
            assert 'tts_refused_total{code="quota_exceeded",transport="batch"}' in metrics
            assert (await reader.get(batch)).status_code == 404
            assert (await operator.get(batch)).status_code == 200
            assert (await reader.get("/v1/batch")).json() == {"batches": []}
            assert (await app.delete(batch)).json()["deleted"]
            assert (await app.get(batch)).status_code == 404


@in_virtual_time
async def test_quota_between_attempts_does_not_renew_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = asyncio.get_running_loop().time
    monkeypatch.setattr("tts_worker.worker.Quotas", lambda: Quotas(clock))
    monkeypatch.setattr("tts_worker.worker.EngineFactory", lambda *_: ToneFactory(FaultAt(Fault.OUT_OF_MEMORY)))
    settings = tone_settings(server={"key_file": str(key_file(tmp_path, characters_per_minute=600))})
    async with running_worker(settings) as worker:
        batches: Any = worker.parts["batch"]
        caller = worker.keys.caller_named("app", "http")
        with acting_as(caller), anyio.fail_after(600):  # each attempt spends the characters of 100 s
            batch = await batches.submit(BatchRequest.model_validate({**PCM, "items": items("a" * 1_000)}))
            result = await batches.wait(batch, 0)
        assert result.error.code is ErrorCode.OUT_OF_MEMORY


async def test_repeated_submission_is_one_batch(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "batch": {"directory": str(tmp_path / "batches")},
        "server": {"key_file": str(key_file(tmp_path))},
    }

    async def submit(address: str, text: str = "One.", *keys: str, api_key: str = APP) -> httpx.Response:
        headers = [*bearer(api_key).items(), *(("Idempotency-Key", key) for key in keys)]
        body = {**PCM, "items": items(text)}
        async with httpx.AsyncClient(timeout=60) as client:
            return await client.post(f"http://{address}/v1/batch", json=body, headers=headers)

    async with serving(**sections) as one, serving(**sections) as two:
        answers = await asyncio.gather(*(submit(address, "One.", "k1") for address in (one, two) for _ in range(3)))
        busy = [answer for answer in answers if answer.status_code == 503]  # the other worker writes it
        assert all(answer.headers["Retry-After"] for answer in busy)
        (batch,) = {answer.json()["id"] for answer in answers if answer not in busy}
        others = [await submit(one, "One.", "k2"), await submit(one), await submit(one, "One.", "k1", api_key=OPERATOR)]
        assert len({batch, *(answer.json()["id"] for answer in others)}) == 4
        reused = await submit(two, "Two.", "k1")
        assert (reused.status_code, reused.json()["error"]["code"]) == (409, "illegal_command")
        for keys in (("",), ("x" * 256,), ("k1", "k2")):
            invalid = await submit(one, "One.", *keys)
            assert (invalid.status_code, invalid.json()["error"]["code"]) == (400, "invalid_request")
    async with serving(**sections) as after_restart:
        assert (await submit(after_restart, "One.", "k1")).json()["id"] == batch
        assert (await submit(after_restart, "Two.", "k1")).status_code == 409
        async with httpx.AsyncClient(base_url=f"http://{after_restart}", headers=bearer(APP)) as client:
            assert (await client.delete(f"/v1/batch/{batch}")).status_code == 200
        assert (await submit(after_restart, "Two.", "k1")).status_code == 202, "its batch is deleted"


async def test_batch_continues_after_its_process_ended(tmp_path: Path) -> None:
    settings = tone_settings(batch={"directory": str(tmp_path), "parallel": 1})
    request = BatchRequest.model_validate({**PCM, "items": items("One.", "x" * 3_000, "Three.")})
    async with running_worker(settings) as worker:
        stored = (await batches_of(worker).submit(request)).stored
        folder = tmp_path / stored.id
        await until(lambda: (folder / "1.part").exists())
        async with running_worker(settings) as other:  # shares the directory
            copy = await batches_of(other).find(stored.id)
            assert copy is not None
            assert not (await asyncio.to_thread(copy.folder.claim)), "a running batch has one owner"
    assert not (folder / "1.json").exists()
    assert (folder / "0.json").exists()
    written = (folder / "0.audio").stat().st_mtime_ns
    async with running_worker(settings) as worker:
        batch = await batches_of(worker).find(stored.id)
        assert batch is not None
        for index in range(3):
            result = await batches_of(worker).wait(batch, index)
            assert result is not None
            assert result.error is None
        assert (folder / "0.audio").stat().st_mtime_ns == written, "finished items are not synthesized again"


async def test_damaged_record_is_synthesized_again(tmp_path: Path) -> None:
    settings = tone_settings(batch={"directory": str(tmp_path)})
    async with running_worker(settings) as worker:
        batch = await batches_of(worker).submit(BatchRequest.model_validate({**PCM, "items": items("One.", "Two.")}))
        await batches_of(worker).wait(batch, 1)
        await batches_of(worker).wait(batch, 0)
    (batch.folder.path / "0.json").write_bytes(b'{"index": 0, "si')
    (tmp_path / "AAAAAAAAAAAAAAAA").mkdir()  # its process crashed before it wrote the request
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        found = await runner.find(batch.stored.id)
        assert found is not None
        await runner.wait(found, 0)
        assert (batch.folder.path / "0.json").read_bytes().endswith(b"}")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"format": 2}, id="format"),
        pytest.param({"request": {"items": [{"input": "One.", "mood": "calm"}]}}, id="field"),
    ],
)
async def test_batch_of_a_newer_version_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: dict[str, Any]
) -> None:
    """Two versions share the directory while a fleet is upgraded, or after it went back."""
    folder = new_folder(tmp_path)
    folder.release()
    content = json.loads((folder.path / "batch.json").read_bytes())
    assert content["format"] == 1
    (folder.path / "batch.json").write_text(json.dumps(content | change))
    wall_s = time.time()
    monotonic_s = 1_000.0
    monkeypatch.setattr(batch_runner, "unix_time_s", lambda: wall_s)
    monkeypatch.setattr(batch_runner, "monotonic", lambda: monotonic_s)
    os.utime(folder.path, (wall_s - 3_600, wall_s - 3_600))
    async with running_worker(tone_settings(batch={"directory": str(tmp_path)})) as worker:
        runner = batches_of(worker)
        for _ in range(2):
            await runner.maintain()
        assert caplog.text.count(f"batch {folder.path.name} is not one of format 1") == 1
        assert await runner.find(folder.path.name) is None
        assert await runner.list() == []
        assert json.loads((folder.path / "batch.json").read_bytes()) == content | change
        wall_s, monotonic_s = wall_s + 86_500, monotonic_s + 86_500
        await runner.maintain()
        assert stored_ids(tmp_path) == [], "a day has passed"


async def test_cancelled_batch_frees_its_session_and_storage(tmp_path: Path) -> None:
    async with running_worker(tone_settings(batch={"directory": str(tmp_path)})) as worker:
        runner = batches_of(worker)
        batch = await runner.submit(BatchRequest.model_validate({**PCM, "items": items(*["x" * 15_000] * 4)}))
        await until(lambda: worker.hub.live_sessions == 2)
        waiting = asyncio.create_task(runner.wait(batch, 3))
        await runner.delete(batch)
        assert await waiting is None
        assert worker.hub.live_sessions == 0
        assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_deleted_copy_ends_the_batch_that_was_taken_over(tmp_path: Path) -> None:
    """A request may find a batch before maintenance takes it over, and delete it after that."""
    settings = tone_settings(batch={"directory": str(tmp_path)})
    async with running_worker(settings) as worker:
        request = BatchRequest.model_validate({**PCM, "items": items("x" * 15_000, "Two.")})
        stored = (await batches_of(worker).submit(request)).stored
    copy = Batch(stored, BatchFolder(tmp_path, stored.id))
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        await until(lambda: worker.hub.live_sessions > 0)
        running = await runner.find(stored.id)
        assert running is not None
        waiting = asyncio.create_task(runner.wait(running, 0))
        await runner.delete(copy)
        assert await waiting is None
        assert worker.hub.live_sessions == 0
        assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_old_results_make_room_and_full_storage_is_typed(tmp_path: Path) -> None:
    settings = tone_settings(batch={"directory": str(tmp_path), "max_bytes": 30_000})
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        sizes = []
        for _ in range(2):  # 20 characters of 60 ms are 57600 bytes, 7 are 20160
            batch = await runner.submit(BatchRequest.model_validate({**PCM, "items": items("abcdefg")}))
            result = await runner.wait(batch, 0)
            assert result is not None
            sizes.append(result.size)
        assert 15_000 < sizes[0] < 30_000
        assert [each.stored.id for each in await runner.list()] == [batch.stored.id]
        full = await runner.submit(BatchRequest.model_validate({**PCM, "items": items("abcdefghijklmnopqrst")}))
        result = await runner.wait(full, 0)
        assert result is not None
        assert result.error is not None
        assert (result.error.code.value, result.error.retryable) == ("over_capacity", False)


async def finished_batch(runner: BatchRunner, owner: str, text: str) -> Batch:
    """Run a batch of one item for the key ``owner``."""
    with acting_as(Caller(key=owner)):
        batch = await runner.submit(BatchRequest.model_validate({**PCM, "items": items(text)}))
    await runner.wait(batch, 0)
    return batch


def open_to(runner: BatchRunner, *owners: str) -> None:
    """Let the runner find these keys, as the key file would."""
    runner.caller_of = lambda name, transport: Caller(key=name) if name in owners else None


async def test_full_storage_deletes_no_batches_of_other_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(batch_runner, "MAX_KEPT", 1)
    settings = tone_settings(batch={"directory": str(tmp_path), "max_bytes": 100_000})
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        open_to(runner, "alice", "mallory")
        kept = await finished_batch(runner, "alice", "abcdefg")
        flood = [await finished_batch(runner, "mallory", "abcdefgh" * 3) for _ in range(3)]
        assert kept in await runner.list()
        assert flood[-1].results[0].error is not None, "half of the storage is 50000 bytes"
        small = [await finished_batch(runner, "mallory", "abcdefg") for _ in range(3)]
        assert {each.stored.id for each in await runner.list()} == {each.stored.id for each in (kept, *small[1:])}
        assert (await asyncio.to_thread(kept.folder.audio(0).stat)).st_size == kept.results[0].size


async def test_item_that_cannot_fit_deletes_nothing(tmp_path: Path) -> None:
    settings = tone_settings(batch={"directory": str(tmp_path), "max_bytes": 30_000})
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        waiting = await runner.submit(BatchRequest.model_validate({**PCM, "items": items("abcdefg")}))
        await runner.wait(waiting, 0)
        with pytest.raises(TextTooLong, match="breaks"):
            await runner.submit(BatchRequest.model_validate({**PCM, "items": items('a<break time="10s"/>')}))
        assert await runner.list() == [waiting]
        full = await runner.submit(BatchRequest.model_validate({**PCM, "items": items("abcdefghijklmnopqrst" * 5)}))
        result = await runner.wait(full, 0)
        assert result is not None
        assert result.error is not None


async def test_one_key_leaves_running_batches_to_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(batch_runner, "MAX_RUNNING", 2)
    settings = tone_settings(batch={"directory": str(tmp_path), "parallel": 1})
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        open_to(runner, "alice", "mallory")
        request = BatchRequest.model_validate({**PCM, "items": items("x" * 5_000)})
        with acting_as(Caller(key="mallory")):
            await runner.submit(request)
            with pytest.raises(OverCapacity, match="its share"):
                await runner.submit(request)
        with acting_as(Caller(key="alice")):
            await runner.submit(request)


def test_breaks_of_a_batch_count_as_text() -> None:
    request = BatchRequest.model_validate({**PCM, "items": items('a<break time="10s"/>', "b<break time='2s'>")})
    assert request.chars == len('a<break time="10s"/>') + len("b<break time='2s'>") + 12 * 15
    assert request.break_bytes == 12 * 48_000


async def test_breaks_count_in_the_quota_of_characters() -> None:
    async with running_worker(tone_settings()) as worker:
        with acting_as(Caller(key="alice", characters_per_minute=60.0)):
            session = worker.hub.open(SessionOptions(realtime=False))
        session.speak('a<break time="10s"/>b')
        session.end_text()
        await until(lambda: worker.hub.quotas.wait_s(Metered.CHARACTERS, "alice", 60.0) > 100)
        session.close()


async def test_batch_that_cannot_be_stored_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_worker(tone_settings(batch={"directory": str(tmp_path / "file" / "batches")})) as worker:
        (tmp_path / "file").touch()  # the settings refuse one that is there at the start
        with pytest.raises(OverCapacity, match="cannot store the batch"):
            await batches_of(worker).submit(BatchRequest.model_validate({**PCM, "items": items("a")}))
        assert "cannot store a batch: Not a directory" in caplog.text


async def test_calls_go_before_a_batch() -> None:
    settings = tone_settings(session={"max_sessions": 4}, batch={"parallel": 8})
    async with running_worker(settings) as worker:
        runner = batches_of(worker)
        batch = await runner.submit(BatchRequest.model_validate({**PCM, "items": items(*["x" * 400] * 8)}))
        await until(lambda: worker.hub.live_sessions == 3)
        call = worker.hub.open(SessionOptions(realtime=True))
        call.speak("Hello.")
        call.end_text()
        assert await call.next() is not None, "a quarter of the slots is left for calls"
        call.close()
        for index in range(8):
            result = await runner.wait(batch, index)
            assert result is not None
            assert result.error is None, "items that found no slot wait for one"


async def test_download_goes_on_when_this_worker_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_worker.features.batch.runner.MAINTENANCE_S", 0.05)
    request = BatchRequest.model_validate({**PCM, "items": items("One.", "Two.")})
    folder = BatchFolder(tmp_path, new_id())
    folder.create(
        StoredBatch(id=folder.path.name, owner=None, created_at_s=time.time(), request=request)
    )  # and runs it
    async with (
        serving(batch={"directory": tmp_path}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=20) as client,
        client.stream("GET", f"/v1/batch/{folder.path.name}/results") as download,
    ):
        assert download.status_code == 200
        folder.release()  # as the end of its process does
        assert [json.loads(line)["index"] async for line in download.aiter_lines()] == [0, 1]


async def test_exit_cuts_off_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second signal does not wait until the download notices the drain."""
    monkeypatch.setattr("tts_worker.serving.GOODBYE_S", 0.0)
    monkeypatch.setattr("tts_worker.serving.CLOSE_S", 0)
    folder = new_folder(tmp_path)
    async with AsyncExitStack() as stack:
        async with serving(batch={"directory": tmp_path}) as address:
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{address}", timeout=20))
            download = await stack.enter_async_context(client.stream("GET", f"/v1/batch/{folder.path.name}/results"))
            assert download.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            await download.aread()
    folder.release()
    assert "Traceback" not in caplog.text


async def test_worker_that_stops_while_it_claims_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_folder(tmp_path)
    folder.release()
    claiming, stopping = threading.Event(), threading.Event()
    claim = BatchFolder.claim

    def slow_claim(self: BatchFolder) -> bool:
        claiming.set()
        stopping.wait(60)
        return claim(self)

    monkeypatch.setattr(BatchFolder, "claim", slow_claim)
    async with running_worker(tone_settings(batch={"directory": str(tmp_path)})):
        await asyncio.to_thread(claiming.wait, 60)
        asyncio.get_running_loop().call_later(0.05, stopping.set)  # while the worker stops
    monkeypatch.setattr(BatchFolder, "claim", claim)
    assert folder.claim()
    folder.release()
