"""The page of the agent and its WebSocket, on the worker's application or on a separate one."""

from __future__ import annotations

from fastapi import FastAPI, WebSocket
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from tts_worker import __version__
from tts_worker.server.agent.connection import AgentConnection
from tts_worker.server.agent.service import AgentService
from tts_worker.server.http import add_static_files
from tts_worker.server.limits import ApiLimits
from tts_worker.server.page import page_response
from tts_worker.server.security import AuthMiddleware

PAGE_PATH = "/agent"


def add_agent(app: FastAPI, service: AgentService, limits: ApiLimits) -> None:
    """Add ``/agent`` and ``/v1/agent``."""

    @app.get(PAGE_PATH, include_in_schema=False)
    async def page() -> Response:
        return page_response("agent/index.html")

    @app.websocket("/v1/agent")
    async def converse(websocket: WebSocket) -> None:
        await AgentConnection(websocket, service, limits).run()


def standalone_app(service: AgentService, limits: ApiLimits) -> ASGIApp:
    """Build an application with nothing but the agent, for a worker elsewhere. It serves loopback names only."""
    app = FastAPI(title="tts-worker agent", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health/live")
    @app.get("/health/ready")
    async def ready() -> Response:
        return JSONResponse({"status": "ready"})

    @app.get("/v1/voices")
    async def voices() -> Response:
        return JSONResponse({"voices": []})  # the page asks for them to find out why a connection was refused

    add_agent(app, service, limits)
    add_static_files(app)
    return AuthMiddleware(app, loopback_only=True)
