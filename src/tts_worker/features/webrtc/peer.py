"""One WebRTC peer: a session's audio on a track, the worker's protocol on a data channel.

The track's clock pulls the audio frame by frame, so a STOP overtakes at most two frames. A peer that never connects,
disappears or does not read is closed after a timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import anyio
import msgspec
from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)
from aiortc.stats import RTCRemoteInboundRtpStreamStats

from tts_worker.errors import InvalidRequest, RateLimited, TTSWorkerError
from tts_worker.features.webrtc.message_queue import MessageQueue
from tts_worker.features.webrtc.playout import FRAME_MS, Playout
from tts_worker.features.webrtc.settings import WebRtcSettings
from tts_worker.features.webrtc.track import SpeechTrack
from tts_worker.protocol.dialogue import Dialogue
from tts_worker.protocol.json_codec import dumps, parse_client_message
from tts_worker.protocol.messages import RejectedMessage, ReportMessage, StoppedMessage, WorkerMessage
from tts_worker.server.limits import ApiLimits
from tts_worker.server.rates import MessageRate
from tts_worker.session.hub import SessionHub
from tts_worker.session.session import LocalSession
from tts_worker.types import SAMPLE_RATE_HZ, Encoding, PcmFrame, SessionOptions, State

log = logging.getLogger(__name__)

_MAX_BUFFERED_BYTES = 1_048_576
"""Bound on unsent data channel messages of a peer that does not read."""

_MAX_MESSAGE_BYTES = 60_000
"""Every browser accepts a data channel message of this size."""

CONNECT_TIMEOUT_S = 15.0
"""From the answer to the connection."""

SILENCE_TIMEOUT_S = 10.0
"""A connected peer without reports for this long is closed."""

_CHECK_INTERVAL_S = 0.5

_INCOMPLETE = "the offer needs a data channel and audio to receive (recvonly or sendrecv)"


class Peer:
    """A WebRTC connection with its session.

    Args:
        session: A session that was just admitted.
        options: Its options.
        settings: Timeouts, and STUN and TURN servers.
        limits: Limits on messages.
        on_end: Called once, after the peer has released everything.
    """

    def __init__(
        self,
        hub: SessionHub,
        session: LocalSession,
        options: SessionOptions,
        settings: WebRtcSettings,
        limits: ApiLimits,
        on_end: Callable[[Peer], None],
    ) -> None:
        self._hub = hub
        self._settings = settings
        self._on_end = on_end
        self._playout = Playout()
        self._rate = MessageRate(limits.max_messages_per_s)
        self._dialogue = Dialogue(
            hub,
            session,
            options,
            max_message_chars=limits.max_message_chars,
            adapt_options=track_options,
            on_stop=self._playout.clear,
        )
        self._channel: RTCDataChannel | None = None
        self._messages = MessageQueue(self._handle_message, hub.library.look_up, self.end)
        self._track = SpeechTrack(self._pull)
        servers = [
            RTCIceServer(list(s.urls), s.username, None if s.credential is None else s.credential.get_secret_value())
            for s in settings.ice_servers
        ]
        self._configuration = RTCConfiguration(iceServers=servers)
        self._connection: RTCPeerConnection | None = None
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def answer(self, sdp: str, turn: asyncio.Lock) -> str:
        """Answer an offer and start serving the peer in a task.

        Args:
            sdp: The offer.
            turn: Held meanwhile: peers that negotiate all at once delay the audio of all others.

        Returns:
            The SDP of the answer.

        Raises:
            InvalidRequest: The offer cannot be answered; everything is released.
        """
        try:
            async with turn:
                description = await self._negotiate(sdp)
        except BaseException:
            await self._release()
            raise
        self._task = asyncio.create_task(self._run(), name=f"{self._dialogue.session.id}-peer")
        return description

    async def _negotiate(self, sdp: str) -> str:
        if "a=fingerprint:" not in sdp or "a=ice-ufrag:" not in sdp:
            raise InvalidRequest("the SDP needs a DTLS fingerprint and ICE credentials")
        if "m=audio" not in sdp or "m=application" not in sdp:
            raise InvalidRequest(_INCOMPLETE)
        connection = await asyncio.to_thread(RTCPeerConnection, self._configuration)  # makes a key and a certificate
        self._connection = connection
        connection.on("datachannel", self._on_channel)
        connection.on("connectionstatechange", self._on_state)
        audio = connection.addTransceiver(self._track, direction="sendonly")
        opus = [codec for codec in RTCRtpSender.getCapabilities("audio").codecs if codec.mimeType == "audio/opus"]
        audio.setCodecPreferences(opus)
        try:
            await asyncio.sleep(0)  # each step takes milliseconds: others come between them
            await connection.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
            await asyncio.sleep(0)
            for transceiver in connection.getTransceivers():
                if transceiver is not audio:
                    transceiver.direction = "inactive"
            answer = await connection.createAnswer()
            await asyncio.sleep(0)
            await connection.setLocalDescription(answer)
        except Exception:  # aiortc's SDP parser raises arbitrary exceptions
            raise InvalidRequest("the SDP cannot be parsed, or its audio is not Opus") from None
        if connection.sctp is None or audio.currentDirection != "sendonly":
            raise InvalidRequest(_INCOMPLETE)
        return str(connection.localDescription.sdp)

    def end(self) -> None:
        """Close the peer; ``on_end`` follows."""
        self._messages.close()
        self._ended.set()

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            with anyio.move_on_after(CONNECT_TIMEOUT_S) as connect_scope:
                await self._connected.wait()
            if not connect_scope.cancelled_caught:
                await self._watch()
        except Exception as error:
            log.error("session %s: the peer failed", self._dialogue.session.id, exc_info=error)
        finally:
            await self._release()

    async def _watch(self) -> None:
        """Wait until the peer ends, its session is closed or its reports stop."""
        loop = asyncio.get_running_loop()
        last_report: object = None
        reported_s = loop.time()
        while not self._ended.is_set() and self._dialogue.session.state is not State.CLOSED:
            report = await self._last_report()
            if report != last_report:
                last_report = report
                reported_s = loop.time()
            if loop.time() - reported_s > SILENCE_TIMEOUT_S:
                return
            with anyio.move_on_after(_CHECK_INTERVAL_S):
                await self._ended.wait()

    async def _last_report(self) -> object:
        """Return the time of the last RTCP receiver report. A peer sends one about every second, a closed tab none."""
        assert self._connection is not None
        for sender in self._connection.getSenders():
            for stats in (await sender.getStats()).values():
                if isinstance(stats, RTCRemoteInboundRtpStreamStats):
                    return stats.timestamp
        return None

    async def _release(self) -> None:
        self.end()
        self._dialogue.session.close("disconnected")
        self._dialogue.replies.clear()
        self._messages.close()
        self._track.stop()
        try:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5.0):
                if self._connection is not None:
                    await self._connection.close()
        except Exception as error:  # aiortc's, if it has refused the offer half way
            log.warning("session %s: closing the peer failed (%s)", self._dialogue.session.id, type(error).__name__)
        finally:
            self._on_end(self)

    def _on_state(self) -> None:
        assert self._connection is not None
        state = self._connection.connectionState
        if state == "connected":
            self._connected.set()
        elif state in ("failed", "closed"):
            self._connected.set()
            self.end()

    # -- audio --------------------------------------------------------------------------------------------------------

    def _pull(self) -> bytes | None:
        """Return the next 20 ms for the track."""
        if self._dialogue.session.state is State.CLOSED:
            self.end()  # closed by a drain, for example
        self._advance()
        return self._playout.hold() if self._dialogue.session.state is State.PAUSED else self._playout.take()

    def _advance(self) -> None:
        """Move audio from the session to the playout and send the events between.

        A paused session returns no audio, so its events are sent even while the playout is full.
        """
        dialogue = self._dialogue
        if self._channel is None:
            return  # messages wait for the channel, and no text can arrive without it
        while self._playout.has_capacity or dialogue.replies or dialogue.session.state is State.PAUSED:
            item = dialogue.poll()
            if item is None:
                return
            if isinstance(item, PcmFrame):
                self._playout.push(item.pcm)
                continue
            if isinstance(item, ReportMessage):
                (self._playout.clear if isinstance(item, StoppedMessage) else self._playout.end)()
            self._send(item)

    # -- data channel -------------------------------------------------------------------------------------------------

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if self._channel is not None:
            return  # one data channel per session
        self._channel = channel
        channel.on("message", self._messages.put)
        channel.on("close", self.end)
        self._advance()

    def _handle_message(self, raw: str | bytes) -> None:
        try:
            self._rate.count(len(raw), asyncio.get_running_loop().time())
            self._dialogue.receive(raw, parse_client_message)
            self._advance()
        except RateLimited as error:
            self._send(RejectedMessage.of(error.info))
            self.end()
        except TTSWorkerError:  # SendTimeout: the peer sends, but reads no replies
            self.end()
        if self._dialogue.closing:
            self.end()

    def _send(self, message: WorkerMessage) -> None:
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return
        if channel.bufferedAmount > _MAX_BUFFERED_BYTES:
            self.end()
            return
        channel.send(_encode(message))


def track_options(options: SessionOptions) -> SessionOptions:
    """Adapt session options to a track, which pulls 20 ms at a time by its own clock.

    Raises:
        InvalidRequest: They choose a format: that of a track is negotiated.
    """
    if options.sample_rate not in (None, SAMPLE_RATE_HZ) or options.encoding not in (None, Encoding.PCM.value):
        raise InvalidRequest("sample_rate and encoding do not apply to WebRTC: its track negotiates the format")
    return replace(options, realtime=False, own_clock=True, raw_chunks=False, frame_ms=FRAME_MS, lead_ms=None)


def _encode(message: WorkerMessage) -> str:
    """Encode a message; fit a playback report into a data channel message.

    Drops the words first, and what was skipped before them, which were already sent one by one, then replaces the texts
    by their lengths, which locate the position in the client's own text.
    """
    encoded = dumps(message)
    if len(encoded.encode()) <= _MAX_MESSAGE_BYTES or not isinstance(message, ReportMessage):
        return encoded
    fields = {**msgspec.to_builtins(message), "words": [], "skipped": [], "words_omitted": True}
    encoded = dumps(fields)
    if len(encoded.encode()) <= _MAX_MESSAGE_BYTES:
        return encoded
    lengths = {"spoken_chars": len(message.text_spoken), "remaining_chars": len(message.text_remaining)}
    return dumps({**fields, "text_spoken": "", "text_remaining": "", "text_omitted": True, **lengths})
