"""One WebRTC peer: a session's sound on an audio track, the worker's protocol on a data channel.

The track's own clock pulls the sound frame by frame, so hardly any of it is ever under way when a STOP comes. Owns the
connection from the offer to its end, whichever side ends it, and however: a peer that never connects, vanishes or does
not read is let go. It must not know HTTP or how many peers there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
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
from tts_worker.session.hub import SessionHub, SessionOptions
from tts_worker.session.machine import State
from tts_worker.session.session import LocalSession
from tts_worker.transports import wire
from tts_worker.transports.dialogue import Dialogue
from tts_worker.transports.webrtc_playout import FRAME_MS, Playout
from tts_worker.transports.webrtc_track import SpeechTrack
from tts_worker.types import Ended, Outcome, PcmFrame

log = logging.getLogger(__name__)

_MAX_BUFFERED_BYTES = 1_048_576
"""What may wait in the data channel for a peer that does not read."""

_MAX_MESSAGE_BYTES = 60_000
"""Every browser takes a data channel message of this size."""

_MAX_UNHEARD = 1_024
"""Messages that may wait to be handled."""

_LOOK_AFTER_S = 0.5


@dataclass(frozen=True, slots=True)
class IceServer:
    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """``connect_timeout_s``: from the answer to a connection; ``silence_timeout_s``: how long a connected peer may send
    no reports of what it receives."""

    connect_timeout_s: float = 15.0
    silence_timeout_s: float = 10.0
    max_message_chars: int = 16_000
    max_messages_per_s: float = 1_000.0
    ice_servers: tuple[IceServer, ...] = field(default=())


class Peer:
    """Build it with a session that was just admitted; ``on_end`` is called once, when everything is free."""

    def __init__(
        self, hub: SessionHub, session: LocalSession, limits: PeerLimits, on_end: Callable[[Peer], None]
    ) -> None:
        self._limits = limits
        self._on_end = on_end
        self._playout = Playout()
        self._dialogue = Dialogue(
            hub,
            session,
            max_message_chars=limits.max_message_chars,
            max_messages_per_s=limits.max_messages_per_s,
            shaped=for_a_track,
            on_stop=self._playout.clear,
        )
        self._channel: RTCDataChannel | None = None
        self._unheard: deque[str | bytes] = deque()
        self._track = SpeechTrack(self._pull)
        servers = [RTCIceServer(list(s.urls), s.username, s.credential) for s in limits.ice_servers]
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._connection.on("datachannel", self._on_channel)
        self._connection.on("connectionstatechange", self._on_state)
        self._connected = asyncio.Event()
        self._over = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def answer(self, sdp: str) -> str:
        """The answer to an offer; the peer then lives by itself. Raises InvalidRequest for an offer that cannot be
        answered; everything is free then."""
        try:
            description = await self._negotiate(sdp)
        except BaseException:
            await self._free()
            raise
        self._life = asyncio.create_task(self._live(), name=f"{self._dialogue.session.id}-peer")
        return description

    async def _negotiate(self, sdp: str) -> str:
        if "a=fingerprint:" not in sdp or "a=ice-ufrag:" not in sdp:
            raise InvalidRequest("the SDP needs a DTLS fingerprint and ICE credentials")
        connection = self._connection
        ours = connection.addTransceiver(self._track, direction="sendonly")
        opus = [codec for codec in RTCRtpSender.getCapabilities("audio").codecs if codec.mimeType == "audio/opus"]
        ours.setCodecPreferences(opus)
        try:
            await connection.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
            for transceiver in connection.getTransceivers():
                if transceiver is not ours:
                    transceiver.direction = "inactive"
            await connection.setLocalDescription(await connection.createAnswer())
        except Exception:  # the parser raises whatever it stumbles over
            raise InvalidRequest("the SDP cannot be understood, or its audio is not Opus") from None
        if connection.sctp is None or ours.currentDirection != "sendonly":
            raise InvalidRequest("the offer needs a data channel and audio that it takes (recvonly or sendrecv)")
        return str(connection.localDescription.sdp)

    def end(self) -> None:
        """Let the peer go; ``on_end`` follows."""
        self._over.set()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            with anyio.move_on_after(self._limits.connect_timeout_s) as patience:
                await self._connected.wait()
            if not patience.cancelled_caught:
                await self._look_after()
        except Exception as error:
            log.error("session %s: the peer failed", self._dialogue.session.id, exc_info=error)
        finally:
            await self._free()

    async def _look_after(self) -> None:
        """Until the peer has gone or its session was closed."""
        loop = asyncio.get_running_loop()
        last_report: object = None
        reported_s = loop.time()
        while not self._over.is_set() and self._dialogue.session.state is not State.CLOSED:
            report = await self._last_report()
            if report != last_report:
                last_report, reported_s = report, loop.time()
            if loop.time() - reported_s > self._limits.silence_timeout_s:
                return
            with anyio.move_on_after(_LOOK_AFTER_S):
                await self._over.wait()

    async def _last_report(self) -> object:
        """When the peer last said what it received (RTCP comes about every second); a closed tab says nothing."""
        for sender in self._connection.getSenders():
            for stats in (await sender.getStats()).values():
                if isinstance(stats, RTCRemoteInboundRtpStreamStats):
                    return stats.timestamp
        return None

    async def _free(self) -> None:
        self._dialogue.session.close("disconnected")
        self._dialogue.answers.clear()
        self._unheard.clear()
        self._track.stop()
        try:
            with anyio.CancelScope(shield=True), anyio.move_on_after(5.0):
                await self._connection.close()
        finally:
            self._on_end(self)

    def _on_state(self) -> None:
        state = self._connection.connectionState
        if state == "connected":
            self._connected.set()
        elif state in ("failed", "closed"):
            self._connected.set()
            self._over.set()

    # -- sound --------------------------------------------------------------------------------------------------------

    def _pull(self) -> bytes | None:
        """The next 20 ms for the track."""
        if self._dialogue.session.state is State.CLOSED:
            self.end()  # a drain, say
        self._advance()
        return self._playout.hold() if self._dialogue.session.state is State.PAUSED else self._playout.take()

    def _advance(self) -> None:
        """Take from the session what is needed soon, and pass on what it says on the way. In a pause it gives no sound,
        and what it says must not wait behind sound that does not move."""
        session = self._dialogue.session
        while (self._playout.hungry or session.state is State.PAUSED) and (item := session.poll()) is not None:
            if isinstance(item, PcmFrame):
                self._playout.push(item.pcm)
            else:
                if isinstance(item, Ended):
                    (self._playout.end if item.outcome is not Outcome.STOPPED else self._playout.clear)()
                self._send(self._dialogue.told(item))
        self._send_answers()

    # -- data channel -------------------------------------------------------------------------------------------------

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if self._channel is not None:
            return  # one conversation, one channel
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", self.end)
        self._advance()

    def _on_message(self, raw: str | bytes) -> None:
        """One message is handled in one turn of the event loop, however many come in one packet."""
        self._unheard.append(raw)
        if len(self._unheard) == 1:
            self._hear_next()
        elif len(self._unheard) > _MAX_UNHEARD:
            self.end()

    def _hear_next(self) -> None:
        if self._over.is_set():
            self._unheard.clear()
            return
        self._hear(self._unheard[0])
        self._unheard.popleft()
        if self._unheard:
            asyncio.get_running_loop().call_soon(self._hear_next)

    def _hear(self, raw: str | bytes) -> None:
        try:
            self._dialogue.hear(raw)
            self._advance()
        except RateLimited as error:
            self._send({"type": "rejected", "command": None, **wire.error_json(error.info)})
            self.end()
        except TTSWorkerError:  # it sends, and reads no answer
            self.end()
        if self._dialogue.closing:
            self.end()

    def _send_answers(self) -> None:
        while self._channel is not None and self._dialogue.answers:
            self._send(self._dialogue.answers.take())

    def _send(self, message: dict[str, Any]) -> None:
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return
        if channel.bufferedAmount > _MAX_BUFFERED_BYTES:
            self.end()
            return
        channel.send(wire.dumps(_fitting(message)))


def for_a_track(options: SessionOptions) -> SessionOptions:
    """The track pulls by its own clock, 20 ms at a time."""
    return replace(options, realtime=False, live=True, frame_ms=FRAME_MS, lead_ms=None)


def _fitting(message: dict[str, Any]) -> dict[str, Any]:
    """A receipt repeats text and words, which may be more than a data channel takes at once: the words were told as
    they came, and of the text its length is enough to find the place."""
    if len(wire.dumps(message).encode()) <= _MAX_MESSAGE_BYTES or "text_spoken" not in message:
        return message
    fitting = {**message, "words": [], "words_omitted": True}
    if len(wire.dumps(fitting).encode()) > _MAX_MESSAGE_BYTES:
        fitting |= {
            "text_spoken": "",
            "text_remaining": "",
            "text_omitted": True,
            "spoken_chars": len(message["text_spoken"]),
            "remaining_chars": len(message["text_remaining"]),
        }
    return fitting
