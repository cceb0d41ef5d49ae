"""The pipecat service: ``TTSWorkerTTSService(url)`` in a pipeline speaks through a tts-worker, word times and all.

A thin client of ``tts_worker.client``: one session for every audio context of pipecat, on connections that stay warm.
No engine is loaded in the bot's process. It knows nothing of the wire.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from tts_worker.client import Client, ClientSettings, Session, SessionOptions, connect
from tts_worker.errors import InvalidRequest, MissingExtra, TTSWorkerError
from tts_worker.session.machine import State
from tts_worker.types import Ended, Outcome, PcmFrame, Words

try:
    from pipecat.frames.frames import CancelFrame, EndFrame, ErrorFrame, Frame, StartFrame, TTSAudioRawFrame
    from pipecat.services.settings import TTSSettings
    from pipecat.services.tts_service import TextAggregationMode, TTSService
    from pipecat.utils.types import is_given
except ImportError:
    raise MissingExtra("the pipecat service", "pipecat") from None

log = logging.getLogger(__name__)

DEFAULT_URL = "ws://127.0.0.1:8080"


@dataclass
class TTSWorkerSettings(TTSSettings):
    """Beyond pipecat's: ``speed`` (2.0 = twice as fast) and ``instruct`` (a style request, where the voice takes one).
    Changes take effect with the next turn."""

    speed: float | None = 1.0
    instruct: str | None = None


@dataclass(slots=True, eq=False)
class _Turn:
    """An audio context and the session that speaks it. ``complete``: no more text comes."""

    session: Session
    complete: bool = False
    ended: bool = False
    pump: asyncio.Task[None] | None = field(default=None)


class TTSWorkerTTSService(TTSService):
    """Text in sentence by sentence (or token by token with ``text_aggregation_mode``), one utterance per turn.

    ``url``: the worker (default: the environment's TTS_WORKER_URL, else ``ws://127.0.0.1:8080``); ``api_key``: default
    TTS_WORKER_API_KEY. ``max_ahead_s``: how far the worker may be ahead of the listener. ``flush_after_ms``: silence of
    the writer after which words without punctuation are spoken (None: the worker's default; 0: never). ``client``:
    speak through this one, which stays yours. An interruption stops the worker at once and waits for nothing.
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
            push_text_frames=False,  # word times bring the text
            push_start_frame=True,
            push_stop_frames=True,
            stop_frame_timeout_s=settings.audio_timeout_s + 20.0,  # a turn ends when the worker says so
            append_trailing_space=True,  # sentences arrive trimmed, and are one text
            sample_rate=sample_rate,
            settings=TTSWorkerSettings(model=None, voice=voice, language=language, speed=speed, instruct=instruct),
        )
        self._lead_ms = 1_000 * max_ahead_s
        self._flush_after_ms = flush_after_ms
        self._owned = client is None
        self._client = client or connect(url or os.environ.get("TTS_WORKER_URL", DEFAULT_URL), settings)
        self._turns: dict[str, _Turn] = {}
        self._warming: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        return True

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._warming = asyncio.create_task(self._warm(), name="tts-worker-prewarm")

    async def _warm(self) -> None:
        try:
            await self._client.prewarm()
        except TTSWorkerError as error:
            log.debug("the worker is not there yet: %s", error.message)

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        await self._hang_up()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._hang_up()

    async def _hang_up(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
        for context_id in list(self._turns):
            self._drop(context_id)
        if self._owned:
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
        """Hand the text to the worker; its sound and words arrive by themselves (``_listen``)."""
        try:
            turn = self._turns.get(context_id)
            if turn is None:
                turn = _Turn((await self._client.open(self._options())).session)
                self._turns[context_id] = turn
                turn.pump = asyncio.create_task(self._listen(context_id, turn), name=f"tts-worker-{context_id}")
            turn.session.speak(text)
            await self.start_tts_usage_metrics(text)
            yield None
        except TTSWorkerError as error:
            yield ErrorFrame(error=f"tts-worker: {error.message}")
            self._drop(context_id)
            await self.remove_audio_context(context_id)

    async def flush_audio(self, context_id: str | None = None) -> None:
        """The turn's text is complete."""
        turn = self._turns.get(context_id or "")
        if turn is not None and not turn.complete:
            turn.complete = True
            if turn.session.state in (State.SPEAKING, State.PAUSED):
                turn.session.end_text()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """STOP: sent and forgotten."""
        self._drop(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        self._drop(context_id)

    def _drop(self, context_id: str) -> None:
        turn = self._turns.pop(context_id, None)
        if turn is not None:
            turn.session.close("interrupted")
            if turn.pump is not None and turn.pump is not asyncio.current_task():
                turn.pump.cancel()

    async def _listen(self, context_id: str, turn: _Turn) -> None:
        """From the worker into the audio context. The first text opened it, the last word of the worker closes it."""
        before_s = 0.0  # of utterances of this turn that ended before: a silent writer's turn has several
        async for item in turn.session:
            if isinstance(item, PcmFrame):
                await self._play(item.pcm, turn.session.sample_rate_hz, context_id)
            elif isinstance(item, Words):
                rate_hz = turn.session.sample_rate_hz
                times = [(word.text, before_s + word.start_sample / rate_hz) for word in item.words]
                await self.add_word_timestamps(times, context_id)
            elif isinstance(item, Ended):
                before_s += item.receipt.samples_sent / turn.session.sample_rate_hz
                if not await self._after(item, context_id, turn):
                    break
        if self.audio_context_available(context_id):
            await self.remove_audio_context(context_id)

    async def _after(self, ended: Ended, context_id: str, turn: _Turn) -> bool:
        """What an end means for the turn; whether more may come."""
        if ended.outcome is Outcome.ERROR and ended.error is not None:
            await self.push_error(f"tts-worker: {ended.error.message}")
            return False
        if ended.outcome is Outcome.TRUNCATED:
            log.warning("the speech was cut short: %s", ended.receipt.reason)
        if not ended.receipt.samples_sent and ended.outcome is Outcome.DONE:
            # All of it was emoji, code or the like. Pipecat takes a turn without sound for a fault: 10 ms of silence.
            rate_hz = turn.session.sample_rate_hz
            await self._play(bytes(2 * (rate_hz // 100)), rate_hz, context_id)
        return not turn.complete

    async def _play(self, pcm: bytes, rate_hz: int, context_id: str) -> None:
        if rate_hz != self.sample_rate:
            pcm = await self._resampler.resample(pcm, rate_hz, self.sample_rate)
        if pcm:
            await self.append_to_audio_context(
                context_id, TTSAudioRawFrame(pcm, self.sample_rate, 1, context_id=context_id)
            )


__all__ = ["TTSWorkerSettings", "TTSWorkerTTSService"]
