"""Routes answer without FastAPI's inspection of their endpoints, which only the description needs."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from tts_worker.server.api_docs import describe
from tts_worker.server.routing import Routes


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI(title="sample", docs_url=None, redoc_url=None)
    routes = Routes(prefix="/v1")

    @routes.get("/things/{name}", summary="Describe a thing")
    async def thing(request: Request, name: str) -> Response:
        return JSONResponse([name, request.method])

    @routes.post("/things/{name}", status_code=201, include_in_schema=False)
    async def make(name: str) -> Response:
        return JSONResponse(name, 201)

    plain = Routes()
    plain.include(routes)
    describe(app, plain)
    app.router.routes += plain.routes
    return app


async def test_routes_answer_as_fastapi_does(app: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as http:
        assert (await http.get("/v1/things/a")).json() == ["a", "GET"]
        assert (await http.post("/v1/things/b")).json() == "b"
        refused = await http.head("/v1/things/a")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        assert (await http.get("/v1/things/a/b")).status_code == 404


async def test_only_the_description_inspects_endpoints(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    inspected = list[str]()
    create = APIRoute.__init__

    def counted(route: APIRoute, path: str, *args: object, **options: object) -> None:
        inspected.append(path)
        create(route, path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(APIRoute, "__init__", counted)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as http:
        await http.get("/v1/things/a")
        assert inspected == []
        paths = (await http.get("/openapi.json")).json()["paths"]
    assert {path: [*operations] for path, operations in paths.items()} == {
        "/v1/things/{name}": ["get"],
        "/v1/stream/schema.json": ["get"],
    }
    (parameter,) = paths["/v1/things/{name}"]["get"]["parameters"]
    assert (parameter["name"], parameter["in"]) == ("name", "path")
    assert "/v1/things/{name}" in inspected
