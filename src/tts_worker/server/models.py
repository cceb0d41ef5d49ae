"""``/v1/models``: lists, describes and reloads models, in OpenAI's format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.callers import ApiScope
from tts_worker.features.compat import elevenlabs, openai
from tts_worker.server.audit import audited
from tts_worker.server.limits import ApiLimits
from tts_worker.server.routing import Routes
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


def add_routes(routes: Routes, hub: SessionHub, limits: ApiLimits, is_elevenlabs: Callable[[Request], bool]) -> None:
    """Add the routes. Clients for which ``is_elevenlabs`` is true get the list in that API's format."""

    @routes.get(PATH, summary="List the engines of this worker")
    async def models(request: Request) -> Response:
        if is_elevenlabs(request):
            return elevenlabs.models_response(hub, limits)
        return JSONResponse({"object": "list", "data": [_model(hub, name) for name in _model_names(hub)]})

    @routes.get(f"{PATH}/{{name}}", summary="Describe a model")
    async def model(name: str) -> Response:
        if name not in _model_names(hub):
            raise openai.unknown_model(name)
        return JSONResponse(_model(hub, name))

    @routes.post(
        f"{PATH}/{{name}}/reload",
        summary="Read a model anew; calls in progress finish on the old one",
        openapi_extra={"parameters": [_FREE_FIRST]},
    )
    async def reload(request: Request, name: str) -> Response:
        free_first = flag(request.query_params, "free_first")
        with audited("reload_model", name, ApiScope.ADMIN):
            if hub.models is None or name in openai.OPENAI_MODELS:
                raise openai.unknown_model(name)
            before = hub.model_versions.get(name)
            await hub.models.reload(name, free_first=free_first)
        return JSONResponse({**_model(hub, name), "previous_version": before})


def _model_names(hub: SessionHub) -> tuple[str, ...]:
    names = {voice.engine for voice in hub.voices} if hub.models is None else hub.models.names
    return (*sorted(names), *openai.OPENAI_MODELS)


def _model(hub: SessionHub, name: str) -> dict[str, Any]:
    """Describe a model; version and state are those of an engine of this worker."""
    described = {"id": name, "object": "model", "created": 0, "owned_by": "tts-worker"}
    if hub.models is None or name in openai.OPENAI_MODELS:
        return described
    return {**described, "version": hub.model_versions.get(name), "state": hub.models.describe_state(name)}
