"""A session on a remote worker, with the interface of ``session.LocalSession``.

The guarantees are the same for every transport: commands return at once, no frame of an earlier utterance is delivered
after ``stop`` and none while paused, every utterance ends with exactly one ``Ended`` even if the worker or the
connection is lost, and missing audio has a deadline. A ``Link`` sends the commands. The transport calls ``receive`` and
``on_lost`` on the session's event loop, in the order of the worker's messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

from tts_worker.client.arguments import check_key, check_str, check_text, whole_samples
from tts_worker.client.deadline import AudioDeadline
from tts_worker.client.encoded_audio import count_samples
from tts_worker.client.link import Link, RemoteConfig
from tts_worker.client.remote_utterance import RemotePhase, RemoteUtterance
from tts_worker.errors import DeadlineExceeded, ErrorInfo, IllegalCommand, SessionClosed
from tts_worker.protocol.messages import (
    ConfigureMessage,
    EndMessage,
    ExpressMessage,
    FlushMessage,
    PausedMessage,
    PauseMessage,
    PlayedMessage,
    RejectedMessage,
    ReportMessage,
    ResumedMessage,
    ResumeMessage,
    StartedMessage,
    StopMessage,
    TextMessage,
    WordsMessage,
    WorkerMessage,
    check_params,
)
from tts_worker.protocol.session import OutputReader
from tts_worker.types import (
    Acknowledged,
    ControlName,
    Ended,
    Expression,
    Outcome,
    Output,
    PcmFrame,
    Receipt,
    Started,
    State,
    SynthesisParams,
    UtteranceKey,
    Words,
)


class RemoteSession(OutputReader):
    """Client side of an admitted session. Construct it on the event loop."""

    def __init__(self, link: Link, config: RemoteConfig) -> None:
        self.id = config.session
        self.sample_rate_hz = config.sample_rate_hz
        self.encoding = config.encoding
        self.model = config.model
        self._link = link
        self._config = config
        self._params = config.params
        self._worker_params: SynthesisParams | None = config.params  # of the worker; None if it may have refused them
        self._generation = 0
        self._live: deque[RemoteUtterance] = deque()  # not ended for the caller; the head is playing
        self._by_context: dict[str, RemoteUtterance] = {}  # not ended by the worker
        self._receiving: RemoteUtterance | None = None  # the target of incoming audio
        self._unacknowledged: deque[ControlName] = deque()  # commands without an acknowledgment
        self._unconfirmed_stops: deque[tuple[Acknowledged, set[UtteranceKey]]] = deque()  # and utterances to end before
        self._notices: deque[Output] = deque()  # delivered before audio
        self._queue: deque[Output] = deque()  # in order with the audio
        self._paused = False
        self._closed = False
        self._is_disconnected = False
        self._healthy = True
        self._queued_samples = 0
        self._wakeup = asyncio.Event()
        self._capacity_changed = asyncio.Event()
        self._deadline = AudioDeadline(config.audio_timeout_s, self._is_audio_due, self._on_deadline)

    # -- commands -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        if self._closed:
            return State.CLOSED
        if not self._live:
            return State.IDLE
        return State.PAUSED if self._paused else State.SPEAKING

    @property
    def writing(self) -> UtteranceKey | None:
        """The utterance that accepts text."""
        utterance = self._open_utterance()
        return utterance.key if utterance is not None else None

    @property
    def buffered_samples(self) -> int:
        """Samples received and not yet delivered."""
        return self._queued_samples

    def speak(self, text: str | bytes) -> UtteranceKey:
        self._require_open()
        check_text(text)
        utterance = self._open_utterance() or self._begin_utterance()
        self._link.send(TextMessage(text=utterance.write(text), context=utterance.context))
        return utterance.key

    def flush(self) -> None:
        self._require_open()
        if self._open_utterance() is not None:
            self._link.send(FlushMessage())

    def end_text(self) -> None:
        self._require_open()
        utterance = self._open_utterance()
        if utterance is None:
            raise IllegalCommand("there is no utterance to end: send text first")
        rest = utterance.end_text()
        if rest:
            self._link.send(TextMessage(text=rest, context=utterance.context))
        self._link.send(EndMessage(context=utterance.context))
        self._deadline.touch()

    def pause(self) -> Acknowledged:
        self._require_open()
        acknowledged = self._result(ControlName.PAUSE, applied=self.state is State.SPEAKING)
        if acknowledged.applied:
            self._paused = True
            self._unacknowledged.append(ControlName.PAUSE)
            self._link.send(PauseMessage())
        else:
            self._notices.append(acknowledged)
        self._notify()
        return acknowledged

    def resume(self) -> Acknowledged:
        self._require_open()
        acknowledged = self._result(ControlName.RESUME, applied=self.state is State.PAUSED)
        if acknowledged.applied:
            self._paused = False
            self._unacknowledged.append(ControlName.RESUME)
            self._link.send(ResumeMessage())
            self._deadline.touch()
        else:
            self._notices.append(acknowledged)
        self._notify()
        return acknowledged

    def stop(
        self, reason: str = "stop", played_samples: int | None = None, key: UtteranceKey | None = None
    ) -> Acknowledged:
        self._require_open()
        check_str(reason, "reason")
        check_key(key)
        if played_samples is not None:
            played_samples = whole_samples(played_samples)
        acknowledged = self._result(ControlName.STOP, applied=bool(self._live))
        if played_samples is not None and (head := self._current(key)) is not None:
            head.report_played(played_samples)
        self._stop(reason)
        # The worker reports stopped utterances in their order: those stopped by now are reported before later ones.
        waiting = {u.key for u in self._by_context.values() if u.phase is RemotePhase.STOPPING}
        self._unconfirmed_stops.append((acknowledged, waiting))
        self._confirm_stops()
        self._notify()
        return acknowledged

    def played(self, samples: int, key: UtteranceKey | None = None) -> None:
        samples = whole_samples(samples)
        check_key(key)
        if (head := self._current(key)) is not None:
            head.report_played(samples)
            if head.is_expecting_audio:
                self._link.send(PlayedMessage(samples=max(0, samples), utterance=head.number))

    def express(self, expression: Expression) -> None:
        self._require_open()
        self._link.send(ExpressMessage.of(expression))

    def configure(self, params: SynthesisParams) -> None:
        self._require_open()
        check_params(params)
        self._params = params

    def close(self, reason: str = "closed") -> None:
        check_str(reason, "reason")
        if self._closed:
            return
        self._stop(reason)
        self._closed = True
        for utterance in self._by_context.values():  # reports of the worker are no longer awaited
            self._terminate(utterance, utterance.stop_reason or reason)
        self._release_link()
        self._notify()

    # -- command helpers ----------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            disconnected = "the connection to the worker was lost: open another session"
            raise SessionClosed(disconnected if self._is_disconnected else "the session is closed")

    def _open_utterance(self) -> RemoteUtterance | None:
        if self._live and self._live[-1].phase is RemotePhase.OPEN:
            return self._live[-1]
        return None

    def _current(self, key: UtteranceKey | None) -> RemoteUtterance | None:
        """Return the utterance that is playing, None if there is none or ``key`` names another one."""
        return self._live[0] if self._live and key in (None, self._live[0].key) else None

    def _begin_utterance(self) -> RemoteUtterance:
        if self._params != self._worker_params:
            self._link.send(ConfigureMessage.of(self._params))
            self._worker_params = self._params
        self._generation += 1
        key = UtteranceKey(self.id, self._generation)
        utterance = RemoteUtterance(key, f"{self._config.context_prefix}{self._generation}")
        self._live.append(utterance)
        self._by_context[utterance.context] = utterance
        return utterance

    def _stop(self, reason: str) -> None:
        """Drop all audio. An utterance that the worker has not ended keeps waiting for the worker's report."""
        if any(utterance.is_expecting_audio for utterance in self._live):
            head = self._live[0]
            if head.is_expecting_audio:
                played_samples = head.delivered_samples if head.played_samples is None else head.played_samples
                self._send_stop(reason, played_samples, head.number)
            else:  # the worker is already on a later utterance, whose audio is dropped here
                self._send_stop(reason, 0, None)
        self._drop_audio()
        for utterance in self._live:
            if utterance.is_expecting_audio:
                utterance.stop(reason)
            else:
                self._terminate(utterance, reason)
        self._live.clear()
        self._paused = False

    def _send_stop(self, reason: str, played_samples: int, utterance: int | None) -> None:
        self._link.send(StopMessage(reason=reason[:64] or None, played_samples=played_samples, utterance=utterance))

    def _drop_audio(self, utterance: RemoteUtterance | None = None) -> None:
        """Drop undelivered events of one utterance, or of all. ``Started`` events are still delivered."""
        dropped = [item for item in self._queue if utterance is None or item.key == utterance.key]
        self._notices.extend(item for item in dropped if isinstance(item, Started))
        self._queue = deque(item for item in self._queue if utterance is not None and item.key != utterance.key)
        self._queued_samples = sum(item.samples for item in self._queue if isinstance(item, PcmFrame))

    def _terminate(self, utterance: RemoteUtterance, reason: str) -> None:
        """End a stopped utterance from client-side state, ahead of queued audio."""
        if utterance.phase is not RemotePhase.TERMINATED:
            utterance.phase = RemotePhase.TERMINATED
            self._notices.append(utterance.ended_event(Outcome.STOPPED, reason))
            self._confirm_stops(utterance.key)

    def _fail(self, error: ErrorInfo) -> None:
        """End all utterances with an error. Received audio of the playing utterance is still delivered."""
        for utterance in self._live:
            if not utterance.is_expecting_audio and not self._paused:
                continue
            if utterance.delivered_samples == 0 or self._paused:
                self._drop_audio(utterance)
            utterance.phase = RemotePhase.ENDED
            utterance.failure = error
            self._queue.append(utterance.ended_event(Outcome.ERROR, error.code.value, error))
        self._paused = False

    def _result(self, command: ControlName, applied: bool) -> Acknowledged:
        head = self._live[0] if self._live else None
        position = head.delivered_samples if head is not None else 0
        return Acknowledged(command, applied, head.key if head is not None else None, position)

    def _confirm_stops(self, key: UtteranceKey | None = None) -> None:
        """Acknowledge every STOP whose utterances have ended, after ``key`` has ended."""
        for _, waiting in self._unconfirmed_stops:
            waiting.discard(key)
        while self._unconfirmed_stops and not self._unconfirmed_stops[0][1]:
            self._notices.append(self._unconfirmed_stops.popleft()[0])

    def _notify(self) -> None:
        self._wakeup.set()
        self._capacity_changed.set()

    def _release_link(self) -> None:
        """Release the link of a closed session once the worker has answered everything, or is not trusted."""
        if self._is_disconnected or not self._closed:
            return
        if not (self._healthy and (self._by_context or self._unacknowledged)):
            self._is_disconnected = True  # later messages belong to another session
            self._deadline.cancel()
            self._link.release(healthy=self._healthy)

    # -- deadline -----------------------------------------------------------------------------------------------------

    def _is_audio_due(self) -> bool:
        """Whether the worker has the complete text of an utterance and no audio is buffered here."""
        if self._paused or self._queued_samples:
            return False
        return any(utterance.phase is RemotePhase.COMPLETE for utterance in self._live)

    def _on_deadline(self) -> None:
        self._healthy = False
        self._send_stop("deadline", self._live[0].delivered_samples, self._live[0].number)
        self._fail(DeadlineExceeded(f"the worker sent no audio for {self._deadline.timeout_s:g} s").info)
        self._notify()

    # -- messages of the worker ---------------------------------------------------------------------------------------

    async def wait_for_capacity(self) -> None:
        """Wait until the transport may read more (backpressure).

        Reading is not limited while an acknowledgment is outstanding, so that it never waits behind audio.
        """
        while not (
            self._queued_samples < self._config.read_ahead_s * self.sample_rate_hz
            or self._unacknowledged
            or self._paused
            or self._closed
            or any(utterance.phase is RemotePhase.STOPPING for utterance in self._by_context.values())
        ):
            self._capacity_changed.clear()
            await self._capacity_changed.wait()

    def receive(self, message: WorkerMessage | bytes) -> None:
        """Handle a message of the worker, or audio of the current utterance."""
        match message:
            case bytes():
                self._on_audio(message)
            case WordsMessage():
                self._on_words(message)
            case StartedMessage():
                self._on_started(message)
            case PausedMessage():
                self._on_acknowledged(ControlName.PAUSE)
            case ResumedMessage():
                self._on_acknowledged(ControlName.RESUME)
            case ReportMessage():
                self._on_ended(message)
            case RejectedMessage():
                self._on_rejected(message.error)

    def _on_started(self, message: StartedMessage) -> None:
        """Assign the audio and words that follow to this utterance. Contexts of earlier sessions are ignored."""
        self._receiving = utterance = self._by_context.get(message.context or "")
        if utterance is not None:
            utterance.number = message.utterance or None
            if utterance.phase is RemotePhase.STOPPING:
                self._notices.append(Started(utterance.key, message.params))
            elif utterance.is_expecting_audio:
                self._queue.append(Started(utterance.key, message.params))
            self._notify()

    def _on_words(self, message: WordsMessage) -> None:
        """Word timestamps of the current utterance, sent before the audio in which they begin."""
        utterance = self._active_utterance()
        if utterance is not None:
            utterance.words.extend(message.words)
            utterance.skipped.extend(message.skipped)
            self._queue.append(Words(utterance.key, message.words, message.skipped))
            self._notify()

    def _on_audio(self, pcm: bytes) -> None:
        """Next audio of the current utterance, in the encoding of the session."""
        utterance = self._active_utterance()
        if utterance is not None and pcm:
            is_first = utterance.frame_count == 0
            samples = count_samples(self.encoding, pcm, self.sample_rate_hz, is_first=is_first)
            frame = utterance.frame(pcm, samples)
            self._queue.append(frame)
            self._queued_samples += frame.samples
            self._notify()

    def _active_utterance(self) -> RemoteUtterance | None:
        self._deadline.touch()
        utterance = self._receiving
        if utterance is None or not utterance.is_expecting_audio:
            return None  # sent before the worker received the STOP
        return utterance

    def _on_acknowledged(self, command: ControlName) -> None:
        """Emit the acknowledgment of a PAUSE or RESUME, with the position on this side."""
        if self._unacknowledged and self._unacknowledged[0] is command:
            self._unacknowledged.popleft()
            if not self._closed:
                self._notices.append(self._result(command, applied=True))
                self._notify()
        self._release_link()

    def _on_ended(self, message: ReportMessage) -> None:
        """Terminal message of the worker for an utterance."""
        utterance = self._by_context.pop(message.context or "", None)
        if utterance is not None:
            if utterance.phase is RemotePhase.STOPPING:
                reported = replace(message.receipt, reason=utterance.stop_reason)
                receipt = utterance.adjust_receipt(reported, dropped=True)
                utterance.phase = RemotePhase.TERMINATED
                self._notices.append(Ended(utterance.key, Outcome.STOPPED, receipt))
                self._confirm_stops(utterance.key)
            elif utterance.is_expecting_audio:
                self._end(utterance, message.outcome, message.receipt, message.error)
            self._deadline.touch()
        self._release_link()
        self._notify()

    def _end(self, utterance: RemoteUtterance, outcome: Outcome, receipt: Receipt, error: ErrorInfo | None) -> None:
        # Stopped by the worker (pause timeout, drain), or failed before any audio was delivered: emitted at once.
        dropped = outcome is Outcome.STOPPED or (outcome is Outcome.ERROR and utterance.delivered_samples == 0)
        ended = Ended(utterance.key, outcome, utterance.adjust_receipt(receipt, dropped=dropped), error)
        utterance.phase = RemotePhase.TERMINATED if dropped else RemotePhase.ENDED
        if dropped:
            self._drop_audio(utterance)
            self._notices.append(ended)
            self._live.remove(utterance)
            self._paused = self._paused and bool(self._live)
        else:
            self._queue.append(ended)

    def _on_rejected(self, error: ErrorInfo) -> None:
        """The worker rejected a message: the utterances are incomplete and fail."""
        self._healthy = False
        self._worker_params = None  # sent again with the next utterance, which else would have the voice of before
        if not self._closed:
            self._send_stop("rejected", 0, None)
            self._fail(error)
        self._release_link()
        self._notify()

    def on_lost(self, error: ErrorInfo) -> None:
        """The worker or the connection is lost."""
        if self._is_disconnected:
            return
        self._closed = self._is_disconnected = True
        self._deadline.cancel()
        for utterance in self._by_context.values():
            if utterance.phase is RemotePhase.STOPPING:
                self._terminate(utterance, utterance.stop_reason)
        self._by_context.clear()
        self._unacknowledged.clear()
        self._fail(error)
        self._notify()

    # -- output -------------------------------------------------------------------------------------------------------

    def poll(self) -> Output | None:
        if self._notices:
            return self._notices.popleft()
        if not self._queue or (self._paused and isinstance(self._queue[0], PcmFrame | Words)):
            return None
        item = self._queue.popleft()
        if isinstance(item, PcmFrame):
            self._queued_samples -= item.samples
            self._live[0].delivered_samples += item.samples
            self._capacity_changed.set()
            if not self._queued_samples:
                self._deadline.touch()
        elif isinstance(item, Ended):
            utterance = self._live.popleft()
            utterance.phase = RemotePhase.TERMINATED
            self._paused = self._paused and bool(self._live)
            if utterance.failure is not None:  # audio was delivered since the failure
                return utterance.ended_event(Outcome.ERROR, utterance.failure.code.value, utterance.failure)
            return utterance.at_playback(item)
        return item

    async def wait(self) -> None:
        self._wakeup.clear()
        await self._wakeup.wait()
