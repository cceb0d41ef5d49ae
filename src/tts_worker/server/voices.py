"""``/v1/voices``: lists, describes, adds and deletes voices."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from tts_worker.callers import ApiScope
from tts_worker.errors import InvalidRequest
from tts_worker.server.application import Application
from tts_worker.server.audit import audited
from tts_worker.server.responses import SafeJSONResponse, voice_json
from tts_worker.server.uploads import Body, read_body
from tts_worker.server.validation import MULTIPART, PROMPT_AUDIO, upload_body
from tts_worker.session.hub import SessionHub
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.upload import NewVoice

PATH = "/v1/voices"
NAMED_PATH = "/v1/voices/{name}"
RECORDING_FIELD = "audio"

_BODY = partial(
    upload_body, NewVoice, (MULTIPART, "application/json"), {RECORDING_FIELD: PROMPT_AUDIO}, optional={RECORDING_FIELD}
)
"""A mix takes no recording."""


def add_routes(app: Application) -> None:
    """Add the routes. Clients of a vendor's API that has the same paths get its responses."""
    routes = app.routes
    hub = app.hub
    app.paths.uploads.add(PATH)

    @routes.get(PATH, summary="List the voices")
    @routes.get("/v1/audio/voices", summary="The same as /v1/voices, for clients that ask here")
    async def voices(request: Request) -> Response:
        await hub.library.refresh()
        if not any(True for _ in hub.voices):
            hub.check_started()  # an empty list would look like a worker without voices
        if (answer := app.apis.answer(request.scope, PATH)) is not None:
            return answer
        listed = [voice_json(voice, hub.voices.default) for voice in hub.voices]
        return SafeJSONResponse({"voices": listed, "can_add": hub.library.can_add})

    @routes.get(NAMED_PATH, summary="Describe a voice")
    async def voice(request: Request, name: str) -> Response:
        await hub.library.refresh()
        if (answer := app.apis.answer(request.scope, NAMED_PATH, name=name)) is not None:
            return answer
        return SafeJSONResponse(voice_json(hub.voices.get(name), hub.voices.default))

    @routes.post(
        PATH,
        status_code=201,
        summary="Add a voice from a recording, a style of a voice, or a mix of voices",
        openapi_extra=_BODY,
    )
    async def add(request: Request) -> Response:
        body = await read_body(request)
        added = await add_voice(hub, body)
        headers = {"location": f"{PATH}/{added.name}"} if added.name.isascii() else {}
        return SafeJSONResponse(voice_json(added, hub.voices.default), 201, headers)

    @routes.delete(NAMED_PATH, summary="Delete a voice that was added")
    async def delete(name: str) -> Response:
        mixes = await delete_voice(hub, name)
        more = {"deleted_mixes": mixes} if mixes else {}
        return SafeJSONResponse({"id": name, "deleted": True, "status": "ok", **more})


async def add_voice(hub: SessionHub, body: Body) -> VoiceDescription:
    """Add the voice of a request. Raises as ``VoiceLibrary.add`` does."""
    new = NewVoice.parse(body.without(RECORDING_FIELD))
    with audited("add_voice", new.stored_name, ApiScope.ENROLL):
        if new.mix:
            if body.files or RECORDING_FIELD in body.fields:
                raise InvalidRequest("a mix takes no recording")
            return await hub.library.mix(new)
        return await hub.library.add(new, body.only_recording(RECORDING_FIELD))


async def delete_voice(hub: SessionHub, name: str) -> tuple[str, ...]:
    """Delete a voice and its mixes, whose names are returned. Raises as ``VoiceLibrary.delete`` does."""
    with audited("delete_voice", name, ApiScope.ENROLL):
        return await hub.library.delete(name)
