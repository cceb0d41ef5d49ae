"""The service ``tts.Voices``: voices as resources (docs/voices.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tts_worker.errors import InvalidRequest, OverCapacity, TextTooLong
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.voice_codec import encode_voice, parse_upload
from tts_worker.server.grpc.calls import Context, abort_with
from tts_worker.server.uploads import Body
from tts_worker.server.voices import add_voice, delete_voice
from tts_worker.session.hub import SessionHub
from tts_worker.voices.description import VoiceDescription
from tts_worker.voices.enrollment import MAX_PROMPT_BYTES

_MAX_UPLOADS = 8
"""Recordings that are received at the same time; each is at most 8 MiB in memory."""


class VoicesService:
    """Servicer of ``tts.Voices``."""

    def __init__(self, hub: SessionHub) -> None:
        self._hub = hub
        self._uploads = 0

    async def ListVoices(self, request: pb.ListVoicesRequest, context: Context) -> pb.ListVoicesResponse:
        """List the voices."""
        try:
            await self._hub.library.refresh()
        except Exception as error:
            await abort_with(context, error)
        return pb.ListVoicesResponse(voices=[self._encode(voice) for voice in self._hub.voices])

    async def GetVoice(self, request: pb.GetVoiceRequest, context: Context) -> pb.VoiceInfo:
        """Describe a voice."""
        try:
            await self._hub.library.refresh()
            return self._encode(self._hub.voices.get(request.id))
        except Exception as error:
            await abort_with(context, error)

    async def AddVoice(self, requests: AsyncIterator[pb.AddVoiceRequest], context: Context) -> pb.VoiceInfo:
        """Add a voice, a style of a voice, or a mix of voices."""
        if self._uploads >= _MAX_UPLOADS:
            await abort_with(context, OverCapacity("too many recordings are being received", retry_after_s=1.0))
        self._uploads += 1
        try:
            return self._encode(await add_voice(self._hub, await _read(requests)))
        except Exception as error:
            await abort_with(context, error)
        finally:
            self._uploads -= 1

    async def DeleteVoice(self, request: pb.DeleteVoiceRequest, context: Context) -> pb.DeleteVoiceResponse:
        """Delete a voice."""
        try:
            await delete_voice(self._hub, request.id)
        except Exception as error:
            await abort_with(context, error)
        return pb.DeleteVoiceResponse()

    def _encode(self, voice: VoiceDescription) -> pb.VoiceInfo:
        return encode_voice(voice.for_clients(self._hub.voices.default))


async def _read(requests: AsyncIterator[pb.AddVoiceRequest]) -> Body:
    """Read the parts of an upload. Raises InvalidRequest, TextTooLong."""
    description: pb.NewVoice | None = None
    audio = bytearray()
    async for request in requests:
        if request.WhichOneof("part") == "voice":
            if description is not None:
                raise InvalidRequest("the description must be sent once")
            description = request.voice
        audio += request.audio
        if len(audio) > MAX_PROMPT_BYTES:
            raise TextTooLong(f"a recording may have at most {MAX_PROMPT_BYTES >> 20} MiB")
    if description is None:
        raise InvalidRequest("the call ended without a description of the voice")
    files = {"audio": bytes(audio)} if audio or not description.mix else {}
    return Body(parse_upload(description), files)
