"""Calls and agents find each other by the name of the call, in any order. No I/O but timers of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tts_worker.errors import Forbidden, IllegalCommand, InvalidRequest, NotReady, TTSWorkerError
from tts_worker.features.telephony.wire import MediaStreamFormat, StreamEvent, StreamStarted

log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 10.0


class Call:
    """A connected call: what is to be sent to it.

    Args:
        name: The name by which an agent joins it.
        started: What the provider says about it.
        wire: The provider's messages.
        owner: Name of the API key that the call came with; only agents with that key may join it. None for any.
        on_change: Called when there is something to send, or the call is to be ended.

    Attributes:
        outbox: Messages to send, in order.
        is_hung_up: The connection is to be closed, so that the provider goes on with its next instruction.
    """

    def __init__(
        self,
        name: str,
        started: StreamStarted,
        wire: MediaStreamFormat,
        owner: str | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.started = started
        self.wire = wire
        self.owner = owner
        self.outbox: deque[str] = deque()
        self.is_hung_up = False
        self._marks = 0
        self._on_change = on_change

    def play(self, mulaw: bytes) -> int:
        """Play audio. Returns the number of the mark that the provider returns when it was played.

        The numbers increase over the whole call, so the marks of an earlier agent are known as such.
        """
        self._marks += 1
        stream_id = self.started.stream_id
        self.outbox.append(self.wire.media(stream_id, mulaw))
        self.outbox.append(self.wire.mark(stream_id, str(self._marks)))
        self._on_change()
        return self._marks

    def clear(self) -> None:
        """Drop all audio that was not played."""
        self.outbox.clear()
        self.outbox.append(self.wire.clear(self.started.stream_id))
        self._on_change()

    def hang_up(self) -> None:
        """End the media stream."""
        self.is_hung_up = True
        self._on_change()


class CallAgent(Protocol):
    """An agent that speaks in a call."""

    @property
    def key(self) -> str | None:
        """Name of its API key."""
        ...

    def join(self, call: Call) -> None:
        """Begin to speak in the call."""
        ...

    def receive(self, event: StreamEvent) -> None:
        """Take audio, a mark or a digit of the call."""
        ...

    def end(self, reason: str, error: TTSWorkerError | None = None) -> None:
        """End: the call has ended, or ``error`` says why there is none."""
        ...


@dataclass(slots=True)
class _Entry:
    call: Call | None = None
    agent: CallAgent | None = None
    timer: asyncio.TimerHandle | None = None


class CallDirectory:
    """The calls and agents of a worker, by the name of the call.

    A call waits for an agent and an agent for its call; after ``JOIN_TIMEOUT_S`` the one that waits is ended.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add_call(self, call: Call) -> None:
        """Add a connected call. Raises InvalidRequest if a call of this name is connected."""
        entry = self._entries.get(call.name)
        if entry is not None and entry.call is not None:
            raise InvalidRequest("a call with this name is connected already")
        entry = self._entries.setdefault(call.name, _Entry())
        entry.call = call
        agent = entry.agent
        if agent is not None and not _may_join(agent, call):
            entry.agent = None
            agent.end("forbidden", Forbidden("the call belongs to another API key"))
        self._settle(call.name, entry)

    def remove_call(self, call: Call, reason: str) -> None:
        """Remove a call that has ended, and end its agent."""
        entry = self._entries.get(call.name)
        if entry is None or entry.call is not call:
            return
        agent = entry.agent
        entry.call = entry.agent = None
        self._settle(call.name, entry)
        log.info("call %s: %s", call.started.stream_id, reason)
        if agent is not None:
            agent.end(reason)

    def add_agent(self, name: str, agent: CallAgent) -> None:
        """Let an agent join a call, now or when it connects.

        Raises:
            IllegalCommand: The call has an agent.
            Forbidden: The call belongs to another API key.
        """
        entry = self._entries.get(name)
        if entry is not None and entry.agent is not None:
            raise IllegalCommand("the call has an agent already")
        if entry is not None and entry.call is not None and not _may_join(agent, entry.call):
            raise Forbidden("the call belongs to another API key")
        entry = self._entries.setdefault(name, _Entry())
        entry.agent = agent
        self._settle(name, entry)

    def remove_agent(self, name: str, agent: CallAgent, *, hang_up: bool) -> None:
        """Remove an agent whose connection has ended. Its call waits for another agent unless ``hang_up``."""
        entry = self._entries.get(name)
        if entry is None or entry.agent is not agent:
            return
        entry.agent = None
        if entry.call is not None:
            entry.call.clear()
            if hang_up:
                entry.call.hang_up()
        self._settle(name, entry)

    def dispatch(self, call: Call, event: StreamEvent) -> None:
        """Pass an event of a call to its agent. Without one it is lost."""
        entry = self._entries.get(call.name)
        if entry is not None and entry.call is call and entry.agent is not None:
            entry.agent.receive(event)

    def _settle(self, name: str, entry: _Entry) -> None:
        """After a change: connect the two, wait for the missing one, or forget the name."""
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        if entry.call is not None and entry.agent is not None:
            entry.agent.join(entry.call)
        elif entry.call is None and entry.agent is None:
            self._entries.pop(name, None)
        else:
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(JOIN_TIMEOUT_S, self._on_timeout, name)

    def _on_timeout(self, name: str) -> None:
        entry = self._entries[name]
        agent = entry.agent
        entry.agent = None
        entry.timer = None
        if entry.call is not None:
            log.warning("call %s: no agent joined within %g s", entry.call.started.stream_id, JOIN_TIMEOUT_S)
            entry.call.hang_up()
        elif agent is not None:
            self._entries.pop(name)
            agent.end("no_call", NotReady(f"the call did not connect within {JOIN_TIMEOUT_S:g} s"))


def _may_join(agent: CallAgent, call: Call) -> bool:
    return call.owner is None or call.owner == agent.key
