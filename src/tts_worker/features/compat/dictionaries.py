"""Pronunciation dictionaries of ElevenLabs: the worker's stored lexicons (``session.lexicons``).

The id of a dictionary is the name of a lexicon, its name the title, and the id of a version its number. Message formats
follow the vendor's public API reference as its Python SDK uses it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tts_worker.errors import InvalidRequest
from tts_worker.features.compat.voice_pages import page
from tts_worker.protocol.json_codec import parse_object
from tts_worker.server.responses import SafeJSONResponse
from tts_worker.server.routing import Routes
from tts_worker.server.uploads import read_body
from tts_worker.server.validation import MULTIPART, Fields, query_parameters, request_body, upload_body, validate
from tts_worker.session.hub import SessionHub
from tts_worker.session.lexicons import LexiconContent, StoredLexicon
from tts_worker.text.lexicon import Lexicon, LexiconEntry
from tts_worker.types import SessionOptions

PATH = "/v1/pronunciation-dictionaries"
FILE_PATH = f"{PATH}/add-from-file"
_MAX_FILE_BYTES = 4 << 20
_ARPABET = re.compile(r"[A-Z]{1,2}[012]?(?: [A-Z]{1,2}[012]?)*")

Message = dict[str, Any]


def only_stored(hub: SessionHub, options: SessionOptions) -> SessionOptions:
    """Leave out a dictionary if the worker stores none: clients bring along those of their vendor."""
    return options if hub.lexicons.library is not None else replace(options, lexicon=None)


class Locator(Fields):
    """A dictionary in a request."""

    pronunciation_dictionary_id: str = Field(max_length=64)
    version_id: str | None = Field(None, max_length=16)

    @property
    def reference(self) -> str:
        version = "" if self.version_id is None else f"@{self.version_id}"
        return f"{self.pronunciation_dictionary_id}{version}"


def references_of(locators: Iterable[Locator] | None) -> str | None:
    """Return the option ``lexicon`` of a session; the vendor applies the dictionaries in order, too."""
    return ",".join(locator.reference for locator in locators or ()) or None


class Rule(Fields):
    """A rule. ``word_boundaries`` has no effect: a rule matches whole words."""

    string_to_replace: str
    type: Literal["alias", "phoneme"]
    alias: str = ""
    phoneme: str = ""
    alphabet: Literal["ipa", "cmu-arpabet"] = "ipa"
    case_sensitive: bool = True

    @property
    def entry(self) -> Message:
        say = self.alias if self.type == "alias" else f"/{self.phoneme.strip().strip('/')}/"
        return {"say": say, "case_sensitive": self.case_sensitive}


class RulesUpdate(Fields):
    """Body of ``set-rules`` and ``add-rules``."""

    rules: list[Rule] = Field(max_length=5_000)

    @property
    def entries(self) -> dict[str, Message]:
        return {rule.string_to_replace: rule.entry for rule in self.rules}


class RulesRemoval(Fields):
    """Body of ``remove-rules``."""

    rule_strings: list[str] = Field(max_length=5_000)


class DictionaryFields(Fields):
    """Fields of a form with a PLS file."""

    name: str = Field(min_length=1, max_length=100)
    description: str = Field("", max_length=1_000)


class NewDictionary(DictionaryFields, RulesUpdate):
    """Body of ``add-from-rules``."""


class DictionaryQuery(Fields):
    """Query parameters of the list."""

    cursor: str | None = Field(None, max_length=64)
    page_size: int = Field(30, ge=1, le=100)
    sort: Literal["creation_time_unix", "name"] = "creation_time_unix"
    sort_direction: str = "descending"


def add_routes(routes: Routes, hub: SessionHub) -> None:
    """Add ElevenLabs' routes."""
    lexicons = hub.lexicons

    async def added(fields: DictionaryFields, entries: Mapping[str, Any]) -> Response:
        content = LexiconContent(entries, fields.name, fields.description)
        name = await asyncio.to_thread(lexicons.stored.unused_name, fields.name)
        return SafeJSONResponse(_created(await lexicons.stored.create(name, content)))

    @routes.post(
        FILE_PATH,
        summary="Create a pronunciation dictionary from a PLS file",
        openapi_extra=partial(upload_body, DictionaryFields, (MULTIPART,), {"file": "The words"}, formats="PLS"),
    )
    async def from_file(request: Request) -> Response:
        body = await read_body(request, max_file_bytes=_MAX_FILE_BYTES)
        fields = validate(DictionaryFields, body.fields)
        if not body.files:
            raise InvalidRequest("file is missing: upload a PLS file in a multipart form")
        file = next(iter(body.files.values()))
        return await added(fields, await asyncio.to_thread(lexicons.stored.read_file, file))

    @routes.post(
        f"{PATH}/add-from-rules",
        summary="Create a pronunciation dictionary from rules",
        openapi_extra=partial(request_body, NewDictionary),
    )
    async def from_rules(request: Request) -> Response:
        new = validate(NewDictionary, parse_object(await request.body(), "body"))
        return await added(new, new.entries)

    @routes.get(
        PATH,
        summary="List the pronunciation dictionaries",
        openapi_extra=partial(query_parameters, DictionaryQuery),
    )
    async def list_all(request: Request) -> Response:
        query = validate(DictionaryQuery, dict(request.query_params))
        found = sorted(await lexicons.stored.list(), key=lambda each: (each.title, each.name))
        if query.sort == "creation_time_unix":
            found.sort(key=lambda each: each.created_at_s)
        if query.sort_direction.lower().startswith("desc"):
            found.reverse()
        shown = page(found, limit=query.page_size, after=query.cursor)
        return SafeJSONResponse(
            {
                "pronunciation_dictionaries": [_metadata(each) for each in shown.items],
                "next_cursor": shown.items[-1].name if shown.has_more else None,
                "has_more": shown.has_more,
            }
        )

    @routes.get(f"{PATH}/{{name}}", summary="Show a pronunciation dictionary with its rules")
    async def show(name: str) -> Response:
        stored, entries = await lexicons.stored.get(name)
        return SafeJSONResponse({**_metadata(stored), "rules": [_rule(each) for each in Lexicon.from_mapping(entries)]})

    _add_rule_routes(routes, hub)


def _add_rule_routes(routes: Routes, hub: SessionHub) -> None:
    lexicons = hub.lexicons

    async def changed(name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Response:
        stored = await lexicons.stored.edit(name, lambda known: LexiconContent(change(known)))
        return SafeJSONResponse(
            {"id": stored.name, "version_id": str(stored.version), "version_rules_num": stored.entries}
        )

    async def update_of(request: Request) -> RulesUpdate:
        return validate(RulesUpdate, parse_object(await request.body(), "body"))

    @routes.post(
        f"{PATH}/{{name}}/set-rules",
        summary="Replace the rules of a pronunciation dictionary",
        openapi_extra=partial(request_body, RulesUpdate),
    )
    async def set_rules(request: Request, name: str) -> Response:
        new = (await update_of(request)).entries
        return await changed(name, lambda known: new)

    @routes.post(
        f"{PATH}/{{name}}/add-rules",
        summary="Add rules to a pronunciation dictionary",
        openapi_extra=partial(request_body, RulesUpdate),
    )
    async def add_rules(request: Request, name: str) -> Response:
        new = (await update_of(request)).entries
        return await changed(name, lambda known: {**known, **new})

    @routes.post(
        f"{PATH}/{{name}}/remove-rules",
        summary="Remove rules from a pronunciation dictionary",
        openapi_extra=partial(request_body, RulesRemoval),
    )
    async def remove_rules(request: Request, name: str) -> Response:
        removed = {*validate(RulesRemoval, parse_object(await request.body(), "body")).rule_strings}
        return await changed(name, lambda known: {key: known[key] for key in known if key not in removed})


def _created(lexicon: StoredLexicon) -> Message:
    return {
        "id": lexicon.name,
        "name": lexicon.title,
        "created_by": lexicon.owner or "",
        "creation_time_unix": int(lexicon.created_at_s),
        "version_id": str(lexicon.version),
        "version_rules_num": lexicon.entries,
        "description": lexicon.description,
        "permission_on_resource": "admin",
    }


def _metadata(lexicon: StoredLexicon) -> Message:
    created = _created(lexicon)
    version = {
        "latest_version_id": created.pop("version_id"),
        "latest_version_rules_num": created.pop("version_rules_num"),
    }
    return {**created, **version, "archived_time_unix": None}


def _rule(entry: LexiconEntry) -> Message:
    rule: Message = {"string_to_replace": entry.grapheme, "case_sensitive": entry.case_sensitive}
    if entry.phonemes is None:
        return {"type": "alias", **rule, "word_boundaries": True, "alias": entry.alias}
    alphabet = "cmu-arpabet" if _ARPABET.fullmatch(entry.phonemes) else "ipa"
    return {"type": "phoneme", **rule, "word_boundaries": True, "phoneme": entry.phonemes, "alphabet": alphabet}
