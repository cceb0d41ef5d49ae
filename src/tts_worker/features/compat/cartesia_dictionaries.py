"""Pronunciation dictionaries of Cartesia: the worker's stored lexicons (``session.lexicons``).

The id of a dictionary is the name of a lexicon, its name the title. Message formats follow the vendor's public API
reference as its Python SDK uses it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import partial
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tts_worker.features.compat.voice_pages import page
from tts_worker.protocol.json_codec import parse_object
from tts_worker.server.responses import SafeJSONResponse
from tts_worker.server.routing import Routes
from tts_worker.server.validation import Fields, query_parameters, request_body, validate
from tts_worker.session.hub import SessionHub
from tts_worker.session.lexicons import LexiconContent, LexiconLibrary
from tts_worker.text.lexicon import Lexicon, LexiconEntry

PATH = "/pronunciation-dicts"
_PHONEMES = re.compile(r"<<(.+)>>")

Message = dict[str, Any]


class DictionaryItem(Fields):
    """An item. An alias between ``<<`` and ``>>`` is phonemes, separated by bars."""

    text: str
    alias: str
    case_sensitive: bool = False

    @property
    def entry(self) -> Message:
        phonemes = _PHONEMES.fullmatch(self.alias.strip())
        say = self.alias if phonemes is None else f"/{phonemes[1].replace('|', '')}/"
        return {"say": say, "case_sensitive": self.case_sensitive}


class DictionaryUpdate(Fields):
    """Body of ``PATCH /pronunciation-dicts/{id}``."""

    name: str = Field("", max_length=100)
    items: list[DictionaryItem] | None = Field(None, max_length=5_000)

    @property
    def entries(self) -> dict[str, Message]:
        return {item.text: item.entry for item in self.items or ()}


class DictionaryCreation(DictionaryUpdate):
    """Body of ``POST /pronunciation-dicts``."""

    name: str = Field(min_length=1, max_length=100)


class PageQuery(Fields):
    """Query parameters of ``GET /pronunciation-dicts``."""

    limit: int = Field(10, ge=1, le=100)
    starting_after: str | None = Field(None, max_length=64)
    ending_before: str | None = Field(None, max_length=64)


def add_routes(routes: Routes, hub: SessionHub) -> None:
    """Add Cartesia's routes. Its SDK ends the path of the list with a slash."""
    lexicons = hub.lexicons

    async def create(request: Request) -> Response:
        new = validate(DictionaryCreation, parse_object(await request.body(), "body"))
        name = await asyncio.to_thread(lexicons.stored.unused_name, new.name)
        stored = await lexicons.stored.create(name, LexiconContent(new.entries, new.name))
        return SafeJSONResponse(await _dictionary(lexicons.stored, stored.name))

    async def list_all(request: Request) -> Response:
        query = validate(PageQuery, dict(request.query_params))
        shown = page(
            await lexicons.stored.list(), limit=query.limit, after=query.starting_after, before=query.ending_before
        )
        data = [await _dictionary(lexicons.stored, each.name) for each in shown.items]
        return SafeJSONResponse({"data": data, "has_more": shown.has_more})

    for path in (PATH, f"{PATH}/"):
        routes.add(
            path,
            create,
            method="POST",
            summary="Create a pronunciation dictionary for Cartesia clients",
            openapi_extra=partial(request_body, DictionaryCreation),
        )
        routes.add(
            path,
            list_all,
            summary="List the pronunciation dictionaries for Cartesia clients",
            openapi_extra=partial(query_parameters, PageQuery),
        )

    @routes.get(f"{PATH}/{{name}}", summary="Show a pronunciation dictionary for Cartesia clients")
    async def show(name: str) -> Response:
        return SafeJSONResponse(await _dictionary(lexicons.stored, name))

    async def update(request: Request, name: str) -> Response:
        change = validate(DictionaryUpdate, parse_object(await request.body(), "body"))
        await lexicons.stored.edit(
            name, lambda known: LexiconContent(known if change.items is None else change.entries, change.name)
        )
        return SafeJSONResponse(await _dictionary(lexicons.stored, name))

    routes.add(
        f"{PATH}/{{name}}",
        update,
        method="PATCH",
        summary="Change a pronunciation dictionary for Cartesia clients",
        openapi_extra=partial(request_body, DictionaryUpdate),
    )

    @routes.delete(
        f"{PATH}/{{name}}", summary="Delete a pronunciation dictionary for Cartesia clients", status_code=204
    )
    async def delete(name: str) -> Response:
        await lexicons.stored.delete(name)
        return Response(status_code=204)


async def _dictionary(library: LexiconLibrary, name: str) -> Message:
    stored, entries = await library.get(name)
    created_at = datetime.fromtimestamp(stored.created_at_s, timezone.utc)
    return {
        "id": stored.name,
        "name": stored.title,
        "created_at": created_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "owner_id": stored.owner or "",
        "pinned": False,
        "items": _items(Lexicon.from_mapping(entries)),
    }


def _items(entries: Iterable[LexiconEntry]) -> list[Message]:
    return [
        {
            "text": entry.grapheme,
            "alias": entry.alias if entry.phonemes is None else f"<<{'|'.join(entry.phonemes)}>>",
            "case_sensitive": entry.case_sensitive,
        }
        for entry in entries
    ]
