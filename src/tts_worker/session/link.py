"""``EngineLink``: carries the commands of a session to its engines, and their events back.

Each utterance passes three stages. Its route is the engine of its voice. It opens when the loudness of the voice is
known. Its segments are read by the reference's front end, where that reads. What waits for a stage belongs to its
utterance: STOP overtakes and drops it, and PAUSE overtakes text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tts_worker.session.engine_port import EnginePort
from tts_worker.session.loudness import VoiceLoudness
from tts_worker.session.normalizing import SegmentReader
from tts_worker.types import (
    Cancel,
    Command,
    Credit,
    Done,
    Event,
    Express,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    SynthesisParams,
    Text,
    UtteranceKey,
)

Route = Callable[[str], tuple[str, EnginePort]]
"""Returns the engine of a voice, and its name."""


@dataclass(slots=True, eq=False)
class _Utterance:
    """An utterance that its engine has not finished.

    Attributes:
        engine: The engine of its voice.
        reader: Reads its segments; None if they are spoken as they are.
        is_open: The engine has its ``Open``.
        is_reading: A segment is being read; what follows waits for it.
        waiting: Commands that wait for a stage, in order.
    """

    engine: EnginePort
    reader: SegmentReader | None
    is_open: bool = False
    is_reading: bool = False
    waiting: deque[Command] = field(default_factory=deque)


class EngineLink:
    """The connection of one session to the engines of its utterances.

    Args:
        route: Finds the engine of a voice.
        loudness: The loudness of the voices; None if their levels stay as they are.
        reader_of: Returns what reads the segments of an utterance on an engine; None if they are spoken as they are.
    """

    def __init__(
        self,
        route: Route,
        loudness: VoiceLoudness | None = None,
        reader_of: Callable[[EnginePort, SynthesisParams], SegmentReader | None] = lambda engine, params: None,
    ) -> None:
        self._route = route
        self._loudness = loudness
        self._reader_of = reader_of
        self._utterances: dict[UtteranceKey, _Utterance] = {}
        self._subscribed: list[EnginePort] = []
        self._callback: Callable[[Event], None] | None = None

    def post(self, command: Command) -> None:
        """Carry a command to the engine of its utterance; one whose utterance has ended is dropped."""
        if isinstance(command, Open):
            self._start(command)
        elif (utterance := self._utterances.get(command.key)) is None:
            return
        elif isinstance(command, Cancel):
            self._drop(command.key)
            if utterance.is_open:
                utterance.engine.post(command)
        elif utterance.is_open and isinstance(command, Credit | Hold | Release | Express):
            utterance.engine.post(command)
        else:
            utterance.waiting.append(command)
            self._advance(utterance)

    def subscribe(self, session: str, callback: Callable[[Event], None]) -> None:
        """Deliver the events of the session's utterances to ``callback``."""
        self._callback = callback

    def unsubscribe(self, session: str) -> None:
        """Drop everything that waits, and deliver no more events."""
        for key in [*self._utterances]:
            self._drop(key)
        for engine in self._subscribed:
            engine.unsubscribe(session)
        self._subscribed.clear()

    def _start(self, command: Open) -> None:
        """Route an utterance, and open it when the loudness of its voice is known.

        An engine that is not ready refuses the utterance, which must not count as a failed measurement.
        """
        name, engine = self._route(command.params.voice)
        if engine not in self._subscribed:
            engine.subscribe(command.key.session, self._on_event)
            self._subscribed.append(engine)
        self._utterances[command.key] = _Utterance(engine, self._reader_of(engine, command.params))
        loudness = self._loudness
        voice = command.params.voice
        if loudness is None or not engine.ready or engine.info.test_signal or loudness.is_known(name, voice):
            self._open(command)
        else:
            loudness.measure(name, engine, command.params, partial(self._open, command))

    def _open(self, command: Open) -> None:
        if (utterance := self._utterances.get(command.key)) is not None:  # not stopped while it waited
            utterance.is_open = True
            utterance.engine.post(command)
            self._advance(utterance)

    def _advance(self, utterance: _Utterance) -> None:
        """Post what waits for no stage, up to the next segment that takes time to read."""
        while utterance.waiting and utterance.is_open and not utterance.is_reading:
            command = utterance.waiting.popleft()
            if isinstance(command, Text) and utterance.reader is not None:
                key = command.key
                segment = utterance.reader.read(command.segment, partial(self._on_read, utterance, key))
                if segment is None:
                    utterance.is_reading = True
                    return
                command = Text(key, segment)
            utterance.engine.post(command)

    def _on_read(self, utterance: _Utterance, key: UtteranceKey, segment: Segment) -> None:
        utterance.is_reading = False
        utterance.engine.post(Text(key, segment))
        self._advance(utterance)

    def _drop(self, key: UtteranceKey) -> None:
        """Forget an utterance that has ended, with all that waits."""
        utterance = self._utterances.pop(key, None)
        if utterance is not None and utterance.reader is not None:
            utterance.reader.cancel()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Done | Failed):
            self._drop(event.key)
        if self._callback is not None:
            self._callback(event)
