"""The description of the API: OpenAPI of the HTTP routes and the JSON Schema of ``/v1/stream``."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from starlette.responses import JSONResponse, Response

from tts_worker.protocol.json_codec import json_schema
from tts_worker.server.routing import Route, Routes, Socket
from tts_worker.version import __version__

SCHEMA_PATH = "/v1/stream/schema.json"

_DESCRIPTION = f"""Text in, speech out. Streaming uses the WebSocket `/v1/stream`; the JSON Schema of its messages is at
`{SCHEMA_PATH}`. `/v1/calls/{{call}}` has the same messages and speaks in a telephone call. `x-websockets` lists all
WebSockets. The routes for ElevenLabs clients are below `/elevenlabs` as well. A key is sent as
`Authorization: Bearer KEY` or `X-API-Key: KEY`."""


def describe(routes: Routes) -> None:
    """Serve the JSON Schema of ``/v1/stream``, and OpenAPI with the bodies that ``routes`` validate themselves."""

    @routes.get(SCHEMA_PATH, summary="JSON Schema of the messages of the WebSocket /v1/stream")
    async def stream_schema() -> Response:
        return JSONResponse(json_schema())

    @cache
    def openapi() -> dict[str, Any]:
        from fastapi.openapi.utils import get_openapi

        known = [route for route in routes.routes if isinstance(route, Route | Socket) and route.include_in_schema]
        schema: dict[str, Any] = get_openapi(
            title="tts-worker",
            version=__version__,
            description=_DESCRIPTION,
            tags=[{"name": tag} for tag in dict.fromkeys(route.tag for route in known)],
            routes=[route.described() for route in known if isinstance(route, Route)],
        )
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        for operations in schema["paths"].values():
            for operation in operations.values():
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    schemas |= content["schema"].pop("$defs", {})
        # OpenAPI has no WebSockets; extensions begin with "x-".
        schema["x-websockets"] = {
            route.path.replace(":path}", "}"): {"summary": route.summary, "tags": [route.tag]}
            for route in known
            if isinstance(route, Socket)
        }
        return schema

    @routes.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return JSONResponse(await asyncio.to_thread(openapi))  # the import would delay the frames of calls
