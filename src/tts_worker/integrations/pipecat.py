"""Pipecat service: ``TTSWorkerTTSService(url)`` synthesizes with a tts-worker and provides word timestamps.

Each audio context of pipecat is one session of ``tts_worker.client`` on a pooled connection; no engine runs in the
bot's process.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from tts_worker.client import Client, ClientSettings, Session, SessionOptions, connect
from tts_worker.errors import CLIENT_SOURCE, InvalidRequest, MissingExtra, TTSWorkerError
from tts_worker.types import Ended, Outcome, PcmFrame, State, Words

try:
    from pipecat.frames.frames import CancelFrame, EndFrame, ErrorFrame, Frame, StartFrame, TTSAudioRawFrame
    from pipecat.services.settings import TTSSettings
    from pipecat.services.tts_service import TextAggregationMode, TTSService
    from pipecat.utils.types import is_given
except ImportError:
    raise MissingExtra("the pipecat service", "pipecat", CLIENT_SOURCE) from None

log = logging.getLogger(__name__)

DEFAULT_URL = "ws://127.0.0.1:8080"


@dataclass
class TTSWorkerSettings(TTSSettings):
    """Settings beyond pipecat's own. Changes apply to the next turn.

    Attributes:
        speed: 2.0 is twice as fast.
        instruct: Style instruction, for voices that support it.
    """

    speed: float | None = 1.0
    instruct: str | None = None


@dataclass(slots=True, eq=False)
class _Turn:
    """The session of an audio context and the task that reads it."""

    session: Session
    text_ended: bool = False
    reader: asyncio.Task[None] | None = field(default=None)


class TTSWorkerTTSService(TTSService):
    """TTS service with one utterance per turn. An interruption stops the worker at once, without waiting.

    Args:
        url: The worker; defaults to TTS_WORKER_URL, else ``ws://127.0.0.1:8080``.
        voice: Voice name; None takes the worker's default.
        language: BCP 47 tag; None detects it.
        speed: 2.0 is twice as fast.
        instruct: Style instruction, for voices that support it.
        flush_after_ms: Text without punctuation is synthesized when the language model sends nothing for this long
            (None: the worker's default; 0: never).
        max_ahead_s: Maximum playout lead of the worker.
        api_key: Defaults to TTS_WORKER_API_KEY.
        client: Use this client. The caller closes it.
        sample_rate: Output rate; None takes the pipeline's.
        text_aggregation_mode: By sentence (default) or by token.

    Raises:
        InvalidRequest: ``max_ahead_s`` or the URL is invalid.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        voice: str | None = None,
        language: str | None = None,
        speed: float = 1.0,
        instruct: str | None = None,
        flush_after_ms: float | None = None,
        max_ahead_s: float = 2.0,
        api_key: str | None = None,
        client: Client | None = None,
        sample_rate: int | None = None,
        text_aggregation_mode: TextAggregationMode | None = None,
    ) -> None:
        if not 0 < max_ahead_s <= 10:
            raise InvalidRequest("max_ahead_s must be above 0 and at most 10")
        settings = ClientSettings(api_key=api_key or os.environ.get("TTS_WORKER_API_KEY"))
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            push_text_frames=False,  # word timestamps carry the text
            push_start_frame=True,
            push_stop_frames=True,
            stop_frame_timeout_s=settings.audio_timeout_s + 20.0,  # the worker's terminal event ends a turn
            append_trailing_space=True,  # sentences arrive trimmed but form one text
            sample_rate=sample_rate,
            settings=TTSWorkerSettings(model=None, voice=voice, language=language, speed=speed, instruct=instruct),
        )
        self._lead_ms = 1_000 * max_ahead_s
        self._flush_after_ms = flush_after_ms
        self._owns_client = client is None
        self._client = client or connect(url or os.environ.get("TTS_WORKER_URL", DEFAULT_URL), settings)
        self._turns: dict[str, _Turn] = {}
        self._prewarm_task: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        return True

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._prewarm_task = asyncio.create_task(self._warm(), name="tts-worker-prewarm")

    async def _warm(self) -> None:
        try:
            await self._client.prewarm()
        except TTSWorkerError as error:
            log.debug("prewarm: the worker cannot be reached yet: %s", error.message)

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        await self._shut_down()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._shut_down()

    async def _shut_down(self) -> None:
        if self._prewarm_task is not None:
            self._prewarm_task.cancel()
        for context_id in list(self._turns):
            self._drop(context_id)
        if self._owns_client:
            await self._client.aclose()

    # -- turns --------------------------------------------------------------------------------------------------------

    def _options(self) -> SessionOptions:
        settings = self._settings
        assert isinstance(settings, TTSWorkerSettings)
        return SessionOptions(
            voice=settings.voice if is_given(settings.voice) else None,
            language=str(settings.language) if is_given(settings.language) and settings.language else None,
            speed=settings.speed if is_given(settings.speed) and settings.speed is not None else 1.0,
            instruct=settings.instruct if is_given(settings.instruct) else None,
            lead_ms=self._lead_ms,
            flush_after_ms=self._flush_after_ms,
        )

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Send the text to the worker; ``_read`` receives its audio and words."""
        try:
            turn = self._turns.get(context_id)
            if turn is None:
                turn = _Turn((await self._client.open(self._options())).session)
                self._turns[context_id] = turn
                turn.reader = asyncio.create_task(self._read(context_id, turn), name=f"tts-worker-{context_id}")
            turn.session.speak(text)
            await self.start_tts_usage_metrics(text)
            yield None
        except TTSWorkerError as error:
            yield ErrorFrame(error=f"tts-worker: {error.message}")
            self._drop(context_id)
            await self.remove_audio_context(context_id)

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Mark the turn's text as complete."""
        turn = self._turns.get(context_id or "")
        if turn is not None and not turn.text_ended:
            turn.text_ended = True
            if turn.session.state in (State.SPEAKING, State.PAUSED):
                turn.session.end_text()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stop the turn without waiting for the worker."""
        self._drop(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        self._drop(context_id)

    def _drop(self, context_id: str) -> None:
        turn = self._turns.pop(context_id, None)
        if turn is not None:
            turn.session.close("interrupted")
            if turn.reader is not None and turn.reader is not asyncio.current_task():
                turn.reader.cancel()

    async def _read(self, context_id: str, turn: _Turn) -> None:
        """Forward events of the worker to the audio context, and close the context after the terminal event."""
        offset_s = 0.0  # duration of earlier utterances: a turn has several if the text idles
        async for item in turn.session:
            if isinstance(item, PcmFrame):
                await self._play(item.pcm, turn.session.sample_rate_hz, context_id)
            elif isinstance(item, Words):
                rate_hz = turn.session.sample_rate_hz
                times = [(word.text, offset_s + word.start_sample / rate_hz) for word in item.words]
                await self.add_word_timestamps(times, context_id)
            elif isinstance(item, Ended):
                offset_s += item.receipt.samples_sent / turn.session.sample_rate_hz
                if not await self._handle_end(item, context_id, turn):
                    break
        if self.audio_context_available(context_id):
            await self.remove_audio_context(context_id)

    async def _handle_end(self, ended: Ended, context_id: str, turn: _Turn) -> bool:
        """Handle the end of an utterance; return whether the turn may continue."""
        if ended.outcome is Outcome.ERROR and ended.error is not None:
            await self.push_error(f"tts-worker: {ended.error.message}")
            return False
        if ended.outcome is Outcome.TRUNCATED:
            log.warning("the utterance was truncated: %s", ended.receipt.reason)
        if not ended.receipt.samples_sent and ended.outcome is Outcome.DONE:
            # The text was unspeakable (emoji, code). Pipecat treats a turn without audio as an error: send 10 ms.
            rate_hz = turn.session.sample_rate_hz
            await self._play(bytes(2 * (rate_hz // 100)), rate_hz, context_id)
        return not turn.text_ended

    async def _play(self, pcm: bytes, rate_hz: int, context_id: str) -> None:
        if rate_hz != self.sample_rate:
            pcm = await self._resampler.resample(pcm, rate_hz, self.sample_rate)
        if pcm:
            await self.append_to_audio_context(
                context_id, TTSAudioRawFrame(pcm, self.sample_rate, 1, context_id=context_id)
            )


__all__ = ["TTSWorkerSettings", "TTSWorkerTTSService"]
