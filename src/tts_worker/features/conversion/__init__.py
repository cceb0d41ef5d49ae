"""Voice conversion: speech in, the same speech in another voice out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    import grpc.aio

    from tts_worker.server.application import Application
    from tts_worker.server.limits import ApiLimits
    from tts_worker.session.conversion import Converter
    from tts_worker.session.hub import SessionHub


def _add_routes(app: Application) -> None:
    from tts_worker.features.conversion import routes

    routes.add_routes(app)


def _add_service(server: grpc.aio.Server, hub: SessionHub, limits: ApiLimits) -> str:
    from tts_worker.features.conversion import grpc_service

    return grpc_service.add_service(server, hub, limits)


def _converter() -> Converter:
    from tts_worker.features.conversion.conversion import SourceConverter

    return SourceConverter()


FEATURE = Feature(docs="cosyvoice.md", http=_add_routes, grpc=_add_service, converter=_converter)
