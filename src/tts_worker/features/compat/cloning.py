"""Voice cloning in the shapes of ElevenLabs (``POST /v1/voices/add``) and Cartesia (``POST /voices/clone``).

Both add a stored voice, as ``POST /v1/voices`` does. The vendors' forms have no transcript and no statement of
consent: both may be sent as additional fields (``transcript``, ``consent``). Without them the voice speaks in
cross-lingual mode, and consent is recorded as not stated.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tts_worker.callers import ApiScope
from tts_worker.errors import InvalidRequest
from tts_worker.features.compat import cartesia_wire
from tts_worker.server.audit import audited
from tts_worker.server.responses import SafeJSONResponse
from tts_worker.server.routing import Routes
from tts_worker.server.uploads import Body, read_body
from tts_worker.server.validation import MULTIPART, PROMPT_AUDIO, Fields, upload_body, validate
from tts_worker.session.hub import SessionHub
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.upload import NewVoice

ELEVENLABS_PATH = "/v1/voices/add"
CARTESIA_PATH = "/voices/clone"
PATHS = frozenset((ELEVENLABS_PATH, f"/elevenlabs{ELEVENLABS_PATH}", CARTESIA_PATH))

_ELEVENLABS_FILES = ("files", "files[]", "file")
_CARTESIA_FILES = ("clip", "file")


class _CloneRequest(Fields):
    """What both vendors' forms share. Settings that have no meaning here are ignored."""

    name: str = Field(min_length=1, max_length=100)
    description: str = Field("", max_length=500)
    language: str = Field("", max_length=32)
    transcript: str = ""
    consent: bool = False


class ElevenLabsClone(_CloneRequest):
    """``POST /v1/voices/add``. ``labels``: a JSON object, or null."""

    labels: str = Field("", max_length=2_000)


class CartesiaClone(_CloneRequest):
    """``POST /voices/clone``."""


def add_elevenlabs_routes(routes: Routes, hub: SessionHub) -> None:
    """Add ElevenLabs' route to clone a voice."""
    extra = partial(upload_body, ElevenLabsClone, (MULTIPART,), {_ELEVENLABS_FILES[0]: PROMPT_AUDIO})

    @routes.post(ELEVENLABS_PATH, summary="Add a voice for ElevenLabs clients", openapi_extra=extra)
    async def add(request: Request) -> Response:
        body = await read_body(request)
        fields = validate(ElevenLabsClone, body.fields)
        voice = await _clone(hub, fields, body, _ELEVENLABS_FILES, _labels(fields.labels))
        return SafeJSONResponse({"voice_id": voice.name, "requires_verification": False})


def add_elevenlabs_delete(routes: Routes, hub: SessionHub) -> None:
    """Add the route to delete a voice below the vendor's prefix; the unprefixed path is the worker's own."""

    @routes.delete("/v1/voices/{voice}")
    async def delete(voice: str) -> Response:
        with audited("delete_voice", voice, ApiScope.ENROLL):
            await hub.library.delete(voice)
        return SafeJSONResponse({"status": "ok"})


def add_cartesia_routes(routes: Routes, hub: SessionHub) -> None:
    """Add Cartesia's routes to clone and delete a voice."""
    extra = partial(upload_body, CartesiaClone, (MULTIPART,), {_CARTESIA_FILES[0]: PROMPT_AUDIO})

    @routes.post(CARTESIA_PATH, summary="Add a voice for Cartesia clients", openapi_extra=extra)
    async def clone(request: Request) -> Response:
        body = await read_body(request)
        voice = await _clone(hub, validate(CartesiaClone, body.fields), body, _CARTESIA_FILES, {})
        return SafeJSONResponse({**cartesia_wire.voice_json(voice), "user_id": "", "is_public": False})

    @routes.delete("/voices/{voice}", summary="Delete a voice for Cartesia clients", status_code=204)
    async def delete(voice: str) -> Response:
        with audited("delete_voice", voice, ApiScope.ENROLL):
            await hub.library.delete(voice)
        return Response(status_code=204)


async def _clone(
    hub: SessionHub, fields: _CloneRequest, body: Body, file_fields: tuple[str, ...], labels: dict[str, str]
) -> VoiceDescription:
    library = hub.library
    language = fields.language or labels.get("language", "")
    new = NewVoice.parse(
        {
            "name": library.unused_name(fields.name),
            "title": fields.name,
            "description": fields.description,
            "languages": [language] if language else [],
            "tags": [f"{key}: {value}"[:40] for key, value in labels.items() if key not in ("language", "gender")],
            "gender": labels.get("gender"),
            "transcript": fields.transcript,
            "consent": fields.consent,
        }
    )
    present = next((name for name in file_fields if name in body.files), file_fields[0])
    with audited("add_voice", new.name, ApiScope.ENROLL):
        return await library.add(new, body.recording(present), requires_consent=False)


def _labels(text: str) -> dict[str, str]:
    """Parse ``labels``. Raises InvalidRequest."""
    if text in ("", "null"):  # the vendor's package sends null for none
        return {}
    try:
        labels: Any = json.loads(text)
    except (ValueError, RecursionError):
        labels = None
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise InvalidRequest("labels must be a JSON object of strings")
    return labels
