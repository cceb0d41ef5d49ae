"""The embedded CPU voice: hibari-tts behind the ``Engine`` protocol, many utterances on one thread.

Owns the utterances: whose turn it is, what of their text is next, the pauses between segments, and the credit. A step
is one piece of work of some milliseconds: reading a piece of text, the network for one phrase with its first sound, or
a second of vocoding. Must not know sessions, sockets or how sound is made inside a phrase.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from tts_worker.audio.pcm import silence, to_pcm
from tts_worker.engine.hibari_model import HibariModel
from tts_worker.engine.hibari_speech import POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES, PhraseSynthesis
from tts_worker.engine.hibari_text import MAX_PHONEMES, Phrase
from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.engine.schedule import Job, Scheduler
from tts_worker.errors import (
    EngineFault,
    InvalidRequest,
    OutOfMemory,
    OverCapacity,
    SynthesisFailed,
    TTSWorkerError,
    UnknownVoice,
    UnspeakableText,
)
from tts_worker.types import (
    SAMPLE_RATE_HZ,
    Alignment,
    Audio,
    Boundary,
    Cancel,
    Command,
    Credit,
    Done,
    EndText,
    EngineInfo,
    Event,
    Failed,
    Hold,
    Open,
    Release,
    Segment,
    Span,
    SynthesisParams,
    Text,
    UtteranceKey,
    WordTiming,
    unpaced_share,
)

VOICE = "heart"
LANGUAGE = "en"
SPEED_RANGE = (0.5, 2.0)

_PAUSE_MS: dict[Boundary, int] = {
    Boundary.CLAUSE: 120,
    Boundary.FLUSH: 120,
    Boundary.SENTENCE: 280,
    Boundary.PARAGRAPH: 450,
}
"""From the end of the speech of one segment to the beginning of the next, at normal pace; where a text was only cut
(WORD, FORCED) there is no more than the quiet that phrases keep anyway."""

_KEPT_QUIET_SAMPLES = PRE_ROLL_SAMPLES + POST_ROLL_SAMPLES
_LONGEST_SLICE_SAMPLES = SAMPLE_RATE_HZ // 2
_SHORTEST_SLICE_SAMPLES = SAMPLE_RATE_HZ // 10
_MOST_OPEN_PHRASES = 8
_MOST_OPEN_UNPACED_PHRASES = 4
"""Phrases of paced and of unpaced utterances whose spectra (up to 12 MB each) are in memory at a time; beyond that,
begun ones are finished first. Counted apart, so that no call waits for the phrase of a download."""


@dataclass(frozen=True, slots=True)
class HibariSettings:
    """``max_utterances`` at a time; ``threads`` of the network (one is fastest for a voice this small)."""

    max_utterances: int = 64
    threads: int = 1


class _Utterance:
    """Text on its way to sound: segments -> reading (phrases of one segment) -> phrase -> speech -> output buffer."""

    def __init__(self, command: Open) -> None:
        self.params: SynthesisParams = command.params
        self.output = OutputBuffer(command.key, command.credit_samples, paced=command.paced, buffered=command.buffered)
        self.segments: deque[Segment] = deque()
        self.segment: Segment | None = None
        self.reading: Iterator[Phrase | None] | None = None
        self.phrase: Phrase | None = None
        self.phrases_begun = 0  # of this segment
        self.speech: PhraseSynthesis | None = None
        self.pause_samples = 0  # before the next sound, if there is one
        self.read_ms = 0.0  # spent on the next phrase so far
        self.said_until_char = 0  # words before this have been told
        self.text_seen = False
        self.ended = False
        self.held = False
        self.waiting_since_us: int | None = None

    @property
    def can_read(self) -> bool:
        return self.phrase is None and self.speech is None and (self.reading is not None or bool(self.segments))

    @property
    def can_begin(self) -> bool:
        """There is a phrase to say, and the listener has room for more than is waiting already."""
        return self.phrase is not None and self.output.credit_samples > self.output.waiting_samples

    @property
    def has_synthesis(self) -> bool:
        return not self.held and (self.speech is not None or self.can_read or self.can_begin)

    @property
    def can_emit(self) -> bool:
        """Whether it is worth sending: a listener's every 20 ms need not become a chunk of their own."""
        output = self.output
        if self.held or not output.can_emit:
            return False
        enough = min(output.waiting_samples, _SHORTEST_SLICE_SAMPLES)
        on_the_way = output.emitted_samples - output.taken_samples
        return output.credit_samples >= enough or on_the_way < _SHORTEST_SLICE_SAMPLES

    @property
    def finished(self) -> bool:
        said = not self.segments and self.reading is None and self.phrase is None and self.speech is None
        return self.ended and said and not self.held and self.output.waiting_samples == 0

    def pause(self, boundary: Boundary) -> None:
        """The quiet that ``boundary`` asks for before whatever comes next."""
        if self.output.rendered_samples:
            wanted = _PAUSE_MS.get(boundary, 0) * SAMPLE_RATE_HZ / 1000 / self.params.speed
            self.pause_samples = max(self.pause_samples, round(wanted) - _KEPT_QUIET_SAMPLES)


class HibariEngine:
    """See the module. Loading takes a third of a second, ``warm_up`` about one (it loads the dictionaries).

    Raises EngineFault if the voice is not installed or not the one this version was made for. Utterances end with
    Failed for an unknown voice, a language or pace the voice does not have, or text without a sound it could make.
    Words that make no sound ("你好" in an English voice, a lone dash) have no time; the others have measured ones.
    ``SynthesisParams.instruct`` has no effect: the voice has one style.
    """

    def __init__(self, settings: HibariSettings | None = None, model: HibariModel | None = None) -> None:
        self._settings = settings or HibariSettings()
        self._model = model or HibariModel(threads=self._settings.threads)
        self._utterances: dict[UtteranceKey, _Utterance] = {}
        self._refused: list[Failed] = []
        self._scheduler = Scheduler()
        self._sent_only = False  # the last step made nothing new
        self.info = EngineInfo(
            name="hibari",
            voices=(VOICE,),
            languages=(LANGUAGE,),
            alignment=Alignment.MEASURED,
            max_utterances=self._settings.max_utterances,
            reads_numbers=True,
            speed_range=SPEED_RANGE,
            extra=(("model", "hibari-tts 0.2.1"),),
        )

    @property
    def live(self) -> int:
        """Utterances that hold anything."""
        return len(self._utterances)

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            self._open(command)
            return
        utterance = self._utterances.get(command.key)
        if utterance is None:
            return
        if isinstance(command, Text):
            utterance.segments.append(command.segment)
            utterance.text_seen = True
        elif isinstance(command, EndText):
            utterance.ended = True
        elif isinstance(command, Credit):
            utterance.output.grant(command.samples)
        elif isinstance(command, Hold):
            utterance.held = True
            if utterance.speech is not None:
                utterance.speech.suspend()  # nobody knows how long a pause lasts
        elif isinstance(command, Release):
            utterance.held = False
        elif isinstance(command, Cancel):
            del self._utterances[command.key]

    def _open(self, command: Open) -> None:
        try:
            _check(command.params)
            if len(self._utterances) >= self._settings.max_utterances:
                raise OverCapacity("every utterance slot of the voice is taken; try again in a moment")
            unpaced = sum(not utterance.output.paced for utterance in self._utterances.values())
            if not command.paced and unpaced >= unpaced_share(self._settings.max_utterances):
                raise OverCapacity("every utterance slot for downloads is taken; try again in a moment")
        except TTSWorkerError as error:
            self._refused.append(Failed(command.key, error.info))
        else:
            self._utterances[command.key] = _Utterance(command)

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._refused) or any(
            utterance.has_synthesis or utterance.can_emit or utterance.finished
            for utterance in self._utterances.values()
        )

    def step(self, now_s: float) -> Sequence[Event]:
        events: list[Event] = [*self._refused]
        self._refused.clear()
        for utterance in list(self._utterances.values()):
            if utterance.can_emit:
                events += _emit(utterance)
            if utterance.finished:
                events.append(self._finish(utterance))
        # What is ready leaves before anything new is made, but sending alone never fills two steps in a row.
        self._sent_only = bool(events) and not self._sent_only
        if not self._sent_only:
            urgent = self._most_urgent(int(now_s * 1e6))
            if urgent is not None:
                events += self._serve(urgent)
        return events

    def _most_urgent(self, now_us: int) -> _Utterance | None:
        jobs = []
        for utterance in (*self._waiting(paced=True), *self._waiting(paced=False)):
            if utterance.waiting_since_us is None:
                utterance.waiting_since_us = now_us
            output = utterance.output
            lead_samples, started = output.lead_at_samples(now_us), output.emitted_samples > 0
            jobs.append(Job(output.key, lead_samples, utterance.waiting_since_us, started, output.paced))
        job = self._scheduler.pick(jobs, now_us)
        return None if job is None else self._utterances[job.key]

    def _waiting(self, *, paced: bool) -> list[_Utterance]:
        """The utterances of a class that could use a step."""
        waiting = [u for u in self._utterances.values() if u.output.paced is paced and u.has_synthesis]
        open_phrases = [u for u in waiting if u.speech is not None and not u.speech.suspended]
        most = _MOST_OPEN_PHRASES if paced else _MOST_OPEN_UNPACED_PHRASES
        return waiting if len(open_phrases) < most else open_phrases

    def _serve(self, utterance: _Utterance) -> list[Event]:
        """One piece of work for an utterance, and what it lets go."""
        try:
            self._advance(utterance)
        except TTSWorkerError as error:
            return [self._fail(utterance, error)]
        except MemoryError:
            return [self._fail(utterance, OutOfMemory("there is no memory left for this utterance"))]
        except Exception as error:  # whatever the reading or the network trips over is this text's fault alone
            kind = type(error).__name__
            return [self._fail(utterance, SynthesisFailed(f"the voice could not say a part of the text ({kind})"))]
        events: list[Event] = [*_emit(utterance)] if utterance.can_emit else []
        if utterance.output.emitted_samples:  # until then it keeps its place: the first to come is heard first
            utterance.waiting_since_us = None
        if utterance.finished:
            events.append(self._finish(utterance))
        return events

    def _finish(self, utterance: _Utterance) -> Event:
        if utterance.text_seen and not utterance.output.rendered_samples:
            return self._fail(
                utterance, UnspeakableText(f'the text holds nothing that the voice "{VOICE}" (English, en) can say')
            )
        del self._utterances[utterance.output.key]
        return Done(utterance.output.key)

    def _fail(self, utterance: _Utterance, error: TTSWorkerError) -> Failed:
        del self._utterances[utterance.output.key]
        return Failed(utterance.output.key, error.info)

    # -- from text to sound -------------------------------------------------------------------------------------------

    def _advance(self, utterance: _Utterance) -> None:
        started, reads = perf_counter(), utterance.can_read
        if reads:
            self._read(utterance)
        read = perf_counter()
        utterance.read_ms += 1000 * (read - started)
        if reads and not utterance.output.paced:
            return  # a call that arrived meanwhile does not wait for the network too
        if utterance.can_begin:
            self._begin(utterance)
        begun = perf_counter()
        if utterance.speech is not None:
            self._speak(utterance, utterance.speech, network_ms=1000 * (begun - read), since=begun)

    def _read(self, utterance: _Utterance) -> None:
        """Find the next phrase, in one bounded piece of text."""
        if utterance.reading is None:
            utterance.segment = utterance.segments.popleft()
            # Slow speech is long speech: fewer phonemes take the network as much time.
            most_phonemes = round(MAX_PHONEMES * min(1.0, utterance.params.speed))
            utterance.reading = self._model.phonemizer.phonemize(utterance.segment, most_phonemes)
            utterance.phrases_begun = 0
        try:
            utterance.phrase = next(utterance.reading)
        except StopIteration:
            utterance.reading = None
            if utterance.segment is not None:
                utterance.pause(utterance.segment.boundary)

    def _begin(self, utterance: _Utterance) -> None:
        phrase, segment = utterance.phrase, utterance.segment
        if phrase is None or segment is None:
            return
        # Noise of its own for every phrase: what was said before, and when, changes nothing.
        seeds = (utterance.params.seed, segment.index, utterance.phrases_begun)
        noise = np.random.default_rng([seed % (1 << 64) for seed in seeds])
        utterance.speech = PhraseSynthesis(self._model, phrase, utterance.params.speed, noise)
        utterance.phrases_begun += 1
        utterance.phrase = None

    def _speak(self, utterance: _Utterance, speech: PhraseSynthesis, network_ms: float, since: float) -> None:
        """The next block of the phrase, with the pause before it if it is the first."""
        output, segment = utterance.output, utterance.segment
        if segment is None:
            return
        if speech.total_samples:
            block = speech.next_block()
            origin = output.rendered_samples + utterance.pause_samples
            words = [
                WordTiming(word.start_char, word.end_char, origin + word.start_sample, origin + word.end_sample)
                for word in block.words
                if word.start_char >= utterance.said_until_char  # a word cut between phrases is told once
            ]
            if words:
                utterance.said_until_char = words[-1].end_char
            vocoder_ms = 1000 * (perf_counter() - since)
            output.render(
                silence(utterance.pause_samples) + to_pcm(block.samples),
                words,
                text_range=(segment.start, segment.end),
                wall_ms=utterance.read_ms + network_ms + vocoder_ms,
                stages_ms=(("text", utterance.read_ms), ("network", network_ms), ("vocoder", vocoder_ms)),
            )
            utterance.pause_samples = 0
            utterance.read_ms = 0.0
        if speech.finished:
            utterance.pause(speech.boundary)
            utterance.speech = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Say something through every path once: both ends of the pace, a short and a long clause, a word that no
        dictionary has, given phonemes. Raises EngineFault if that fails or is silent."""
        long_text = "The network allocates for its longest phrase now, " * 3 + "and Zquorblat is a word nobody knows."
        phonemes = Segment(0, (Span("Hello", 0, 5, "həlˈO"),), 0, 5, Boundary.END)
        for speed, segment in (
            (1.0, phonemes),
            (SPEED_RANGE[0], _segment("Yes.")),
            (SPEED_RANGE[1], _segment("Yes.")),
            (1.0, _segment(long_text)),
        ):
            key = UtteranceKey("warm-up", -1)
            self.handle(Open(key, SynthesisParams(VOICE, speed), credit_samples=60 * SAMPLE_RATE_HZ))
            self.handle(Text(key, segment))
            self.handle(EndText(key))
            heard = bytearray()
            while (utterance := self._utterances.get(key)) is not None:
                for event in self._serve(utterance):
                    if isinstance(event, Failed):
                        raise EngineFault(f"the voice cannot speak: {event.error.message}")
                    if isinstance(event, Audio):
                        heard += event.pcm
            if not np.any(np.abs(np.frombuffer(bytes(heard), "<i2").astype(np.int32)) > 1000):
                raise EngineFault("the voice is silent; reinstall hibari-tts and onnxruntime")

    def close(self) -> None:
        self._utterances.clear()
        self._refused.clear()


def _emit(utterance: _Utterance) -> Iterator[Audio]:
    while (audio := utterance.output.emit(_LONGEST_SLICE_SAMPLES)) is not None:
        yield audio


def _segment(text: str) -> Segment:
    return Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)


def _check(params: SynthesisParams) -> None:
    """Raises UnknownVoice or InvalidRequest for what this voice cannot do; nothing is replaced in silence."""
    if params.voice != VOICE:
        raise UnknownVoice(f'the CPU voice has no voice "{params.voice}"; it has "{VOICE}"')
    if not (math.isfinite(params.speed) and SPEED_RANGE[0] <= params.speed <= SPEED_RANGE[1]):
        raise InvalidRequest(f"speed must be {SPEED_RANGE[0]:g} to {SPEED_RANGE[1]:g} for this voice")
    if params.language is not None and params.language.replace("_", "-").split("-")[0].lower() != LANGUAGE:
        raise InvalidRequest(f'the voice "{VOICE}" speaks English (en) only; leave the language out or say "en"')
