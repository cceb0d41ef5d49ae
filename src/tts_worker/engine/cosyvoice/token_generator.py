"""Turns the text of one utterance into speech tokens: text segments -> language model runs -> audio segments.

Decides *what* is spoken: the order of runs, their context, their seeds, retries and truncation. The result depends on
text, parameters and drawn ids only, never on time, credit or other utterances. Holds no tensors.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tts_worker.engine.cosyvoice.audio.chunks import CLOSING_BOUNDARIES, GridPlan, SegmentPhase
from tts_worker.engine.cosyvoice.audio.renderer import RenderState, chunk_pages
from tts_worker.engine.cosyvoice.audio.segment import AudioSegment
from tts_worker.engine.cosyvoice.bundle.config import V3, CosyVoiceConfig
from tts_worker.engine.cosyvoice.execution.settings import StreamingConfig, TextMode
from tts_worker.engine.cosyvoice.phases import TEXT_TRANSITIONS, TextPhase
from tts_worker.engine.cosyvoice.tokens.alignment import WordAligner, estimate_tokens
from tts_worker.engine.cosyvoice.tokens.guard import SILENT_TOKENS, GuardLimits, TokenGuard
from tts_worker.engine.cosyvoice.tokens.interleave import Interleave, InterleaveRule
from tts_worker.engine.cosyvoice.tokens.runs import MAX_RATIO, MIN_RATIO, ClauseRun, InterleavedRun, LmRun, RunPhase
from tts_worker.engine.cosyvoice.tokens.tokenizer import TextTokenizer
from tts_worker.engine.cosyvoice.voices.cache import VoiceState
from tts_worker.engine.cosyvoice.voices.speaker import Request, style_instruction
from tts_worker.engine.phases import change_phase
from tts_worker.errors import InvalidRequest, SynthesisFailed, TextTooLong
from tts_worker.text.characters import begins_unspaced, ends_unspaced
from tts_worker.text.spoken_words import SpokenWord, spoken_words
from tts_worker.types import NEUTRAL, Boundary, Segment, SynthesisParams, UtteranceKey

_SENTENCE_ENDS = tuple(".!?…。！？")
_SPEECH_PER_TEXT = 7  # speech tokens per text token of slow English
_MASK = (1 << 64) - 1

Script = Callable[[UtteranceKey, int], Sequence[int]]
"""Returns the ids of run number n of an utterance, its end id included, instead of drawn ones; none to draw them. For
the warm-up, tests and benchmarks."""


def derive_seed(seed: int, *numbers: int) -> int:
    """Return a seed from 0 to 2^63 - 1 that depends on all numbers; ``seed`` itself if all of them are 0."""
    if not any(numbers):
        return seed
    for number in numbers:  # splitmix64 (Steele, Lea and Flood 2014)
        seed = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
        seed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        seed = ((seed ^ (seed >> 27)) * 0x94D049BB133111EB) & _MASK
        seed ^= seed >> 31
    return seed >> 1


def is_speakable(segment: Segment) -> bool:
    """Whether ``segment`` has letters, digits or phonemes. The model does not speak marks and symbols alone."""
    has_speech = any(
        any(map(str.isalnum, span.text)) if span.phonemes is None else not span.phonemes.startswith("<")
        for span in segment.spans
    )
    return has_speech and bool(spoken_words(segment))


@dataclass(frozen=True)
class EngineSpec:
    """What all utterances of an engine share: dimensions, tokenizer, settings, and a script."""

    config: CosyVoiceConfig
    tokenizer: TextTokenizer
    settings: StreamingConfig
    script: Script | None = None


@dataclass(slots=True)
class _RunText:
    """The text of a run of the language model, which may be drawn in several attempts.

    Attributes:
        index: Number of the run.
        start: Tokens of the audio segment before it.
        ids: Its text.
        words: Its words, each group with the number of text ids up to its end.
        words_scheduled: Groups that the aligner has in this attempt.
        attempt: Number of the attempt, from 0.
    """

    index: int = 0
    start: int = 0
    ids: list[int] = field(default_factory=list)
    words: list[tuple[int, tuple[SpokenWord, ...]]] = field(default_factory=list)
    words_scheduled: int = 0
    attempt: int = 0


class TokenGenerator:
    """Text and token state of one utterance.

    Args:
        key: The utterance.
        params: Its synthesis parameters.
        spec: What all utterances share.

    Attributes:
        key: The utterance.
        params: Its synthesis parameters.
        voice: Its voice, once loaded.
        audio_segments: Audio segments that are not fully rendered, in order.
        run: The current run of the language model.
        run_in_slot: The run that the decoder has started in its slot; another one than ``run`` before that.
        phase: How far the text is known.
        expression: How the session speaks, from the next chunk on; its style counts where the text has none.
        truncated: Why the utterance was truncated; ``None`` if it was not.
    """

    def __init__(self, key: UtteranceKey, params: SynthesisParams, spec: EngineSpec) -> None:
        self.key = key
        self.params = params
        self.voice: VoiceState | None = None
        self.audio_segments: deque[AudioSegment] = deque()
        self.run: LmRun | None = None
        self.run_in_slot: LmRun | None = None
        self.phase = TextPhase.OPEN
        self.truncated: str | None = None
        self.expression = NEUTRAL
        self._spec = spec
        self._speech: deque[tuple[int, ...]] = deque()  # given tokens, until they are in an audio segment
        self._request: Request | None = None
        self._style = ""  # of ``_request``
        self._text_segments: deque[Segment] = deque()
        self._runs_started = 0
        self._audio_segments_started = 0
        self._last_aligner: WordAligner | None = None
        self._context: deque[tuple[list[int], list[int]]] = deque()  # text and speech of earlier runs
        self._run_text = _RunText()  # of the current run
        self._tokens_after_id: list[int] = []  # length of the audio segment after each speech id of the run
        self._guard = TokenGuard(frozenset())
        self._last_text = ""  # of the previous segment, if the next one continues it

    # -- text ---------------------------------------------------------------------------------------------------------

    def add_text(self, segment: Segment) -> None:
        """Add the next text segment. Unspeakable text is skipped."""
        if self.phase is TextPhase.TRUNCATED:
            return
        if is_speakable(segment):
            self._text_segments.append(segment)
            self._feed_interleaved()
        elif segment.boundary is Boundary.FLUSH and self._interleaved:
            self.close_text()

    def close_text(self) -> None:
        """Speak all received text without waiting for more: close the audio segment after it."""
        if self._text_segments:
            self._text_segments[-1] = replace(self._text_segments[-1], boundary=Boundary.FLUSH)
        elif self.run is not None:
            self._close_after_run(self.audio_segments[-1])
            self._feed_interleaved()
        elif (audio_segment := self._open_audio_segment()) is not None:
            audio_segment.enter(SegmentPhase.COMPLETE)

    def end_text(self) -> None:
        """End the text. Has no effect if it was truncated."""
        if self.phase is not TextPhase.OPEN:
            return
        self.phase = change_phase(self.phase, TextPhase.ENDED, TEXT_TRANSITIONS)
        self._feed_interleaved()
        self._close_if_finished()

    def set_voice(self, voice: VoiceState, request: Request) -> None:
        """Set the voice and the prompt to speak with. Required before ``begin_run``."""
        self.voice = voice
        self._request = request
        self._pass_speech_on()
        self._close_if_finished()

    # -- speech -------------------------------------------------------------------------------------------------------

    def add_speech(self, tokens: tuple[int, ...]) -> None:
        """Add speech tokens to render as they are, without the language model.

        Raises:
            InvalidRequest: The flow does not know one of them.
        """
        vocab = self._spec.config.flow.vocab
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
            raise InvalidRequest(f"speech tokens must be 0 to {vocab - 1}")
        if tokens:
            self._speech.append(tokens)
            self._pass_speech_on()

    def _pass_speech_on(self) -> None:
        """Move given tokens to audio segments, which they close between two portions where they can.

        Where they close depends on the portions alone, never on when they arrive.
        """
        limit = self._max_segment_tokens
        while self._speech and self.voice is not None:
            tokens = self._speech.popleft()
            opened = self._open_audio_segment()
            if opened is not None and len(opened.tokens) + len(tokens) > limit:
                opened.enter(SegmentPhase.COMPLETE)
            for start in range(0, len(tokens), limit):
                audio_segment = self._current_audio_segment()
                audio_segment.tokens.extend(tokens[start : start + limit])
                if 2 * len(audio_segment.tokens) >= limit:
                    audio_segment.enter(SegmentPhase.COMPLETE)

    @property
    def request(self) -> Request:
        assert self._request is not None
        return self._request

    @property
    def _interleaved(self) -> bool:
        return self._spec.settings.text_mode is TextMode.INTERLEAVED

    @property
    def due_segment(self) -> AudioSegment | None:
        """The first audio segment, if a chunk of it can be rendered now."""
        first = self.audio_segments[0] if self.audio_segments else None
        return first if first is not None and first.due_chunk is not None else None

    @property
    def unrendered_tokens(self) -> int:
        """Tokens of all audio segments that are not rendered yet."""
        return sum(audio_segment.unrendered_tokens for audio_segment in self.audio_segments)

    def _open_audio_segment(self) -> AudioSegment | None:
        return self.audio_segments[-1] if self.audio_segments and not self.audio_segments[-1].is_complete else None

    @property
    def can_begin_run(self) -> bool:
        """Whether there is text for a run, and at most one audio segment waits before it."""
        return bool(self._text_segments) and (len(self.audio_segments) < 2 or self._open_audio_segment() is not None)

    @property
    def has_pending_speech(self) -> bool:
        """Whether any of the received text or speech is not fully rendered."""
        pending = self._speech or self._text_segments or self.audio_segments
        return bool(pending) or self.run is not None

    @property
    def has_begun_speech(self) -> bool:
        """Whether any of the text or speech could be spoken so far."""
        return self._audio_segments_started > 0

    @property
    def needs_only_last_id(self) -> bool:
        """Whether the last drawn id is the only input that the network has not processed."""
        run = self.run
        return run is not None and self.run_in_slot is run and run.needs_only_last_id

    @property
    def next_inputs(self) -> int:
        """Inputs of the next prefill. Before its run begins, an estimate: at most one token per character."""
        if self.run is not None:
            return len(self.run.pending_items)
        prompt = 0 if self._request is None else len(self._request.prompt_text) + len(self._request.lm_prompt)
        context = sum(len(text) + len(speech) for text, speech in self._context)
        return prompt + context + (len(self._text_segments[0].text) if self._text_segments else 0)

    @property
    def is_before_first_chunk(self) -> bool:
        """Whether the next run is the first one, its ids do not depend on text that may still arrive, and its audio
        does not depend on where its words are.
        """
        if self._runs_started or self.audio_segments or self._interleaved:
            return False
        expressions = [self.expression, *(each for segment in self._text_segments for _, each in segment.expressions)]
        return all(each._replace(style="") == NEUTRAL for each in expressions)

    def first_chunk_needs(self) -> tuple[int, int, int]:
        """Return the tokens and pages of the first chunk, and the estimated pages of its audio segment."""
        assert self.voice is not None
        flow = self._spec.config.flow
        chunk = GridPlan(len(self.voice.prompt), flow.chunk_tokens, flow.lookahead_tokens).first_chunk
        pages = chunk_pages(RenderState(self.voice, 0), chunk, flow.chunk_tokens)
        expected_tokens = estimate_tokens(self._spelled_words(self._text_segments[0]), self.voice.pace)
        return chunk.known, pages, max(pages, -(-math.ceil(expected_tokens) // flow.chunk_tokens))

    # -- runs ---------------------------------------------------------------------------------------------------------

    def begin_run(self) -> None:
        """Start a run with the next text segment.

        Raises:
            TextTooLong: The segment exceeds the context of the language model.
        """
        audio_segment = self._current_audio_segment()
        self._run_text = _RunText(self._runs_started, len(audio_segment.tokens))
        self._runs_started += 1
        if not self._context_limit:
            self._last_text = ""
        audio_segment.aligner.start_run(self._run_text.start)
        if not self._interleaved:
            segment = self._text_segments.popleft()
            self._set_style(segment.expression_at(segment.spans[0].start).style or self.expression.style)
            self._encode(audio_segment, segment)
            if segment.boundary in CLOSING_BOUNDARIES or self._is_long(audio_segment):
                self._close_after_run(audio_segment)
        self._start_run(audio_segment)
        self._feed_interleaved()

    def _set_style(self, style: str) -> None:
        """Speak the next runs in a style: with another prompt, and without what another style has said before."""
        if style == self._style or self.voice is None or not self.voice.speaker.follows_instructions:
            return
        self._style = style
        instruct = style_instruction(style) if style else self.params.instruct
        self._request = self.voice.request(instruct, self.params.language)
        self._context.clear()

    def _current_audio_segment(self) -> AudioSegment:
        audio_segment = self._open_audio_segment()
        if audio_segment is None:
            assert self.voice is not None
            seed = derive_seed(self.params.seed, self._audio_segments_started)
            audio_segment = AudioSegment(
                RenderState(self.voice, seed),
                self._spec.config,
                pace=self.voice.pace if self._last_aligner is None else self._last_aligner.later_pace,
                stride=self._spec.settings.stride_chunks,
                speed=self.params.speed,
            )
            self._audio_segments_started += 1
            self._last_aligner = audio_segment.aligner
            self.audio_segments.append(audio_segment)
        return audio_segment

    @staticmethod
    def _close_after_run(audio_segment: AudioSegment) -> None:
        """Let the current run be the last one of its audio segment."""
        if audio_segment.phase is SegmentPhase.OPEN:
            audio_segment.enter(SegmentPhase.CLOSING)

    def _is_long(self, audio_segment: AudioSegment) -> bool:
        """Whether the audio segment should close at the next opportunity, to bound its memory."""
        return 2 * len(audio_segment.tokens) >= self._max_drawn_tokens

    @property
    def _max_drawn_tokens(self) -> int:
        """Most tokens that are drawn for an audio segment: with their text they fit into the language model."""
        return min(self._max_segment_tokens, self._spec.settings.lm_tokens // 2)

    @property
    def _max_segment_tokens(self) -> int:
        """Most tokens of an audio segment."""
        return self._spec.settings.max_segment_s * self._spec.config.token_rate_hz

    def _encode(self, audio_segment: AudioSegment, segment: Segment) -> list[int]:
        """Add ``segment`` to the run and return its text ids."""
        audio_segment.add_text(segment)
        ids = self._text_ids(segment)
        self._last_text = segment.text.rstrip()
        self._run_text.ids += ids
        self._run_text.words.append((len(self._run_text.ids), self._spelled_words(segment)))
        return ids

    def _spelled_words(self, segment: Segment) -> tuple[SpokenWord, ...]:
        """Words with the text that the model reads: phonemes tell more about durations than letters do."""
        spell = self._spec.tokenizer.spell
        return tuple(replace(word, text=spell(word.text)) for word in spoken_words(segment))

    def _text_ids(self, segment: Segment) -> list[int]:
        """Return the ids of a text. Control tags and known phonemes become special tokens, all else is plain text."""
        tokenizer = self._spec.tokenizer
        pieces: list[str | list[int]] = []
        for span in segment.spans:
            ids = None if span.phonemes is None else tokenizer.control_ids(span.phonemes)
            if ids is not None:
                pieces.append(ids)
            elif pieces and isinstance(pieces[-1], str):
                pieces[-1] += span.text
            else:
                pieces.append(span.text)
        if isinstance(pieces[0], str):
            first = pieces[0].lstrip()
            has_space = self._last_text and not ends_unspaced(self._last_text)
            pieces[0] = f" {first}" if first and has_space and not begins_unspaced(first) else first
        if isinstance(pieces[-1], str):
            pieces[-1] = pieces[-1].rstrip()
        return [id_ for piece in pieces for id_ in (tokenizer.encode(piece) if isinstance(piece, str) else piece)]

    def _start_run(self, audio_segment: AudioSegment) -> None:
        """Start the current run, or start it again with the seed of this attempt."""
        spec = self._spec
        text = self._run_text
        text.words_scheduled = 0
        self._tokens_after_id = []
        self._guard = TokenGuard(SILENT_TOKENS[spec.config.family], GuardLimits.at_rate(spec.config.token_rate_hz))
        self._trim_context()
        self.run = self._interleaved_run(audio_segment) if self._interleaved else self._clause_run()
        self._schedule_words(audio_segment)

    @property
    def _run_seed(self) -> int:
        return derive_seed(self.params.seed, self._run_text.index, self._run_text.attempt)

    def _run_script(self) -> Sequence[int]:
        script = self._spec.script
        return () if script is None else script(self.key, self._run_text.index)

    def _text_before(self) -> list[int]:
        """Return the text ids of the prompt and of the context."""
        return [*self.request.prompt_text, *(i for text, _ in self._context for i in text)]

    def _speech_before(self) -> list[int]:
        """Return the speech ids of the prompt and of the context."""
        return [*self.request.lm_prompt, *(i for _, speech in self._context for i in speech)]

    def _clause_run(self) -> ClauseRun:
        text = self._run_text.ids
        run = ClauseRun(
            self._spec.config.lm,
            self._run_seed,
            self._run_script(),
            self._text_before(),
            text,
            self._speech_before(),
            with_speaker=self.request.with_speaker,
        )
        if len(run.pending_items) + MIN_RATIO * len(text) > self._spec.settings.lm_tokens:
            raise TextTooLong(
                "a stretch of text without punctuation is longer than the model can read; add punctuation"
            )
        return run

    def _interleaved_run(self, audio_segment: AudioSegment) -> InterleavedRun:
        config = self._spec.config
        end_of_prompt = self._spec.tokenizer.end_of_prompt_id
        dims = config.lm
        text_tokens, speech_tokens = config.mix_ratio
        rule = InterleaveRule(dims.speech_tokens, dims.fill_id, dims.eos_id, text_tokens, speech_tokens, MAX_RATIO)
        before = self._text_before()
        instruction_end = before.index(end_of_prompt) + 1 if config.family == V3 and end_of_prompt in before else 0
        interleave = Interleave(rule, before[:instruction_end], before[instruction_end:], self._speech_before())
        run = InterleavedRun(dims, self._run_seed, self._run_script(), interleave)
        run.push(self._run_text.ids)  # not empty if the run is drawn again
        if audio_segment.phase is SegmentPhase.CLOSING:
            run.end()
        return run

    @property
    def _context_limit(self) -> int:
        """Most speech tokens of earlier runs that a run continues."""
        limit = self._spec.config.context_tokens
        setting = self._spec.settings.context_tokens
        return setting if limit is None else min(limit, setting)

    def _trim_context(self) -> None:
        """Drop the oldest runs until the context fits."""
        settings = self._spec.settings
        # Interleaved text does not count: how much has arrived depends on time.
        text = 0 if self._interleaved else len(self._run_text.ids)
        prompt = len(self.request.prompt_text) + len(self.request.lm_prompt) + (1 + MIN_RATIO) * text
        available = settings.lm_tokens // 2 - prompt

        def context_tokens() -> int:
            return sum(len(speech) for _, speech in self._context)

        while self._context and (
            context_tokens() > self._context_limit
            or context_tokens() + sum(len(text) for text, _ in self._context) > available
        ):
            self._context.popleft()

    def _feed_interleaved(self) -> None:
        """Push received words to the run, up to the end of its audio segment."""
        run = self.run
        if not isinstance(run, InterleavedRun):
            return
        audio_segment = self.audio_segments[-1]
        while self._text_segments and audio_segment.phase is SegmentPhase.OPEN:
            segment = self._text_segments.popleft()
            run.push(self._encode(audio_segment, segment))
            # Counted in text, because the amount of speech drawn by now depends on time.
            expected = len(self._run_text.ids) * _SPEECH_PER_TEXT
            stops = segment.text.rstrip().endswith(_SENTENCE_ENDS) and 2 * expected >= self._max_drawn_tokens
            if segment.boundary in CLOSING_BOUNDARIES or stops or expected >= self._max_drawn_tokens:
                self._close_after_run(audio_segment)
        if self.phase is TextPhase.ENDED and not self._text_segments:
            self._close_after_run(audio_segment)
        if audio_segment.phase is SegmentPhase.CLOSING:
            run.end()
        self._schedule_words(audio_segment)

    def _schedule_words(self, audio_segment: AudioSegment) -> None:
        """Pass the words that the language model has read to the aligner."""
        text = self._run_text
        read = self.run.read_tokens if isinstance(self.run, InterleavedRun) else len(text.ids)
        while text.words_scheduled < len(text.words) and text.words[text.words_scheduled][0] <= read:
            audio_segment.aligner.add_words(text.words[text.words_scheduled][1], len(audio_segment.tokens))
            text.words_scheduled += 1

    # -- ids ----------------------------------------------------------------------------------------------------------

    def process_ids(self, ids: Sequence[int]) -> None:
        """Process drawn ids, in order. Invalid output restarts the run or truncates the utterance."""
        run = self.run
        for token in ids:
            if run is None or self.run is not run:  # it is over, or another one is drawn in its place
                return
            self._process_id(run, token)

    def _process_id(self, run: LmRun, token: int) -> None:
        if token < 0:
            self._handle_violation("broken_scores", len(run.speech_ids))
            return
        try:
            is_speech = run.take(token)
        except SynthesisFailed:
            self._handle_violation("stray_id", len(run.speech_ids))
            return
        audio_segment = self.audio_segments[-1]
        if is_speech:
            audio_segment.add(token)
            self._tokens_after_id.append(len(audio_segment.tokens))
            violation = None if run.script else self._guard.check(token)
            if violation is not None:
                self._handle_violation(violation.reason, violation.valid_tokens)
                return
        self._schedule_words(audio_segment)
        phase = run.phase
        is_over = phase is RunPhase.ENDED or phase is RunPhase.TRUNCATED
        if is_over and not run.speech_ids and self._can_retry(audio_segment):
            self._retry_run(audio_segment)
        elif phase is RunPhase.ENDED or (is_over and run.script):
            self._end_run(run, audio_segment)
        elif is_over or len(audio_segment.tokens) >= self._max_segment_tokens:
            self._truncate("no_end_of_speech", len(audio_segment.tokens))

    def end_at_capacity(self) -> None:
        """Truncate the utterance because the sequence does not fit into the language model."""
        self._truncate("no_end_of_speech", len(self.audio_segments[-1].tokens))

    def _end_run(self, run: LmRun, audio_segment: AudioSegment) -> None:
        audio_segment.aligner.end_run(len(audio_segment.tokens))
        self._context.append((self._run_text.ids, run.speech_ids))
        self.run = None
        if audio_segment.phase is SegmentPhase.CLOSING:
            audio_segment.enter(SegmentPhase.COMPLETE)
        self._close_if_finished()

    def _close_if_finished(self) -> None:
        audio_segment = self._open_audio_segment()
        has_more = self.phase is TextPhase.OPEN or self.run is not None or self._text_segments or self._speech
        if not has_more and audio_segment is not None:
            audio_segment.enter(SegmentPhase.COMPLETE)

    def _handle_violation(self, reason: str, valid_ids: int) -> None:
        """Retry the run if none of its audio may have been sent, otherwise truncate before the violation."""
        audio_segment = self.audio_segments[-1]
        if self._can_retry(audio_segment):
            self._retry_run(audio_segment)
        else:
            self._truncate(reason, self._tokens_after_id[valid_ids - 1] if valid_ids else self._run_text.start)

    def _can_retry(self, audio_segment: AudioSegment) -> bool:
        text = self._run_text
        return text.attempt < self._spec.settings.retries and audio_segment.committed_tokens() <= text.start

    def _retry_run(self, audio_segment: AudioSegment) -> None:
        self._run_text.attempt += 1
        audio_segment.rewind(self._run_text.start)
        self._start_run(audio_segment)

    def _truncate(self, reason: str, length: int) -> None:
        audio_segment = self.audio_segments[-1]
        audio_segment.truncate(length)
        audio_segment.aligner.end_run(len(audio_segment.tokens))
        audio_segment.enter(SegmentPhase.COMPLETE)
        self.run = None
        self.phase = change_phase(self.phase, TextPhase.TRUNCATED, TEXT_TRANSITIONS)
        self.truncated = reason
        self._text_segments.clear()

    # -- audio --------------------------------------------------------------------------------------------------------

    def drop_empty_segment(self) -> AudioSegment | None:
        """Remove the first audio segment if it ended without a token, and return it."""
        first = self.audio_segments[0] if self.audio_segments else None
        if first is None or not first.is_complete or first.tokens:
            return None
        return self.audio_segments.popleft()
