"""CosyVoice's own gRPC service (``proto/cosyvoice.proto``) for its published clients.

A request carries the whole text; the response streams 24 kHz PCM16LE. ``spk_id`` names a voice; a prompt recording
needs an engine that enrolls voices. Cancelling the call acts as STOP.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio

from tts_worker.audio.encoders import wav_file
from tts_worker.audio.prompt import MAX_PROMPT_S
from tts_worker.errors import InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.features.compat import cosyvoice_pb2 as pb
from tts_worker.features.compat import cosyvoice_pb2_grpc
from tts_worker.features.compat.vendor_requests import speech_options, split_language
from tts_worker.front_end.instruction import split_instruction
from tts_worker.server.grpc.calls import Context, ResponseWriter, abort_with
from tts_worker.server.grpc.server import Drainable, Register
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rendering import check_spoken
from tts_worker.session.hub import SessionHub
from tts_worker.types import Ended, PcmFrame, SessionOptions

PROMPT_RATE_HZ = 16_000
MIN_PROMPT_S = 1.0


class CosyVoiceService:
    """Servicer of ``cosyvoice.CosyVoice``."""

    def __init__(self, hub: SessionHub, limits: ApiLimits) -> None:
        self._hub = hub
        self._limits = limits

    async def Inference(self, request: pb.Request, context: Context) -> None:
        """Synthesize the text of a request."""
        try:
            text, options = await self._parse(request)
            session = await self._hub.admit(options)
        except TTSWorkerError as error:
            await abort_with(context, error)
        writer = ResponseWriter(context, self._limits.send_timeout_s, lambda error: session.close(error.code.value))
        try:
            session.speak(text)
            session.end_text()
            async for item in session:
                if isinstance(item, PcmFrame):
                    await writer.write(pb.Response(tts_audio=item.pcm))
                elif isinstance(item, Ended):
                    session.close(item.receipt.reason)
                    check_spoken(item)
                    break
        except Exception as error:
            await abort_with(context, error)
        finally:
            writer.close()
            session.close("disconnected")

    async def _parse(self, request: pb.Request) -> tuple[str, SessionOptions]:
        """Return the text and the synthesis parameters; enrolls the voice of a prompt recording."""
        instruct: str | None = None
        match request.WhichOneof("RequestPayload"):
            case "sft_request":
                text = self._check_length(request.sft_request.tts_text)
                voice = request.sft_request.spk_id
            case "instruct_request":
                text = self._check_length(request.instruct_request.tts_text)
                voice = request.instruct_request.spk_id
                instruct = request.instruct_request.instruct_text or None
            case "zero_shot_request":
                zero_shot = request.zero_shot_request
                text = self._check_length(zero_shot.tts_text)
                voice = await self._enroll(zero_shot.prompt_audio, zero_shot.prompt_text)
            case "cross_lingual_request":
                cross_lingual = request.cross_lingual_request
                text = self._check_length(cross_lingual.tts_text)
                voice = await self._enroll(cross_lingual.prompt_audio, "")
            case _:
                raise InvalidRequest("the request must hold one of sft, zero_shot, cross_lingual and instruct")
        text, instruct = split_instruction(text, instruct)
        text, language = split_language(text)
        return text, speech_options(voice, instruct, language=language)

    def _check_length(self, text: str) -> str:
        if len(text) > self._limits.max_input_chars:
            raise TextTooLong(f"tts_text may have at most {self._limits.max_input_chars} characters")
        return text

    async def _enroll(self, pcm: bytes, transcript: str) -> str:
        seconds = len(pcm) / 2 / PROMPT_RATE_HZ
        if len(pcm) % 2 or not MIN_PROMPT_S <= seconds <= MAX_PROMPT_S:
            raise InvalidRequest(
                f"prompt_audio must be PCM16LE mono at {PROMPT_RATE_HZ} Hz, {MIN_PROMPT_S:g} to {MAX_PROMPT_S:g} s long"
            )
        return await self._hub.enroll(wav_file(pcm, PROMPT_RATE_HZ), transcript)


def cosyvoice_service(hub: SessionHub, limits: ApiLimits) -> Register:
    """Return what adds the service to a port."""

    def register(server: grpc.aio.Server) -> tuple[Sequence[str], Sequence[Drainable]]:
        cosyvoice_pb2_grpc.add_CosyVoiceServicer_to_server(CosyVoiceService(hub, limits), server)
        return [name.full_name for name in pb.DESCRIPTOR.services_by_name.values()], ()

    return register
