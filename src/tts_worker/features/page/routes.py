"""``/`` and ``/docs``."""

from __future__ import annotations

from importlib.util import find_spec

from starlette.responses import JSONResponse, Response

from tts_worker.errors import MissingExtra
from tts_worker.feature import features
from tts_worker.server.application import Application
from tts_worker.server.routing import Route

_LINKED_PAGES = ("/webrtc", "/agent", "/detect")
_NEED_THEIR_EXTRA = {"webrtc": "WebRTC"}
"""Features that do nothing without the extra of the same name, and their names for people."""


def add_routes(app: Application) -> None:
    """Add the pages, and the list of the others."""
    app.paths.public |= {"/", "/docs"}

    @app.routes.get("/", include_in_schema=False)
    async def page() -> Response:
        return app.web.page("index.html")

    @app.routes.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return app.web.page("docs.html")

    @app.routes.get("/static/pages.json", include_in_schema=False)
    async def pages() -> Response:
        """List the pages that a page may link to; asking for each would log errors in the browser's console.

        Each has the reason for which it does not work here, or null.
        """
        paths = {route.path for route in app.routes.routes if isinstance(route, Route)}
        return JSONResponse({path: _what_is_missing(path[1:]) for path in _LINKED_PAGES if path in paths})


def _what_is_missing(feature: str) -> str | None:
    """Return why a feature does not work in this installation: it lacks the extra of the same name."""
    extra = features()[feature].extras.get(feature) if feature in _NEED_THEIR_EXTRA else None
    if extra is None or all(find_spec(module) is not None for module in extra.modules):
        return None
    return MissingExtra(_NEED_THEIR_EXTRA[feature], feature).message
