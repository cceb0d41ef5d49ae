"""The CPU voice: hibari-tts behind the ``Engine`` protocol, serving many utterances on one thread.

A step does one unit of work of a few milliseconds: phonemizing a batch of text, running the network for one phrase and
rendering its first audio, or rendering one second of audio.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from tts_worker.audio.pcm import silence, to_pcm
from tts_worker.engine.hibari.model import HibariModel
from tts_worker.engine.hibari.speech import POST_ROLL_SAMPLES, PRE_ROLL_SAMPLES, PhraseSynthesis
from tts_worker.engine.hibari.text import MAX_PHONEMES, Phrase
from tts_worker.engine.output_buffer import OutputBuffer
from tts_worker.engine.scheduler import Budgets, Candidate, Scheduler
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
"""Silence between the speech of two segments at normal speed.

A forced cut (WORD, FORCED) adds none beyond what phrases retain.
"""

_RETAINED_SILENCE_SAMPLES = PRE_ROLL_SAMPLES + POST_ROLL_SAMPLES
_MAX_CHUNK_SAMPLES = SAMPLE_RATE_HZ // 2
_MIN_CHUNK_SAMPLES = SAMPLE_RATE_HZ // 10
_MAX_OPEN_PHRASES = 8
_MAX_OPEN_UNPACED_PHRASES = 4
"""Limits of phrases with spectra in memory (up to 12 MB each), for paced and for unpaced utterances.

At the limit, open phrases are finished first. Separate limits keep downloads from blocking the phrases of calls.
"""


@dataclass(frozen=True, slots=True)
class HibariSettings:
    """Settings of the CPU voice.

    Attributes:
        max_utterances: Utterances served at a time.
        threads: Threads of the network; one is fastest for a model this small.
    """

    max_utterances: int = 64
    threads: int = 1


class _Utterance:
    """State of an utterance.

    Segments are phonemized to phrases one by one; each phrase is synthesized in blocks into the output buffer.
    """

    def __init__(self, command: Open) -> None:
        self.params: SynthesisParams = command.params
        self.output = OutputBuffer(command.key, command.credit_samples, paced=command.paced, buffered=command.buffered)
        self.segments: deque[Segment] = deque()
        self.segment: Segment | None = None
        self.phrases: Iterator[Phrase | None] | None = None  # the remaining phrases of the segment
        self.next_phrase: Phrase | None = None
        self.started_phrases = 0  # of this segment
        self.synthesis: PhraseSynthesis | None = None
        self.pause_samples = 0  # silence before the next audio, if any follows
        self.phonemize_ms = 0.0  # spent on the next phrase so far
        self.timed_until_char = 0  # words before this have been reported
        self.has_text = False
        self.text_ended = False
        self.is_held = False
        self.waiting_since_us: int | None = None

    @property
    def can_phonemize(self) -> bool:
        return self.next_phrase is None and self.synthesis is None and (self.phrases is not None or bool(self.segments))

    @property
    def can_start_phrase(self) -> bool:
        """Whether a phrase is ready and the credit exceeds the audio that already waits for it."""
        return self.next_phrase is not None and self.output.credit_samples > self.output.waiting_samples

    @property
    def can_synthesize(self) -> bool:
        return not self.is_held and (self.synthesis is not None or self.can_phonemize or self.can_start_phrase)

    @property
    def can_emit(self) -> bool:
        """Whether a chunk can be emitted. Small credits are coalesced to chunks of 100 ms while audio is on its way."""
        output = self.output
        if self.is_held or not output.can_emit:
            return False
        min_samples = min(output.waiting_samples, _MIN_CHUNK_SAMPLES)
        in_transit_samples = output.emitted_samples - output.taken_samples
        return output.credit_samples >= min_samples or in_transit_samples < _MIN_CHUNK_SAMPLES

    @property
    def finished(self) -> bool:
        is_rendered = not self.segments and self.phrases is None and self.next_phrase is None and self.synthesis is None
        return self.text_ended and is_rendered and not self.is_held and self.output.waiting_samples == 0

    def add_pause(self, boundary: Boundary) -> None:
        """Insert the silence of ``boundary`` before the next audio, unless nothing has been rendered."""
        if self.output.rendered_samples:
            pause = _PAUSE_MS.get(boundary, 0) * SAMPLE_RATE_HZ / 1000 / self.params.speed
            self.pause_samples = max(self.pause_samples, round(pause) - _RETAINED_SILENCE_SAMPLES)


class HibariEngine:
    """Synthesizes English speech on the CPU.

    Loading takes a third of a second and ``warm_up`` about one (it loads the dictionaries). An utterance fails for an
    unknown voice, an unsupported language or speed, or text that gives no audio. Words without audio ("你好" in an
    English voice, a dash) have no timestamp; the others have measured ones. ``SynthesisParams.instruct`` has no effect:
    the voice has one style.

    Raises:
        EngineFault: The voice is not installed, or its model does not match this release.
    """

    def __init__(self, settings: HibariSettings | None = None, model: HibariModel | None = None) -> None:
        self._settings = settings or HibariSettings()
        self._model = model or HibariModel(threads=self._settings.threads)
        self._utterances: dict[UtteranceKey, _Utterance] = {}
        self._rejections: list[Failed] = []
        self._scheduler = Scheduler()
        self._emitted_only = False  # the last step synthesized nothing
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
        """Number of utterances that hold resources."""
        return len(self._utterances)

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        if isinstance(command, Open):
            self._open(command)
            return
        utterance = self._utterances.get(command.key)
        if utterance is None:
            return
        match command:
            case Text():
                utterance.segments.append(command.segment)
                utterance.has_text = True
            case EndText():
                utterance.text_ended = True
            case Credit():
                utterance.output.grant(command.samples)
            case Hold():
                utterance.is_held = True
                if utterance.synthesis is not None:
                    utterance.synthesis.suspend()  # a pause may last long; the spectra can be predicted again
            case Release():
                utterance.is_held = False
            case Cancel():
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
            self._rejections.append(Failed(command.key, error.info))
        else:
            self._utterances[command.key] = _Utterance(command)

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._rejections) or any(
            utterance.can_synthesize or utterance.can_emit or utterance.finished
            for utterance in self._utterances.values()
        )

    def step(self, now_s: float) -> Sequence[Event]:
        events: list[Event] = [*self._rejections]
        self._rejections.clear()
        for utterance in list(self._utterances.values()):
            if utterance.can_emit:
                events += _emit(utterance)
            if utterance.finished:
                events.append(self._finish(utterance))
        # Ready audio is emitted before new work, but two consecutive steps never only emit.
        self._emitted_only = bool(events) and not self._emitted_only
        if not self._emitted_only:
            urgent = self._most_urgent(int(now_s * 1e6))
            if urgent is not None:
                events += self._serve(urgent)
        return events

    def _most_urgent(self, now_us: int) -> _Utterance | None:
        candidates = []
        for utterance in (*self._candidates(paced=True), *self._candidates(paced=False)):
            if utterance.waiting_since_us is None:
                utterance.waiting_since_us = now_us
            output = utterance.output
            lead_samples = output.lead_at_samples(now_us)
            has_started = output.emitted_samples > 0
            candidates.append(
                Candidate(output.key, lead_samples, utterance.waiting_since_us, has_started, output.paced)
            )
        batch = self._scheduler.schedule(candidates, Budgets(), now_us).audio
        return None if batch is None else self._utterances[batch.members[0]]

    def _candidates(self, *, paced: bool) -> list[_Utterance]:
        """Return the paced or the unpaced utterances that can use a step."""
        candidates = [u for u in self._utterances.values() if u.output.paced is paced and u.can_synthesize]
        open_phrases = [u for u in candidates if u.synthesis is not None and not u.synthesis.suspended]
        limit = _MAX_OPEN_PHRASES if paced else _MAX_OPEN_UNPACED_PHRASES
        return candidates if len(open_phrases) < limit else open_phrases

    def _serve(self, utterance: _Utterance) -> list[Event]:
        """Do one unit of work for an utterance and emit its audio."""
        try:
            self._advance(utterance)
        except TTSWorkerError as error:
            return [self._fail(utterance, error)]
        except MemoryError:
            return [self._fail(utterance, OutOfMemory("not enough memory for this utterance"))]
        except Exception as error:  # an error of the G2P or the network fails only this utterance
            kind = type(error).__name__
            return [self._fail(utterance, SynthesisFailed(f"the voice could not synthesize part of the text ({kind})"))]
        events: list[Event] = [*_emit(utterance)] if utterance.can_emit else []
        if utterance.output.emitted_samples:  # until its first chunk the order of arrival counts
            utterance.waiting_since_us = None
        if utterance.finished:
            events.append(self._finish(utterance))
        return events

    def _finish(self, utterance: _Utterance) -> Event:
        if utterance.has_text and not utterance.output.rendered_samples:
            return self._fail(
                utterance,
                UnspeakableText(f'the text contains nothing that the voice "{VOICE}" (English, en) can speak'),
            )
        del self._utterances[utterance.output.key]
        return Done(utterance.output.key)

    def _fail(self, utterance: _Utterance, error: TTSWorkerError) -> Failed:
        del self._utterances[utterance.output.key]
        return Failed(utterance.output.key, error.info)

    # -- synthesis -----------------------------------------------------------------------------------------------------

    def _advance(self, utterance: _Utterance) -> None:
        start_s = perf_counter()
        phonemizes = utterance.can_phonemize
        if phonemizes:
            self._find_phrase(utterance)
        phonemized_s = perf_counter()
        utterance.phonemize_ms += 1000 * (phonemized_s - start_s)
        if phonemizes and not utterance.output.paced:
            return  # a call that has arrived in the meantime need not wait for the network as well
        if utterance.can_start_phrase:
            self._start_phrase(utterance)
        predicted_s = perf_counter()
        if utterance.synthesis is not None:
            network_ms = 1000 * (predicted_s - phonemized_s)
            self._render_block(utterance, utterance.synthesis, network_ms=network_ms, start_s=predicted_s)

    def _find_phrase(self, utterance: _Utterance) -> None:
        """Phonemize one bounded batch of text to find the next phrase."""
        if utterance.phrases is None:
            utterance.segment = utterance.segments.popleft()
            # Slow speech is longer: fewer phonemes take the network the same time.
            max_phonemes = round(MAX_PHONEMES * min(1.0, utterance.params.speed))
            utterance.phrases = self._model.phonemizer.phonemize(utterance.segment, max_phonemes)
            utterance.started_phrases = 0
        try:
            utterance.next_phrase = next(utterance.phrases)
        except StopIteration:
            utterance.phrases = None
            if utterance.segment is not None:
                utterance.add_pause(utterance.segment.boundary)

    def _start_phrase(self, utterance: _Utterance) -> None:
        phrase = utterance.next_phrase
        segment = utterance.segment
        if phrase is None or segment is None:
            return
        # Every phrase has a separate noise generator, so its audio does not depend on earlier text or timing.
        seeds = (utterance.params.seed, segment.index, utterance.started_phrases)
        noise = np.random.default_rng([seed % (1 << 64) for seed in seeds])
        utterance.synthesis = PhraseSynthesis(self._model, phrase, utterance.params.speed, noise)
        utterance.started_phrases += 1
        utterance.next_phrase = None

    def _render_block(
        self, utterance: _Utterance, synthesis: PhraseSynthesis, network_ms: float, start_s: float
    ) -> None:
        """Render the next block of the phrase, after the pending pause if it is the first."""
        output = utterance.output
        segment = utterance.segment
        if segment is None:
            return
        if synthesis.total_samples:
            block = synthesis.next_block()
            origin = output.rendered_samples + utterance.pause_samples
            words = [
                WordTiming(word.start_char, word.end_char, origin + word.start_sample, origin + word.end_sample)
                for word in block.words
                if word.start_char >= utterance.timed_until_char  # a word divided between phrases is reported once
            ]
            if words:
                utterance.timed_until_char = words[-1].end_char
            vocoder_ms = 1000 * (perf_counter() - start_s)
            output.render(
                silence(utterance.pause_samples) + to_pcm(block.samples),
                words,
                text_range=(segment.start, segment.end),
                wall_ms=utterance.phonemize_ms + network_ms + vocoder_ms,
                stages_ms=(("text", utterance.phonemize_ms), ("network", network_ms), ("vocoder", vocoder_ms)),
            )
            utterance.pause_samples = 0
            utterance.phonemize_ms = 0.0
        if synthesis.finished:
            utterance.add_pause(synthesis.boundary)
            utterance.synthesis = None

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Synthesize once through every path: both speed limits, short and long text, an unknown word, given phonemes.

        Raises:
            EngineFault: Synthesis fails or its output is silent.
        """
        long_text = "The network allocates for its longest phrase now, " * 3 + "and Zquorblat is in no dictionary."
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
            pcm = bytearray()
            while (utterance := self._utterances.get(key)) is not None:
                for event in self._serve(utterance):
                    if isinstance(event, Failed):
                        raise EngineFault(f"the voice cannot speak: {event.error.message}")
                    if isinstance(event, Audio):
                        pcm += event.pcm
            if not np.any(np.abs(np.frombuffer(bytes(pcm), "<i2").astype(np.int32)) > 1000):
                raise EngineFault("the voice is silent; reinstall hibari-tts and onnxruntime")

    def close(self) -> None:
        self._utterances.clear()
        self._rejections.clear()


def _emit(utterance: _Utterance) -> Iterator[Audio]:
    while (audio := utterance.output.emit(_MAX_CHUNK_SAMPLES)) is not None:
        yield audio


def _segment(text: str) -> Segment:
    return Segment(0, (Span(text, 0, len(text)),), 0, len(text), Boundary.END)


def _check(params: SynthesisParams) -> None:
    """Check that the voice supports the parameters; none is replaced silently.

    Raises:
        UnknownVoice: The voice does not exist.
        InvalidRequest: Speed or language is not supported.
    """
    if params.voice != VOICE:
        raise UnknownVoice(f'the CPU voice has no voice "{params.voice}"; it has "{VOICE}"')
    if not (math.isfinite(params.speed) and SPEED_RANGE[0] <= params.speed <= SPEED_RANGE[1]):
        raise InvalidRequest(f"speed must be {SPEED_RANGE[0]:g} to {SPEED_RANGE[1]:g} for this voice")
    if params.language is not None and params.language.replace("_", "-").split("-")[0].lower() != LANGUAGE:
        raise InvalidRequest(f'the voice "{VOICE}" speaks English (en) only; omit the language or set it to "en"')
