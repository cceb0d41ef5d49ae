"""The service ``tts.VoiceConversion``: source audio in, the same speech in another voice out, both streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress

import grpc.aio

from tts_worker.audio.decode import MAX_AUDIO_BYTES
from tts_worker.errors import InvalidRequest, OverCapacity, RemoteError, TextTooLong
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.protocol.messages import ChunkMessage
from tts_worker.protocol.proto_codec import encode_receipt, encode_worker_message
from tts_worker.server.grpc.calls import Context, ResponseWriter, abort_with
from tts_worker.server.grpc.server import Drainable, Register
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rendering import failure
from tts_worker.session.conversion import Conversion, LiveSource, RecordedSource, Source
from tts_worker.session.hub import SessionHub
from tts_worker.timeouts import fail_after
from tts_worker.types import Encoding, Ended, PcmFrame, SessionOptions

_MAX_UPLOADS = 4
"""Recordings that are received at the same time; each is at most 64 MiB in memory."""

_DISCARD_S = 30.0
"""How long the rest of a refused recording is read."""


class VoiceConversionService:
    """Servicer of ``tts.VoiceConversion``."""

    def __init__(self, hub: SessionHub, limits: ApiLimits) -> None:
        self._hub = hub
        self._limits = limits
        self._uploads = 0

    async def Convert(self, requests: AsyncIterator[pb.ConvertRequest], context: Context) -> None:
        """Convert the audio of one call."""
        conversion: Conversion | None = None

        def release(error: Exception) -> None:
            if conversion is not None:
                conversion.session.close("send_timeout")

        writer = ResponseWriter(context, self._limits.send_timeout_s, release)
        try:
            start = await _read_start(requests)
            conversion = await self._hub.convert(_options(start), await self._source(start, requests))
            session = conversion.session
            await writer.write(
                pb.ConvertResponse(
                    ready=pb.ConversionReady(
                        sample_rate=session.sample_rate_hz,
                        format=session.encoding.value,
                        voice=session.params.voice,
                        model=session.model,
                    )
                )
            )
            async with aclosing(conversion.outputs()) as items:
                async for item in items:
                    if isinstance(item, PcmFrame):
                        if start.checksums:
                            chunk = encode_worker_message(ChunkMessage.of(item)).chunk
                            await writer.write(pb.ConvertResponse(chunk=chunk))
                        await writer.write(pb.ConvertResponse(audio=item.pcm))
                    elif isinstance(item, Ended):
                        if (error := failure(item)) is not None:
                            raise RemoteError(error)
                        receipt = encode_receipt(item.receipt, item.outcome, session.sample_rate_hz)
                        await writer.write(pb.ConvertResponse(receipt=receipt))
        except Exception as error:
            await abort_with(context, error)
        finally:
            writer.close()
            if conversion is not None:
                conversion.session.close("disconnected")

    async def _source(self, start: pb.ConversionStart, requests: AsyncIterator[pb.ConvertRequest]) -> Source:
        """Return the source, once it is received unless it is live. Raises OverCapacity, TextTooLong."""
        if start.live_sample_rate:
            return LiveSource(_parts(requests), start.live_sample_rate)
        if self._uploads >= _MAX_UPLOADS:
            await _discard(requests)
            raise OverCapacity("too many recordings are being received", retry_after_s=1.0)
        self._uploads += 1
        try:
            audio = bytearray()
            async for part in _parts(requests):
                audio += part
                if len(audio) > MAX_AUDIO_BYTES:
                    audio.clear()
                    await _discard(requests)
                    raise TextTooLong(f"a recording may have at most {MAX_AUDIO_BYTES >> 20} MiB")
            return RecordedSource(bytes(audio))
        finally:
            self._uploads -= 1


def conversion_service(hub: SessionHub, limits: ApiLimits) -> Register:
    """Return what adds the service to a server."""

    def register(server: grpc.aio.Server) -> tuple[Sequence[str], Sequence[Drainable]]:
        tts_worker_pb2_grpc.add_VoiceConversionServicer_to_server(VoiceConversionService(hub, limits), server)
        return [pb.DESCRIPTOR.services_by_name["VoiceConversion"].full_name], ()

    return register


async def _read_start(requests: AsyncIterator[pb.ConvertRequest]) -> pb.ConversionStart:
    async for request in requests:
        if request.WhichOneof("part") == "start":
            return request.start
        break
    raise InvalidRequest("the first message must be start")


async def _discard(requests: AsyncIterator[pb.ConvertRequest]) -> None:
    """Read the rest of a refused recording: a client of grpc.aio that is still writing would lose the reason."""
    with suppress(TimeoutError):
        async with fail_after(_DISCARD_S):
            async for _ in requests:
                pass


async def _parts(requests: AsyncIterator[pb.ConvertRequest]) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") == "start":
            raise InvalidRequest("the conversion has started already")
        yield request.audio


def _options(start: pb.ConversionStart) -> SessionOptions:
    """Return the options of the session. Frames are cut only where the encoding or the pace needs them."""
    encoding = start.encoding if start.HasField("encoding") else None
    return SessionOptions(
        voice=start.voice or None,
        model=start.model or None,
        speed=start.speed or 1.0,
        seed=start.seed,
        realtime=start.realtime,
        raw_chunks=not start.realtime and encoding != Encoding.OPUS.value,
        sample_rate=start.sample_rate if start.HasField("sample_rate") else None,
        encoding=encoding,
    )
