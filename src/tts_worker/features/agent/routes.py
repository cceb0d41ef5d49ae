"""The page of the agent and its WebSocket, on the worker's application or on a separate one."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from tts_worker.features.agent.connection import AgentConnection
from tts_worker.features.agent.service import AgentService
from tts_worker.server.http import add_static_files
from tts_worker.server.limits import ApiLimits
from tts_worker.server.page import page_response
from tts_worker.server.routing import Routes
from tts_worker.server.security import AuthMiddleware

PAGE_PATH = "/agent"


def add_agent(routes: Routes, service: AgentService, limits: ApiLimits) -> None:
    """Add ``/agent`` and ``/v1/agent``."""

    @routes.get(PAGE_PATH, include_in_schema=False)
    async def page() -> Response:
        return page_response("agent/index.html")

    @routes.websocket("/v1/agent", "Microphone in, the agent's speech out")
    async def converse(websocket: WebSocket) -> None:
        await AgentConnection(websocket, service, limits).run()


def standalone_app(service: AgentService, limits: ApiLimits) -> ASGIApp:
    """Build an application with nothing but the agent, for a worker elsewhere. It serves loopback names only."""
    routes = Routes()

    @routes.get("/health/live")
    @routes.get("/health/ready")
    async def ready() -> Response:
        return JSONResponse({"status": "ready"})

    @routes.get("/v1/voices")
    async def voices() -> Response:
        return JSONResponse({"voices": []})  # the page asks for them to find out why a connection was refused

    add_agent(routes, service, limits)
    add_static_files(routes)
    return AuthMiddleware(Starlette(routes=routes.routes), loopback_only=True)
