"""What earlier versions stored is read by this one: the folders of ``tests/data/stored``, one for each format."""

from __future__ import annotations

import base64
import json
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import serving
from tests.fakes.threaded_worker import worker_in_thread
from tests.integration.stored_data import DONE, UNFINISHED, store_batches, store_voices, tiny_bundle, voice_settings
from tts_worker.features.batch import store as batch_store
from tts_worker.settings import load_settings
from tts_worker.voices import files as voice_files

pytestmark = pytest.mark.timeout(300)

FOLDERS = sorted((Path(__file__).parents[1] / "data" / "stored").iterdir())
NEWEST = FOLDERS[-1]
folders = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def json_of(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_bytes())
    assert isinstance(content, dict)
    return content


def batch_folder(batches: Path, name: str) -> Path:
    """Return the folder of the batch whose first item has that id."""
    (found,) = (
        file.parent for file in batches.glob("*/batch.json") if json_of(file)["request"]["items"][0]["id"] == name
    )
    return found


@folders
@pytest.mark.parametrize("name", [DONE, UNFINISHED])
async def test_stored_batch_is_answered_and_continued(tmp_path: Path, folder: Path, name: str) -> None:
    kept = batch_folder(folder / "batches", name)
    copy = shutil.copytree(kept, tmp_path / kept.name)
    stored = json_of(copy / "batch.json")
    (copy / "batch.json").write_text(json.dumps(stored | {"created_at_s": time.time()}))  # it has long expired
    async with (
        serving(batch={"directory": str(tmp_path)}) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        answer = await client.get(f"/v1/batch/{kept.name}/results")
        assert answer.status_code == 200, answer.text
    results = [json.loads(line) for line in answer.text.splitlines()]
    assert [result["id"] for result in results] == [name, "two", "failed"]
    assert [result.get("error", {}).get("code") for result in results] == [None, None, "unspeakable_text"]
    for index, result in enumerate(results[:2]):
        audio = base64.b64decode(result["audio"])
        if (finished := kept / f"{index}.audio").exists():
            assert audio == finished.read_bytes()
            assert (copy / finished.name).stat().st_mtime_ns == finished.stat().st_mtime_ns
        else:
            assert len(audio) > 1_000, "what was not finished is spoken now"


@folders
def test_stored_voices_speak_and_are_described(tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from tests.unit.cosyvoice.networks import little_work

    voices = shutil.copytree(folder / "voices", tmp_path / "voices")
    with (
        little_work(),
        worker_in_thread(load_settings(flags=voice_settings(voices, tiny_bundle(tmp_path)))) as worker,
        httpx.Client(base_url=f"http://{worker.address}", timeout=60) as client,
    ):
        names = sorted(path.name for path in voices.iterdir())
        for name in names:
            body = {"input": "Hi.", "voice": name, "response_format": "pcm"}
            assert len(client.post("/v1/audio/speech", json=body).content) > 1_000
        listed = {voice["id"]: voice for voice in client.get("/v1/voices").json()["voices"]}
        assert sorted(listed) == [name for name in names if "@" not in name], "styles belong to their voice"
        assert listed["anna"]["styles"] == ["neutral", "calm"]
        for name, described in listed.items():
            assert described["stored"]["figures"] == json_of(folder / "voices" / name / "details.json")["figures"]
        anna = {key: listed["anna"][key] for key in ("languages", "tags", "description")}
        assert anna == {"languages": ["en", "de"], "tags": ["warm"], "description": "A voice."}
        assert client.delete("/v1/voices/anna@calm").status_code == 200


def shape(value: Any) -> Any:
    """Return the keys and types of a JSON value; a number is one with or without a fraction."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value]
    return "number" if isinstance(value, float | int) and not isinstance(value, bool) else type(value).__name__


CHANGED = (
    "what is stored has changed: raise FORMAT if an older worker must not read it, add a folder to tests/data/stored "
    "(python -m tests.integration.stored_data), and leave those that are there"
)


async def test_batches_are_stored_as_in_the_newest_folder(tmp_path: Path) -> None:
    await store_batches(tmp_path)
    for name in (DONE, UNFINISHED):
        new, known = batch_folder(tmp_path, name), batch_folder(NEWEST / "batches", name)
        assert sorted(file.name for file in new.iterdir()) == sorted(file.name for file in known.iterdir()), CHANGED
        for file in new.glob("*.json"):
            assert shape(json_of(file)) == shape(json_of(known / file.name)), CHANGED
        assert json_of(new / "batch.json")["format"] == batch_store.FORMAT


def test_voices_are_stored_as_in_the_newest_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from tests.unit.cosyvoice.networks import little_work

    with little_work():
        store_voices(tmp_path / "voices", tiny_bundle(tmp_path))
    known = NEWEST / "voices"
    names = sorted(path.name for path in known.iterdir())
    assert sorted(path.name for path in (tmp_path / "voices").iterdir()) == names
    for name in names:
        new = tmp_path / "voices" / name
        assert sorted(file.name for file in new.iterdir()) == sorted(file.name for file in (known / name).iterdir())
        for file in new.glob("*.json"):
            assert shape(json_of(file)) == shape(json_of(known / name / file.name)), CHANGED
        assert json_of(new / "voice.json")["format"] == voice_files.FORMAT
        arrays, before = (voice_files.load_voice(root, name).tensors() for root in (new.parent, known))
        assert {key: (array.dtype, array.shape) for key, array in arrays.items()} == {
            key: (array.dtype, array.shape) for key, array in before.items()
        }, CHANGED
