"""An utterance of the simulated engine: texts, runs of the language model, audio segments and their pages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tools.engine_simulator.config import CHUNK_TOKENS, LOOKAHEAD_TOKENS, SimulationConfig, TokensOf
from tts_worker.engine.cosyvoice.audio.chunks import (
    AHEAD_CHUNKS,
    CLOSING_BOUNDARIES,
    Chunk,
    GridPlan,
    RenderProgress,
    SegmentPhase,
)
from tts_worker.engine.cosyvoice.phases import SEQUENCE_TRANSITIONS, TOKEN_PASS_TRANSITIONS, SequencePhase, TokenPass
from tts_worker.engine.phases import change_phase
from tts_worker.engine.scheduler import Candidate, Need, PageClaim
from tts_worker.engine.shell import EngineSequence
from tts_worker.types import Open, Segment

_CHARS_PER_TEXT_TOKEN = 4


@dataclass
class SimulatedVoice:
    """A voice and the pages of its prompt.

    Attributes:
        prompt_tokens: Tokens of the trimmed prompt.
        shared_chunks: Chunks of the prompt that are computed once.
        prepared_chunks: How many of them are in memory.
        users: Utterances that use the voice.
    """

    prompt_tokens: int
    shared_chunks: int
    prepared_chunks: int = 0
    users: int = 0

    @property
    def unprepared_pages(self) -> int:
        return self.shared_chunks - self.prepared_chunks


@dataclass
class _Run:
    """One sequence of the language model.

    Attributes:
        inputs: Inputs that the network has not processed, besides the last drawn id.
        tokens: Speech tokens that it gives.
        drawn: Tokens drawn so far.
    """

    inputs: int
    tokens: int
    drawn: int = 0


class _Segment(RenderProgress):
    """An audio segment.

    Args:
        plan: Its chunks.
        computed_tokens: Prompt and segment tokens that the flow has computed.

    Attributes:
        pages: Pages that it holds, without those of the prompt.
        tokens: Tokens so far.
        expected_tokens: Tokens of the runs so far, once they are over.
    """

    def __init__(self, plan: GridPlan, computed_tokens: int) -> None:
        super().__init__(plan)
        self.computed_tokens = computed_tokens
        self.pages = 0
        self.tokens = 0
        self.expected_tokens = 0

    @property
    def token_count(self) -> int:
        return self.tokens


class SimulatedSequence(EngineSequence):
    """An utterance of the simulated engine.

    Attributes:
        voice: Its voice.
        segments: Audio segments that are not fully rendered, in order.
        run: The current run.
        phase: Where it is in its life. While its voice is not prepared, it counts as speaking.
        token_pass: The pass of the language model that it is in.
        chunk_in_flow: The chunk that the flow computes.
        failed_batches: Batches with it that failed since its last chunk. With any, it runs alone.
        rendered_chunks: Chunks rendered so far.
    """

    def __init__(
        self,
        command: Open,
        voice: SimulatedVoice,
        config: SimulationConfig,
        tokens_of: TokensOf,
        *,
        first_chunk_on_device: bool = False,
    ) -> None:
        super().__init__(command)
        self.voice = voice
        self.segments: deque[_Segment] = deque()
        self.run: _Run | None = None
        self.phase = SequencePhase.SPEAKING
        self.token_pass = TokenPass.NONE
        self.chunk_in_flow: Chunk | None = None
        self.failed_batches = 0
        self.rendered_chunks = 0
        self._config = config
        self._tokens_of = tokens_of
        self._text: deque[tuple[int, int, bool]] = deque()  # text tokens, speech tokens, whether it closes a segment
        self._runs = 0
        self._context_inputs = 0
        self._first_chunk_on_device = first_chunk_on_device and command.paced

    # -- life ---------------------------------------------------------------------------------------------------------

    def enter(self, phase: SequencePhase) -> None:
        self.phase = change_phase(self.phase, phase, SEQUENCE_TRANSITIONS)

    def enter_pass(self, token_pass: TokenPass) -> None:
        self.token_pass = change_phase(self.token_pass, token_pass, TOKEN_PASS_TRANSITIONS)

    @property
    def has_ended(self) -> bool:
        return self.phase is SequencePhase.ENDED

    # -- text and tokens ----------------------------------------------------------------------------------------------

    def add_text(self, segment: Segment) -> None:
        tokens = self._tokens_of(self.key, self._runs, segment)
        self._runs += 1
        if tokens > 0:
            closes = segment.boundary in CLOSING_BOUNDARIES
            self._text.append((len(segment.text) // _CHARS_PER_TEXT_TOKEN + 1, tokens, closes))

    def close_text(self) -> None:
        if self._text:
            text_tokens, tokens, _ = self._text[-1]
            self._text[-1] = (text_tokens, tokens, True)
        elif self.run is not None:
            self._close_after_run()
        elif self.segments and self.segments[-1].phase is SegmentPhase.OPEN:
            self.segments[-1].enter(SegmentPhase.COMPLETE)

    def end_text(self) -> None:
        super().end_text()
        self._close_if_finished()

    def begin_run(self) -> None:
        """Start the run of the next text."""
        text_tokens, tokens, closes = self._text.popleft()
        context = min(self._context_inputs, self._config.context_tokens)
        self.run = _Run(2 + text_tokens + self.voice.prompt_tokens + context, tokens)
        self._context_inputs += text_tokens + tokens
        if not self.segments or self.segments[-1].is_complete:
            self.segments.append(_Segment(self._new_plan(), self.voice.shared_chunks * CHUNK_TOKENS))
        self.segments[-1].expected_tokens += tokens
        if closes:
            self._close_after_run()

    def _close_after_run(self) -> None:
        """Let the current run be the last one of its audio segment."""
        if self.segments[-1].phase is SegmentPhase.OPEN:
            self.segments[-1].enter(SegmentPhase.CLOSING)

    def _new_plan(self) -> GridPlan:
        return GridPlan(self.voice.prompt_tokens, CHUNK_TOKENS, LOOKAHEAD_TOKENS, self._config.stride_chunks)

    def draw(self, draws: int) -> None:
        """Take the result of a pass that draws up to ``draws`` ids; the one after the last token ends the run."""
        run = self.run
        assert run is not None
        run.inputs = 0
        tokens = min(draws, run.tokens - run.drawn)
        run.drawn += tokens
        segment = self.segments[-1]
        segment.tokens += tokens
        if tokens < draws:
            self.run = None
            if segment.phase is SegmentPhase.CLOSING:
                segment.enter(SegmentPhase.COMPLETE)
            self._close_if_finished()

    def _close_if_finished(self) -> None:
        is_finished = self.text_ended and not self._text and self.run is None
        if is_finished and self.segments and self.segments[-1].phase is SegmentPhase.OPEN:
            self.segments[-1].enter(SegmentPhase.COMPLETE)

    @property
    def draws_left(self) -> int:
        """Draws until the run is over."""
        return 0 if self.run is None else self.run.tokens - self.run.drawn + 1

    @property
    def next_inputs(self) -> int:
        """Inputs of the next prefill."""
        if self.run is not None:
            return max(1, self.run.inputs)
        return self._text[0][0] + self.voice.prompt_tokens if self._text else 1

    @property
    def unrendered_tokens(self) -> int:
        return sum(segment.unrendered_tokens for segment in self.segments)

    @property
    def has_pending_speech(self) -> bool:
        return bool(self._text) or self.run is not None or bool(self.segments)

    @property
    def due_chunk(self) -> Chunk | None:
        return self.segments[0].due_chunk if self.segments else None

    def drop_empty_segment(self) -> None:
        """Remove the first audio segment if it ended without a token."""
        chunk = self.due_chunk
        if chunk is not None and chunk.begin == chunk.end and chunk.begin == 0:
            self.segments.popleft()

    # -- needs --------------------------------------------------------------------------------------------------------

    @property
    def needs(self) -> Need:
        if not self.has_capacity:
            return Need.NONE
        if self.has_pending_speech and self.voice.unprepared_pages:
            return Need.NONE if self.phase is SequencePhase.WAITING_PAGES else Need.PREPARE_VOICE
        if self.due_chunk is None:
            return self._needs_tokens
        if self.chunk_in_flow is None:
            return Need.NONE if self.phase is SequencePhase.WAITING_PAGES else Need.RENDER
        segment = self.segments[0]
        has_next_chunk = segment.unrendered_tokens >= segment.tokens_for_next_chunk
        return Need.NONE if has_next_chunk else self._needs_tokens

    @property
    def _needs_tokens(self) -> Need:
        if self.token_pass is not TokenPass.NONE or self.voice.unprepared_pages:
            return Need.NONE
        if self.run is None:
            can_begin = bool(self._text) and (len(self.segments) < 2 or not self.segments[-1].is_complete)
            return Need.PREFILL if can_begin else Need.NONE
        return Need.PREFILL if self.run.inputs else Need.DECODE

    @property
    def joins(self) -> Need:
        """The operation of a language model batch that it may join."""
        max_tokens = AHEAD_CHUNKS * CHUNK_TOKENS + LOOKAHEAD_TOKENS
        if not self.has_capacity or self.unrendered_tokens >= max_tokens:
            return Need.NONE
        return self._needs_tokens

    def candidate(self, now_us: int) -> Candidate | None:
        candidate = super().candidate(now_us)
        if candidate is None:
            return None
        needs = candidate.needs
        pages = 0
        starts = False
        if needs is Need.PREPARE_VOICE:
            pages = self.voice.unprepared_pages
            starts = True
        elif needs is Need.RENDER:
            pages = self.due_pages
            starts = not self.segments[0].pages
        pages_ahead = pages + self.pages_ahead if starts else 0
        draws = 0
        if needs is Need.PREFILL and self._may_render_unread:
            draws, pages, pages_ahead = self._first_chunk_needs()
            starts = True
        return candidate._replace(
            inputs=self.next_inputs if Need.PREFILL in (needs, candidate.joins) else 1,
            tokens_until_due=self.segments[0].tokens_until_due if self.segments else 0,
            on_device_draws=draws,
            pages=pages,
            pages_ahead=pages_ahead,
            starts=starts,
            runs_alone=self.failed_batches > 0,
        )

    @property
    def _may_render_unread(self) -> bool:
        """Whether its first chunk may be rendered from ids that the host has not read."""
        is_first = not self.output.rendered_samples and not self.segments and self.run is None
        return self._first_chunk_on_device and is_first and not self.failed_batches

    def _first_chunk_needs(self) -> tuple[int, int, int]:
        """Return the tokens and pages of the first chunk, and the estimated pages of its audio segment."""
        chunk = self._new_plan().first_chunk
        computed = self.voice.shared_chunks * CHUNK_TOKENS
        pages = -(-(self.voice.prompt_tokens + chunk.end - computed) // CHUNK_TOKENS)
        _, expected_tokens, _ = self._text[0]
        return chunk.known, pages, max(pages, -(-expected_tokens // CHUNK_TOKENS))

    # -- pages --------------------------------------------------------------------------------------------------------

    @property
    def due_pages(self) -> int:
        """Pages that the due chunk takes."""
        chunk = self.due_chunk
        return 0 if chunk is None else self.pages_of(chunk)

    def pages_of(self, chunk: Chunk) -> int:
        """Return the pages that ``chunk`` takes."""
        return -(-(self.voice.prompt_tokens + chunk.end - self.segments[0].computed_tokens) // CHUNK_TOKENS)

    @property
    def pages_ahead(self) -> int:
        """Estimated pages that the current audio segment will still take."""
        if not self.segments:
            return 0
        segment = self.segments[0]
        return -(-max(0, max(segment.expected_tokens, segment.tokens) - segment.rendered_tokens) // CHUNK_TOKENS)

    def claim(self) -> PageClaim | None:
        """Return its claim if it will return pages."""
        may_ask = self.phase is not SequencePhase.WAITING_PAGES
        is_preparing = may_ask and self.has_pending_speech and self.voice.prepared_chunks > 0
        holds = bool(self.segments and self.segments[0].pages) or (is_preparing and self.voice.unprepared_pages > 0)
        if not holds and not is_preparing:
            return None
        return PageClaim(self.key, self.output.paced, holds, self.pages_ahead + self.voice.unprepared_pages)
