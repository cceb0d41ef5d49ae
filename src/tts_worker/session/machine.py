"""The session as a state machine, sans-IO: no clock, no thread, no await.

Methods change the state and queue messages: ``take_commands()`` returns those for the engine, ``poll()`` those for the
client. Text takes effect when ``read_more()`` has processed it. An illegal call raises a typed error and changes
nothing.

    state     speak      end_text     pause     resume     stop      last utterance ends   close
    IDLE      SPEAKING   (error)      IDLE*     IDLE*      IDLE*     -                     CLOSED
    SPEAKING  SPEAKING   SPEAKING     PAUSED    SPEAKING*  IDLE      IDLE                  CLOSED
    PAUSED    PAUSED     PAUSED       PAUSED*   SPEAKING   IDLE      IDLE                  CLOSED
    CLOSED    (error)    (error)      (error)   (error)    (error)   -                     CLOSED
                                                * acknowledged with applied=False, changes nothing

An utterance begins with its first text and ends with exactly one ``Ended``. Text after ``end_text`` begins the next
utterance. It is queued, and opened on the engine once the utterances before it are fully generated, so that they play
without a gap. STOP ends all of them; later engine events with their keys are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tts_worker.errors import EngineFault, ErrorInfo, IllegalCommand, SessionClosed, TextTooLong
from tts_worker.session.utterance import AudioOutput, AudioPhase, TextPhase, TextSource, Utterance
from tts_worker.types import (
    FRAME_SAMPLES,
    NEUTRAL,
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
    Express,
    Expression,
    Failed,
    Hold,
    Notice,
    Open,
    Outcome,
    Output,
    PcmFrame,
    Release,
    Speech,
    Started,
    State,
    SynthesisParams,
    Text,
    UtteranceKey,
)


@dataclass(frozen=True, slots=True)
class MachineConfig:
    """Bounds of a session.

    Attributes:
        window_samples: Credit of an utterance: audio that may be generated ahead of the client, at the engine's rate
            as all credit.
        credit_quantum_samples: Credit is returned to the engine in portions of at least this size.
        large_credit_samples: The size of those portions while at least half of the window is buffered: the engine has
            time, and every portion wakes it.
        frame_samples: Size of a frame at the session's rate; None returns the engine's chunks unchanged.
        max_text_chars: Limit per utterance.
        max_queued_utterances: Limit of utterances behind the current one.
        read_chars: Text processed per ``read_more``.
        paced: A call: the engine schedules it by deadline and before downloads.
        buffered: A call whose client takes audio at once and plays it from its own buffer.
        reports_playback: The transport reports all that was played: an utterance ends when its audio was played.
        alignment: How the engine determines word timestamps.
    """

    window_samples: int = 3 * SAMPLE_RATE_HZ // 2
    credit_quantum_samples: int = 4 * FRAME_SAMPLES
    large_credit_samples: int = 0
    frame_samples: int | None = FRAME_SAMPLES
    max_text_chars: int = 200_000
    max_queued_utterances: int = 16
    read_chars: int = 1_000
    paced: bool = True
    buffered: bool = False
    reports_playback: bool = False
    alignment: Alignment = Alignment.NONE


class SessionMachine:
    """One session; see the module for its states.

    Args:
        session: Id of the session.
        params: Parameters of the next utterances.
        make_text: Builds the text pipeline of an utterance from its parameters.
        config: Bounds of the session.
        make_output: Builds the output stage of an utterance from its parameters; None sends the audio of the engine as
            it is.
        route: Returns the parameters of an utterance and the alignment of its engine from those of the session and its
            text so far, or None if this text does not tell yet; then it is called again with more, and an utterance
            that never tells has the parameters of the session. Without ``route`` every utterance has them.
        generation: That of the last utterance of a replaced session: a client tells utterances apart by it alone.

    Attributes:
        generation: That of the last utterance begun.
    """

    def __init__(
        self,
        session: str,
        params: SynthesisParams,
        make_text: Callable[[SynthesisParams], TextSource],
        config: MachineConfig | None = None,
        make_output: Callable[[SynthesisParams], AudioOutput] | None = None,
        route: Callable[[SynthesisParams, str], tuple[SynthesisParams, Alignment] | None] | None = None,
        *,
        generation: int = 0,
    ) -> None:
        self.session = session
        self.state = State.IDLE
        self.params = params
        self._config = config or MachineConfig()
        self._make_text = make_text
        self._make_output = make_output
        self._route = route
        self.generation = generation
        self._utterances: deque[Utterance] = deque()  # the head is the one being played
        self._commands: list[Command] = []
        self._notices: deque[Notice] = deque()
        self._expression = NEUTRAL
        self._withheld = False  # the session has no slot: do not open utterances on the engine

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> UtteranceKey | None:
        """The utterance being played, or next to be."""
        return self._utterances[0].key if self._utterances else None

    @property
    def writing(self) -> UtteranceKey | None:
        """The utterance that accepts text."""
        if self._utterances and not self._utterances[-1].text_ended:
            return self._utterances[-1].key
        return None

    def params_of(self, key: UtteranceKey) -> SynthesisParams:
        """Return the parameters of an utterance; those of the next ones if it has ended."""
        return next((utterance.params for utterance in self._utterances if utterance.key == key), self.params)

    @property
    def voices_in_use(self) -> set[str]:
        """The voices of utterances that the engine has not finished."""
        return {utterance.params.voice for utterance in self._utterances if not utterance.is_generated}

    @property
    def paced(self) -> bool:
        return self._config.paced

    @property
    def alignment(self) -> Alignment:
        """How the engine determines word timestamps."""
        return self._config.alignment

    @property
    def buffered_samples(self) -> int:
        """Audio generated and not yet sent, over all utterances."""
        return sum(u.buffered_samples for u in self._utterances)

    @property
    def has_notices(self) -> bool:
        """Whether ``poll`` has something to return that overtakes audio."""
        return bool(self._notices)

    @property
    def unspoken_chars(self) -> int:
        """Text without audio so far, over all utterances."""
        return sum(u.unspoken_chars for u in self._utterances)

    @property
    def awaits_text(self) -> bool:
        """Whether nothing can be sent or read before more text comes; the engine may still be at work."""
        if self.state is not State.SPEAKING or len(self._utterances) != 1:
            return False
        utterance = self._utterances[0]
        is_open = not utterance.text_ended and not utterance.unread
        is_speech = utterance.segments > 0 and not utterance.text_chars
        return is_open and not is_speech and not self.next_frame_samples

    @property
    def skipped_chars(self) -> int:
        """Text that the voice is known not to speak, over all utterances."""
        return sum(u.skipped_chars for u in self._utterances)

    @property
    def is_voiced(self) -> bool:
        """Whether the engine has spoken all text that it got."""
        return all(utterance.is_voiced for utterance in self._utterances)

    @property
    def sent_samples(self) -> int:
        """Samples sent of the current utterance."""
        return self._utterances[0].sent_samples if self._utterances else 0

    def take_commands(self) -> list[Command]:
        """Return the messages for the engine since the last call."""
        commands = self._commands
        self._commands = []
        return commands

    # -- text ---------------------------------------------------------------------------------------------------------

    def speak(self, text: str | bytes, *, withhold: bool = False) -> UtteranceKey:
        """Add text to the open utterance, or begin one.

        Args:
            text: The text; bytes are UTF-8 and may split a character.
            withhold: Do not open this utterance and later ones on the engine; ``refuse`` must follow.

        Raises:
            SessionClosed: The session is closed.
            TextTooLong: The utterance has reached its limit.
            IllegalCommand: Too many utterances are queued.
        """
        self._require_open()
        writing = self._utterances[-1] if self.writing is not None else None
        self._check_length((writing.text_chars if writing is not None else 0) + len(text))
        self._withheld = self._withheld or withhold
        if writing is None:
            writing = self._begin_utterance(text)
            writing.write(text)
        else:
            writing.write(text)
            self._choose_voice(writing)
        return writing.key

    def speak_next(self, text: str | bytes, *, withhold: bool = False) -> UtteranceKey:
        """End the open utterance and begin the next one with ``text``. Raises as ``speak`` does, and then ends none."""
        self._require_open()
        self._check_length(len(text))
        self._check_queue()
        if self.writing is not None:
            self.end_text()
        return self.speak(text, withhold=withhold)

    def _check_length(self, chars: int) -> None:
        if chars > self._config.max_text_chars:
            raise TextTooLong(f"an utterance takes at most {self._config.max_text_chars} characters")

    def _check_queue(self) -> None:
        if len(self._utterances) > self._config.max_queued_utterances:
            raise IllegalCommand(f"at most {self._config.max_queued_utterances} utterances may wait")

    def add_speech(self, tokens: tuple[int, ...]) -> UtteranceKey:
        """Add speech tokens to the open utterance, or begin one; ``end_text`` ends it, too.

        Args:
            tokens: Tokens of the engine's speech tokenizer.

        Raises:
            SessionClosed: The session is closed.
            IllegalCommand: The open utterance has text, or too many utterances are queued.
        """
        self._require_open()
        writing = self._utterances[-1] if self.writing is not None else None
        if writing is not None and writing.text_chars:
            raise IllegalCommand("the open utterance has text: end it before speech tokens")
        if writing is None:
            writing = self._begin_utterance()
        writing.segments += 1
        self._post(writing, [Speech(writing.key, tokens)])
        return writing.key

    def flush(self) -> None:
        """Speak the pending text without ending the utterance. Does nothing without pending text."""
        self._require_open()
        if self.writing is not None:
            self._choose_voice(self._utterances[-1], last=True)
            self._utterances[-1].flush()

    def flush_words(self) -> None:
        """Speak the complete pending words. The last word stays pending: its rest may follow."""
        self._require_open()
        if self.writing is not None:
            self._choose_voice(self._utterances[-1], last=True)
            self._utterances[-1].flush_words()

    def end_text(self) -> None:
        """End the text of the open utterance. Raises IllegalCommand if there is none."""
        self._require_open()
        if self.writing is None:
            raise IllegalCommand("there is no utterance to end: send text first")
        self._choose_voice(self._utterances[-1], last=True)
        self._utterances[-1].end_text()

    @property
    def has_unread_text(self) -> bool:
        """Whether ``read_more`` has text to process."""
        return any(utterance.unread for utterance in self._utterances)

    def read_more(self) -> None:
        """Process the next portion of text. A long text must not delay others, so the caller decides when to go on."""
        utterance = next((u for u in self._utterances if u.unread), None)
        if utterance is not None:
            segments = utterance.read(self._config.read_chars)
            self._post(utterance, [Text(utterance.key, segment) for segment in segments])
            if utterance.text_read:
                self._end_of_text(utterance)

    def _end_of_text(self, utterance: Utterance) -> None:
        if utterance.audio_phase is not AudioPhase.QUEUED:
            self._commands.append(EndText(utterance.key))
        if utterance.segments == 0:
            # Nothing to speak (blank, only emoji): the engine never sees the utterance.
            self._cancel_on_engine(utterance)
            utterance.audio_phase = AudioPhase.GENERATED
        self._advance()

    def refuse(self, error: ErrorInfo) -> None:
        """End the withheld utterances with an error that reports their whole text as remaining."""
        if self._withheld:
            self._withheld = False
            for utterance in self._utterances:
                self._on_failed(utterance, error)
            self._advance()

    def _begin_utterance(self, text: str | bytes | None = None) -> Utterance:
        """Begin an utterance with its first text, None for speech."""
        self._check_queue()
        self.generation += 1
        key = UtteranceKey(self.session, self.generation)
        routed: tuple[SynthesisParams, Alignment] | None = self.params, self._config.alignment
        if self._route is not None and text is not None:
            routed = self._route(self.params, text if isinstance(text, str) else text.decode(errors="ignore"))
        params, alignment = routed or (self.params, self._config.alignment)
        output = None if self._make_output is None else self._make_output(params)
        utterance = Utterance(key, params, self._make_text(params), output, alignment)
        if routed is None:
            utterance.text_phase = TextPhase.UNROUTED
        if self._config.reports_playback:
            utterance.played_samples = 0
        self._utterances.append(utterance)
        if self.state is State.IDLE:
            self.state = State.SPEAKING
        self._advance()
        return utterance

    def _choose_voice(self, utterance: Utterance, *, last: bool = False) -> None:
        """Route an utterance whose text did not tell its voice yet; with ``last`` without waiting for more of it."""
        if self._route is None or utterance.text_phase is not TextPhase.UNROUTED:
            return
        routed = self._route(utterance.params, utterance.unread_text)
        if routed is None and not last:
            return
        utterance.text_phase = TextPhase.OPEN
        if routed is not None and routed[0] != utterance.params:
            params, alignment = routed
            output = None if self._make_output is None else self._make_output(params)
            utterance.change_voice(params, self._make_text(params), output, alignment)
        self._advance()

    def _post(self, utterance: Utterance, commands: Sequence[Text | Speech]) -> None:
        is_queued = utterance.audio_phase is AudioPhase.QUEUED
        (utterance.pending_commands if is_queued else self._commands).extend(commands)

    # -- control ------------------------------------------------------------------------------------------------------

    def pause(self) -> Acknowledged:
        """Send no audio and spend no engine time until ``resume``."""
        self._require_open()
        applied = self.state is State.SPEAKING
        if applied:
            self.state = State.PAUSED
            self._commands.extend(Hold(u.key) for u in self._utterances if u.audio_phase is AudioPhase.OPENED)
        return self._acknowledge(Acknowledged(ControlName.PAUSE, applied, self.current, self.sent_samples))

    def resume(self) -> Acknowledged:
        """Continue at the next sample."""
        self._require_open()
        applied = self.state is State.PAUSED
        if applied:
            self.state = State.SPEAKING
            self._commands.extend(Release(u.key) for u in self._utterances if u.audio_phase is AudioPhase.OPENED)
            self._advance()
        return self._acknowledge(Acknowledged(ControlName.RESUME, applied, self.current, self.sent_samples))

    def stop(
        self, reason: str = "stop", played_samples: int | None = None, key: UtteranceKey | None = None
    ) -> Acknowledged:
        """End every utterance now.

        Args:
            reason: Reason for the playback reports.
            played_samples: Played audio of the utterance ``key``, if the client knows it; see ``played``.
            key: That utterance; None is the current one.

        Returns:
            The acknowledgement with the playback reports.
        """
        self._require_open()
        if played_samples is not None:
            self.played(played_samples, key)
        current = self.current
        position_samples = self.sent_samples
        ended = self.stop_all(reason)
        return self._acknowledge(Acknowledged(ControlName.STOP, bool(ended), current, position_samples, ended))

    def stop_all(self, reason: str) -> tuple[Ended, ...]:
        """End every utterance without a command of the client, such as after a timeout. Returns the reports."""
        self._withheld = False
        ended: list[Ended] = []
        while self._utterances:
            utterance = self._utterances.popleft()
            self._cancel_on_engine(utterance)
            utterance.abandon_text()
            receipt = utterance.receipt(reason, Outcome.STOPPED)
            ended.append(Ended(utterance.key, Outcome.STOPPED, receipt))
        self._notices.extend(ended)
        if self.state is not State.CLOSED:
            self.state = State.IDLE
        return tuple(ended)

    def close(self, reason: str = "closed") -> None:
        """End all utterances and the session. Closing twice changes nothing."""
        if self.state is not State.CLOSED:
            self.stop_all(reason)
            self.state = State.CLOSED

    def played(self, samples: int, key: UtteranceKey | None = None) -> None:
        """Record how much of an utterance the client has played.

        The position never decreases and is capped at what was sent. It is ignored without an utterance.

        Args:
            samples: The position.
            key: The utterance; None is the current one. The position of another than the current one is ignored: of one
                that has ended it comes too late, and of one that is to come nothing was sent.
        """
        if self._utterances and key in (None, self.current):
            self._utterances[0].played(samples)
            if self._config.reports_playback:
                self._advance()

    def express(self, expression: Expression) -> None:
        """Speak so from the next word on that the engine has not synthesized, in this and later utterances."""
        self._require_open()
        self._expression = expression
        opened = (u for u in self._utterances if u.audio_phase is AudioPhase.OPENED)
        self._commands.extend(Express(utterance.key, expression) for utterance in opened)

    def configure(self, params: SynthesisParams) -> None:
        """Set the parameters of later utterances."""
        self._require_open()
        self.params = params

    def _cancel_on_engine(self, utterance: Utterance) -> None:
        if utterance.audio_phase is AudioPhase.OPENED:
            self._commands.append(Cancel(utterance.key))

    def _acknowledge(self, acknowledged: Acknowledged) -> Acknowledged:
        self._notices.append(acknowledged)
        return acknowledged

    def _require_open(self) -> None:
        if self.state is State.CLOSED:
            raise SessionClosed("the session is closed")

    # -- engine events ------------------------------------------------------------------------------------------------

    def on_engine(self, event: Event) -> None:
        """Process an engine event. Events of ended utterances are dropped."""
        utterance = next((u for u in self._utterances if u.key == event.key), None)
        if utterance is None or utterance.is_generated:
            return
        match event:
            case Audio():
                self._on_audio(utterance, event)
            case Done():
                utterance.skip_words(event.skipped)
                utterance.finish_audio()
                utterance.truncated = event.truncated
                if event.truncated is not None:
                    utterance.abandon_text()
            case Failed():
                self._on_failed(utterance, event.error)
        self._advance()

    def _on_audio(self, utterance: Utterance, event: Audio) -> None:
        if utterance.engine_samples + event.samples > utterance.granted_engine_samples:
            self._commands.append(Cancel(utterance.key))
            self._on_failed(utterance, EngineFault("the engine generated more audio than its credit").info)
            return
        utterance.add(event)

    def _on_failed(self, utterance: Utterance, error: ErrorInfo) -> None:
        """Before the first frame, fail at once so that the caller can retry elsewhere; else play what was generated."""
        utterance.abandon_text()
        utterance.error = error
        if utterance.sent_samples == 0:
            utterance.drop_audio()
        else:
            utterance.finish_audio()

    def _advance(self) -> None:
        """End finished utterances, announce the head, and open the next utterance on the engine."""
        while self._utterances:
            head = self._utterances[0]
            if not head.is_announced and head.text_phase is not TextPhase.UNROUTED:
                head.is_announced = True
                self._notices.append(Started(head.key, head.params))
            if not self._is_finished(head):
                break
            self._utterances.popleft()
            self._notices.extend(self._final_notices(head))
        else:
            if self.state is not State.CLOSED:
                self.state = State.IDLE
        if self.state is State.PAUSED or self._withheld:
            return
        for utterance in self._utterances:
            if utterance.audio_phase is AudioPhase.QUEUED and utterance.text_phase is not TextPhase.UNROUTED:
                self._open(utterance)
            if not utterance.is_generated:
                break

    def _is_finished(self, utterance: Utterance) -> bool:
        if not utterance.is_generated or not utterance.text_read or not utterance.is_drained:
            return False
        return not self._config.reports_playback or utterance.played_samples == utterance.sent_samples

    def _open(self, utterance: Utterance) -> None:
        utterance.audio_phase = AudioPhase.OPENED
        utterance.granted_engine_samples = self._config.window_samples
        config = self._config
        self._commands.append(
            Open(utterance.key, utterance.params, config.window_samples, config.paced, config.buffered)
        )
        if self._expression != NEUTRAL:
            self._commands.append(Express(utterance.key, self._expression))
        self._commands.extend(utterance.pending_commands)
        utterance.pending_commands = []
        if utterance.text_read:
            self._commands.append(EndText(utterance.key))

    def _final_notices(self, utterance: Utterance) -> list[Notice]:
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
            words = utterance.take_words()  # a trailing word without audio
            if words is not None:
                notices.append(words)
        receipt = utterance.receipt(reason, outcome)
        notices.append(Ended(utterance.key, outcome, receipt, utterance.error))
        return notices

    # -- output -------------------------------------------------------------------------------------------------------

    def poll(self, *, audio: bool = True) -> Output | None:
        """Return the next output, None if there is none yet.

        Word timestamps precede the frame in which the word begins.

        Args:
            audio: False returns only notices that overtake audio (acknowledgements, terminal events), for when the
                next frame is not due.
        """
        if self._notices:
            return self._notices.popleft()
        if not audio or self.state is not State.SPEAKING:
            return None
        utterance = self._utterances[0]
        samples = utterance.next_frame_samples(self._config.frame_samples)
        if samples == 0:
            return None
        words = utterance.take_words(before_sample=utterance.sent_samples + samples)
        return words if words is not None else self._take_frame(utterance, samples)

    @property
    def next_frame_samples(self) -> int:
        """Size of the next frame, 0 if there is none."""
        if self.state is not State.SPEAKING:
            return 0
        return self._utterances[0].next_frame_samples(self._config.frame_samples)

    def _take_frame(self, utterance: Utterance, samples: int) -> PcmFrame:
        frame = utterance.take_frame(samples)
        config = self._config
        uncredited = utterance.uncredited_engine_samples
        enough = uncredited >= config.credit_quantum_samples
        if enough and uncredited < config.large_credit_samples:
            enough = 2 * utterance.unsent_engine_samples < config.window_samples
        enough = enough or not utterance.next_frame_samples(config.frame_samples)  # else no frame would follow
        if not utterance.is_generated and uncredited and enough:
            self._commands.append(Credit(utterance.key, uncredited))
            utterance.granted_engine_samples += uncredited
            utterance.uncredited_engine_samples = 0
        if utterance.is_drained:
            self._advance()
        return frame
