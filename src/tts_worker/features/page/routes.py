"""``/`` and ``/docs``."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from tts_worker.server.application import Application
from tts_worker.server.routing import Route

_LINKED_PAGES = ("/webrtc", "/agent", "/detect")


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
        """List the pages that a page may link to; asking for each would log errors in the browser's console."""
        paths = {route.path for route in app.routes.routes if isinstance(route, Route)}
        return JSONResponse([path for path in _LINKED_PAGES if path in paths])
