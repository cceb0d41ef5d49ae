"""Stores what a worker keeps on disk: voices and batches, as the folders of ``tests/data/stored`` hold them.

``python -m tests.integration.stored_data tests/data/stored/NAME`` writes such a folder. Those that are committed are
never written again: they show that a later version reads what an earlier one has stored.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import tone_settings, until
from tests.fakes.recordings import SAID, speech, wav
from tests.fakes.threaded_worker import worker_in_thread
from tests.unit.cosyvoice.bundles import copy_of
from tts_worker.features.batch.request import BatchRequest
from tts_worker.features.batch.runner import BatchRunner
from tts_worker.features.batch.store import BatchFolder, StoredBatch
from tts_worker.settings import load_settings
from tts_worker.worker import running_worker

DONE, UNFINISHED = "done", "unfinished"
"""Ids of items by which the two batches are told apart."""
_FAMILY = "cosyvoice3"
_BATCH: dict[str, Any] = {"response_format": "wav", "sample_rate": 8_000, "voice": "tone"}


def batch_request(name: str) -> BatchRequest:
    """Return a batch of two items that are spoken and one that fails."""
    texts = {name: "One.", "two": "Number two.", "failed": "..."}
    return BatchRequest.model_validate({**_BATCH, "items": [{"id": id, "input": text} for id, text in texts.items()]})


def voice_settings(folder: Path, bundle: Path) -> dict[str, Any]:
    """Return the settings of a worker of a tiny model that keeps its voices in ``folder``."""
    engine = {"kind": "cosyvoice", "bundle": str(bundle), "device": "cpu", "threads": 1, "memory_gb": 0.1}
    return {
        "engines": {"cosy": {**engine, "max_utterances": 4, "voices": str(folder)}},
        "session": {"loudness": None},  # measuring it would speak a sentence in every voice
    }


def tiny_bundle(folder: Path) -> Path:
    """Write a model without speakers of its own."""
    bundle = copy_of(_FAMILY, folder)
    (bundle / "spk2info.pt").unlink()
    return bundle


def store_voices(folder: Path, bundle: Path) -> None:
    """Store a voice, a style of it, one without transcript, and a mix."""
    recording = {"audio": ("a.wav", wav(speech(3.2, 16_000)))}
    with (
        worker_in_thread(load_settings(flags=voice_settings(folder, bundle))) as worker,
        httpx.Client(base_url=f"http://{worker.address}", timeout=60) as client,
    ):
        described = {"title": "Anna", "languages": "en,de", "tags": "warm", "description": "A voice.", "gender": "f"}
        for fields in (
            {"name": "anna", "transcript": SAID, "license": "CC0", **described},
            {"name": "anna", "style": "calm", "transcript": SAID},
            {"name": "mute"},
        ):
            answer = client.post("/v1/voices", data={"consent": "true", **fields}, files=recording)
            assert answer.status_code == 201, answer.text
        parts = [{"voice": "anna", "weight": 2}, {"voice": "mute"}]
        answer = client.post("/v1/voices", json={"name": "both", "mix": parts, "prompt": "anna"})
        assert answer.status_code == 201, answer.text


async def store_batches(folder: Path) -> None:
    """Store a finished batch, and one whose process ended after its first item."""
    async with running_worker(tone_settings(batch={"directory": str(folder)})) as worker:
        runner = worker.parts["batch"]
        assert isinstance(runner, BatchRunner)
        done = await runner.submit(batch_request(DONE))
        await until(lambda: done.is_done)
    stored = StoredBatch(id="UnfinishedBatch0", owner=None, created_at_s=1.0, request=batch_request(UNFINISHED))
    unfinished = BatchFolder(folder, stored.id)
    unfinished.create(stored)
    with unfinished.open_audio(0) as stream, done.folder.audio(0).open("rb") as audio:
        shutil.copyfileobj(audio, stream)
    unfinished.finish(done.results[0])
    unfinished.release()


def main() -> None:
    """Write the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as bundle:
        store_voices(folder / "voices", tiny_bundle(Path(bundle)))
    asyncio.run(store_batches(folder / "batches"))


if __name__ == "__main__":
    main()
