"""Routes that call their endpoint directly.

FastAPI inspects every endpoint when it is added, again when its router is included, and resolves its parameters with
each request: most of a server's start. The endpoints here take the request and names in the path and return a response,
so only the description of the API needs FastAPI's view of them, and makes it when it is first asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.routing import Route as PlainRoute

Result = TypeVar("Result")


class Route(PlainRoute):
    """A route as FastAPI's decorators create it; takes their options, which are for the description."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        names = {key: options[key] for key in ("methods", "name", "include_in_schema") if key in options}
        super().__init__(path, _called_with(endpoint, "request"), **names)
        self.methods = {*(names.get("methods") or ("GET",))}  # without HEAD, as in FastAPI
        self._described = (path, endpoint, options)

    def described(self) -> APIRoute:
        """Return FastAPI's view of this route."""
        path, endpoint, options = self._described
        return APIRoute(path, endpoint, **options)


class Routes(APIRouter):
    """Collects routes with FastAPI's decorators.

    Args:
        prefix: Start of all paths.
        include_in_schema: Whether the description of the API contains them.
    """

    def __init__(self, *, prefix: str = "", include_in_schema: bool = True) -> None:
        super().__init__(prefix=prefix, include_in_schema=include_in_schema, route_class=cast(type[APIRoute], Route))

    def include(self, routes: Routes) -> None:
        """Add routes that were collected apart."""
        self.routes += routes.routes

    def add_api_websocket_route(
        self, path: str, endpoint: Callable[..., Any], name: str | None = None, **options: Any
    ) -> None:
        """Add a WebSocket."""
        self.routes.append(WebSocketRoute(self.prefix + path, _called_with(endpoint, "websocket"), name=name))


def described(routes: Iterable[BaseRoute]) -> Sequence[BaseRoute]:
    """Return routes as ``fastapi.openapi`` needs them."""
    return [route.described() if isinstance(route, Route) else route for route in routes]


def _called_with(
    endpoint: Callable[..., Awaitable[Result]], connection: str
) -> Callable[[HTTPConnection], Awaitable[Result]]:
    """Pass the names in the path and, if the endpoint has a parameter of this name, the connection."""
    takes_connection = connection in inspect.signature(endpoint).parameters

    async def call(at: HTTPConnection) -> Result:
        own = {connection: at} if takes_connection else {}
        return await endpoint(**own, **at.path_params)

    call.__name__ = getattr(endpoint, "__name__", connection)  # the name of the route
    return call
