"""The worker's own gRPC services: ``TTSService``, the conversation of ``/v1/stream``, and voices.

The port, its keys and limits are the core's (``server.grpc``); other features add services to it as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    from tts_worker.server.grpc.models import ModelCatalog
    from tts_worker.server.grpc.server import Register
    from tts_worker.session.hub import SessionHub
    from tts_worker.settings import Settings


def _services(hub: SessionHub, settings: Settings, models: ModelCatalog) -> Register:
    from tts_worker.features.grpc.services import service_config, worker_services

    return worker_services(hub, models, service_config(settings))


FEATURE = Feature(docs="protocol.md", grpc=_services)
