"""Voice conversion: speech in, the same speech in another voice out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application
    from tts_worker.server.grpc.models import ModelCatalog
    from tts_worker.server.grpc.server import Register
    from tts_worker.session.conversion import Converter
    from tts_worker.session.hub import SessionHub
    from tts_worker.settings import Settings


def _add_routes(app: Application) -> None:
    from tts_worker.features.conversion import routes

    routes.add_routes(app)


def _service(hub: SessionHub, settings: Settings, models: ModelCatalog) -> Register:
    from tts_worker.features.conversion.grpc_service import conversion_service
    from tts_worker.server.limits import ApiLimits

    return conversion_service(hub, ApiLimits.of(settings))


def _converter() -> Converter:
    from tts_worker.features.conversion.conversion import SourceConverter

    return SourceConverter()


FEATURE = Feature(docs="cosyvoice.md", http=_add_routes, grpc=_service, converter=_converter)
