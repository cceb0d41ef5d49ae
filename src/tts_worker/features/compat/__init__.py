"""APIs of other vendors, for their unmodified clients: OpenAI, ElevenLabs, Cartesia, CosyVoice, Deepgram,
vLLM-Omni, jambonz."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_worker.feature import Feature

if TYPE_CHECKING:
    from tts_worker.server.application import Application
    from tts_worker.server.grpc.server import ExtraPort
    from tts_worker.session.hub import SessionHub
    from tts_worker.settings import Settings


def _add_routes(app: Application) -> None:
    from tts_worker.features.compat.apis import add_apis

    add_apis(app)


def _cosyvoice_port(hub: SessionHub, settings: Settings) -> ExtraPort | None:
    if settings.grpc.cosyvoice_port is None:
        return None
    from tts_worker.features.compat.cosyvoice_grpc import cosyvoice_service
    from tts_worker.server.grpc.server import ExtraPort
    from tts_worker.server.limits import ApiLimits

    register = cosyvoice_service(hub, ApiLimits.of(settings))
    return ExtraPort(settings.grpc.cosyvoice_port, "cosyvoice-grpc", register)


FEATURE = Feature(docs="compatibility.md", http=_add_routes, grpc_port=_cosyvoice_port)
