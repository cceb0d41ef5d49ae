"""``/v1/calls/{call}``: the protocol of ``/v1/stream``, whose audio is played in a telephone call.

The call confirms what it has played, which gives the positions of the session. STOP and PAUSE clear what the call has
not played; RESUME sends exactly that again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

from starlette.websockets import WebSocket

from tts_worker.callers import current_caller
from tts_worker.errors import InvalidRequest, TTSWorkerError
from tts_worker.features.telephony.calls import Call, CallDirectory
from tts_worker.features.telephony.playback import CallPlayback
from tts_worker.features.telephony.wire import CallerAudio, DigitPressed, MarkReturned, StreamEvent
from tts_worker.protocol.messages import CallMessage, DtmfMessage, WorkerMessage
from tts_worker.server.limits import ApiLimits
from tts_worker.server.websocket import StreamConnection
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import Encoding, PcmFrame, SessionOptions, State

RATE_HZ = 8_000
_MAX_UNPLAYED_S = 1.0
"""Unconfirmed audio beyond the lead at which the session waits: the network stalls, and a burst later is late audio."""

_MAX_MESSAGES = 256
"""Digits and frames of the caller's audio (5 s) that an agent may leave unread; the oldest are dropped."""


def call_options(options: SessionOptions, lead_ms: float) -> SessionOptions:
    """Adapt session options to a call.

    Raises:
        InvalidRequest: They choose another format, or no pacing.
    """
    if options.sample_rate not in (None, RATE_HZ) or options.encoding not in (None, Encoding.MULAW.value):
        raise InvalidRequest("sample_rate and encoding do not apply to a call: its format is mulaw at 8000 Hz")
    if not options.realtime or options.raw_chunks:
        raise InvalidRequest("realtime: false and raw_chunks do not apply to a call")
    lead_ms = lead_ms if options.lead_ms is None else options.lead_ms
    mulaw = Encoding.MULAW.value
    return replace(options, sample_rate=RATE_HZ, encoding=mulaw, frame_ms=20, lead_ms=lead_ms, reports_playback=True)


class CallStream(StreamConnection):
    """The agent's connection to a call.

    Args:
        websocket: The connection, not accepted yet.
        hub: Opens sessions that replace ``session``.
        session: An admitted session.
        options: Its options, from ``call_options``.
        limits: Limits on messages.
        directory: Where the call is found.
        name: Its name.
        lead_ms: Default of the playout lead.
        wants_audio: Pass the caller's audio on as binary messages.

    Raises:
        TTSWorkerError: The call cannot be joined; see ``CallDirectory.add_agent``.
    """

    def __init__(
        self,
        websocket: WebSocket,
        hub: SessionHub,
        session: LocalSession,
        options: SessionOptions,
        limits: ApiLimits,
        directory: CallDirectory,
        name: str,
        lead_ms: float,
        wants_audio: bool,
    ) -> None:
        super().__init__(websocket, hub, session, options, limits, lambda later: call_options(later, lead_ms))
        self.key = current_caller().key
        self._directory = directory
        self._name = name
        self._wants_audio = wants_audio
        self._max_unplayed_samples = int((_MAX_UNPLAYED_S + (options.lead_ms or 0) / 1000) * RATE_HZ)
        self._call: Call | None = None
        self._playback = CallPlayback(RATE_HZ)
        self._messages: deque[WorkerMessage] = deque(maxlen=_MAX_MESSAGES)
        self._caller_audio: deque[bytes] = deque(maxlen=_MAX_MESSAGES)
        self._last_message: CallMessage | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._follow()
        directory.add_agent(name, self)

    # -- CallAgent ----------------------------------------------------------------------------------------------------

    def join(self, call: Call) -> None:
        self._call = call
        started = call.started
        self._messages.append(
            CallMessage(
                state="joined",
                call=call.name,
                provider=call.wire.provider,
                stream=started.stream_id,
                encoding=started.encoding or None,
                parameters=started.parameters,
            )
        )
        self._follow()
        self._dialogue.session.wake()

    def receive(self, event: StreamEvent) -> None:
        self._follow()
        match event:
            case MarkReturned(name):
                self._confirm(self._playback.confirm(name))
            case DigitPressed(digit):
                self._messages.append(DtmfMessage(digit=digit))
                self._dialogue.session.wake()
            case CallerAudio(data) if self._wants_audio:
                self._caller_audio.append(data)
                self._dialogue.session.wake()

    def end(self, reason: str, error: TTSWorkerError | None = None) -> None:
        self._call = None
        self._last_message = CallMessage(state="ended", call=self._name, reason=reason)
        self._dialogue.session.close("call_ended", error)
        self._follow()

    # -- connection ---------------------------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        self._directory.remove_agent(self._name, self, hang_up=self._dialogue.closing)
        self._call = None
        super()._end(reason)
        self._follow()
        self._messages.clear()
        self._caller_audio.clear()

    def _receive(self, raw: str | bytes) -> None:
        self._follow()  # a timeout of the session may have stopped it
        super()._receive(raw)
        self._follow()

    def _poll(self) -> WorkerMessage | bytes | None:
        self._follow()
        while isinstance(item := self._dialogue.poll(), PcmFrame):
            self._play(item)
        if item is None and self._messages:
            return self._messages.popleft()
        if item is None and self._caller_audio:
            return self._caller_audio.popleft()
        if item is None and self._last_message is not None:
            last, self._last_message = self._last_message, None
            return last
        return item

    # -- audio --------------------------------------------------------------------------------------------------------

    def _play(self, frame: PcmFrame) -> None:
        if self._call is not None:
            self._playback.send(frame, self._call.play(frame.pcm), self._loop.time())
            self._follow()

    def _confirm(self, frame: PcmFrame | None) -> None:
        if frame is not None:
            self._dialogue.session.played(frame.start_sample + frame.samples, frame.key)
            self._follow()
            self._dialogue.session.wake()

    def _follow(self) -> None:
        """Make the call do what the state of the session says: play, wait, or be silent."""
        session = self._dialogue.session
        playback = self._playback
        must_clear = False
        if session.state is State.PAUSED:
            must_clear = not playback.is_held and playback.hold()
        elif session.state is not State.SPEAKING:
            must_clear = playback.drop()
        elif playback.is_held:
            for frame in playback.release():
                session.pacer.record_sent(frame.samples, self._loop.time())
                self._play(frame)
        if must_clear:
            session.pacer.drop()
            if self._call is not None:
                self._call.clear()
        session.pacer.is_blocked = self._call is None or playback.unplayed_samples > self._max_unplayed_samples
        self._arm()

    def _arm(self) -> None:
        """Keep a timer for marks that do not come."""
        overdue_at_s = self._playback.overdue_at_s
        if overdue_at_s is not None and self._timer is None:
            self._timer = self._loop.call_at(overdue_at_s, self._on_timer)
        elif overdue_at_s is None and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self._follow()
        self._confirm(self._playback.confirm_overdue(self._loop.time()))
        self._arm()
