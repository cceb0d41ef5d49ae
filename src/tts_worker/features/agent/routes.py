"""The page of the agent and its WebSocket, on the worker's application or on a separate one."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from tts_worker.features.agent.chat import ChatModel
from tts_worker.features.agent.connection import AgentConnection
from tts_worker.features.agent.recognizer import Recognizer
from tts_worker.features.agent.script import ScriptedModel
from tts_worker.features.agent.service import AgentService, speech_options
from tts_worker.server.application import Application
from tts_worker.server.limits import ApiLimits
from tts_worker.server.page import WebFiles
from tts_worker.server.routing import Routes
from tts_worker.server.security import AuthMiddleware
from tts_worker.settings import is_loopback
from tts_worker.types import SessionOptions

PAGE_PATH = "/agent"
PAGE = "agent/index.html"
STREAM_PATH = "/v1/agent"


def add_agent(app: Application, service: AgentService) -> None:
    """Add ``/agent`` and ``/v1/agent``."""
    app.paths.transports[STREAM_PATH] = "websocket"
    if app.web.has(PAGE):
        app.paths.public.add(PAGE_PATH)
    _add_routes(app.routes, service, app.limits, app.web)


def hub_service(
    app: Application,
    options: SessionOptions,
    model: ChatModel,
    recognizer: Recognizer | None = None,
    instructions: str = "",
) -> AgentService:
    """Return the parts of an agent that speaks with this worker."""

    is_reachable = not is_loopback(app.settings.server.host)
    return AgentService(app.hub.admit, model, recognizer, instructions, options, is_reachable)


def add_scripted_agent(app: Application) -> None:
    """Add an agent that answers from a script, unless there is another one (``tts-worker agent``)."""
    if STREAM_PATH not in app.paths.transports:
        add_agent(app, hub_service(app, speech_options(), ScriptedModel()))


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

    @routes.websocket(STREAM_PATH, "Microphone in, the agent's speech out")
    async def converse(websocket: WebSocket) -> None:
        await AgentConnection(websocket, service, limits).run()
