"""The page of the agent and its WebSocket, on the worker's application or on a separate one."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from tts_worker.features.agent.connection import AgentConnection
from tts_worker.features.agent.service import AgentService
from tts_worker.server.application import Application
from tts_worker.server.limits import ApiLimits
from tts_worker.server.page import WebFiles
from tts_worker.server.routing import Routes
from tts_worker.server.security import AuthMiddleware

PAGE_PATH = "/agent"
PAGE = "agent/index.html"


def add_agent(app: Application, service: AgentService) -> None:
    """Add ``/agent`` and ``/v1/agent``."""
    app.paths.transports["/v1/agent"] = "websocket"
    if app.web.has(PAGE):
        app.paths.public.add(PAGE_PATH)
    _add_routes(app.routes, service, app.limits, app.web)


def standalone_app(service: AgentService, limits: ApiLimits, web: WebFiles) -> ASGIApp:
    """Build an application with nothing but the agent, for a worker elsewhere. It serves loopback names only."""
    routes = Routes()

    @routes.get("/health/live")
    @routes.get("/health/ready")
    async def ready() -> Response:
        return JSONResponse({"status": "ready"})

    @routes.get("/v1/voices")
    async def voices() -> Response:
        return JSONResponse({"voices": []})  # the page asks for them to find out why a connection was refused

    _add_routes(routes, service, limits, web)
    web.add_static_files(routes)
    return AuthMiddleware(Starlette(routes=routes.routes), loopback_only=True)


def _add_routes(routes: Routes, service: AgentService, limits: ApiLimits, web: WebFiles) -> None:
    if web.has(PAGE):

        @routes.get(PAGE_PATH, include_in_schema=False)
        async def page() -> Response:
            return web.page(PAGE)

    @routes.websocket("/v1/agent", "Microphone in, the agent's speech out")
    async def converse(websocket: WebSocket) -> None:
        await AgentConnection(websocket, service, limits).run()
