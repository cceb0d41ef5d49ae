"""A session on a worker elsewhere, the same to its user as ``session.LocalSession``.

Owns what must not differ between transports: commands return at once, no frame of an old utterance comes out after
``stop`` nor any while paused, every utterance ends with exactly one ``Ended`` whatever happens to the worker or the
way to it, and sound that is owed has a deadline. A ``Link`` carries the messages; this file knows no socket and no
format. A transport calls the ``on_...`` methods, in the order in which the worker spoke, on the session's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from tts_worker.client.deadline import SoundDeadline
from tts_worker.client.ledger import Ledger
from tts_worker.client.link import Link, RemoteConfig
from tts_worker.errors import (
    DeadlineExceeded,
    ErrorInfo,
    IllegalCommand,
    SessionClosed,
)
from tts_worker.session.machine import State
from tts_worker.types import (
    Acknowledged,
    ControlName,
    Ended,
    Outcome,
    Output,
    PcmFrame,
    Receipt,
    Started,
    SynthesisParams,
    UtteranceKey,
    Word,
    Words,
)


class RemoteSession:
    """See the module. Build it on the event loop, once the worker has admitted it."""

    def __init__(self, link: Link, config: RemoteConfig) -> None:
        self.id = config.session
        self.sample_rate_hz = config.sample_rate_hz
        self._link = link
        self._config = config
        self._params = config.params
        self._configured = config.params  # what the worker knows
        self._generation = 0
        self._live: deque[Ledger] = deque()  # not ended for the listener; the head is the one being heard
        self._by_context: dict[str, Ledger] = {}  # not ended for the worker
        self._sounding: Ledger | None = None  # whose sound comes now
        self._awaited: deque[ControlName] = deque()  # commands that the worker has not acknowledged
        self._notices: deque[Output] = deque()  # these overtake sound
        self._queue: deque[Output] = deque()  # in order with the sound
        self._paused = False
        self._closed = False
        self._lost = False
        self._healthy = True
        self._queued_samples = 0
        self._wakeup = asyncio.Event()
        self._room = asyncio.Event()
        self._deadline = SoundDeadline(config.audio_timeout_s, self._owed, self._on_deadline)

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
        """The utterance that takes text."""
        ledger = self._open_ledger()
        return ledger.key if ledger is not None else None

    @property
    def buffered_samples(self) -> int:
        """Sound that came and was not taken yet."""
        return self._queued_samples

    def speak(self, text: str | bytes) -> UtteranceKey:
        self._require_open()
        ledger = self._open_ledger() or self._begin()
        self._link.text(ledger.context, ledger.write(text))
        return ledger.key

    def flush(self) -> None:
        self._require_open()
        if self._open_ledger() is not None:
            self._link.flush()

    def end_text(self) -> None:
        self._require_open()
        ledger = self._open_ledger()
        if ledger is None:
            raise IllegalCommand("there is no utterance to end: send text first")
        rest = ledger.end_text()
        if rest:
            self._link.text(ledger.context, rest)
        self._link.end_text(ledger.context)
        self._deadline.touch()

    def pause(self) -> None:
        self._require_open()
        applied = self.state is State.SPEAKING
        if applied:
            self._paused = True
            self._awaited.append(ControlName.PAUSE)
            self._link.pause()
            self._changed()
        else:
            self._acknowledge(ControlName.PAUSE, applied=False)

    def resume(self) -> None:
        self._require_open()
        applied = self.state is State.PAUSED
        if applied:
            self._paused = False
            self._awaited.append(ControlName.RESUME)
            self._link.resume()
            self._deadline.touch()
            self._changed()
        else:
            self._acknowledge(ControlName.RESUME, applied=False)

    def stop(self, reason: str = "stop", played_samples: int | None = None) -> None:
        self._require_open()
        if not self._live:
            self._acknowledge(ControlName.STOP, applied=False)
            return
        if played_samples is not None:
            self._live[0].heard(played_samples)
        self._stop(reason)
        self._changed()

    def played(self, samples: int) -> None:
        if self._live:
            self._live[0].heard(samples)
            if not self._live[0].ended:
                self._link.played(samples)

    def configure(self, params: SynthesisParams) -> None:
        self._require_open()
        self._params = params

    def close(self, reason: str = "closed") -> None:
        if self._closed:
            return
        self._stop(reason)
        self._closed = True
        for ledger in self._by_context.values():  # nobody waits for the worker's receipts any more
            self._tell(ledger, Outcome.STOPPED, ledger.stopping or reason)
        self._settle()
        self._changed()

    # -- how commands do it -------------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            lost = "the connection to the worker was lost: open another session"
            raise SessionClosed(lost if self._lost else "the session is closed")

    def _open_ledger(self) -> Ledger | None:
        if self._live and not self._live[-1].text_ended and not self._live[-1].ended:
            return self._live[-1]
        return None

    def _begin(self) -> Ledger:
        if self._params != self._configured:
            self._link.configure(self._params)
            self._configured = self._params
        self._generation += 1
        key = UtteranceKey(self.id, self._generation)
        ledger = Ledger(key, f"{self._config.context_prefix}{self._generation}")
        self._live.append(ledger)
        self._by_context[ledger.context] = ledger
        return ledger

    def _stop(self, reason: str) -> None:
        """Forget all sound. The worker's receipt is waited for where it will send one."""
        if any(not ledger.ended for ledger in self._live):
            head = self._live[0]
            heard = head.taken_samples if head.played_samples is None else head.played_samples
            # What was sent and dropped here was not heard. The head of the worker may be another one already.
            self._link.stop(reason, 0 if head.ended else heard)
        self._drop_sound()
        for ledger in self._live:
            ledger.stopping = reason
            if ledger.ended:
                self._tell(ledger, Outcome.STOPPED, reason)
        self._live.clear()
        self._paused = False

    def _drop_sound(self, ledger: Ledger | None = None) -> None:
        """Forget what was not taken, of one utterance or all."""
        dropped = [item for item in self._queue if ledger is None or item.key == ledger.key]
        self._notices.extend(item for item in dropped if isinstance(item, Started))
        self._queue = deque(item for item in self._queue if ledger is not None and item.key != ledger.key)
        self._queued_samples = sum(item.samples for item in self._queue if isinstance(item, PcmFrame))

    def _tell(self, ledger: Ledger, outcome: Outcome, reason: str, error: ErrorInfo | None = None) -> None:
        """The one terminal event, from what is known here. Overtakes sound."""
        if not ledger.told:
            ledger.told = True
            self._notices.append(ledger.ending(outcome, reason, error))

    def _fail(self, error: ErrorInfo) -> None:
        """End everything with an error. What came of an utterance that is being heard is still heard."""
        for ledger in self._live:
            if ledger.ended and not self._paused:
                continue
            if ledger.taken_samples == 0 or self._paused:
                self._drop_sound(ledger)
            ledger.ended = True
            ledger.failure = error
            self._queue.append(ledger.ending(Outcome.ERROR, error.code.value, error))
        self._paused = False

    def _acknowledge(self, command: ControlName, applied: bool) -> None:
        head = self._live[0] if self._live else None
        position = head.taken_samples if head is not None else 0
        self._notices.append(Acknowledged(command, applied, head.key if head is not None else None, position))
        self._changed()

    def _changed(self) -> None:
        self._wakeup.set()
        self._room.set()

    def _settle(self) -> None:
        """Give the connection back once the worker has answered everything, or will not be believed any more."""
        if self._closed and not self._lost and not (self._healthy and (self._by_context or self._awaited)):
            self._lost = True  # nothing that comes now is for this session
            self._deadline.cancel()
            self._link.settled(healthy=self._healthy)

    # -- the deadline -------------------------------------------------------------------------------------------------

    def _owed(self) -> bool:
        """Whether the worker has all it needs and nothing of it is here."""
        if self._paused or self._queued_samples:
            return False
        return any(ledger.text_ended and not ledger.ended for ledger in self._live)

    def _on_deadline(self) -> None:
        self._healthy = False
        self._link.stop("deadline", self._live[0].taken_samples)
        self._fail(DeadlineExceeded(f"the worker sent no sound for {self._deadline.timeout_s:g} s").info)
        self._changed()

    # -- what the worker says -----------------------------------------------------------------------------------------

    async def room(self) -> None:
        """Until more may be read for this session: a listener that does not listen slows the worker down. While an
        answer is awaited everything is read, so that a command never waits behind sound."""
        while not (
            self._queued_samples < self._config.read_ahead_s * self.sample_rate_hz
            or self._awaited
            or self._paused
            or self._closed
            or any(ledger.stopping for ledger in self._by_context.values())
        ):
            self._room.clear()
            await self._room.wait()

    def on_started(self, context: str, params: SynthesisParams) -> None:
        """The sound and words that follow are this utterance's. One that is not known here is somebody else's."""
        self._sounding = ledger = self._by_context.get(context)
        if ledger is not None and not ledger.told:
            started = Started(ledger.key, params)
            if ledger.stopping is not None:
                self._notices.append(started)
            elif not ledger.ended:
                self._queue.append(started)
            self._changed()

    def on_words(self, words: tuple[Word, ...]) -> None:
        """Word times of the utterance that sounds, before the sound in which they begin."""
        ledger = self._heard_now()
        if ledger is not None:
            ledger.words.extend(words)
            self._queue.append(Words(ledger.key, words))
            self._changed()

    def on_audio(self, pcm: bytes) -> None:
        """The next sound of the utterance that sounds, s16le mono."""
        ledger = self._heard_now()
        if ledger is not None and pcm:
            frame = ledger.frame(pcm)
            self._queue.append(frame)
            self._queued_samples += frame.samples
            self._changed()

    def _heard_now(self) -> Ledger | None:
        self._deadline.touch()
        ledger = self._sounding
        if ledger is None or ledger.ended or ledger.told or ledger.stopping is not None:
            return None  # made before the worker heard of a STOP
        return ledger

    def on_acknowledged(self, command: ControlName) -> None:
        """PAUSE or RESUME has reached the worker. Position and effect are those on this side."""
        if self._awaited and self._awaited[0] is command:
            self._awaited.popleft()
            if not self._closed:
                self._acknowledge(command, applied=True)
        self._settle()

    def on_ended(self, context: str, outcome: Outcome, receipt: Receipt, error: ErrorInfo | None) -> None:
        """The worker's last word on an utterance."""
        ledger = self._by_context.pop(context, None)
        if ledger is not None and not ledger.told and not ledger.ended:
            if ledger.stopping is not None:
                receipt = ledger.settle(replace(receipt, reason=ledger.stopping), dropped=True)
                ledger.told = True
                self._notices.append(Ended(ledger.key, Outcome.STOPPED, receipt))
            else:
                self._end(ledger, outcome, receipt, error)
            self._deadline.touch()
        self._settle()
        self._changed()

    def _end(self, ledger: Ledger, outcome: Outcome, receipt: Receipt, error: ErrorInfo | None) -> None:
        # Stopped by the worker (a pause too long, a drain), or failed before anything was heard: told at once.
        dropped = outcome is Outcome.STOPPED or (outcome is Outcome.ERROR and ledger.taken_samples == 0)
        ended = Ended(ledger.key, outcome, ledger.settle(receipt, dropped=dropped), error)
        ledger.ended = True
        if dropped:
            self._drop_sound(ledger)
            ledger.told = True
            self._notices.append(ended)
            self._live.remove(ledger)
            self._paused = self._paused and bool(self._live)
        else:
            self._queue.append(ended)

    def on_rejected(self, error: ErrorInfo) -> None:
        """The worker did not take something: what was being said is no longer what was asked for."""
        self._healthy = False
        if not self._closed:
            self._link.stop("rejected", 0)
            self._fail(error)
        self._settle()
        self._changed()

    def on_lost(self, error: ErrorInfo) -> None:
        """The worker or the way to it is gone."""
        if self._lost:
            return
        self._closed = self._lost = True
        self._deadline.cancel()
        for ledger in self._by_context.values():
            if ledger.stopping is not None:
                self._tell(ledger, Outcome.STOPPED, ledger.stopping)
        self._by_context.clear()
        self._awaited.clear()
        self._fail(error)
        self._changed()

    # -- the way out --------------------------------------------------------------------------------------------------

    def poll(self) -> Output | None:
        if self._notices:
            return self._notices.popleft()
        if not self._queue or (self._paused and isinstance(self._queue[0], PcmFrame | Words)):
            return None
        item = self._queue.popleft()
        if isinstance(item, PcmFrame):
            self._queued_samples -= item.samples
            self._live[0].taken_samples += item.samples
            self._room.set()
            if not self._queued_samples:
                self._deadline.touch()
        elif isinstance(item, Ended):
            ledger = self._live.popleft()
            ledger.told = True
            self._paused = self._paused and bool(self._live)
            if ledger.failure is not None:  # sound was taken since it failed
                return ledger.ending(Outcome.ERROR, ledger.failure.code.value, ledger.failure)
        return item

    async def next(self) -> Output | None:
        while True:
            item = self.poll()
            if item is not None or self._closed:
                return item
            self._wakeup.clear()
            await self._wakeup.wait()

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (item := await self.next()) is not None:
            yield item
