"""Pipecat service: ``TTSWorkerTTSService(url)`` synthesizes with a tts-worker and provides word timestamps.

Each audio context of pipecat is one session of ``tts_worker.client`` on a pooled connection; no engine runs in the
bot's process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from tts_worker.client import Client, ClientSettings, Session, SessionOptions
from tts_worker.client.agent import PluginOptions, Urls, check_sample_rate, connect_agent, with_plugin_options
from tts_worker.errors import CLIENT_SOURCE, ErrorCode, InvalidRequest, MissingExtra, TTSWorkerError
from tts_worker.protocol.session import interruption_by_worker
from tts_worker.types import SAMPLE_RATES_HZ, Ended, Outcome, PcmFrame, Skipped, State, Words, text_heard

try:
    from pipecat.frames.frames import (
        CancelFrame,
        EndFrame,
        ErrorFrame,
        Frame,
        StartFrame,
        TTSAudioRawFrame,
        TTSTextFrame,
    )
    from pipecat.metrics.metrics import MetricsData
    from pipecat.processors.frame_processor import FrameDirection
    from pipecat.services.settings import TTSSettings
    from pipecat.services.tts_service import TextAggregationMode, TTSService
    from pipecat.utils.types import NOT_GIVEN, NotGiven, is_given
except ImportError:
    raise MissingExtra("the pipecat service", "pipecat", CLIENT_SOURCE, oldest_python=(3, 11)) from None

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)


def _not_given() -> NotGiven:
    return NOT_GIVEN


@dataclass
class TTSWorkerSettings(TTSSettings):
    """Settings beyond pipecat's own. Changes apply to the next turn.

    Attributes:
        speed: 2.0 is twice as fast.
        instruct: Style instruction, for voices that support it.
        seed: Seed of the sampling.
        lexicon: Word -> other spelling, or ``/phonemes/``; or the names of stored lexicons.
        markdown: Keep Markdown, emoji and URLs from being read aloud; None takes the worker's default.
        urls: How a bare URL is read: ``drop``, ``host`` or ``keep``; None takes the worker's default.
        normalize: Write numbers, dates and units out in words; None takes the worker's default.
    """

    speed: float | NotGiven = field(default_factory=_not_given)
    instruct: str | NotGiven | None = field(default_factory=_not_given)
    seed: int | NotGiven = field(default_factory=_not_given)
    lexicon: Mapping[str, str] | str | NotGiven | None = field(default_factory=_not_given)
    markdown: bool | NotGiven | None = field(default_factory=_not_given)
    urls: Urls | NotGiven | None = field(default_factory=_not_given)
    normalize: bool | NotGiven | None = field(default_factory=_not_given)

    def session_options(self, others: SessionOptions | None = None) -> SessionOptions:
        """Return ``others`` with the given settings. Raises InvalidRequest, as far as the worker is not needed."""
        given = {name: value for name in _SETTINGS if is_given(value := getattr(self, name))}
        language = given.pop("language", None)
        given["language"] = (language.value if isinstance(language, Enum) else language) or None
        return with_plugin_options(others or SessionOptions(), given)


_SETTINGS = ("voice", "model", "language", *TTSWorkerSettings.__annotations__)
_DEFAULTS = {name: getattr(SessionOptions(), name, None) for name in _SETTINGS}


@dataclass(slots=True, eq=False)
class _Turn:
    """The session of an audio context and the task that reads it.

    Attributes:
        text: The text of its utterances that have not ended.
        skipped: What the voice has skipped and no text frame has contained yet, in order.
    """

    session: Session
    text_ended: bool = False
    reader: asyncio.Task[None] | None = field(default=None)
    text: str = ""
    skipped: deque[str] = field(default_factory=deque)
    named: int = 0  # runs of the utterance that are or were in ``skipped``

    def skip(self, runs: tuple[Skipped, ...]) -> None:
        """Note what the voice skips of the utterance."""
        self.skipped += (self.text[run.start : run.end] for run in runs)
        self.named += len(runs)

    def end(self, ended: Ended) -> None:
        """Note what the voice has skipped at the end of the utterance, or that it can speak none of it."""
        self.skip(ended.receipt.skipped[self.named :])
        chars = len(ended.receipt.text_spoken + ended.receipt.text_remaining)
        if ended.error is not None and ended.error.code is ErrorCode.UNSPEAKABLE_TEXT:
            self.skipped += self.text[:chars].split()
        self.text = self.text[chars:]
        self.named = 0

    def heard(self, text: str) -> tuple[str, int]:
        """Return the heard part of the text of a frame, and how many entries of ``skipped`` it contains."""
        runs: list[Skipped] = []
        for run in self.skipped:
            start = text.find(run, runs[-1].end if runs else 0)
            if start < 0:
                break
            runs.append(Skipped(start, start + len(run)))
        return text_heard(text, runs), len(runs)


class TTSWorkerTTSService(TTSService):
    """TTS service with one utterance per turn. An interruption stops the worker at once, without waiting.

    Args:
        url: The worker; defaults to TTS_WORKER_URL, else ``ws://127.0.0.1:8080``.
        api_key: Defaults to TTS_WORKER_API_KEY.
        client: Use this client. The caller closes it.
        sample_rate: 8000, 16000, 22050, 24000, 44100 or 48000 Hz, resampled on the worker; None takes the pipeline's.
        text_aggregation_mode: By sentence (default) or by token.
        options: See ``PluginOptions``.

    Raises:
        InvalidRequest: An option or the URL is invalid. What only the worker can know (a voice, a model, a lexicon
            entry, the range of a number) is an ``ErrorFrame`` of the turn.
    """

    Settings = TTSWorkerSettings

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        client: Client | None = None,
        sample_rate: int | None = None,
        text_aggregation_mode: TextAggregationMode | None = None,
        **options: Unpack[PluginOptions],
    ) -> None:
        given: dict[str, Any] = {"max_ahead_s": 2.0, **options}
        pacing: dict[str, Any] = {name: given.pop(name) for name in ("flush_after_ms", "max_ahead_s") if name in given}
        pacing_options = with_plugin_options(SessionOptions(), pacing)
        settings = TTSWorkerSettings(**{**_DEFAULTS, **given})
        settings.session_options()
        if sample_rate is not None:
            check_sample_rate(sample_rate)
        client_settings = ClientSettings()
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            push_text_frames=False,  # word timestamps carry the text
            push_start_frame=True,
            push_stop_frames=True,
            stop_frame_timeout_s=client_settings.audio_timeout_s + 20.0,  # the worker's terminal event ends a turn
            append_trailing_space=True,  # sentences arrive trimmed but form one text
            sample_rate=sample_rate,
            settings=settings,
        )
        self._pacing = pacing_options
        self._owns_client = client is None
        self._client = client or connect_agent(url, api_key, client_settings)
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

    async def _update_settings(self, delta: Any) -> dict[str, Any]:
        """Apply a delta to the next turn. An invalid one is an error frame and changes nothing."""
        if isinstance(delta, TTSWorkerSettings):
            try:
                delta.session_options()
            except InvalidRequest as error:
                await self.push_error(f"tts-worker: {error.message}")
                return {}
        changed: dict[str, Any] = await super()._update_settings(delta)
        return changed

    def _options(self) -> SessionOptions:
        settings = self._settings
        assert isinstance(settings, TTSWorkerSettings)
        # Another rate is resampled in _play.
        rate_hz = self.sample_rate if self.sample_rate in SAMPLE_RATES_HZ else None
        return settings.session_options(replace(self._pacing, sample_rate=rate_hz))

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Send the text to the worker; ``_read`` receives its audio and words."""
        try:
            turn = self._turns.get(context_id)
            if turn is None:
                turn = _Turn((await self._client.open(self._options())).session)
                self.set_core_metrics_data(MetricsData(processor=self.name, model=turn.session.model))
                self._turns[context_id] = turn
                turn.reader = asyncio.create_task(self._read(context_id, turn), name=f"tts-worker-{context_id}")
            turn.session.speak(text)
            turn.text += text
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
                turn.skip(item.skipped)
                rate_hz = turn.session.sample_rate_hz
                times = [(word.text, offset_s + word.start_sample / rate_hz) for word in item.words]
                await self.add_word_timestamps(times, context_id)
            elif isinstance(item, Ended):
                turn.end(item)
                offset_s += item.receipt.samples_sent / turn.session.sample_rate_hz
                if not await self._handle_end(item, context_id, turn):
                    break
        if self.audio_context_available(context_id):
            await self.remove_audio_context(context_id)

    async def _handle_end(self, ended: Ended, context_id: str, turn: _Turn) -> bool:
        """Handle the end of an utterance; return whether the turn may continue."""
        error = ended.error or interruption_by_worker(ended)
        if error is not None:
            await self.push_error(f"tts-worker: {error.message}")
            return False
        if ended.outcome is Outcome.TRUNCATED:
            log.warning("the utterance was truncated: %s", ended.receipt.reason)
        if not ended.receipt.samples_sent and ended.outcome is Outcome.DONE:
            # The text was unspeakable (emoji, code). Pipecat treats a turn without audio as an error: send 10 ms.
            rate_hz = turn.session.sample_rate_hz
            await self._play(bytes(2 * (rate_hz // 100)), rate_hz, context_id)
        return not turn.text_ended

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """Push a frame; take out of text what the voice has skipped, which pipecat adds to the words beside it."""
        turn = self._turns.get(frame.context_id or "") if isinstance(frame, TTSTextFrame) else None
        if turn is not None and turn.skipped and isinstance(frame, TTSTextFrame):
            if frame.raw_text is not None:
                frame.raw_text, _ = turn.heard(frame.raw_text)
            frame.text, found = turn.heard(frame.text)
            for _ in range(found):
                turn.skipped.popleft()
            if found and not frame.text:
                return
        await super().push_frame(frame, direction)

    async def _play(self, pcm: bytes, rate_hz: int, context_id: str) -> None:
        if rate_hz != self.sample_rate:
            pcm = await self._resampler.resample(pcm, rate_hz, self.sample_rate)
        if pcm:
            await self.append_to_audio_context(
                context_id, TTSAudioRawFrame(pcm, self.sample_rate, 1, context_id=context_id)
            )


__all__ = ["TTSWorkerSettings", "TTSWorkerTTSService"]
