"""Routes that call their endpoint directly, and are described only when the description of the API is requested.

The endpoints take the request and names in the path and return a response. FastAPI, which makes the description, takes
0.2 s of processor time to import and half a millisecond for each endpoint, so a server starts without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Match, Mount, WebSocketRoute
from starlette.routing import Route as PlainRoute
from starlette.types import ASGIApp, Scope

if TYPE_CHECKING:
    from fastapi.routing import APIRoute

Result = TypeVar("Result")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Any]])

OWN_API = "tts-worker"
"""Tag of the worker's own routes; those for clients of other APIs have the name of that API."""


class Route(PlainRoute):
    """A route of one method.

    Args:
        path: Its path, with names in braces.
        endpoint: Takes these names and, if it has a parameter ``request``, the request.
        method: The method; GET does not imply HEAD.
        name: Its name in the description; that of the endpoint by default.
        include_in_schema: Whether the description contains it.
        tag: The API to which it belongs, for the description.
        openapi_extra: What FastAPI cannot know, such as the body, or what makes it when it is needed.
        options: Further arguments of FastAPI's ``APIRoute`` for the description.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Awaitable[Any]],
        *,
        method: str = "GET",
        name: str | None = None,
        include_in_schema: bool = True,
        tag: str = OWN_API,
        openapi_extra: dict[str, Any] | Callable[[], dict[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        call = _with_path_names(endpoint, "request")
        super().__init__(path, call, methods=[method], name=name, include_in_schema=include_in_schema)
        self.methods = {method}
        self.tag = tag
        self._endpoint = endpoint
        self._openapi_extra = openapi_extra
        self._options = {**options, "name": name}

    def described(self) -> APIRoute:
        """Return FastAPI's view of this route; imports FastAPI."""
        from fastapi.routing import APIRoute

        extra = self._openapi_extra() if callable(self._openapi_extra) else self._openapi_extra
        return APIRoute(
            self.path, self._endpoint, methods=self.methods, tags=[self.tag], openapi_extra=extra, **self._options
        )


class Socket(WebSocketRoute):
    """A WebSocket.

    Args:
        path: Its path, with names in braces.
        endpoint: Takes these names and ``websocket``.
        summary: What the description says of it.
        tag: The API to which it belongs.
        include_in_schema: Whether the description contains it.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Awaitable[Any]],
        summary: str,
        *,
        tag: str = OWN_API,
        include_in_schema: bool = True,
    ) -> None:
        super().__init__(path, _with_path_names(endpoint, "websocket"))
        self.summary = summary
        self.tag = tag
        self.include_in_schema = include_in_schema


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods of all routes for the path of a request whose method none of them has."""
    partial = (route for route in routes if route.matches(scope)[0] is Match.PARTIAL)
    return sorted({method for route in partial if isinstance(route, PlainRoute) for method in route.methods or ()})


class Routes:
    """Collects routes with decorators. Their options are those of ``Route``.

    Args:
        prefix: Start of all paths.
        include_in_schema: Whether the description of the API contains them.
        tag: The API to which they belong, as the description names it.
    """

    def __init__(self, *, prefix: str = "", include_in_schema: bool = True, tag: str = OWN_API) -> None:
        self.routes: list[BaseRoute] = []
        self._prefix = prefix
        self._include_in_schema = include_in_schema
        self._tag = tag

    def add(self, path: str, endpoint: Callable[..., Awaitable[Any]], **options: Any) -> None:
        """Add a route."""
        options["include_in_schema"] = self._include_in_schema and options.get("include_in_schema", True)
        self.routes.append(Route(self._prefix + path, endpoint, tag=self._tag, **options))

    def get(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Add a route for GET."""
        return self._decorator(path, "GET", options)

    def post(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Add a route for POST."""
        return self._decorator(path, "POST", options)

    def delete(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Add a route for DELETE."""
        return self._decorator(path, "DELETE", options)

    def websocket(self, path: str, summary: str) -> Callable[[Endpoint], Endpoint]:
        """Add a WebSocket; its endpoint takes ``websocket`` and the names in the path."""

        def add(endpoint: Endpoint) -> Endpoint:
            shown = self._include_in_schema
            self.routes.append(Socket(self._prefix + path, endpoint, summary, tag=self._tag, include_in_schema=shown))
            return endpoint

        return add

    def mount(self, path: str, app: ASGIApp) -> None:
        """Add an application for all paths below."""
        self.routes.append(Mount(path, app))

    def include(self, routes: Routes) -> None:
        """Add routes that were collected apart."""
        self.routes += routes.routes

    def _decorator(self, path: str, method: str, options: dict[str, Any]) -> Callable[[Endpoint], Endpoint]:
        def add(endpoint: Endpoint) -> Endpoint:
            self.add(path, endpoint, method=method, **options)
            return endpoint

        return add


def _with_path_names(
    endpoint: Callable[..., Awaitable[Result]], parameter: str
) -> Callable[[HTTPConnection], Awaitable[Result]]:
    """Call ``endpoint`` with the names in the path and, in ``parameter``, if it has one, the connection."""
    takes_connection = parameter in inspect.signature(endpoint).parameters

    async def call(connection: HTTPConnection) -> Result:
        own = {parameter: connection} if takes_connection else {}
        return await endpoint(**own, **connection.path_params)

    return call
