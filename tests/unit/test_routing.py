"""Routes answer without FastAPI, which only the description of the API needs."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.server.api_docs import describe
from tts_worker.server.routing import Routes


@pytest.fixture
def app() -> Starlette:
    things = Routes(prefix="/v1")

    @things.get("/things/{name}", summary="Describe a thing", openapi_extra=lambda: {"x-extra": True})
    async def thing(request: Request, name: str) -> Response:
        return JSONResponse([name, request.method])

    @things.post("/things/{name}", status_code=201, include_in_schema=False)
    async def make(name: str) -> Response:
        return JSONResponse(name, 201)

    routes = Routes()
    routes.include(things)
    describe(routes)
    return Starlette(routes=routes.routes)


async def test_routes_take_requests_and_names(app: Starlette) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as http:
        assert (await http.get("/v1/things/a")).json() == ["a", "GET"]
        assert (await http.post("/v1/things/b")).json() == "b"
        assert (await http.head("/v1/things/a")).status_code == 405
        assert (await http.get("/v1/things/a/b")).status_code == 404


async def test_routes_are_described(app: Starlette) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    assert {path: [*operations] for path, operations in paths.items()} == {
        "/v1/things/{name}": ["get"],
        "/v1/stream/schema.json": ["get"],
    }
    operation = paths["/v1/things/{name}"]["get"]
    assert (operation["summary"], operation["x-extra"]) == ("Describe a thing", True)
    assert [(parameter["name"], parameter["in"]) for parameter in operation["parameters"]] == [("name", "path")]


def test_a_server_starts_without_fastapi() -> None:
    code = "import sys, tts_worker.app; assert 'fastapi' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
