"""The web page: the playground, its scripts, and the description of the API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application


def _add_routes(app: Application) -> None:
    if app.settings.server.web_page:
        from tts_worker.features.page import routes

        routes.add_routes(app)


FEATURE = Feature(http=_add_routes, web=Path(__file__).parent / "web")
