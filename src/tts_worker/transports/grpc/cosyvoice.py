"""CosyVoice's own gRPC service (``proto/cosyvoice.proto``), so that its published clients work unchanged.

Whole text in, 24 kHz s16le out as it is made. A voice is asked for by name (``spk_id``); a recording to imitate needs
an engine that enrols voices. Cancelling the call is STOP. Knows no engine.
"""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass

from tts_worker.errors import (
    Draining,
    InvalidRequest,
    TextTooLong,
    TTSWorkerError,
    UnspeakableText,
    as_exception,
)
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.transports.cosyvoice_http import speech_options
from tts_worker.transports.grpc import cosyvoice_pb2 as pb
from tts_worker.transports.grpc.calls import Context, ResponseWriter, abort_with
from tts_worker.types import Ended, Outcome, PcmFrame

PROMPT_RATE_HZ = 16_000
MIN_PROMPT_S = 1.0
MAX_PROMPT_S = 30.0


@dataclass(frozen=True, slots=True)
class CosyVoiceServiceConfig:
    max_input_chars: int = 20_000
    send_timeout_s: float = 10.0


class CosyVoiceService:
    """Serve ``hub``, which enrols voices."""

    def __init__(self, hub: SessionHub, config: CosyVoiceServiceConfig) -> None:
        self._hub = hub
        self._config = config

    async def Inference(self, request: pb.Request, context: Context) -> None:
        try:
            text, options = await self._asked(request)
            session = await self._hub.admit(options)
        except TTSWorkerError as error:
            await abort_with(context, error)
        writer = ResponseWriter(context, self._config.send_timeout_s, lambda stuck: session.close(stuck.code.value))
        try:
            session.speak(text)
            session.end_text()
            async for item in session:
                if isinstance(item, PcmFrame):
                    await writer.write(pb.Response(tts_audio=item.pcm))
                elif isinstance(item, Ended):
                    _raise_for(item)
                    break
        except Exception as error:
            await abort_with(context, error)
        finally:
            writer.close()
            session.close("disconnected")

    async def _asked(self, request: pb.Request) -> tuple[str, SessionOptions]:
        """The text, and how it is to be said."""
        kind = request.WhichOneof("RequestPayload")
        instruct: str | None = None
        if kind == "sft_request":
            text = request.sft_request.tts_text
            voice = request.sft_request.spk_id
        elif kind == "instruct_request":
            text = request.instruct_request.tts_text
            voice = request.instruct_request.spk_id
            instruct = request.instruct_request.instruct_text or None
        elif kind == "zero_shot_request":
            zero_shot = request.zero_shot_request
            self._check(zero_shot.tts_text)
            text = zero_shot.tts_text
            voice = await self._imitate(zero_shot.prompt_audio, zero_shot.prompt_text)
        elif kind == "cross_lingual_request":
            cross = request.cross_lingual_request
            self._check(cross.tts_text)
            text = cross.tts_text
            voice = await self._imitate(cross.prompt_audio, "")
        else:
            raise InvalidRequest("the request holds none of sft, zero_shot, cross_lingual and instruct")
        self._check(text)
        return text, speech_options(voice, instruct)

    def _check(self, text: str) -> None:
        if len(text) > self._config.max_input_chars:
            raise TextTooLong(f"tts_text may have at most {self._config.max_input_chars} characters")

    async def _imitate(self, pcm: bytes, text: str) -> str:
        seconds = len(pcm) / 2 / PROMPT_RATE_HZ
        if len(pcm) % 2 or not MIN_PROMPT_S <= seconds <= MAX_PROMPT_S:
            raise InvalidRequest(
                f"prompt_audio must be s16le mono at {PROMPT_RATE_HZ} Hz, {MIN_PROMPT_S:g} to {MAX_PROMPT_S:g} s long"
            )
        return await self._hub.enrol(_wav(pcm), text)


def _wav(pcm: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(PROMPT_RATE_HZ)
        writer.writeframes(pcm)
    return file.getvalue()


def _raise_for(ended: Ended) -> None:
    """A stream of bytes has no other way to say that sound is missing."""
    if ended.error is not None:
        raise as_exception(ended.error)
    if ended.receipt.reason == "nothing_to_speak":
        raise UnspeakableText("the text has nothing that can be spoken")
    if ended.outcome is Outcome.STOPPED:
        raise Draining("the worker is shutting down; use another one")
