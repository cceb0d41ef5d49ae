"""Voice conversion by a ``grpc://`` worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from tts_worker.client.converse_stream import authorization, status_error
from tts_worker.client.conversion import LIVE_TIMEOUT_S, SourceAudio
from tts_worker.client.settings import ClientSettings
from tts_worker.errors import DeadlineExceeded
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol import tts_worker_pb2_grpc
from tts_worker.timeouts import fail_after
from tts_worker.types import SessionOptions

_PART_BYTES = 256 << 10


class GrpcConversion:
    """See ``conversion.ConversionAccess``."""

    def __init__(self, channel: grpc.aio.Channel, settings: ClientSettings) -> None:
        self._stub = tts_worker_pb2_grpc.VoiceConversionStub(channel)
        self._settings = settings

    async def convert(self, source: SourceAudio, options: SessionOptions) -> AsyncGenerator[bytes, None]:
        """See ``conversion.ConversionAccess``. A source that fails ends the conversion and raises its error."""
        call = self._stub.Convert(metadata=authorization(self._settings))
        failure: list[BaseException] = []
        admitted = asyncio.Event()

        async def send() -> None:
            try:
                await call.write(pb.ConvertRequest(start=_start(source, options)))
                if source.live_rate_hz is not None:
                    await admitted.wait()  # to write to a call that is being refused may lose the reason
                async for part in _parts(source):
                    await call.write(pb.ConvertRequest(audio=part))
                await call.done_writing()
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # the call has ended: its status tells why
            except Exception as error:
                failure.append(error)
                call.cancel()

        sending = asyncio.create_task(send(), name="conversion-source")
        try:
            while (response := await self._read(call, source)) is not None:
                admitted.set()
                if response.WhichOneof("part") == "audio":
                    yield response.audio
            if await call.code() is not grpc.StatusCode.OK:
                raise await status_error(call)
        except asyncio.CancelledError:
            if failure:  # which has cancelled the call
                raise failure[0] from None
            raise
        finally:
            sending.cancel()
            call.cancel()
            await asyncio.wait({sending})

    async def _read(self, call: Any, source: SourceAudio) -> pb.ConvertResponse | None:
        """Return the next response, None at the end. A live source may be silent for any time."""
        limit_s = self._settings.audio_timeout_s if source.live_rate_hz is None else LIVE_TIMEOUT_S
        try:
            async with fail_after(limit_s):
                response = await call.read()
        except TimeoutError:
            raise DeadlineExceeded(f"the worker generated no audio for {limit_s:g} s") from None
        except (grpc.RpcError, asyncio.InvalidStateError):
            return None
        return None if response is grpc.aio.EOF else response


def _start(source: SourceAudio, options: SessionOptions) -> pb.ConversionStart:
    return pb.ConversionStart(
        voice=options.voice,
        model=options.model,
        speed=options.speed,
        seed=options.seed,
        sample_rate=options.sample_rate,
        realtime=options.realtime,
        live_sample_rate=source.live_rate_hz or 0,
    )


async def _parts(source: SourceAudio) -> AsyncIterator[bytes]:
    if isinstance(source.audio, bytes):
        for start in range(0, len(source.audio), _PART_BYTES):
            yield source.audio[start : start + _PART_BYTES]
    else:
        async for part in source.audio:
            yield part
