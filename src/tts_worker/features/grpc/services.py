"""Adds the worker's services to a gRPC server, as its settings say."""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio

from tts_worker.features.grpc.converse import ConversationService
from tts_worker.features.grpc.frames import StreamFormat
from tts_worker.features.grpc.service import ServiceConfig, TTSService
from tts_worker.features.grpc.voices import VoicesService
from tts_worker.protocol import tts_worker_pb2, tts_worker_pb2_grpc
from tts_worker.server.grpc.models import ModelCatalog
from tts_worker.server.grpc.server import Drainable, Register
from tts_worker.server.limits import ApiLimits
from tts_worker.session.hub import SessionHub
from tts_worker.settings import Settings

_NAMES = ("TTSService", "Conversation", "Voices")


def worker_services(hub: SessionHub, models: ModelCatalog, config: ServiceConfig) -> Register:
    """Return what adds the services to a server."""

    def register(server: grpc.aio.Server) -> tuple[Sequence[str], Sequence[Drainable]]:
        service = TTSService(hub, models, config)
        conversation = ConversationService(hub, config.limits)
        tts_worker_pb2_grpc.add_TTSServiceServicer_to_server(service, server)
        tts_worker_pb2_grpc.add_ConversationServicer_to_server(conversation, server)
        tts_worker_pb2_grpc.add_VoicesServicer_to_server(VoicesService(hub), server)
        services = tts_worker_pb2.DESCRIPTOR.services_by_name
        return [services[name].full_name for name in _NAMES], (service.sessions, conversation)

    return register


def service_config(settings: Settings) -> ServiceConfig:
    """Return the configuration of ``TTSService``."""
    grpc_settings = settings.grpc
    pause_timeout_s = grpc_settings.pause_timeout_s
    return ServiceConfig(
        stream_format=StreamFormat(grpc_settings.sample_rate_hz),
        pause_timeout_s=settings.session.pause_timeout_s if pause_timeout_s is None else pause_timeout_s,
        session_idle_s=grpc_settings.session_idle_s,
        limits=ApiLimits.of(settings),
    )
