"""``/v1/lexicons``: lists, shows, creates, changes and deletes lexicons."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tts_worker.errors import InvalidRequest
from tts_worker.features.lexicons.library import MAX_DESCRIPTION_CHARS, MAX_TITLE_CHARS
from tts_worker.features.lexicons.store import MAX_ENTRIES_BYTES
from tts_worker.server.application import Application
from tts_worker.server.responses import SafeJSONResponse
from tts_worker.server.uploads import read_body
from tts_worker.server.validation import MULTIPART, Fields, request_body, validate
from tts_worker.session.lexicons import LexiconContent, LexiconLibrary, StoredLexicon

PATH = "/v1/lexicons"
NAMED_PATH = "/v1/lexicons/{name}"
FILE_FIELD = "file"


class LexiconUpdate(Fields):
    """Body of ``PUT /v1/lexicons/{name}``.

    Attributes:
        entries: Word -> spelling, or /phonemes/, or ``{say, case_sensitive}``; a form has a file instead.
        title: A name for people.
        description: What the lexicon is for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    entries: dict[str, Any] | None = None
    title: str = Field("", max_length=MAX_TITLE_CHARS)
    description: str = Field("", max_length=MAX_DESCRIPTION_CHARS)


class NewLexicon(LexiconUpdate):
    """Body of ``POST /v1/lexicons``."""

    name: str = Field(min_length=1, max_length=64)


def add_routes(app: Application) -> None:
    """Add the routes. Without a directory they answer why there are no lexicons."""
    routes = app.routes
    lexicons = app.hub.lexicons
    app.paths.uploads |= {PATH, f"{PATH}/"}

    @routes.get(PATH, summary="List the pronunciation lexicons")
    async def list_all() -> Response:
        return SafeJSONResponse({"lexicons": [_described(each) for each in await lexicons.stored.list()]})

    @routes.get(NAMED_PATH, summary="Show a pronunciation lexicon: NAME, or NAME@VERSION")
    async def show(name: str) -> Response:
        stored, entries = await lexicons.stored.get(name)
        return SafeJSONResponse({**_described(stored), "entries": dict(entries)})

    @routes.post(
        PATH,
        status_code=201,
        summary="Create a pronunciation lexicon",
        openapi_extra=partial(_body, NewLexicon),
    )
    async def create(request: Request) -> Response:
        new, content = await _read(request, NewLexicon, lexicons.stored)
        stored = await lexicons.stored.create(new.name, content)
        headers = {"location": f"{PATH}/{stored.name}"} if stored.name.isascii() else {}
        return SafeJSONResponse(_described(stored), 201, headers)

    async def update(request: Request, name: str) -> Response:
        _, content = await _read(request, LexiconUpdate, lexicons.stored)
        return SafeJSONResponse(_described(await lexicons.stored.update(name, content)))

    routes.add(
        NAMED_PATH,
        update,
        method="PUT",
        summary="Store a new version of a pronunciation lexicon",
        openapi_extra=partial(_body, LexiconUpdate),
    )

    @routes.delete(NAMED_PATH, summary="Delete all versions of a pronunciation lexicon")
    async def delete(name: str) -> Response:
        await lexicons.stored.delete(name)
        return SafeJSONResponse({"name": name, "deleted": True})


async def _read(request: Request, kind: type[LexiconUpdate], library: LexiconLibrary) -> tuple[Any, LexiconContent]:
    """Return the fields of a request and the content in it. Raises InvalidRequest and TextTooLong."""
    body = await read_body(request, max_file_bytes=MAX_ENTRIES_BYTES)
    fields = validate(kind, body.fields)
    entries: Mapping[str, Any] | None = fields.entries
    if entries is None and FILE_FIELD in body.files:
        entries = await asyncio.to_thread(library.read_file, body.files[FILE_FIELD])
    if entries is None:
        raise InvalidRequest("entries: send them as a JSON object, or a PLS or JSON file as the field file of a form")
    return fields, LexiconContent(entries, fields.title, fields.description)


def _body(kind: type[LexiconUpdate]) -> dict[str, Any]:
    described = request_body(kind, "application/json", MULTIPART)
    content = described["requestBody"]["content"]
    form = dict(content[MULTIPART]["schema"])
    others = {name: field for name, field in form["properties"].items() if name != "entries"}
    file = {"type": "string", "format": "binary", "description": "A PLS or JSON file"}
    content[MULTIPART] = {"schema": {**form, "properties": {FILE_FIELD: file, **others}}}
    return described


def _described(lexicon: StoredLexicon) -> dict[str, Any]:
    created_at = datetime.fromtimestamp(lexicon.created_at_s, timezone.utc).isoformat(timespec="seconds")
    return {
        "name": lexicon.name,
        "version": lexicon.version,
        "versions": list(lexicon.versions),
        "count": lexicon.entries,
        "title": lexicon.title,
        "description": lexicon.description,
        "owner": lexicon.owner,
        "created_at": created_at,
    }
