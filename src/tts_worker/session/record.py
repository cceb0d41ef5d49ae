"""What happened in utterances and sessions, noted once for log, metrics and traces: numbers and names, never text."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from tts_worker.callers import current_caller
from tts_worker.logs import current_request_id, fields
from tts_worker.tracing import current_traceparent, trace_id
from tts_worker.types import ChunkMeta, ControlName, Ended, UtteranceKey

log = logging.getLogger(__name__)


class SessionObserver(Protocol):
    """Receives measurements of a voice, for metrics. Called on the event loop; must be cheap and must not raise."""

    def first_audio(self, seconds: float) -> None: ...
    def queue_wait(self, seconds: float) -> None: ...
    def frame(self, late_s: float, lead_s: float) -> None: ...
    def underrun(self, seconds: float) -> None: ...
    def control(self, command: ControlName, seconds: float) -> None: ...
    def ended(self, event: Ended, sample_rate_hz: int) -> None: ...
    def source(self, seconds: float) -> None: ...
    def converted(self, seconds: float) -> None: ...


@dataclass(slots=True)
class UtteranceTimeline:
    """What happened to one utterance, noted once for metrics, log and traces.

    Times are seconds of the event loop's clock, None for what did not happen.

    Attributes:
        key: The utterance.
        transport: Name of the transport.
        api_key: Name of the API key; None without one.
        engine: Name of the engine.
        voice: Name of the voice.
        request_id: The request that brought its first text; empty outside a request.
        traceparent: The W3C trace context that it belongs to; empty without one.
        text_at_s: Its first text arrived.
        text_chars: Length of its text.
        observer: Receives the measurements of its voice.
        posted_at_s: Its first segment was given to the engine.
        speakable_at_s: The same, as the start of the first-audio latency: None after a pause, which is no latency.
        chunk_at_s: Its first audio arrived from the engine.
        chunk_ms: Engine time of that audio.
        stages_ms: The same by stage, where the engine reports it.
        frame_at_s: Its first frame was sent.
        stop_at_s: A STOP arrived.
        first_audio_ms: The first-audio latency, as in the metric.
    """

    key: UtteranceKey
    transport: str
    api_key: str | None
    engine: str
    voice: str
    request_id: str
    traceparent: str
    text_at_s: float
    text_chars: int = 0
    observer: SessionObserver | None = None
    posted_at_s: float | None = None
    speakable_at_s: float | None = None
    chunk_at_s: float | None = None
    chunk_ms: float = 0.0
    stages_ms: tuple[tuple[str, float], ...] = ()
    frame_at_s: float | None = None
    stop_at_s: float | None = None
    first_audio_ms: float | None = None

    @property
    def begun_at_s(self) -> float | None:
        """When the engine began to compute the first audio, by its own account of the time this took."""
        if self.posted_at_s is None or self.chunk_at_s is None:
            return None
        return max(self.posted_at_s, self.chunk_at_s - self.chunk_ms / 1000)

    @property
    def awaits_audio(self) -> bool:
        """Whether the engine has its text, and has returned no audio yet."""
        return self.posted_at_s is not None and self.chunk_at_s is None

    def first_chunk(self, meta: ChunkMeta, now_s: float) -> None:
        """Note the first audio of the engine, before which it was in its queue."""
        self.chunk_at_s = now_s
        self.chunk_ms = meta.wall_ms
        self.stages_ms = meta.stages_ms
        if self.observer is not None and self.posted_at_s is not None:
            self.observer.queue_wait(max(0.0, now_s - self.posted_at_s - meta.wall_ms / 1000))

    def write(self, event: Ended, now_s: float) -> None:
        """Log the utterance as one event."""
        report = event.receipt
        log.info(
            "utterance ended",
            extra=fields(
                session=self.key.session,
                utterance=self.key.generation,
                request_id=self.request_id or None,
                trace_id=trace_id(self.traceparent),
                transport=self.transport,
                key=self.api_key,
                voice=self.voice,
                engine=self.engine or None,
                reason=report.reason,
                outcome=event.outcome.value,
                code=event.error.code.value if event.error is not None else None,
                first_audio_ms=self.first_audio_ms,
                samples=report.samples_sent,
                text_chars=self.text_chars,
                skipped_chars=sum(run.end - run.start for run in report.skipped) or None,
                duration_s=round(now_s - self.text_at_s, 3),
            ),
        )


class UtteranceExporter(Protocol):
    """Exports ended utterances, such as traces."""

    def ended(self, record: UtteranceTimeline, event: Ended, now_s: float) -> None:
        """Export one utterance.

        Args:
            record: What happened to it.
            event: Its terminal event.
            now_s: The time of that, on the clock of the record.
        """

    def close(self) -> None:
        """Export what is left. Blocks for a bounded time: call it on a thread."""


@dataclass(slots=True)
class SessionRecord:
    """What happened in a session.

    Attributes:
        session: Its id.
        engine: Name of the engine of its voice; utterances in another language may have another one.
        opened_at_s: When it was opened, on the event loop's clock.
        request_id: The request that opened it; empty outside a request.
        traceparent: The W3C trace context of that request.
        own_traceparent: The trace context that the client chose for later utterances, before that of their requests.
        transport: Name of the transport.
        api_key: Name of the API key that opened it; None without one.
        utterances: Number of ended utterances.
        outcome: That of the last utterance.
        code: Error code of the last utterance.
        first_audio_ms: First-audio latency of the first utterance, as in the metric.
        samples: Sent samples of all utterances.
        text_chars: Accepted text of all utterances.
        ended_at_s: When its last utterance ended.
        open: The utterances that have not ended.
    """

    session: str
    engine: str
    opened_at_s: float
    request_id: str = field(default_factory=current_request_id)
    traceparent: str = field(default_factory=current_traceparent)
    own_traceparent: str = ""
    transport: str = field(default_factory=lambda: current_caller().transport)
    api_key: str | None = field(default_factory=lambda: current_caller().key)
    utterances: int = 0
    outcome: str = "none"
    code: str | None = None
    first_audio_ms: float | None = None
    samples: int = 0
    text_chars: int = 0
    ended_at_s: float = 0.0
    open: dict[UtteranceKey, UtteranceTimeline] = field(default_factory=dict)

    def begin(self, key: UtteranceKey, now_s: float) -> None:
        """Record that an utterance begins."""
        request_id = current_request_id() or self.request_id
        traceparent = self.own_traceparent or current_traceparent() or self.traceparent
        self.open[key] = UtteranceTimeline(key, self.transport, self.api_key, "", "", request_id, traceparent, now_s)

    def spoken_by(self, key: UtteranceKey, engine: str, voice: str, observer: SessionObserver) -> None:
        """Record what speaks an utterance."""
        if (utterance := self.open.get(key)) is not None:
            utterance.engine, utterance.voice, utterance.observer = engine, voice, observer

    def text(self, key: UtteranceKey, chars: int) -> None:
        """Record accepted text."""
        self.text_chars += chars
        if (utterance := self.open.get(key)) is not None:
            utterance.text_chars += chars

    def posted(self, key: UtteranceKey, now_s: float) -> None:
        """Record that the first segment of an utterance is given to the engine."""
        if (utterance := self.open.get(key)) is not None:
            utterance.posted_at_s = utterance.speakable_at_s = now_s

    def paused(self) -> None:
        """Record a pause, which does not count as latency."""
        for utterance in self.open.values():
            utterance.speakable_at_s = None

    def latency_s(self, key: UtteranceKey, now_s: float) -> float | None:
        """Return the first-audio latency of an utterance whose first frame is sent; None after a pause.

        Waiting for the playback of an earlier utterance does not count.
        """
        utterance = self.open.get(key)
        if utterance is None or utterance.speakable_at_s is None:
            return None
        return now_s - max(utterance.speakable_at_s, self.ended_at_s)

    def first_frame(self, key: UtteranceKey, latency_s: float | None, now_s: float) -> None:
        """Record the first frame of an utterance and its first-audio latency; None if a pause makes it meaningless."""
        latency_ms = None if latency_s is None else round(latency_s * 1000, 1)
        if self.first_audio_ms is None:
            self.first_audio_ms = latency_ms
        if (utterance := self.open.get(key)) is not None:
            utterance.frame_at_s = now_s
            utterance.first_audio_ms = latency_ms

    def stopped(self, now_s: float) -> None:
        """Record that a STOP arrived."""
        for utterance in self.open.values():
            utterance.stop_at_s = now_s

    def ended(self, event: Ended, now_s: float) -> UtteranceTimeline | None:
        """Log an ended utterance and return its record; None if it was not recorded."""
        self.utterances += 1
        self.outcome = event.outcome.value
        self.code = event.error.code.value if event.error is not None else None
        self.samples += event.receipt.samples_sent
        self.ended_at_s = now_s
        utterance = self.open.pop(event.key, None)
        if utterance is not None:
            utterance.write(event, now_s)
        return utterance

    def write(self, reason: str, voice: str, now_s: float) -> None:
        """Log the session as one event, at debug level if it was replaced before its first utterance."""
        is_unused = reason == "replaced" and not self.utterances
        log.log(
            logging.DEBUG if is_unused else logging.INFO,
            "session ended",
            extra=fields(
                session=self.session,
                request_id=self.request_id or None,
                transport=self.transport,
                key=self.api_key,
                voice=voice,
                engine=self.engine or None,
                reason=reason,
                utterances=self.utterances,
                outcome=self.outcome,
                code=self.code,
                first_audio_ms=self.first_audio_ms,
                samples=self.samples,
                text_chars=self.text_chars,
                duration_s=round(now_s - self.opened_at_s, 3),
            ),
        )
