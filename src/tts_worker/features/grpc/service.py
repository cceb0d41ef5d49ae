"""The TTS worker protocol (``proto/tts_worker.proto``): sessions, synthesis, control, models.

Unary responses carry typed errors in their fields, because older clients check ``success``; a failed ``Synthesize``
ends with a status. Methods act on a request before they wait for anything, so controls never queue behind audio.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from tts_worker.callers import ApiScope
from tts_worker.errors import IllegalCommand, InvalidRequest, TextTooLong, TTSWorkerError
from tts_worker.features.grpc.frames import StreamFormat
from tts_worker.features.grpc.options import StartOptions, add_shaper_lead, parse_start_options
from tts_worker.features.grpc.sessions import SessionTable, WorkerSession
from tts_worker.features.grpc.synthesize import SynthesizeCall
from tts_worker.protocol import proto_codec
from tts_worker.protocol import tts_worker_pb2 as pb
from tts_worker.protocol.messages import PROTOCOL_VERSION
from tts_worker.server.audit import audited
from tts_worker.server.grpc.calls import Context, ResponseWriter, abort_with, caller_identity
from tts_worker.server.grpc.models import OFFERED_RATES_HZ, ModelCatalog, load_metrics
from tts_worker.server.limits import ApiLimits
from tts_worker.session.hub import SessionHub
from tts_worker.types import SAMPLE_RATE_HZ, Alignment, Receipt


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings of the service; see ``settings.GrpcSettings``. ``stream_format`` is the default of new sessions."""

    stream_format: StreamFormat = field(default_factory=StreamFormat)
    pause_timeout_s: float = 30.0
    session_idle_s: float = 600.0
    limits: ApiLimits = field(default_factory=ApiLimits)


class TTSService:
    """Servicer of ``tts.TTSService``."""

    def __init__(self, hub: SessionHub, models: ModelCatalog, config: ServiceConfig) -> None:
        self.sessions = SessionTable(hub, config.session_idle_s)
        self._hub = hub
        self._models = models
        self._config = config

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def StartSession(self, request: pb.StartSessionRequest, context: Context) -> pb.StartSessionResponse:
        """Start a session, loading its model if necessary."""
        try:
            start_options = parse_start_options(request.options, self._config.stream_format)
            session = await self._start(request, start_options, caller_identity(context))
        except TTSWorkerError as error:
            return pb.StartSessionResponse(message=error.message, error=proto_codec.encode_error(error.info))
        ignored = (
            f"; ignored unknown options: {', '.join(start_options.unknown)[:200]}" if start_options.unknown else ""
        )
        return pb.StartSessionResponse(
            success=True,
            message=f"session with voice {session.voice}{ignored}",
            sample_rate=start_options.stream_format.sample_rate_hz,
            voice=session.voice,
        )

    async def _start(self, request: pb.StartSessionRequest, start_options: StartOptions, owner: str) -> WorkerSession:
        options = add_shaper_lead(start_options.session, start_options.stream_format, self._hub.config.lead_ms)
        if options.pause_timeout_s is None:
            options = replace(options, pause_timeout_s=self._config.pause_timeout_s)
        if request.model_id:
            model = await self._models.load(request.model_id)
            options = replace(options, model=model.engine, voice=options.voice or model.voice)
        return await self.sessions.start(request.session_id, owner, options, start_options.stream_format)

    async def EndSession(self, request: pb.EndSessionRequest, context: Context) -> pb.EndSessionResponse:
        """End a session of this caller."""
        try:
            self.sessions.end(request.session_id, caller_identity(context))
        except TTSWorkerError:
            return pb.EndSessionResponse(success=False)
        return pb.EndSessionResponse(success=True)

    # -- synthesis ----------------------------------------------------------------------------------------------------

    async def Synthesize(self, requests: AsyncIterator[pb.TextChunk], context: Context) -> None:
        """Synthesize one utterance: read text chunks and write audio frames until the final one."""
        try:
            first = await anext(aiter(requests), None)
            if first is None:
                raise InvalidRequest("the call ended without a text chunk")
            session = self.sessions.get(first.session_id, caller_identity(context))
            call = session.begin_call()
        except TTSWorkerError as error:
            await abort_with(context, error)
        reader = asyncio.create_task(self._read(first, requests, call), name=f"{session.id}-text")
        writer = ResponseWriter(
            context, self._config.limits.send_timeout_s, lambda _: session.end_call(call, "send_timeout")
        )
        try:
            async for frame in call.frames():
                await writer.write(frame)
        except Exception as error:
            await abort_with(context, error)
        finally:
            reader.cancel()
            writer.close()
            session.end_call(call, "cancelled")

    async def _read(self, first: pb.TextChunk, requests: AsyncIterator[pb.TextChunk], call: SynthesizeCall) -> None:
        """Read text chunks until the client half-closes or sends ``is_final``."""
        try:
            self.write_text(first, first.session_id, call)
            async for chunk in requests:
                self.write_text(chunk, first.session_id, call)
            call.write("", last=True)
        except TTSWorkerError as error:
            call.fail(error)

    def write_text(self, chunk: pb.TextChunk, session_id: str, call: SynthesizeCall) -> None:
        if chunk.session_id not in ("", session_id):
            raise InvalidRequest("all chunks of a call must have the same session_id")
        limit = self._config.limits.max_message_chars
        if len(chunk.text) > limit:
            raise TextTooLong(f"a chunk may hold at most {limit} characters of text")
        call.write(chunk.text, flush=chunk.flush, last=chunk.is_final)

    # -- control ------------------------------------------------------------------------------------------------------

    async def Control(self, request: pb.ControlRequest, context: Context) -> pb.ControlResponse:
        """Pause, resume or stop the running utterances of a session, or reload its model."""
        began_s = time.perf_counter()
        try:
            session = self.sessions.get(request.session_id, caller_identity(context))
            if request.command == pb.RELOAD:
                with audited("reload_model", session.engine, ApiScope.ADMIN):
                    await self._models.reload(session.engine)
                response = pb.ControlResponse(success=True, applied=True)
            else:
                response = self._control(request, session)
        except TTSWorkerError as error:
            response = pb.ControlResponse(message=error.message, error=proto_codec.encode_error(error.info))
        response.timestamp_ms = time.time_ns() // 1_000_000
        response.effect_us = int(1e6 * (time.perf_counter() - began_s))
        return response

    def _control(self, request: pb.ControlRequest, session: WorkerSession) -> pb.ControlResponse:
        calls = session.calls_of(request.generation)
        response = pb.ControlResponse(success=True)
        if calls:
            response.generation = calls[0].generation
        changed: list[bool] = []  # of every call: a command must reach all of them
        match request.command:
            case pb.PAUSE:
                changed = [call.pause() for call in calls]
                response.pause_timeout_ms = round(1000 * session.pause_timeout_s)
            case pb.RESUME:
                changed = [call.resume() for call in calls]
            case pb.STOP:
                changed = [_stop(request, calls, session.stream_format, response)]
            case _:
                raise IllegalCommand("unknown command: use PAUSE, RESUME, STOP or RELOAD")
        if calls:
            response.emitted_samples = calls[0].emitted_samples
        response.applied = any(changed)
        response.state = session.state.value
        if not response.applied:
            response.message = "nothing to do: the state is " + session.state.value
        return response

    # -- models -------------------------------------------------------------------------------------------------------

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """List the models of the settings."""
        return pb.ListModelsResponse(
            models=[
                pb.ModelInfo(
                    model_id=name,
                    family=model.family,
                    is_loaded=self._models.is_loaded(model),
                    languages=self._models.languages(model),
                    metadata={"engine": model.engine, "sample_rate": str(SAMPLE_RATE_HZ)},
                    voices=[voice.name for voice in self._models.voices(model)],
                )
                for name, model in self._models
            ]
        )

    async def LoadModel(self, request: pb.LoadModelRequest, context: Context) -> pb.LoadModelResponse:
        """Load a model and wait for it."""
        began_s = time.perf_counter()
        try:
            with audited("load_model", request.model_id, ApiScope.ADMIN):
                await self._models.load(request.model_id)
        except TTSWorkerError as error:
            return pb.LoadModelResponse(message=error.message, error=proto_codec.encode_error(error.info))
        return pb.LoadModelResponse(success=True, load_duration_ms=int(1000 * (time.perf_counter() - began_s)))

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Context) -> pb.UnloadModelResponse:
        """Unload a model that no session uses."""
        try:
            with audited("unload_model", request.model_id, ApiScope.ADMIN) as action:
                unloaded = await self._models.unload(request.model_id)
                action.outcome = "done" if unloaded else "kept"
        except TTSWorkerError as error:
            return pb.UnloadModelResponse(message=error.message, error=proto_codec.encode_error(error.info))
        message = "" if unloaded else "the model stays loaded: it is the default of this worker"
        return pb.UnloadModelResponse(success=True, unloaded=unloaded, message=message)

    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Context) -> pb.GetCapabilitiesResponse:
        """Report the capabilities and the load of the worker."""
        hub = self._hub
        infos = list({voice.engine: voice.info for voice in hub.voices}.values())
        return pb.GetCapabilitiesResponse(
            capabilities=pb.Capabilities(
                streaming=True,
                zero_shot=hub.library.can_enroll,
                emotive_zero_prompt=any("instruct" in info.capabilities for info in infos),
                cpu_ok=any(info.device == "cpu" for info in infos),
                languages=sorted({tag for voice in hub.voices for tag in voice.languages}),
                max_concurrent_sessions=hub.max_sessions,
                sample_rates=OFFERED_RATES_HZ,
                native_sample_rate=SAMPLE_RATE_HZ,
                word_timestamps=any(info.alignment is not Alignment.NONE for info in infos),
                pause_resume=True,
                max_lookahead_ms=round(hub.config.window_ms),
                protocol_version=PROTOCOL_VERSION,
                voices=[voice.name for voice in hub.voices],
                pause_timeout_ms=round(1000 * self._config.pause_timeout_s),
            ),
            resident_models=self._models.resident,
            metrics=load_metrics(hub),
        )


def _stop(
    request: pb.ControlRequest,
    calls: Sequence[SynthesizeCall],
    stream_format: StreamFormat,
    response: pb.ControlResponse,
) -> bool:
    """Stop ``calls`` and put the first playback report into ``response``. Returns whether any call was stopped."""
    played_samples: int | None = None
    if request.HasField("played_ms"):
        played_samples = max(0, round(request.played_ms * stream_format.sample_rate_hz / 1000))
    receipts = [call.stop(request.reason[:64] or "stop", played_samples) for call in calls]
    stopped = [receipt for receipt in receipts if receipt is not None]
    if stopped:
        _put_receipt(response, stopped[0], stream_format)
    return bool(stopped)


def _put_receipt(response: pb.ControlResponse, receipt: Receipt, stream_format: StreamFormat) -> None:
    response.spoken_text = receipt.text_spoken
    response.remaining_text = receipt.text_remaining
    response.words.extend(proto_codec.encode_words(receipt.words, stream_format.sample_rate_hz))
    response.skipped.extend(proto_codec.encode_skipped(receipt.skipped))
    if receipt.samples_played is not None:
        response.played_samples = receipt.samples_played
