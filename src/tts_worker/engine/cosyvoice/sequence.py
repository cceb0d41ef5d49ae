"""One utterance inside the CosyVoice engine: its text, tokens and audio, and the operation that it needs next.

A sequence changes with text, credit and results. The engine schedules it, the runners compute for it.
"""

from __future__ import annotations

from tts_worker.audio.pcm import fade_out, to_float, to_pcm
from tts_worker.engine.cosyvoice.audio.chunks import AHEAD_CHUNKS, Chunk
from tts_worker.engine.cosyvoice.audio.segment import AudioSegment, MelFigures
from tts_worker.engine.cosyvoice.phases import (
    SEQUENCE_TRANSITIONS,
    TOKEN_PASS_TRANSITIONS,
    SequencePhase,
    TextPhase,
    TokenPass,
)
from tts_worker.engine.cosyvoice.token_generator import EngineSpec, TokenGenerator
from tts_worker.engine.cosyvoice.tokens.runs import RunPhase
from tts_worker.engine.cosyvoice.voices.cache import VoiceState
from tts_worker.engine.phases import change_phase
from tts_worker.engine.scheduler import Candidate, Need, PageClaim
from tts_worker.engine.shell import EngineSequence, Input
from tts_worker.errors import SynthesisFailed, UnspeakableText
from tts_worker.types import Done, Expression, Open, Segment

_END_FADE_SAMPLES = 480  # 20 ms, at a truncation


class CosyVoiceSequence(EngineSequence):
    """State of one utterance.

    Attributes:
        generator: Turns text into speech tokens.
        slot: Slot of the language model.
        phase: Where it is in its life.
        token_pass: The pass of the language model that it is in.
        chunk_in_flow: The chunk that the flow computes; a first chunk from unread ids, until its audio is returned.
        failed_batches: Batches with it that failed since its last chunk. With any, it runs alone.
        rendered_chunks: Chunks rendered so far.
        first_ids: Ids that its first chunk was rendered from before the host had read them.
    """

    def __init__(self, command: Open, spec: EngineSpec, slot: int, *, first_chunk_on_device: bool = False) -> None:
        super().__init__(command)
        languages = ", ".join(spec.config.languages)
        self.unspeakable = f'the text contains nothing that the voice "{command.params.voice}" ({languages}) can speak'
        self.generator = TokenGenerator(command.key, command.params, spec)
        self.slot = slot
        self.phase = SequencePhase.WAITING_VOICE
        self.token_pass = TokenPass.NONE
        self.chunk_in_flow: Chunk | None = None
        self.failed_batches = 0
        self.rendered_chunks = 0
        self.first_ids: tuple[int, ...] = ()
        self._first_chunk_on_device = first_chunk_on_device and command.paced
        self._lm_ms = 0.0  # since the last rendered chunk
        flow = spec.config.flow
        self._max_ahead_tokens = AHEAD_CHUNKS * flow.chunk_tokens + flow.lookahead_tokens

    # -- life ---------------------------------------------------------------------------------------------------------

    def enter(self, phase: SequencePhase) -> None:
        """Change the phase.

        Raises:
            ValueError: The change is illegal.
        """
        self.phase = change_phase(self.phase, phase, SEQUENCE_TRANSITIONS)

    def enter_pass(self, token_pass: TokenPass) -> None:
        """Begin or end a pass of the language model.

        Raises:
            ValueError: It is in a pass already.
        """
        self.token_pass = change_phase(self.token_pass, token_pass, TOKEN_PASS_TRANSITIONS)

    @property
    def has_ended(self) -> bool:
        return self.phase is SequencePhase.ENDED

    def set_voice(self, voice: VoiceState) -> None:
        """Set the voice to speak with.

        Raises:
            InvalidRequest: The voice does not support instructions.
        """
        self.generator.set_voice(voice, voice.request(self.params.instruct, self.params.language))
        self.proceed()

    def proceed(self) -> None:
        """Prepare the voice, or speak if it is prepared."""
        voice = self.generator.voice
        assert voice is not None
        phase = SequencePhase.SPEAKING if voice.is_prepared else SequencePhase.PREPARING
        if phase is not self.phase:
            self.enter(phase)

    # -- text ---------------------------------------------------------------------------------------------------------

    def add_text(self, segment: Segment) -> None:
        self.generator.add_text(segment)

    def add_speech(self, tokens: tuple[int, ...]) -> None:
        self.generator.add_speech(tokens)

    def express(self, expression: Expression) -> None:
        self.generator.expression = expression

    def close_text(self) -> None:
        self.generator.close_text()

    def end_text(self) -> None:
        super().end_text()
        self.generator.end_text()

    @property
    def has_pending_speech(self) -> bool:
        return self.generator.has_pending_speech

    @property
    def is_complete(self) -> bool:
        # Truncated speech ends before its text.
        return not self.has_pending_speech and self.generator.phase is not TextPhase.OPEN

    def end(self) -> Done:
        generator = self.generator
        if self.input is Input.ENDED_EMPTY or self.output.rendered_samples:
            return Done(self.key, generator.truncated)
        if generator.has_begun_speech:
            raise SynthesisFailed("the model generated no valid speech; try another seed")
        raise UnspeakableText(self.unspeakable)

    # -- needs --------------------------------------------------------------------------------------------------------

    @property
    def needs(self) -> Need:
        if not self.has_capacity:
            return Need.NONE
        if self.phase is SequencePhase.PREPARING:
            return Need.PREPARE_VOICE if self.generator.has_pending_speech else Need.NONE
        if self.phase is not SequencePhase.SPEAKING:
            return Need.NONE
        segment = self.generator.due_segment
        if segment is None:
            return self._token_need
        if self.chunk_in_flow is None:
            return Need.RENDER
        # While a chunk is rendered, the tokens of the next one can be drawn.
        has_next_chunk = self.generator.unrendered_tokens >= segment.tokens_for_next_chunk
        return Need.NONE if has_next_chunk else self._token_need

    @property
    def joins(self) -> Need:
        """The operation of a token batch that it may join. It needs credit and few unrendered tokens."""
        if not self.has_capacity or self.generator.unrendered_tokens >= self._max_ahead_tokens:
            return Need.NONE
        return self._token_need

    @property
    def _token_need(self) -> Need:
        """PREFILL or DECODE if the language model can continue."""
        generator = self.generator
        can_speak = self.phase is SequencePhase.SPEAKING or self.phase is SequencePhase.WAITING_PAGES
        if self.token_pass is not TokenPass.NONE or not can_speak:
            return Need.NONE
        if generator.run is None:
            can_begin = self.phase is SequencePhase.SPEAKING and generator.can_begin_run
            return Need.PREFILL if can_begin else Need.NONE
        if generator.run.phase is RunPhase.WAITING_TEXT:
            return Need.NONE
        return Need.DECODE if generator.needs_only_last_id else Need.PREFILL

    @property
    def will_continue(self) -> bool:
        """Whether more audio follows without more text or credit."""
        if not self.generator.audio_segments or not self.has_capacity:
            return False
        return self._is_in_pass or self.in_flight_samples > 0 or self.needs is not Need.NONE

    @property
    def _is_in_pass(self) -> bool:
        return self.token_pass is not TokenPass.NONE or self.chunk_in_flow is not None

    def candidate(self, now_us: int) -> Candidate | None:
        candidate = super().candidate(now_us) if self.has_capacity else None
        if candidate is None:
            return None
        needs = candidate.needs
        segment = self._first_segment
        pages, starts = self._pages(needs)
        pages_ahead = pages + (0 if segment is None else segment.pages_ahead) if starts else 0
        draws = 0
        if needs is Need.PREFILL and self._may_render_unread:
            draws, pages, pages_ahead = self.generator.first_chunk_needs()
            starts = True
        return candidate._replace(
            inputs=self.generator.next_inputs if Need.PREFILL in (needs, candidate.joins) else 1,
            tokens_until_due=0 if segment is None else segment.tokens_until_due,
            on_device_draws=draws,
            pages=pages,
            pages_ahead=pages_ahead,
            starts=starts,
            runs_alone=self.failed_batches > 0,
        )

    @property
    def _may_render_unread(self) -> bool:
        """Whether its first chunk may be rendered from ids that the host has not read."""
        is_first = not self.output.rendered_samples and self.generator.is_before_first_chunk
        return self._first_chunk_on_device and is_first and not self.failed_batches and not self._is_in_pass

    # -- pages --------------------------------------------------------------------------------------------------------

    @property
    def _first_segment(self) -> AudioSegment | None:
        return self.generator.audio_segments[0] if self.generator.audio_segments else None

    def _pages(self, needs: Need) -> tuple[int, bool]:
        """Return the pages that ``needs`` takes, and whether it starts a prompt or an audio segment."""
        voice = self.generator.voice
        segment = self._first_segment
        if needs is Need.PREPARE_VOICE and voice is not None:
            return voice.pages_ahead, True
        if needs is Need.RENDER and segment is not None:
            return segment.next_pages, segment.state.flow is None
        return 0, False

    @property
    def page_claim(self) -> PageClaim | None:
        """Its claim to pages; None if it neither holds nor is about to take any."""
        voice = self.generator.voice
        segment = self._first_segment
        if voice is None:
            return None
        is_about_to = (
            self.phase in (SequencePhase.PREPARING, SequencePhase.SPEAKING)
            and self.generator.has_pending_speech
            and voice.flow is not None
        )
        holds_segment = segment is not None and segment.state.flow is not None
        if not holds_segment and not is_about_to:
            return None
        ahead = voice.pages_ahead + (0 if segment is None else segment.pages_ahead)
        return PageClaim(self.key, self.output.paced, holds_segment or not voice.is_prepared, ahead)

    # -- results ------------------------------------------------------------------------------------------------------

    def take_ids(self, ids: list[int], lm_ms: float) -> None:
        """Process drawn ids."""
        self._lm_ms += lm_ms
        self.generator.process_ids(ids)

    def has_spoken(self, segment: AudioSegment, chunk: Chunk) -> bool:
        """Whether ``chunk``, rendered before its ids were read, is the one that is due in ``segment``."""
        first = self._first_segment
        is_due = first is segment and segment.due_chunk == chunk
        return is_due and tuple(segment.tokens[: chunk.known]) == self.first_ids

    def take_audio(
        self, segment: AudioSegment, chunk: Chunk, pcm: bytes, mel: MelFigures, flow_ms: float, vocoder_ms: float
    ) -> None:
        """Append the audio of ``chunk`` to the output buffer. A final chunk ends its segment."""
        if segment.base_sample is None:
            segment.base_sample = self.output.rendered_samples
        words = segment.take_words(chunk)
        pcm = segment.finish(pcm, final=chunk.final)
        if chunk.final and self.generator.truncated is not None and len(self.generator.audio_segments) == 1:
            pcm = to_pcm(fade_out(to_float(pcm), _END_FADE_SAMPLES))
        self.output.render(
            pcm,
            words,
            text_range=segment.text_range,
            wall_ms=self._lm_ms + flow_ms + vocoder_ms,
            stages_ms=(("lm", self._lm_ms), ("flow", flow_ms), ("vocoder", vocoder_ms)),
            details=segment.count_frames(chunk, mel),
        )
        self._lm_ms = 0.0
        self.in_flight_samples = 0
        self.failed_batches = 0
        self.rendered_chunks += 1
        if chunk.final:
            self.generator.audio_segments.popleft()
