"""Deepgram's Flux: the WebSocket ``/v2/speak``, with turns, interruptions that report what was heard, and speeds.

The protocol is that of Deepgram's public documentation and its Python SDK 7.17. It differs in three points. An
``Interrupt`` also reports on a turn that was sent whole while the client still plays it, which is the rule here: audio
is sent as fast as it is generated. One that precedes all audio cancels its turn, too. A turn with nothing to say
("...") has 100 ms of silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from types import MappingProxyType
from typing import Literal

from pydantic import Field, FiniteFloat
from starlette.websockets import WebSocket

from tts_worker.errors import ErrorCode, ErrorInfo
from tts_worker.features.compat import deepgram
from tts_worker.features.compat.context_socket import ContextSocket, Message
from tts_worker.features.compat.turns import Turn, TurnProtocol
from tts_worker.features.compat.vendor_requests import within_speeds
from tts_worker.logs import current_request_id
from tts_worker.server.limits import ApiLimits
from tts_worker.server.routing import Routes
from tts_worker.server.validation import Fields, validate
from tts_worker.session.hub import SessionHub
from tts_worker.text.spoken_words import cut_at
from tts_worker.types import SessionOptions

_MAX_PAST = 8
"""Turns that were sent whole to remember: the client may still play them."""

_STEP = 0.05
_NO_CONTROLS = MappingProxyType({"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0})
_ERROR_CODES = MappingProxyType({ErrorCode.INVALID_REQUEST: "MESSAGE-0000", ErrorCode.TEXT_TOO_LONG: "BIG-0000"})
"""The vendor's codes; ``NET-0000`` stands for all others."""


class Query(deepgram.Query):
    """Query parameters of the WebSocket."""

    model: str = Field(max_length=128)


class Offset(Fields):
    """A position in the audio of the connection."""

    type: Literal["time_ms"] = "time_ms"
    value: int = Field(ge=0)


class Command(Fields):
    """A message."""

    type: Literal["Speak", "Flush", "Interrupt", "Configure", "Close"]
    text: str = ""
    playback_offset: Offset | None = None
    speed: FiniteFloat | None = None


class _FluxProtocol(TurnProtocol):
    """The messages of one connection. Positions are samples of the audio that the client has or may have played."""

    def __init__(self, socket: ContextSocket, hub: SessionHub, query: Query, options: SessionOptions) -> None:
        super().__init__(socket, options, query.open_encoder)
        self._hub = hub
        self._past: deque[tuple[int, Turn]] = deque(maxlen=_MAX_PAST)  # with the positions at which they begin
        self._begin = 0  # of the turn that is being spoken
        self._interrupted_ms = -1
        self._chars = 0
        model = {"model_name": query.model, "model_version": deepgram.MODEL_VERSION, "model_uuids": [query.model]}
        socket.reply({"type": "Connected", "request_id": current_request_id(), **model})

    def handle_message(self, data: Message) -> None:
        message = validate(Command, data)
        if self._socket.finishing:
            return
        match message.type:
            case "Speak":
                self.speak(message.text)
            case "Flush" if self.writing is None:
                self._warn("NO_ACTIVE_SPEECH", "there is no turn to flush")
            case "Flush":
                self.flush()
            case "Interrupt":
                self._interrupt(None if message.playback_offset is None else message.playback_offset.value)
            case "Configure":
                self._configure(message.speed)
            case "Close":
                if self.writing is not None:
                    self.flush()
                self._socket.finish(self._session_metadata)

    # -- the audio ----------------------------------------------------------------------------------------------------

    def started(self, turn: Turn) -> Iterator[Message]:
        yield {"type": "SpeechStarted", "speech_id": _id(turn)}

    def ended(self, turn: Turn) -> Iterator[Message]:
        self._past.append((self._begin, turn))
        self._begin += turn.samples
        self._chars += len(turn.text)
        if not turn.samples:
            yield _warning("NO_SYNTHESIZABLE_TEXT", "the turn has nothing that can be spoken")
        if turn.flushes:
            yield {"type": "Flushed", "speech_id": _id(turn)}
        yield {"type": "SpeechMetadata", **self._metadata(turn)}
        for _ in range(turn.flushes - 1):  # many were queued, and this one holds the text of all: each flush has a turn
            empty = Turn(turn.encoder)
            yield from self.started(empty)
            yield {"type": "Flushed", "speech_id": _id(empty)}
            yield {"type": "SpeechMetadata", **self._metadata(empty)}

    # -- control ------------------------------------------------------------------------------------------------------

    def _interrupt(self, offset_ms: int | None) -> None:
        """End the turns, and report how much of the one that is being played was heard."""
        if offset_ms is not None and offset_ms <= self._interrupted_ms:
            self._warn("INVALID_INTERRUPT_OFFSET", "playback_offset must exceed that of the interruption before")
            return
        speaking = self.stop()
        sent = self._begin + (speaking[0].samples if speaking else 0)
        if not sent:
            self._warn("NO_AUDIO_GENERATED", "there was no audio yet; the turn is canceled")
            return
        played = sent if offset_ms is None else min(sent, round(offset_ms * self.rate_hz / 1_000))
        unheard = [
            (begin, turn) for begin, turn in self._past if offset_ms is not None and begin + turn.samples > played
        ]
        unheard += zip([self._begin, *[sent] * len(speaking)], speaking, strict=False)
        if not unheard:
            self._warn("NO_ACTIVE_SPEECH", "all turns were played")
            return
        (begin, turn), *later = unheard
        spoken = _spoken(turn, played - begin)
        remaining = "".join((turn.text[len(spoken) :], *(one.text for _, one in later)))
        self._chars += sum(len(one.text) for one in speaking)
        self._past.clear()
        self._begin = played
        self._interrupted_ms = self._ms(played) if offset_ms is None else offset_ms
        text = {} if offset_ms is None else {"text_spoken": spoken, "text_remaining": remaining}
        metadata = {"metadata": self._metadata(turn)}
        self._socket.reply({"type": "SpeechInterrupted", "audio_played_ms": self._interrupted_ms, **text, **metadata})

    def _configure(self, speed: float | None) -> None:
        """Set the speed of the text that follows."""
        if speed is not None:
            slowest, fastest = deepgram.SPEEDS
            rejected = {"field": "speed", "value": speed}
            if not slowest <= speed <= fastest:
                self._refuse("SPEED_OUT_OF_RANGE", f"speed must be between {slowest} and {fastest}", rejected)
                return
            if abs(speed / _STEP - round(speed / _STEP)) > 1e-6:
                self._refuse("SPEED_INCREMENT_INVALID", f"speed must be a multiple of {_STEP}", rejected)
                return
            options = within_speeds(self._hub, SessionOptions(voice=self.options.voice, speed=speed))
            if options.speed == 1.0 != speed:
                self._refuse("SPEED_NOT_SUPPORTED", "the voice has one speed", {"field": "speed"})
                return
            self.set_speed(options.speed)
        self._socket.reply({"type": "ConfigureSuccess", "applied": {"speed": self.options.speed}})

    def _refuse(self, code: str, description: str, fields: Message) -> None:
        self._socket.reply({"type": "ConfigureFailure", "code": code, **fields, "description": description})

    def _warn(self, code: str, description: str) -> None:
        self._socket.reply(_warning(code, description))

    # -- messages -----------------------------------------------------------------------------------------------------

    def error(self, error: ErrorInfo, context: str | None) -> Message:
        return {"type": "Error", "code": _ERROR_CODES.get(error.code, "NET-0000"), "description": error.message}

    def is_fatal(self, error: ErrorInfo) -> bool:
        return True

    def _metadata(self, turn: Turn) -> Message:
        chars = len(turn.text)
        counts = {"input_character_count": chars, "billable_character_count": chars}
        duration_ms = self._ms(turn.samples)
        controls = {"controls_applied": dict(_NO_CONTROLS)}
        return {"speech_id": _id(turn), "audio_duration_ms": duration_ms, **counts, **controls}

    def _session_metadata(self) -> Message:
        counts = {"total_input_character_count": self._chars, "total_billable_character_count": self._chars}
        return {"type": "SessionMetadata", "total_audio_duration_ms": self._ms(self._begin), **counts}

    def _ms(self, samples: int) -> int:
        return round(1_000 * samples / self.rate_hz)


def _id(turn: Turn) -> str:
    return f"dg_sp_{turn.id}"


def _warning(code: str, description: str) -> Message:
    return {"type": "Warning", "code": code, "description": description}


def _spoken(turn: Turn, played: int) -> str:
    """Return the text of a turn that was heard when so many of its samples were played."""
    spoken = ""
    for report in turn.reports:
        heard = cut_at(report, played, fully_played=played >= report.samples_sent)
        spoken += heard.text_spoken
        if heard.text_remaining:
            break
        played -= report.samples_sent
    return spoken


def router(hub: SessionHub, limits: ApiLimits) -> Routes:
    """Return the WebSocket."""
    routes = Routes(tag="Deepgram")

    @routes.websocket("/v2/speak", "Text to speech for Deepgram Flux clients, turn after turn")
    async def speak(websocket: WebSocket) -> None:
        if (parsed := await deepgram.parse_handshake(websocket, hub, Query)) is not None:
            query, options = parsed
            make_protocol = partial(_FluxProtocol, hub=hub, query=query, options=options)
            await ContextSocket(websocket, hub, limits, make_protocol).run()

    return routes
