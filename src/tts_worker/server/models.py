"""``/v1/models``: lists, describes and reloads models, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.callers import ApiScope
from tts_worker.errors import UnknownModel
from tts_worker.server.application import Application
from tts_worker.server.audit import audited
from tts_worker.server.validation import flag
from tts_worker.session.hub import SessionHub

PATH = "/v1/models"

_FREE_FIRST: dict[str, Any] = {
    "name": "free_first",
    "in": "query",
    "required": False,
    "description": "Free the memory of the old model before the new one is built, for devices that cannot hold both",
    "schema": {"type": "boolean", "default": False},
}


def add_routes(app: Application) -> None:
    """Add the routes. Clients of a vendor's API get the list in its format."""
    routes = app.routes
    hub = app.hub
    extra = app.model_names

    @routes.get(PATH, summary="List the engines of this worker")
    async def models(request: Request) -> Response:
        if (answer := app.apis.answer(request.scope, PATH)) is not None:
            return answer
        names = (*engine_names(hub), *extra)
        return JSONResponse({"object": "list", "data": [_model(hub, name) for name in names]})

    @routes.get(f"{PATH}/{{name}}", summary="Describe a model")
    async def model(name: str) -> Response:
        if name not in (*engine_names(hub), *extra):
            raise unknown_model(name, (*engine_names(hub), *extra))
        return JSONResponse(_model(hub, name))

    @routes.post(
        f"{PATH}/{{name}}/reload",
        summary="Read a model anew; calls in progress finish on the old one",
        openapi_extra={"parameters": [_FREE_FIRST]},
    )
    async def reload(request: Request, name: str) -> Response:
        free_first = flag(request.query_params, "free_first")
        with audited("reload_model", name, ApiScope.ADMIN):
            if hub.models is None or name in extra:
                raise unknown_model(name, engine_names(hub))
            before = hub.model_versions.get(name)
            await hub.models.reload(name, free_first=free_first)
        return JSONResponse({**_model(hub, name), "previous_version": before})


def unknown_model(name: str, known: Iterable[str]) -> UnknownModel:
    """Return the error for a name that is none of the known ones."""
    return UnknownModel(f'unknown model "{name[:64]}"; there are: {", ".join(known)}')


def engine_names(hub: SessionHub) -> list[str]:
    return sorted({voice.engine for voice in hub.voices} if hub.models is None else hub.models.names)


def _model(hub: SessionHub, name: str) -> dict[str, Any]:
    """Describe a model; version and state are those of an engine of this worker."""
    described = {"id": name, "object": "model", "created": 0, "owned_by": "tts-worker"}
    if hub.models is None or name not in hub.models.names:
        return described
    return {**described, "version": hub.model_versions.get(name), "state": hub.models.describe_state(name)}
