"""Turns that follow each other on one WebSocket, as the protocols of Deepgram, vLLM-Omni and jambonz have them.

Their audio is binary, and a connection has one voice. The turns that are queued share a session; between turns the
connection holds none, so that an idle client takes no place.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from tts_worker.audio.encoders import Encoder
from tts_worker.errors import RemoteError
from tts_worker.features.compat.context_socket import ContextSocket, Message, SpeechContext, VendorProtocol, WireMessage
from tts_worker.server.rendering import failure, is_quiet_turn, quiet_turn
from tts_worker.session.session import LocalSession
from tts_worker.types import (
    BYTES_PER_SAMPLE,
    SAMPLE_RATE_HZ,
    Ended,
    Output,
    PcmFrame,
    Receipt,
    SessionOptions,
    State,
    UtteranceKey,
)

_MAX_TURNS = 8
"""Queued turns of a connection. A flush beyond that ends no turn yet: text that follows joins it."""

_CONTEXT = ""
"""Name of the only context of a connection."""


@dataclass(slots=True, eq=False)
class Turn:
    """A turn. It is one utterance, or more if its parameters change meanwhile.

    Attributes:
        id: Random.
        encoder: Encodes its audio.
        text: Its text so far.
        flushes: Messages that wanted it spoken to its end.
        is_complete: Its text is complete.
        is_due: It is complete as soon as fewer turns are queued.
        is_quiet: It has nothing to say.
        is_ended: It was spoken; its last audio is being sent.
        samples: Audio sent, at the sample rate of the connection.
        reports: The playback reports of its utterances that have ended.
    """

    encoder: Encoder
    id: str = field(default_factory=partial(secrets.token_hex, 6))
    text: str = ""
    flushes: int = 0
    is_complete: bool = False
    is_due: bool = False
    is_quiet: bool = False
    is_ended: bool = False
    samples: int = 0
    reports: list[Receipt] = field(default_factory=list)


class TurnProtocol(VendorProtocol):
    """A protocol whose turns follow each other. Subclasses handle messages by its methods, and encode in the hooks.

    Args:
        socket: The connection.
        options: Options of its sessions.
        open_encoder: Opens an encoder for the audio of one turn.

    Attributes:
        options: Options of the next session.
        open_encoder: Opens the encoders of later turns.
    """

    def __init__(self, socket: ContextSocket, options: SessionOptions, open_encoder: Callable[[], Encoder]) -> None:
        self.options = options
        self.open_encoder = open_encoder
        self._socket = socket

    @property
    def rate_hz(self) -> int:
        """Sample rate of the audio."""
        return self.options.sample_rate or SAMPLE_RATE_HZ

    # -- hooks --------------------------------------------------------------------------------------------------------

    def started(self, turn: Turn) -> Iterable[WireMessage]:
        """Encode the start of a turn, which precedes its audio."""
        return ()

    def audio(self, turn: Turn, data: bytes) -> Iterable[WireMessage]:
        """Encode audio."""
        return (data,)

    @abstractmethod
    def ended(self, turn: Turn) -> Iterable[WireMessage]:
        """Encode the end of a turn, which follows its audio."""

    # -- for the subclass ---------------------------------------------------------------------------------------------

    def context_of(self, data: Message) -> str | None:
        """No message names the context: an error of one does not end the turn."""
        return None

    @property
    def turns(self) -> deque[Turn]:
        """The turns whose audio was not sent whole; the first one is being spoken."""
        encoder = self._encoder
        return deque() if encoder is None else encoder.turns

    @property
    def writing(self) -> Turn | None:
        """The turn that takes text."""
        turns = self.turns
        return turns[-1] if turns and not turns[-1].is_complete else None

    def speak(self, text: str) -> None:
        """Add text to the turn that takes some, or begin one.

        Raises:
            TextTooLong: The message or the turn is too long.
            IllegalCommand: Too many turns are queued.
        """
        self._socket.check_text(text)
        context = self._context()
        encoder = _encoder_of(context)
        turn = self.writing
        is_new = turn is None
        if turn is None:
            turn = Turn(self.open_encoder())
        context.run_command(lambda session: encoder.write(session, turn, text))
        turn.text += text
        turn.is_due = False
        if is_new:
            encoder.turns.append(turn)

    def flush(self) -> Turn | None:
        """End the turn that takes text, and return it; without one the last of those that are queued, if any."""
        turns = self.turns
        if not turns or turns[-1].is_ended:
            return None
        turn = turns[-1]
        turn.flushes += 1
        if not turn.is_complete:
            turn.is_complete = len(turns) <= _MAX_TURNS
            turn.is_due = not turn.is_complete
            self._context().run_command(_end_text if turn.is_complete else LocalSession.flush)
        return turn

    async def until_ended(self) -> None:
        """Wait until the queued turns have ended."""
        if (context := self._socket.contexts.get(_CONTEXT)) is not None:
            await context.ended.wait()

    def stop(self) -> list[Turn]:
        """End all turns at once, free the session, and return them with their reports."""
        encoder = self._encoder
        if encoder is None:
            return []
        session = self._socket.contexts[_CONTEXT].session
        if session is not None and session.state is not State.CLOSED:
            session.stop("interrupted")
            encoder.note_ends(session)
        self._socket.drop(_CONTEXT, "interrupted")
        turns = list(encoder.turns)
        encoder.turns.clear()
        return turns

    def set_speed(self, speed: float) -> None:
        """Set the speed of the text that follows, also of that of a turn that has begun."""
        self.options = replace(self.options, speed=speed)
        encoder, turn = self._encoder, self.writing
        if encoder is not None:
            self._context().run_command(lambda session: encoder.set_speed(session, turn, speed))

    # -- the context --------------------------------------------------------------------------------------------------

    @property
    def _encoder(self) -> _TurnEncoder | None:
        context = self._socket.contexts.get(_CONTEXT)
        encoder = None if context is None else _encoder_of(context)
        return None if encoder is None or encoder.finished else encoder

    def _context(self) -> SpeechContext:
        if self._encoder is not None:
            return self._socket.contexts[_CONTEXT]
        return self._socket.open(_CONTEXT, self.options, _TurnEncoder(self))


class _TurnEncoder:
    """Writes the turns of a session, and encodes what it returns. The context ends with the last queued turn."""

    def __init__(self, protocol: TurnProtocol) -> None:
        self.finished = False
        self.turns: deque[Turn] = deque()
        self._protocol = protocol
        self._utterances: deque[tuple[UtteranceKey, Turn]] = deque()  # not yet ended
        self._started: Turn | None = None
        self._session: LocalSession | None = None

    def write(self, session: LocalSession, turn: Turn, text: str) -> None:
        """Write text of a turn. Raises the errors of ``LocalSession.speak``."""
        self._session = session
        key = session.speak(text)
        if not self._utterances or self._utterances[-1][0] != key:
            self._utterances.append((key, turn))

    def set_speed(self, session: LocalSession, turn: Turn | None, speed: float) -> None:
        """Set the speed of the text that follows; an open turn goes on with another utterance."""
        _end_text(session)
        session.configure(replace(session.params, speed=speed))
        if turn is not None:
            self.write(session, turn, "")  # so that the turn does not end with the one before

    def note_ends(self, session: LocalSession) -> None:
        """Take the reports of a session that was stopped, also of an utterance whose last frame is being sent."""
        while (item := session.poll()) is not None:
            if isinstance(item, Ended):
                self._utterances.popleft()[1].reports.append(item.receipt)

    def messages(self, item: Output) -> Iterator[WireMessage]:
        if isinstance(item, PcmFrame):
            yield from self._audio(self._utterances[0][1], item.pcm)
        elif isinstance(item, Ended):
            yield from self._ended(item)

    def _audio(self, turn: Turn, pcm: bytes) -> Iterator[WireMessage]:
        turn.samples += len(pcm) // BYTES_PER_SAMPLE
        yield from self._start(turn)
        if data := turn.encoder.encode(pcm):
            yield from self._protocol.audio(turn, data)

    def _start(self, turn: Turn) -> Iterable[WireMessage]:
        if self._started is turn:
            return ()
        self._started = turn
        return self._protocol.started(turn)

    def _ended(self, ended: Ended) -> Iterator[WireMessage]:
        _, turn = self._utterances.popleft()
        turn.reports.append(ended.receipt)
        turn.is_quiet |= is_quiet_turn(ended)
        if (error := failure(ended)) is not None:
            self.finished = True
            raise RemoteError(error)
        if self._utterances and self._utterances[0][1] is turn:
            return
        turn.is_complete = turn.is_ended = True
        if self.turns[-1].is_due and self._session is not None:
            self.turns[-1].is_complete, self.turns[-1].is_due = True, False
            _end_text(self._session)
        yield from self._last_audio(turn)
        if turn in self.turns:  # it was not stopped meanwhile
            self.turns.popleft()
            yield from self._protocol.ended(turn)
            self.finished = not self.turns

    def _last_audio(self, turn: Turn) -> Iterator[WireMessage]:
        if turn.is_quiet and not turn.samples:
            yield from self._audio(turn, quiet_turn(self._protocol.rate_hz))
        yield from self._start(turn)
        if rest := turn.encoder.finish():
            yield from self._protocol.audio(turn, rest)


def _end_text(session: LocalSession) -> None:
    """End the open utterance, unless the idle timeout has done so."""
    if session.writing is not None:
        session.end_text()


def _encoder_of(context: SpeechContext) -> _TurnEncoder:
    assert isinstance(context.encoder, _TurnEncoder)
    return context.encoder
