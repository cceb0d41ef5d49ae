"""The link of a session that outlives its worker: what no sound has come of yet is said again on another one.

Between a ``RemoteSession`` and its ``Conversation``. Keeps the text of utterances that have not ended, until the first
sound of one is handed on: from then on it cannot be said again without being heard twice, and a loss is a loss. Owns
what must be sent again; which worker is next is ``fleet``'s affair.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tts_worker.client.conversation import Conversation, Receiver
from tts_worker.errors import ConnectionLost, ErrorInfo, error_info
from tts_worker.types import BYTES_PER_SAMPLE, ControlName, Outcome, Receipt, SynthesisParams, Word

_FLUSH = None
_MAX_MOVES = 3
"""Workers that are lost one after the other, before a session gives up."""


@dataclass(slots=True)
class _Said:
    """An utterance that has not ended. ``pieces``: text, and None for a flush."""

    pieces: list[str | None] = field(default_factory=list)
    ended: bool = False
    announced: bool = False
    samples: int = 0  # handed on
    params: SynthesisParams | None = None  # of the configure that came before it

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if piece is not None)


class FailoverLink:
    """``Link`` of a session and ``Receiver`` of its conversations. ``next_worker`` begins a conversation on
    another worker; it raises when there is none."""

    def __init__(self, conversation: Conversation, next_worker: Callable[[], Awaitable[Conversation]]) -> None:
        self._conversation: Conversation | None = conversation
        self._next_worker = next_worker
        self._receiver: Receiver | None = None
        self._on_over: Callable[[Conversation], None] = lambda _: None
        self._said: dict[str, _Said] = {}  # in order
        self._stopping: dict[str, tuple[str, _Said]] = {}  # context -> reason; the worker has not confirmed yet
        self._awaited: deque[ControlName] = deque()
        self._acknowledged_pause = False
        self._surplus = 0  # acknowledgements of commands that only we have sent
        self._configured: SynthesisParams | None = None
        self._words: list[Word] = []
        self._moves = 0  # since the last sound
        self._moving: asyncio.Task[None] | None = None
        self.over = False
        """It serves nobody any more."""

    def attach(self, receiver: Receiver, on_over: Callable[[Conversation], None]) -> None:
        assert self._conversation is not None
        self._receiver = receiver
        self._on_over = on_over
        self._conversation.attach(self, on_over)

    # -- Link ---------------------------------------------------------------------------------------------------------

    def text(self, context: str, text: str) -> None:
        said = self._said.setdefault(context, _Said(params=self._configured))
        said.pieces.append(text)
        if self._conversation is not None:
            self._conversation.text(context, text)

    def flush(self) -> None:
        for said in list(self._said.values())[-1:]:
            said.pieces.append(_FLUSH)
        if self._conversation is not None:
            self._conversation.flush()

    def end_text(self, context: str) -> None:
        if context in self._said:
            self._said[context].ended = True
        if self._conversation is not None:
            self._conversation.end_text(context)

    def pause(self) -> None:
        self._awaited.append(ControlName.PAUSE)
        if self._conversation is not None:
            self._conversation.pause()

    def resume(self) -> None:
        self._awaited.append(ControlName.RESUME)
        if self._conversation is not None:
            self._conversation.resume()

    def stop(self, reason: str, played_samples: int) -> None:
        self._stopping |= {context: (reason, said) for context, said in self._said.items()}
        self._said.clear()
        self._words.clear()
        self._acknowledged_pause = False
        if self._conversation is not None:
            self._conversation.stop(reason, played_samples)
        else:
            asyncio.get_running_loop().call_soon(self._confirm_stops)

    def played(self, samples: int) -> None:
        if self._conversation is not None:
            self._conversation.played(samples)

    def configure(self, params: SynthesisParams) -> None:
        self._configured = params
        if self._conversation is not None:
            self._conversation.configure(params)

    def settled(self, *, healthy: bool) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, or give up looking for a worker."""
        self.over = True
        if self._moving is not None:
            self._moving.cancel()
        if self._conversation is not None:
            self._conversation.close()
        else:
            self._told().on_lost(ConnectionLost("the connection was closed").info)

    # -- Receiver -----------------------------------------------------------------------------------------------------

    async def room(self) -> None:
        await self._told().room()

    def on_started(self, context: str, params: SynthesisParams) -> None:
        said = self._said.get(context)
        if said is None or not said.announced:
            self._told().on_started(context, params)
        if said is not None:
            said.announced = True

    def on_words(self, words: tuple[Word, ...]) -> None:
        self._words.extend(words)  # until their sound comes: they belong together

    def on_audio(self, pcm: bytes) -> None:
        said = next(iter(self._said.values()), None)
        if said is not None and said.announced:  # else it is of one that was stopped
            said.samples += len(pcm) // BYTES_PER_SAMPLE
            self._moves = 0
        self._pass_words()
        self._told().on_audio(pcm)

    def _pass_words(self) -> None:
        if self._words:
            words = tuple(self._words)
            self._words = []
            self._told().on_words(words)

    def on_acknowledged(self, command: ControlName) -> None:
        if self._surplus:
            self._surplus -= 1
            return
        if self._awaited and self._awaited[0] is command:
            self._awaited.popleft()
        self._acknowledged_pause = command is ControlName.PAUSE
        self._told().on_acknowledged(command)

    def on_ended(self, context: str, outcome: Outcome, receipt: Receipt, error: ErrorInfo | None) -> None:
        self._pass_words()
        self._said.pop(context, None)
        self._stopping.pop(context, None)
        if not self._said:
            self._acknowledged_pause = False
        self._told().on_ended(context, outcome, receipt, error)

    def on_rejected(self, error: ErrorInfo) -> None:
        self._told().on_rejected(error)

    def on_lost(self, error: ErrorInfo) -> None:
        if self.over:
            self._told().on_lost(error)
            return
        self._conversation = None
        self._words.clear()
        self._confirm_stops()
        self._moves += 1
        if self._moves > _MAX_MOVES or any(said.samples for said in self._said.values()):
            self._give_up(error)
        else:
            self._moving = asyncio.create_task(self._move(), name="tts-client-failover")

    def _told(self) -> Receiver:
        assert self._receiver is not None, "attach comes first"
        return self._receiver

    # -- to another worker --------------------------------------------------------------------------------------------

    def _confirm_stops(self) -> None:
        """The worker that knew more is gone. The session cuts the text by what was taken, as always when that is less
        than was sent; so one sample more is said to have been."""
        stopping = self._stopping
        self._stopping = {}
        for context, (reason, said) in stopping.items():
            receipt = Receipt(reason, said.samples, said.samples + 1, None, "", said.text)
            self._told().on_ended(context, Outcome.STOPPED, receipt, None)

    def _give_up(self, error: ErrorInfo) -> None:
        self.over = True
        self._told().on_lost(error)

    async def _move(self) -> None:
        try:
            conversation = await self._next_worker()
        except Exception as failure:
            self._give_up(ConnectionLost(f"the worker was lost, and no other one: {error_info(failure).message}").info)
            return
        self._conversation = conversation
        self._say_again(conversation)
        conversation.attach(self, self._on_over)

    def _say_again(self, conversation: Conversation) -> None:
        params: SynthesisParams | None = None
        for context, said in self._said.items():
            if said.params != params and said.params is not None:
                params = said.params
                conversation.configure(params)
            for piece in said.pieces:
                if piece is None:
                    conversation.flush()
                else:
                    conversation.text(context, piece)
            if said.ended:
                conversation.end_text(context)
        if self._configured is not None and self._configured != params:
            conversation.configure(self._configured)
        self._surplus = 0
        if self._acknowledged_pause:
            self._surplus = 1
            conversation.pause()
        for command in self._awaited:
            if command is ControlName.PAUSE:
                conversation.pause()
            else:
                conversation.resume()
