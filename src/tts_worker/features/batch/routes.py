"""``/v1/batch``: accepts many texts, reports progress, and streams the results as a ZIP file or JSON lines."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import zipfile
from collections.abc import AsyncGenerator
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from typing import Any, BinaryIO, Literal

from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tts_worker.errors import InvalidRequest
from tts_worker.features.batch.request import BatchRequest
from tts_worker.features.batch.runner import Batch, BatchRunner
from tts_worker.features.batch.store import ItemResult
from tts_worker.protocol.json_codec import parse_object
from tts_worker.protocol.messages import error_fields
from tts_worker.server.application import Application
from tts_worker.server.checksums import SHA256, checksum_field
from tts_worker.server.responses import SafeJSONResponse, speech_stream
from tts_worker.server.validation import Fields, query_parameters, request_body, validate

PATH = "/v1/batch"
IDEMPOTENCY_KEY = "idempotency-key"

_READ_BYTES = 262_144


class ResultsQuery(Fields):
    """Which results are sent, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["jsonl", "zip"] = Field("jsonl", description="JSON lines, or a ZIP file with results.json")
    start: int = Field(0, ge=0, description="Number of the first item, from 0: continues a download")
    wait: bool = Field(True, description="Wait for unfinished items; false leaves them out")
    checksums: bool = Field(False, description="Add the SHA-256 of the audio to each item")


_KEY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A repeated request with this key is answered with the batch of the first one",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def _idempotency_key(request: Request) -> str | None:
    """Return the key of the request. Raises InvalidRequest."""
    keys = request.headers.getlist(IDEMPOTENCY_KEY)
    if not keys:
        return None
    if len(keys) > 1 or not re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", keys[0]):
        raise InvalidRequest("Idempotency-Key: one value of 1 to 255 printable ASCII characters")
    return keys[0]


def add_routes(app: Application) -> None:
    """Add the routes, if the worker runs batches."""
    batches = app.part(BatchRunner)
    if batches is None:
        return
    routes = app.routes
    limits = app.limits
    app.paths.uploads.add(PATH)
    app.paths.transports[PATH] = "batch"

    @routes.post(
        PATH,
        status_code=202,
        summary="Synthesize many texts behind live calls",
        openapi_extra=lambda: {**request_body(BatchRequest), "parameters": [_KEY_PARAMETER]},
    )
    async def submit(request: Request) -> Response:
        key = _idempotency_key(request)
        body = validate(BatchRequest, parse_object(await request.body(), "body"))
        batch = await batches.submit(body, key)
        return SafeJSONResponse(_describe(batches, batch), 202, {"location": f"{PATH}/{batch.stored.id}"})

    @routes.get(PATH, summary="List the batches of this API key")
    async def listed() -> Response:
        return SafeJSONResponse({"batches": [_describe(batches, batch) for batch in await batches.list()]})

    @routes.get(f"{PATH}/{{name}}", summary="Progress of a batch")
    async def progress(name: str) -> Response:
        return SafeJSONResponse(_describe(batches, await _find(batches, name)))

    @routes.delete(f"{PATH}/{{name}}", summary="Cancel a batch and delete its results")
    async def delete(name: str) -> Response:
        await batches.delete(await _find(batches, name))
        return SafeJSONResponse({"id": name, "deleted": True})

    @routes.get(
        f"{PATH}/{{name}}/results",
        summary="Results of a batch in order, as they finish",
        openapi_extra=partial(query_parameters, ResultsQuery),
    )
    async def results(request: Request, name: str) -> Response:
        batch = await _find(batches, name)
        query = validate(ResultsQuery, dict(request.query_params))
        if query.start > len(batch.request.items):
            raise InvalidRequest(f"start: the batch has {len(batch.request.items)} items")
        if query.format == "zip":
            body = _zip(batches, batch, query)
            media_type = "application/zip"
            headers = {"content-disposition": f'attachment; filename="{name}.zip"'}
        else:
            body, media_type, headers = _lines(batches, batch, query), "application/jsonl", {}
        return speech_stream(body, media_type, limits, headers=headers)


async def _find(batches: BatchRunner, name: str) -> Batch:
    if (batch := await batches.find(name)) is None:
        raise HTTPException(404, "there is no such batch; results are kept for a limited time")
    return batch


def _describe(batches: BatchRunner, batch: Batch) -> dict[str, Any]:
    failed = [result for result in batch.results.values() if result.error is not None]
    return {
        "id": batch.stored.id,
        "state": "done" if batch.is_done else "running" if batch.results else "queued",
        "items": len(batch.request.items),
        "finished": len(batch.results),
        "failed": len(failed),
        "characters": batch.request.chars,
        "created_at": _time(batch.stored.created_at_s),
        "expires_at": _time(batches.expires_at_s(batch)),
        "errors": [_record(batch, result) for result in sorted(failed, key=lambda each: each.index)],
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _record(batch: Batch, result: ItemResult) -> dict[str, Any]:
    record: dict[str, Any] = {"index": result.index, "id": batch.request.items[result.index].id}
    if result.error is not None:
        return {**record, "error": error_fields(result.error)}
    if result.skipped:
        record["skipped"] = [asdict(run) for run in result.skipped]
    return {**record, "duration_s": round(result.samples / batch.request.rate_hz, 3), "bytes": result.size}


async def _finished(batches: BatchRunner, batch: Batch, query: ResultsQuery) -> AsyncGenerator[ItemResult, None]:
    for index in range(query.start, len(batch.request.items)):
        result = await batches.wait(batch, index) if query.wait else batch.results.get(index)
        if result is not None:
            yield result
        elif query.wait:
            raise _deleted()


def _deleted() -> InvalidRequest:
    return InvalidRequest("the batch was deleted")


def _open_audio(batch: Batch, result: ItemResult) -> BinaryIO:
    """Open the audio of an item. Blocks. Raises InvalidRequest once the batch is deleted."""
    try:
        return open(batch.folder.audio(result.index), "rb")
    except FileNotFoundError:
        raise _deleted() from None


async def _lines(batches: BatchRunner, batch: Batch, query: ResultsQuery) -> AsyncGenerator[bytes, None]:
    yield b""  # the head of the response, before the first item is finished
    async for result in _finished(batches, batch, query):
        yield await asyncio.to_thread(_line, batch, result, checksum=query.checksums)


def _line(batch: Batch, result: ItemResult, *, checksum: bool) -> bytes:
    """Return the JSON line of an item. Blocks: it reads the audio, and encodes what may be megabytes."""
    record = _record(batch, result)
    if result.error is None:
        with _open_audio(batch, result) as stream:
            audio = stream.read()
        record["audio"] = base64.b64encode(audio).decode()
        record |= checksum_field(audio, wanted=checksum)
    return json.dumps(record).encode() + b"\n"


class _Sink:
    """Collects what ``zipfile`` writes; it cannot seek, so sizes follow each file."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


async def _zip(batches: BatchRunner, batch: Batch, query: ResultsQuery) -> AsyncGenerator[bytes, None]:
    """Yield a ZIP file without compression: audio hardly compresses."""
    yield b""
    sink = _Sink()
    records = []
    when = datetime.fromtimestamp(max(batch.stored.created_at_s, 315_532_800), timezone.utc).timetuple()[:6]
    with zipfile.ZipFile(sink, "w") as archive:
        async for result in _finished(batches, batch, query):
            record = _record(batch, result)
            records.append(record)
            if result.error is not None:
                continue
            record["file"] = f"{record['id']}.{batch.request.response_format.extension}"
            info = zipfile.ZipInfo(record["file"], (when[0], *when[1:]))
            info.external_attr = 0o644 << 16
            stream = await asyncio.to_thread(_open_audio, batch, result)
            digest = hashlib.sha256()
            with stream, archive.open(info, "w") as entry:
                while block := await asyncio.to_thread(stream.read, _READ_BYTES):
                    entry.write(block)
                    if query.checksums:
                        digest.update(block)
                    yield sink.take()
            if query.checksums:
                record[SHA256] = digest.hexdigest()
            yield sink.take()
        archive.writestr("results.json", json.dumps({"id": batch.stored.id, "results": records}, indent=1))
    yield sink.take()
