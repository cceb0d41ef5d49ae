"""Voice conversion: speech in, the same speech in another voice out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application


def _add_routes(app: Application) -> None:
    from tts_worker.features.conversion import routes

    routes.add_routes(app)


FEATURE = Feature(docs="cosyvoice.md", http=_add_routes)
