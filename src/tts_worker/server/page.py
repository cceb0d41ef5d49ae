"""The files of web pages, each page with a content policy that admits only the worker's own scripts and styles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from tts_worker.server.routing import Routes

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


class WebFiles:
    """The files of web pages.

    Args:
        folders: Where they are, as if all were one folder.
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = folders

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return any((folder / name).is_file() for folder in self._folders)

    def page(self, name: str) -> Response:
        """Return a page by its file name. Raises StopIteration if there is none."""
        file = next(folder / name for folder in self._folders if (folder / name).is_file())
        return FileResponse(file, headers={"Content-Security-Policy": _POLICY})

    def add_static_files(self, routes: Routes) -> None:
        """Serve all files below ``/static``."""
        if self._folders:
            routes.mount("/static", _RevalidatedFiles(self._folders))


class _RevalidatedFiles(StaticFiles):
    """Static files that browsers revalidate on each use, so an upgrade never mixes old and new modules."""

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__(directory=folders[0])
        self.all_directories = [*folders]

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response
