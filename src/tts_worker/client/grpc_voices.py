"""Access to the voices of a ``grpc://`` worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc

from tts_worker.client.converse_stream import authorization, status_error
from tts_worker.client.http_api import CHANGE_TIMEOUT_S
from tts_worker.client.settings import ClientSettings
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.protocol.voice_codec import encode_upload, parse_voice
from tts_worker.protocol.voices import VoiceInfo, VoiceUpload

_PART_BYTES = 256 << 10


class GrpcVoices:
    """See ``voices.VoiceAccess``."""

    def __init__(self, channel: grpc.aio.Channel, settings: ClientSettings) -> None:
        self._stub = tts_worker_pb2_grpc.VoicesStub(channel)
        self._settings = settings

    async def list(self) -> list[VoiceInfo]:
        answer = await self._await(self._call("ListVoices", pb.ListVoicesRequest(), self._settings.connect_timeout_s))
        return [parse_voice(voice) for voice in answer.voices]

    async def get(self, voice: str) -> VoiceInfo:
        request = pb.GetVoiceRequest(id=voice)
        return parse_voice(await self._await(self._call("GetVoice", request, self._settings.connect_timeout_s)))

    async def add(self, upload: VoiceUpload, audio: bytes | None) -> VoiceInfo:
        async def parts() -> AsyncIterator[pb.AddVoiceRequest]:
            yield pb.AddVoiceRequest(voice=encode_upload(upload))
            for start in range(0, len(audio or b""), _PART_BYTES):
                yield pb.AddVoiceRequest(audio=(audio or b"")[start : start + _PART_BYTES])

        return parse_voice(await self._await(self._call("AddVoice", parts())))

    async def delete(self, voice: str) -> None:
        await self._await(self._call("DeleteVoice", pb.DeleteVoiceRequest(id=voice)))

    def _call(self, method: str, request: object, timeout_s: float = CHANGE_TIMEOUT_S) -> Any:
        return getattr(self._stub, method)(request, metadata=authorization(self._settings), timeout=timeout_s)

    async def _await(self, call: Awaitable[Any]) -> Any:
        """Return the response. Raises the worker's error, ConnectionLost or DeadlineExceeded."""
        try:
            return await call
        except grpc.RpcError:
            raise await status_error(call) from None
