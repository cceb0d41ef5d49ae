"""Routes answer without FastAPI, which only the description of the API needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tts_worker.features.compat import cosyvoice_pb2
from tts_worker.protocol import tts_worker_pb2
from tts_worker.server.api_docs import describe
from tts_worker.server.application import Application
from tts_worker.server.routing import Route, Routes, Socket
from tts_worker.serving import create_application
from tts_worker.settings import load_settings
from tts_worker.worker import Worker

ROOT = Path(__file__).parents[2]
CALLED_OTHERWISE = {
    "/static": "/static/",
    "/v2/voices": "voices.search(",
    "/v1/single-use-token/{kind}": "tokens.single_use.create(",
}
"""Paths that stand in no test, and what the tests call instead: a file, or a function of the vendor's client."""

PAGES = {"/", "/docs", "/webrtc", "/agent", "/detect", "/static", "/static/pages.json", "/openapi.json"}
PREFIX = "/elevenlabs"


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
    code = "import sys, tts_worker.serving; assert 'fastapi' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
async def parts() -> Application:
    """The application of a worker with all features enabled."""
    settings = load_settings(
        flags={
            "engines": {"tone": {"kind": "tone"}},
            "webrtc": {"enabled": True},
        }
    )
    worker = Worker(settings)
    found: list[Application] = []
    create_application(worker, found.append)
    return found[0]


@pytest.fixture
def routes(parts: Application) -> Routes:
    """All routes of that worker."""
    return parts.routes


def every_operation(routes: Routes) -> set[tuple[str, str]]:
    """Method and path of every route; ``WS`` for a WebSocket."""
    found = set()
    for route in routes.routes:
        path = re.sub(":path}", "}", getattr(route, "path", ""))
        methods = route.methods if isinstance(route, Route) else {"WS" if isinstance(route, Socket) else "GET"}
        found |= {(method, path) for method in methods or ()}
    return found


def operations(routes: Routes) -> set[tuple[str, str]]:
    """As ``every_operation``, without those of ElevenLabs that are there with and without a prefix."""
    found = every_operation(routes)
    return {
        (method, path) for method, path in found if PREFIX not in path or (method, path[len(PREFIX) :]) not in found
    }


def grpc_methods() -> set[str]:
    return {
        f"{service.full_name}/{method.name}"
        for file in (tts_worker_pb2, cosyvoice_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


async def test_every_route_is_in_the_openapi_document(routes: Routes) -> None:
    app = Starlette(routes=routes.routes)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as http:
        document = (await http.get("/openapi.json")).json()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    described |= {("WS", path) for path in document["x-websockets"]}
    missing = {(method, path) for method, path in operations(routes) - described if path not in PAGES}
    assert all(path.startswith(PREFIX) for _, path in missing), missing
    assert PREFIX in document["info"]["description"]


async def test_described_routes_name_their_api(parts: Application) -> None:
    app = Starlette(routes=parts.routes.routes)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://worker") as http:
        document = (await http.get("/openapi.json")).json()
    tags = {path: operation["tags"] for path, methods in document["paths"].items() for operation in methods.values()}
    tags |= {path: socket["tags"] for path, socket in document["x-websockets"].items()}
    assert tags["/v1/stream"] == tags["/v1/models/{name}"] == tags["/v1/audio/conversions"] == ["tts-worker"]
    assert tags["/v1/audio/speech"] == ["OpenAI"]
    assert not [path for path in tags if path.startswith(PREFIX) and path[len(PREFIX) :] in tags]
    for path, (tag,) in tags.items():
        if (api := parts.apis.of_path(path)) is not None and not path.startswith("/v1/audio/"):
            assert tag.lower() == api.name, path
    assert [tag["name"] for tag in document["tags"]] == [
        "tts-worker",
        "OpenAI",
        "ElevenLabs",
        "Cartesia",
        "CosyVoice",
        "Deepgram",
        "jambonz",
    ]


def test_every_route_is_in_the_docs(routes: Routes) -> None:
    page = (ROOT / "docs/routes.md").read_text("utf-8")
    named = re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE|WS|, )+) (/[^\s`]*)`", page)
    listed = [(method, path) for methods, path in named for method in methods.split(", ")]
    assert len(set(listed)) == len(listed)
    assert operations(routes) <= set(listed) <= every_operation(routes)
    services = re.findall(r"^\| `((?:tts|cosyvoice)\.\w+)` \| (.*) \|$", page, re.MULTILINE)
    assert grpc_methods() == {
        f"{service}/{name}" for service, text in services for name in re.findall(r"`(\w+)`", text)
    }


def test_every_route_is_in_the_tests(routes: Routes) -> None:
    files = {file: file.read_text("utf-8") for file in (ROOT / "tests").rglob("*.py")}
    del files[Path(__file__)]
    texts = "".join(files.values())
    missing = set()
    for _, path in operations(routes):
        # A parameter is a name or a replacement field of an f-string. The path ends there.
        parts = re.split(r"\{\w+\}", path.removeprefix(PREFIX))
        literal = r"(?:[\w.%@-]+|\{[^{}]*\})".join(map(re.escape, parts))
        if not re.search(rf"{literal}(?![\w/-])", texts):
            missing.add(path)
    assert missing == set(CALLED_OTHERWISE)
    for call in CALLED_OTHERWISE.values():
        assert call in texts
    texts += (ROOT / "src/tts_worker/client/grpc_voices.py").read_text("utf-8")  # the tests of voices use this client
    for method in grpc_methods():
        assert re.search(rf"\b{method.partition('/')[2]}\b", texts), method
