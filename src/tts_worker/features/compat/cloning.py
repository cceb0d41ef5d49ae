"""Voice cloning in the shapes of ElevenLabs, Cartesia, and OpenAI with vLLM-Omni.

All add a stored voice, as ``POST /v1/voices`` does. The forms of ElevenLabs (``POST /v1/voices/add``) and Cartesia
(``POST /voices/clone``) have no transcript and no statement of consent: both may be sent as additional fields
(``transcript``, ``consent``). Without them the voice speaks in cross-lingual mode, and consent is recorded as not
stated. That of OpenAI and vLLM-Omni (``POST /v1/audio/voices``) names a consent, which states it.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Literal

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
from tts_worker.voices.upload import NewVoice, now_s

ELEVENLABS_PATH = "/v1/voices/add"
CARTESIA_PATH = "/voices/clone"
OPENAI_PATH = "/v1/audio/voices"
PATHS = frozenset((ELEVENLABS_PATH, f"/elevenlabs{ELEVENLABS_PATH}", CARTESIA_PATH, OPENAI_PATH))

_ELEVENLABS_FILES = ("files", "files[]", "file")
_CARTESIA_FILES = ("clip", "file")
_OPENAI_FILE = "audio_sample"
_NAME = re.compile(r"\w[\w.-]{0,63}")
"""A name that a voice may have here; others are changed."""


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


class OpenAIClone(Fields):
    """``POST /v1/audio/voices``. ``ref_text``, ``speaker_description``: vLLM-Omni's."""

    type: Literal["audio_sample"] = "audio_sample"
    name: str = Field(min_length=1, max_length=256)
    consent: str = Field(min_length=1, max_length=256)
    ref_text: str = ""
    speaker_description: str = Field("", max_length=500)


def add_openai_routes(routes: Routes, hub: SessionHub) -> None:
    """Add the routes of OpenAI and vLLM-Omni to clone and delete a voice. Responses have the fields of both."""
    extra = partial(upload_body, OpenAIClone, (MULTIPART,), {_OPENAI_FILE: PROMPT_AUDIO})

    @routes.post(OPENAI_PATH, summary="Add a voice for clients of OpenAI and vLLM-Omni", openapi_extra=extra)
    async def create(request: Request) -> Response:
        body = await read_body(request)
        fields = validate(OpenAIClone, body.fields)
        name = fields.name if _NAME.fullmatch(fields.name) else hub.library.unused_name(fields.name)
        metadata = {"name": name, "title": fields.name, "description": fields.speaker_description, "consent": True}
        new = NewVoice.parse({**metadata, "transcript": fields.ref_text})
        with audited("add_voice", name, ApiScope.ENROLL):
            await hub.library.add(new, body.recording(_OPENAI_FILE))
        voice = {"id": name, "name": fields.name, "created_at": int(now_s())}
        return SafeJSONResponse(
            {**voice, "object": "audio.voice", "type": fields.type, "success": True, "voice": {**voice, "name": name}}
        )

    @routes.delete(f"{OPENAI_PATH}/{{voice}}", summary="Delete a voice for clients of OpenAI and vLLM-Omni")
    async def delete(voice: str) -> Response:
        with audited("delete_voice", voice, ApiScope.ENROLL):
            await hub.library.delete(voice)
        return SafeJSONResponse({"id": voice, "object": "audio.voice.deleted", "deleted": True, "success": True})


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
