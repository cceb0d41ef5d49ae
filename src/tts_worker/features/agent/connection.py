"""``/v1/agent``: one conversation on one WebSocket. It carries out what ``conversation`` decides.

The model writes, the speech session speaks, the page plays and reports how far it has played. Text of the conversation
is never logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import anyio
from starlette.datastructures import Address
from starlette.websockets import WebSocket

from tts_worker.errors import ConnectionLost, InvalidRequest, RateLimited, SendTimeout, TTSWorkerError
from tts_worker.features.agent.address import network_origin
from tts_worker.features.agent.conversation import (
    Ask,
    Conversation,
    Effect,
    EndText,
    Hold,
    Interrupt,
    Phase,
    Release,
    Settled,
    Speak,
    UserTurn,
    changes,
)
from tts_worker.features.agent.listener import SpeechListener
from tts_worker.features.agent.messages import (
    AgentReadyMessage,
    AgentWordsMessage,
    AnswerMessage,
    AskedMessage,
    CutMessage,
    EarlierTurn,
    InterruptMessage,
    PageMessage,
    PhaseMessage,
    PlaybackMessage,
    ProblemMessage,
    RefusedMessage,
    ResumeMessage,
    SayMessage,
    SentMessage,
    SettledMessage,
    SpeakingMessage,
    SpeechMessage,
    TranscriptMessage,
    UserMessage,
    parse_page_message,
)
from tts_worker.features.agent.service import AgentService
from tts_worker.protocol.json_codec import dumps
from tts_worker.protocol.messages import CloseMessage, Message, PingMessage, PongMessage
from tts_worker.protocol.session import Session
from tts_worker.server.limits import ApiLimits
from tts_worker.server.message_socket import MessageSocket
from tts_worker.server.rates import TokenBucket
from tts_worker.server.security import SUBPROTOCOL
from tts_worker.text.decoding import TextDecoder, replace_surrogates
from tts_worker.text.spoken_words import split_spoken
from tts_worker.types import Ended, Outcome, Output, PcmFrame, Skipped, Started, UtteranceKey, Word, Words, WordTiming

_MAX_TURNS_PER_S = 3.0
_MAX_TURNS_AT_ONCE = 10.0
_MAX_GUESSES_PER_S = 30.0
"""Words that the browser recognized and that are not final; each is compared with all that was played."""
_MAX_OUTBOX_BYTES = 2_097_152
"""Messages and audio that wait for a client that does not read: more than 30 s of speech."""


@dataclass(slots=True)
class _Utterance:
    """The speech of one answer.

    Attributes:
        text: What was passed to the session.
        words: Its word timestamps so far.
        skipped: What the voice skips of it, as far as it is known.
        played_samples: Playback position of the page.
        is_sent: The session has ended it: all of its audio was sent.
    """

    answer: int
    key: UtteranceKey | None = None
    text: str = ""
    words: list[Word] = field(default_factory=list)
    skipped: tuple[Skipped, ...] = ()
    played_samples: int = 0
    is_sent: bool = False

    @property
    def heard(self) -> str:
        """The text up to the playback position."""
        timings = [
            WordTiming(each.start_char, each.end_char, each.start_sample, each.end_sample) for each in self.words
        ]
        return self.text[: split_spoken(self.text, timings, self.played_samples, fully_played=False)]


class AgentConnection:
    """A conversation with the user of one page.

    Args:
        websocket: The connection, not accepted yet.
        service: Speech, model and recognizer.
        limits: Limits on messages.
    """

    def __init__(self, websocket: WebSocket, service: AgentService, limits: ApiLimits) -> None:
        self._socket = MessageSocket(websocket, limits, "agent")
        self._service = service
        self._conversation = Conversation(service.instructions)
        self._subprotocol = SUBPROTOCOL if SUBPROTOCOL in websocket.scope.get("subprotocols", ()) else None
        self._session: Session | None = None
        self._options = service.options
        if voice := websocket.query_params.get("voice"):
            self._options = replace(service.options, voice=voice)
        self._address = _page_address(websocket) if service.is_reachable else None
        self._opened = asyncio.Event()
        self._outbox: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._outbox_bytes = 0
        self._is_full = asyncio.Event()
        self._asked: tuple[dict[str, str], ...] = ()  # what the page was told of the history
        self._turns = TokenBucket(_MAX_TURNS_PER_S, _MAX_TURNS_AT_ONCE)
        self._guesses = TokenBucket(_MAX_GUESSES_PER_S, 2 * _MAX_GUESSES_PER_S)
        self._model_free = asyncio.Lock()
        self._utterance: _Utterance | None = None
        self._model = anyio.CancelScope()
        self._phase = Phase.LISTENING
        self._reason = ""  # why the last answer ended
        self._listener = (
            None
            if service.recognizer is None
            else SpeechListener(service.recognizer, self._on_words, lambda: self._conversation.phase is Phase.HELD)
        )

    async def run(self) -> None:
        """Serve the connection from handshake to close."""
        jobs = [self._read, self._write, self._watch_outbox, self._speak]
        if self._listener is not None:
            jobs.append(self._listener.run)
        await self._socket.run(
            *jobs,
            on_end=self._end,
            encode_error=lambda error: dumps(ProblemMessage.of(error)),
            subprotocol=self._subprotocol,
        )

    def _end(self, reason: str) -> None:
        self._model.cancel()
        if self._session is not None:
            self._session.close(reason)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        await self._opened.wait()
        while True:
            raw = await self._socket.receive()
            try:
                if isinstance(raw, bytes):
                    self._hear(raw)
                    continue
                message = parse_page_message(raw)
                if isinstance(message, CloseMessage):
                    return
                self._receive(message)
            except TTSWorkerError as error:
                self._send(ProblemMessage.of(error.info))

    async def _write(self) -> None:
        while True:
            item = await self._outbox.get()
            self._outbox_bytes -= len(item)
            await self._socket.send(item)

    async def _watch_outbox(self) -> None:
        await self._is_full.wait()
        raise SendTimeout(f"the client left more than {_MAX_OUTBOX_BYTES} bytes unread")

    async def _speak(self) -> None:
        """Open the speech session and pass its audio on."""
        try:
            session = await self._service.open_session(self._options)
        except TTSWorkerError as error:
            await self._socket.send(dumps(RefusedMessage(code=error.code.value, message=error.message)))
            raise
        self._session = session
        self._send(
            AgentReadyMessage(
                sample_rate=session.sample_rate_hz,
                format=session.encoding.value,
                channels=1,
                model=self._service.model.name,
                recognizer=self._listener is not None,
                voice=self._options.voice,
                address=self._address,
            )
        )
        self._opened.set()
        while (item := await session.next()) is not None:
            self._on_output(item)
        raise ConnectionLost("the speech session has ended")

    async def _answer(self, answer: int, ask: Ask, scope: anyio.CancelScope) -> None:
        """Let the model answer, after the request before has ended."""
        decoder = TextDecoder()  # as that of the session, whose report counts the characters
        with scope:
            async with self._model_free:
                await self._reply(answer, ask, decoder)
            self._on_delta(answer, decoder.end())
            self._apply(self._conversation.answer_ended(answer))

    async def _reply(self, answer: int, ask: Ask, decoder: TextDecoder) -> None:
        try:
            async with aclosing(self._service.model.reply(ask.messages)) as reply:
                async for text in reply:
                    self._on_delta(answer, decoder.feed(text))
        except TTSWorkerError as error:
            self._send(ProblemMessage.of(error.info))

    def _on_delta(self, answer: int, text: str) -> None:
        if text:
            self._send(AnswerMessage(turn=answer, text=text))
            self._apply(self._conversation.delta(answer, text))

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _receive(self, message: PageMessage) -> None:
        conversation = self._conversation
        match message:
            case SayMessage(text, played_samples, turn):
                self._note_position(played_samples, turn)
                text = replace_surrogates(text).strip()
                if not text:
                    raise InvalidRequest("text must not be blank")
                self._count_turn()
                self._apply(conversation.say(text))
            case TranscriptMessage(text, final):
                if final and text.strip():
                    self._count_turn()
                elif not final and not self._guesses.take(asyncio.get_running_loop().time()):
                    return  # a later one holds its words
                # The browser's recognizer listens all the time, also to loudspeakers.
                self._on_words(text, final, "" if self._utterance is None else self._utterance.heard)
            case SpeechMessage():
                self._on_speech(message)
            case PlaybackMessage(turn, samples, complete):
                if self._utterance is not None and self._utterance.answer == turn:
                    self._note_position(samples, turn)
                    if complete and self._utterance.is_sent:
                        self._reason = "finished"
                        self._apply(conversation.played(turn, self._utterance.skipped))
            case InterruptMessage(played_samples, turn):
                self._note_position(played_samples, turn)
                self._apply(conversation.stop())
            case _:
                self._receive_control(message)

    def _receive_control(self, message: PageMessage) -> None:
        match message:
            case ResumeMessage(turns):
                self._resume(turns)
            case PingMessage():
                self._send(PongMessage(id=message.id))

    def _resume(self, turns: Sequence[EarlierTurn]) -> None:
        """Continue the conversation of an earlier connection, as its page remembers it. Raises InvalidRequest."""
        try:
            self._conversation.restore([(each.turn, each.role, replace_surrogates(each.text)) for each in turns])
        except ValueError as error:
            raise InvalidRequest(str(error)) from None

    def _count_turn(self) -> None:
        """Count a turn of the user. Raises RateLimited: each one interrupts an answer and asks the model."""
        if not self._turns.take(asyncio.get_running_loop().time()):
            raise RateLimited(f"more than {_MAX_TURNS_PER_S:g} turns a second")

    def _on_speech(self, message: SpeechMessage) -> None:
        self._note_position(message.played_samples, message.turn)
        if message.active:
            self._apply(self._conversation.speech_began())
            if self._listener is not None:
                self._listener.begin(message.sample_rate)
        else:
            self._conversation.speech_ended()
            if self._listener is not None:
                self._listener.end()

    def _hear(self, pcm: bytes) -> None:
        if self._listener is None:
            raise InvalidRequest("this server does not recognize speech")
        self._listener.add(pcm)

    def _on_words(self, text: str, is_final: bool, played: str = "") -> None:
        text = replace_surrogates(text).strip()
        if text and not is_final:
            self._send(UserMessage(turn=0, text=text))
        self._apply(self._conversation.transcribed(text, is_final=is_final, played=played))
        if is_final:
            self._send(UserMessage(turn=0, text=""))

    def _note_position(self, samples: int | None, turn: int | None) -> None:
        """Record how much of the answer ``turn``, None for the current one, the page has played, if it tells."""
        utterance = self._utterance
        if samples is not None and utterance is not None and turn in (None, utterance.answer):
            utterance.played_samples = max(utterance.played_samples, samples)
            if not utterance.is_sent and utterance.key is not None and self._session is not None:
                self._session.played(utterance.played_samples, utterance.key)

    def _on_output(self, item: Output) -> None:
        utterance = self._utterance
        if utterance is None or getattr(item, "key", None) != utterance.key:
            return  # of an answer that has ended
        match item:
            case PcmFrame():
                if self._conversation.phase is not Phase.INTERRUPTED:
                    self._conversation.audio_started(utterance.answer)
                    self._send(item.pcm)
                    self._send_phase()
            case Started():
                self._send(SpeakingMessage(turn=utterance.answer))
            case Words(_, words, skipped):
                utterance.words += words
                utterance.skipped += skipped
                self._send(AgentWordsMessage(turn=utterance.answer, words=words, skipped=skipped))
            case Ended():
                self._on_ended(utterance, item)

    def _on_ended(self, utterance: _Utterance, event: Ended) -> None:
        report = event.receipt
        utterance.skipped = report.skipped or utterance.skipped
        is_complete = event.outcome is Outcome.DONE and report.reason != "nothing_to_speak"
        if is_complete and self._conversation.phase is not Phase.INTERRUPTED:
            utterance.is_sent = True
            self._send(SentMessage(turn=utterance.answer))
            return
        if event.error is not None:
            self._send(ProblemMessage.of(event.error))
        self._model.cancel()
        self._reason = report.reason
        self._send(CutMessage(turn=utterance.answer))
        heard = utterance.heard if is_complete else report.text_spoken
        self._apply(self._conversation.reported(utterance.answer, heard, utterance.skipped))

    # -- effects ------------------------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ask(answer, messages):
                    self._utterance = _Utterance(answer)
                    kept, removed, added = changes(self._asked, messages)
                    self._asked = messages
                    self._send(AskedMessage(turn=answer, kept=kept, removed=removed, messages=tuple(added)))
                    self._model = anyio.CancelScope()
                    self._socket.spawn(self._answer(answer, effect, self._model), "agent answer")
                case UserTurn(turn, text):
                    self._send(UserMessage(turn=turn, text=text))
                case Settled(answer, heard, unheard, skipped):
                    self._send(
                        SettledMessage(turn=answer, heard=heard, unheard=unheard, reason=self._reason, skipped=skipped)
                    )
                    self._utterance = None
                case Interrupt(answer, reason):
                    self._interrupt(answer, reason)
                case Speak() | EndText() | Hold() | Release():
                    self._control_speech(effect)
        self._send_phase()

    def _control_speech(self, effect: Speak | EndText | Hold | Release) -> None:
        session, utterance = self._session, self._utterance
        assert session is not None
        assert utterance is not None
        try:
            match effect:
                case Speak(_, text):
                    utterance.text += text
                    utterance.key = session.speak(text)
                case EndText():
                    session.end_text()
                case Hold() if utterance.key is not None:
                    session.pause()
                case Release() if utterance.key is not None:
                    session.resume()
        except TTSWorkerError as error:
            # The utterance ended by itself (its report is on its way), or its text is too long.
            if not isinstance(effect, EndText):
                self._send(ProblemMessage.of(error.info))

    def _interrupt(self, answer: int, reason: str) -> None:
        session, utterance = self._session, self._utterance
        assert session is not None
        assert utterance is not None
        self._model.cancel()
        self._reason = reason
        self._drop_audio()
        self._send(CutMessage(turn=answer))
        if utterance.key is None:
            self._apply(self._conversation.reported(answer, ""))
        elif utterance.is_sent:
            self._apply(self._conversation.reported(answer, utterance.heard, utterance.skipped))
        else:
            session.stop(reason, utterance.played_samples, utterance.key)

    # -- output -------------------------------------------------------------------------------------------------------

    def _send(self, message: Message | bytes) -> None:
        item = message if isinstance(message, bytes) else dumps(message)
        if self._outbox_bytes + len(item) > _MAX_OUTBOX_BYTES:
            self._is_full.set()
            return
        self._outbox_bytes += len(item)
        self._outbox.put_nowait(item)

    def _send_phase(self) -> None:
        phase = self._conversation.phase
        if phase is not self._phase:
            self._phase = phase
            self._send(PhaseMessage(phase=phase.value))

    def _drop_audio(self) -> None:
        """Remove unsent audio; the order of messages stays."""
        unsent = [self._outbox.get_nowait() for _ in range(self._outbox.qsize())]
        for item in unsent:
            if isinstance(item, bytes):
                self._outbox_bytes -= len(item)
            else:
                self._outbox.put_nowait(item)


def _page_address(websocket: WebSocket) -> str | None:
    """Return the address of the page for other devices."""
    server = websocket.scope.get("server")
    scheme = "https" if websocket.url.scheme == "wss" else "http"
    origin = network_origin(scheme, websocket.headers.get("host", ""), None if server is None else Address(*server))
    return None if origin is None else f"{origin}/agent"
