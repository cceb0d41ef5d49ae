"""The files of the web page, each with the content policy that admits only the worker's own scripts and styles."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import FileResponse, Response

FOLDER = Path(__file__).parents[1] / "features" / "page" / "web"

_POLICY = "; ".join(
    (
        "default-src 'self'",
        "connect-src 'self' ws: wss:",
        "img-src 'self' data:",
        "media-src 'self' blob: mediastream:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def page_response(name: str) -> Response:
    """Return a page of ``web/`` by its file name."""
    return FileResponse(FOLDER / name, headers={"Content-Security-Policy": _POLICY})
