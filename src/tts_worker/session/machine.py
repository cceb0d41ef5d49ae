"""The session as a state machine, sans-IO: no clock, no thread, no await.

Two rules. Everything that decides what a session does lives here; and this file knows neither who the client is nor
how the engine works. Methods change the state and leave messages: ``take_commands()`` for the engine, ``poll()`` for
the client. An illegal call raises a typed error and changes nothing.

    state     speak      end_text     pause     resume     stop      last utterance ends   close
    IDLE      SPEAKING   (error)      IDLE*     IDLE*      IDLE*     -                     CLOSED
    SPEAKING  SPEAKING   SPEAKING     PAUSED    SPEAKING*  IDLE      IDLE                  CLOSED
    PAUSED    PAUSED     PAUSED       PAUSED*   SPEAKING   IDLE      IDLE                  CLOSED
    CLOSED    (error)    (error)      (error)   (error)    (error)   -                     CLOSED
                                                * acknowledged with applied=False, changes nothing

An utterance begins with the first text and ends with exactly one ``Ended``. Text after ``end_text`` begins the next
one, which waits its turn (and is opened on the engine once the ones before it are fully generated, so that turns follow
each other without a gap). STOP ends all of them; whatever still carries their keys is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from tts_worker.errors import EngineFault, ErrorInfo, IllegalCommand, SessionClosed, TextTooLong
from tts_worker.session.utterance import TextSource, Utterance
from tts_worker.types import (
    FRAME_SAMPLES,
    SAMPLE_RATE_HZ,
    Acknowledged,
    Alignment,
    Audio,
    Cancel,
    Command,
    ControlName,
    Credit,
    Done,
    Ended,
    EndText,
    Event,
    Failed,
    Hold,
    Notice,
    Open,
    Outcome,
    Output,
    PcmFrame,
    Release,
    Segment,
    Started,
    SynthesisParams,
    Text,
    UtteranceKey,
)


class State(str, Enum):
    IDLE = "idle"
    SPEAKING = "speaking"
    PAUSED = "paused"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """Bounds of a session, in samples and characters.

    ``window_samples``: how far the engine may be ahead of what the client took. ``credit_quantum_samples``: credit goes
    back to the engine in portions of at least this. ``frame_samples``: size of a frame; None hands out the engine's own
    chunks. ``max_text_chars``: per utterance. ``max_queued_utterances``: waiting behind the current one.
    ``read_chars``: text read at a time. ``paced``: the client takes audio at the pace of playback; the engine serves
    such sessions before others.
    """

    window_samples: int = 3 * SAMPLE_RATE_HZ // 2
    credit_quantum_samples: int = 4 * FRAME_SAMPLES
    frame_samples: int | None = FRAME_SAMPLES
    max_text_chars: int = 200_000
    max_queued_utterances: int = 16
    read_chars: int = 1_000
    paced: bool = True
    alignment: Alignment = Alignment.NONE


class SessionMachine:
    """See the module. ``make_text`` builds the text pipeline of an utterance from its params."""

    def __init__(
        self,
        session: str,
        params: SynthesisParams,
        make_text: Callable[[SynthesisParams], TextSource],
        config: MachineConfig | None = None,
    ) -> None:
        self.session = session
        self.state = State.IDLE
        self.params = params
        self.stale_events = 0
        self._config = config or MachineConfig()
        self._make_text = make_text
        self._generation = 0
        self._utterances: deque[Utterance] = deque()  # the head is the one being heard
        self._commands: list[Command] = []
        self._notices: deque[Notice] = deque()
        self._withheld = False  # the session has no slot: nothing is opened on the engine

    # -- what the shell asks ------------------------------------------------------------------------------------------

    @property
    def current(self) -> UtteranceKey | None:
        """The utterance being heard (or about to be)."""
        return self._utterances[0].key if self._utterances else None

    @property
    def writing(self) -> UtteranceKey | None:
        """The utterance that takes text."""
        if self._utterances and not self._utterances[-1].text_ended:
            return self._utterances[-1].key
        return None

    @property
    def paced(self) -> bool:
        return self._config.paced

    @property
    def buffered_samples(self) -> int:
        """Sound that waits to be taken, over all utterances."""
        return sum(u.buffered_samples for u in self._utterances)

    @property
    def unspoken_chars(self) -> int:
        """Text of all utterances that no sound was made for yet."""
        return sum(u.unspoken_chars for u in self._utterances)

    @property
    def sent_samples(self) -> int:
        """Samples taken of the current utterance."""
        return self._utterances[0].sent_samples if self._utterances else 0

    def take_commands(self) -> list[Command]:
        """Messages for the engine since the last call."""
        commands = self._commands
        self._commands = []
        return commands

    # -- text ---------------------------------------------------------------------------------------------------------

    def speak(self, text: str | bytes, *, withhold: bool = False) -> UtteranceKey:
        """Add text to the utterance being written, or begin one. ``withhold``: keep this utterance and those behind it
        from the engine; ``refuse`` must follow.

        Raises SessionClosed, TextTooLong (the utterance is full) or IllegalCommand (too many utterances wait).
        """
        self._require_open()
        writing = self._utterances[-1] if self.writing is not None else None
        before = writing.text_chars if writing is not None else 0
        if before + len(text) > self._config.max_text_chars:
            raise TextTooLong(f"an utterance takes at most {self._config.max_text_chars} characters")
        self._withheld = self._withheld or withhold
        if writing is None:
            writing = self._begin_utterance()
        writing.write(text)
        self.read_more()
        return writing.key

    def flush(self) -> None:
        """Speak what has been written so far, without ending the utterance. Nothing to flush changes nothing."""
        self._require_open()
        if self.writing is not None:
            self._utterances[-1].flush()
            self.read_more()

    def flush_words(self) -> None:
        """Speak the words that are complete; one that may still be growing waits. For a writer that is silent."""
        self._require_open()
        if self.writing is not None:
            self._utterances[-1].flush_words()
            self.read_more()

    def end_text(self) -> None:
        """The utterance being written is complete. Raises IllegalCommand if there is none."""
        self._require_open()
        if self.writing is None:
            raise IllegalCommand("there is no utterance to end: send text first")
        self._utterances[-1].end_text()
        self.read_more()

    @property
    def has_unread_text(self) -> bool:
        """Whether ``read_more`` has something to do."""
        return any(utterance.unread for utterance in self._utterances)

    def read_more(self) -> None:
        """Read the next portion of the text that waits. A long text must not keep other sessions waiting, so the shell
        calls this again as long as ``has_unread_text``."""
        utterance = next((u for u in self._utterances if u.unread), None)
        if utterance is not None:
            self._post_segments(utterance, utterance.read(self._config.read_chars))
            if utterance.text_read:
                self._end_of_text(utterance)

    def _end_of_text(self, utterance: Utterance) -> None:
        if utterance.is_opened:
            self._commands.append(EndText(utterance.key))
        if utterance.segments == 0:
            # Nothing to say (blank, only emoji): the engine need not know that it existed.
            self._cancel_on_engine(utterance)
            utterance.is_generated = True
        self._advance()

    def refuse(self, error: ErrorInfo) -> None:
        """End what was withheld with an error that reports its whole text as remaining. Nothing withheld is fine."""
        if self._withheld:
            self._withheld = False
            for utterance in self._utterances:
                self._on_failed(utterance, error)
            self._advance()

    def _begin_utterance(self) -> Utterance:
        if len(self._utterances) > self._config.max_queued_utterances:
            raise IllegalCommand(f"at most {self._config.max_queued_utterances} utterances may wait")
        self._generation += 1
        key = UtteranceKey(self.session, self._generation)
        utterance = Utterance(key, self.params, self._make_text(self.params))
        self._utterances.append(utterance)
        if self.state is State.IDLE:
            self.state = State.SPEAKING
        self._advance()
        return utterance

    def _post_segments(self, utterance: Utterance, segments: Sequence[Segment]) -> None:
        if utterance.is_opened:
            self._commands.extend(Text(utterance.key, segment) for segment in segments)
        else:
            utterance.pending_segments.extend(segments)

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hand out no more sound, and spend no engine time, until ``resume``."""
        self._require_open()
        applied = self.state is State.SPEAKING
        if applied:
            self.state = State.PAUSED
            self._commands.extend(Hold(u.key) for u in self._utterances if u.is_opened and not u.is_generated)
        self._acknowledge(ControlName.PAUSE, applied)

    def resume(self) -> None:
        """Go on at the very next sample."""
        self._require_open()
        applied = self.state is State.PAUSED
        if applied:
            self.state = State.SPEAKING
            self._commands.extend(Release(u.key) for u in self._utterances if u.is_opened and not u.is_generated)
            self._advance()
        self._acknowledge(ControlName.RESUME, applied)

    def stop(self, reason: str = "stop", played_samples: int | None = None) -> None:
        """End every utterance now. ``played_samples`` is how much of the current one the listener heard, if known."""
        self._require_open()
        if not self._utterances:
            self._acknowledge(ControlName.STOP, applied=False)
            return
        if played_samples is not None:
            self.played(played_samples)
        self._stop_all(reason)
        self.state = State.IDLE

    def close(self, reason: str = "closed") -> None:
        """End everything for good. Closing twice changes nothing."""
        if self.state is not State.CLOSED:
            self._stop_all(reason)
            self.state = State.CLOSED

    def played(self, samples: int) -> None:
        """The client's word on how much of the current utterance was heard. Never shrinks, never exceeds what was
        sent; without an utterance it is ignored."""
        if self._utterances:
            self._utterances[0].played(samples)

    def configure(self, params: SynthesisParams) -> None:
        """Params of the utterances that begin from now on."""
        self._require_open()
        self.params = params

    def _stop_all(self, reason: str) -> None:
        self._withheld = False
        while self._utterances:
            utterance = self._utterances.popleft()
            self._cancel_on_engine(utterance)
            utterance.abandon_text()
            receipt = utterance.receipt(reason, Outcome.STOPPED, self._config.alignment)
            self._notices.append(Ended(utterance.key, Outcome.STOPPED, receipt))

    def _cancel_on_engine(self, utterance: Utterance) -> None:
        if utterance.is_opened and not utterance.is_generated:
            self._commands.append(Cancel(utterance.key))

    def _acknowledge(self, command: ControlName, applied: bool) -> None:
        self._notices.append(Acknowledged(command, applied, self.current, self.sent_samples))

    @property
    def _speaking(self) -> bool:
        return self.state is State.SPEAKING

    def _require_open(self) -> None:
        if self.state is State.CLOSED:
            raise SessionClosed("the session is closed")

    # -- engine events ------------------------------------------------------------------------------------------------

    def on_engine(self, event: Event) -> None:
        """Take what the engine made. What belongs to no live utterance is dropped."""
        utterance = next((u for u in self._utterances if u.key == event.key), None)
        if utterance is None or utterance.is_generated:
            self.stale_events += 1
            return
        if isinstance(event, Audio):
            self._on_audio(utterance, event)
        elif isinstance(event, Done):
            utterance.is_generated = True
            utterance.truncated = event.truncated
            if event.truncated is not None:
                utterance.abandon_text()
        elif isinstance(event, Failed):
            self._on_failed(utterance, event.error)
        self._advance()

    def _on_audio(self, utterance: Utterance, event: Audio) -> None:
        if utterance.generated_samples + event.samples > utterance.granted_samples:
            self._commands.append(Cancel(utterance.key))
            self._on_failed(utterance, EngineFault("the engine sent more sound than it had credit for").info)
            return
        utterance.add(event)

    def _on_failed(self, utterance: Utterance, error: ErrorInfo) -> None:
        """Nothing heard yet: say so at once, the caller can try elsewhere. Else what was made is still heard."""
        utterance.is_generated = True
        utterance.abandon_text()
        utterance.error = error
        if utterance.sent_samples == 0:
            utterance.drop_audio()

    def _advance(self) -> None:
        """End what is complete, announce the head, open on the engine what may be opened."""
        while self._utterances:
            head = self._utterances[0]
            if not head.is_announced:
                head.is_announced = True
                self._notices.append(Started(head.key, head.params))
            if not head.is_generated or not head.text_read or not head.is_drained:
                break
            self._utterances.popleft()
            self._notices.extend(self._ending(head))
        else:
            if self.state is not State.CLOSED:
                self.state = State.IDLE
        if self.state is State.PAUSED or self._withheld:
            return
        for utterance in self._utterances:
            if not utterance.is_opened and not utterance.is_generated:
                self._open(utterance)
            if not utterance.is_generated:
                break

    def _open(self, utterance: Utterance) -> None:
        utterance.is_opened = True
        utterance.granted_samples = self._config.window_samples
        config = self._config
        self._commands.append(Open(utterance.key, utterance.params, config.window_samples, config.paced))
        self._commands.extend(Text(utterance.key, segment) for segment in utterance.pending_segments)
        utterance.pending_segments = []
        if utterance.text_read:
            self._commands.append(EndText(utterance.key))

    def _ending(self, utterance: Utterance) -> list[Notice]:
        notices: list[Notice] = []
        if utterance.error is not None:
            reason = utterance.error.code.value
            outcome = Outcome.ERROR
        elif utterance.truncated is not None:
            reason = utterance.truncated
            outcome = Outcome.TRUNCATED
        else:
            reason = "finished" if utterance.segments else "nothing_to_speak"
            outcome = Outcome.DONE
            words = utterance.take_words()  # a word without sound at the very end
            if words is not None:
                notices.append(words)
        receipt = utterance.receipt(reason, outcome, self._config.alignment)
        notices.append(Ended(utterance.key, outcome, receipt, utterance.error))
        return notices

    # -- the way out --------------------------------------------------------------------------------------------------

    def poll(self, *, audio: bool = True) -> Output | None:
        """The next thing for the client, None if there is nothing yet. ``audio=False`` asks for overtaking notices only
        (acknowledgements, ends): the pacer says that sound is not due.

        Word times come out before the frame in which the word begins.
        """
        if self._notices:
            return self._notices.popleft()
        if not audio or not self._speaking:
            return None
        utterance = self._utterances[0]
        samples = utterance.next_frame_samples(self._config.frame_samples)
        if samples == 0:
            return None
        words = utterance.take_words(before_sample=utterance.sent_samples + samples)
        return words if words is not None else self._take_frame(utterance, samples)

    @property
    def next_frame_samples(self) -> int:
        """Size of the frame that could be taken now, 0 if there is none."""
        return self._utterances[0].next_frame_samples(self._config.frame_samples) if self._speaking else 0

    def _take_frame(self, utterance: Utterance, samples: int) -> PcmFrame:
        frame = utterance.take_frame(samples)
        enough = utterance.uncredited_samples >= self._config.credit_quantum_samples
        if not utterance.is_generated and (enough or utterance.is_drained):
            self._commands.append(Credit(utterance.key, utterance.uncredited_samples))
            utterance.granted_samples += utterance.uncredited_samples
            utterance.uncredited_samples = 0
        if utterance.is_drained:
            self._advance()
        return frame
